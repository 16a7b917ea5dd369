"""Which bytes of which data segments hold which entries of a topic's ledgers.

Promises: plain data that can be sent to other processes; ranges by ledger, then by entry; no entry is in two of them. Complete
offload segments are known from their index, open ones by walking the block headers: a block is appended as a whole, so what
is there is whole. Leaves out: reading entries (``reader``), which chunks the bytes lie in (``store.layout``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chunkstore.codec.pulsar.offload_metadata import LedgerInfo
from chunkstore.codec.pulsar.pip76 import BLOCK_HEADER_BYTES, DataSource, entry_id_at, parse_block_header
from chunkstore.codec.pulsar.pip76_index import (
    INDEX_BYTES_MAX,
    BlockRef,
    BlockSpan,
    LedgerGroup,
    SegmentIndex,
    read_index,
)
from chunkstore.codec.pulsar.pip76_reader import SegmentReader
from chunkstore.codec.pulsar.ranges import Block, LedgerRange
from chunkstore.errors import Damaged
from chunkstore.pulsar.contexts import Context, LedgerNotFound, Stored, check_topic, iter_contexts

__all__ = ["BLOCKS_MAX", "Block", "LedgerRange", "last_entries", "plan", "plan_context", "reader_of", "walk_blocks"]

BLOCKS_MAX = 65_536
"""Blocks in one offload segment: the writer begins another one then."""


def plan(store: Stored, topic: str, ledgers: Sequence[int] | None = None) -> tuple[LedgerRange, ...]:
    """The parts of these ledgers (None: all of the topic's), by ledger, then by entry.

    What is acknowledged when this is called is in the answer. Raises ``InvalidArgument``, ``LedgerNotFound``, ``Damaged`` (a
    context, an index or a block header is wrong), and what reading raises.
    """
    check_topic(topic)
    wanted = None if ledgers is None else set(ledgers)
    ranges: list[LedgerRange] = []
    contexts = iter_contexts(store, topic)
    for context in contexts:
        if wanted is None or not context.complete or any(item.ledger in wanted for item in context.ranges):
            ranges += plan_context(store, context, wanted)
    # Entries ascend from one offload segment to the next, and sorting is stable.
    ranges.sort(key=lambda item: item.ledger)
    if not contexts or (wanted is None and not ranges):
        raise LedgerNotFound(topic)
    for ledger in sorted(wanted - {item.ledger for item in ranges}) if wanted is not None else ():
        raise LedgerNotFound(topic, ledger)
    return tuple(ranges)


def plan_context(store: Stored, context: Context, wanted: set[int] | None = None) -> list[LedgerRange]:
    """The parts that one offload segment holds, of the ``wanted`` ledgers. Raises as ``plan``."""
    if context.complete:
        spans = _read_index(store, context).spans()
        lasts = {item.ledger: item.last_entry for item in context.ranges}
    else:
        spans = walk_blocks(store, context.data)
        lasts = last_entries(store, context.data, spans, wanted)
    blocks: dict[int, list[Block]] = {}
    for span in spans:
        if wanted is None or span.ledger in wanted:
            blocks.setdefault(span.ledger, []).append(Block(span.first_entry, span.start, span.end))
    if any(ledger not in lasts for ledger in blocks):
        raise Damaged(
            "the index holds ledgers that the offload context does not", object=f"segment {context.index_segment}"
        )
    return [
        LedgerRange(
            context.topic, ledger, row[0].first_entry, lasts[ledger], context.data, tuple(row), context.complete
        )
        for ledger, row in blocks.items()
    ]


def _read_index(store: Stored, context: Context) -> SegmentIndex:
    name = f"segment {context.index_segment}"
    if context.index_length > INDEX_BYTES_MAX:
        raise Damaged(f"an index of {context.index_length} bytes; at most {INDEX_BYTES_MAX}", object=name)
    index = read_index(store.read(context.index_segment, 0, context.index_length), object=name)
    stored = store.info(context.data).length
    if index.data_length != context.data_length or stored != context.data_length:
        raise Damaged(
            f"{stored} bytes of data are stored; the context says {context.data_length}, the index {index.data_length}",
            object=name,
            position=8,
        )
    return index


def walk_blocks(store: Stored, segment: str) -> list[BlockSpan]:
    """The blocks of a data segment that has no index yet, by their headers. One small read a block.

    Raises ``Damaged`` where no block begins, one reaches beyond the end, or there are too many; ``SegmentNotFound``.
    """
    name = f"segment {segment}"
    length = store.info(segment).length
    spans: list[BlockSpan] = []
    position = 0
    while position < length:
        header = parse_block_header(store.read(segment, position, BLOCK_HEADER_BYTES), object=name, position=position)
        if header.length > length - position:
            raise Damaged(
                f"a block of {header.length} bytes, but {length - position} are left", object=name, position=position
            )
        if len(spans) >= BLOCKS_MAX:
            raise Damaged(f"more than {BLOCKS_MAX} blocks", object=name, position=position)
        end = position + header.length
        spans.append(BlockSpan(header.ledger, header.first_entry, 1 << 63, position, end))
        position = end
    return spans


def last_entries(
    store: Stored, segment: str, spans: Iterable[BlockSpan], wanted: set[int] | None = None
) -> dict[int, int]:
    """The last entry of each (wanted) ledger in these blocks: the last block of each is read. Raises ``Damaged``."""
    final: dict[int, BlockSpan] = {}
    for span in spans:
        if wanted is None or span.ledger in wanted:
            before = final.get(span.ledger)
            if before is not None and span.first_entry <= before.first_entry:
                raise Damaged(
                    f"a block of ledger {span.ledger} begins with entry {span.first_entry} behind one of entry "
                    f"{before.first_entry}",
                    object=f"segment {segment}",
                    position=span.start,
                )
            final[span.ledger] = span
    found: dict[int, int] = {}
    for ledger, span in final.items():
        block = Block(span.first_entry, span.start, span.end)
        for window in reader_of(store, segment, ledger, (block,)).windows(ledger):
            found[ledger] = entry_id_at(window.data, window.marks[-2])
    return found


def reader_of(store: Stored, segment: str, ledger: int, blocks: Sequence[Block]) -> SegmentReader:
    """A reader of blocks that lie one behind the other: it sees an object that ends where they end."""
    end = blocks[-1].stop
    refs = tuple(BlockRef(block.first_entry, number, block.start) for number, block in enumerate(blocks, 1))
    index = SegmentIndex(end, (LedgerGroup(ledger, LedgerInfo(ledger=ledger), b"", refs),))
    source = DataSource(f"segment {segment}", end, lambda offset, length: store.read(segment, offset, length))
    return SegmentReader(source, index)
