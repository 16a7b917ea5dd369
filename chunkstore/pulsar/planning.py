"""Which bytes of which data segments hold which entries of a topic's ledgers.

Promises: plain data that can be sent to other processes; ranges by ledger, then by entry; no entry is in two of them. Complete
offload segments are known from their index, open ones by walking the block headers: a block is appended as a whole, so what
is there is whole. Leaves out: reading entries (``reader``), which chunks the bytes are in (``store.layout``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from chunkstore.codec.pulsar.block_index import INDEX_BYTES_MAX, Block, BlockRef, BlockSpan, LedgerRange
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, ENTRY_ID_MAX, LEDGER_UNKNOWN, PIP76, DataSource
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo
from chunkstore.codec.pulsar.pip76 import LedgerGroup, SegmentIndex, SegmentReader, read_index
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.pulsar.contexts import Context, LedgerNotFound, Stored, check_topic, iter_contexts
from chunkstore.pulsar.ledger_rows import LedgerRows
from chunkstore.records.arguments import SegmentHandle

__all__ = ["BLOCKS_MAX", "Block", "BlockWalk", "LedgerRange", "TopicPlanner", "TopicPosition", "plan", "reader_of"]

BLOCKS_MAX = 65_536
"""Blocks in one offload segment: the writer begins another one then."""
_KEPT: Final = 4
"""Offload segments whose blocks a planner remembers."""


class TopicPosition(NamedTuple):
    """A place in a topic: the offload segments below ``sequence``, and the first ``offset`` bytes of the data of that one. Positions
    compare as the entries after them were written, and survive merges. ``(0, 0)``: the beginning."""

    sequence: int
    offset: int


def _always(_part: LedgerRange) -> bool:
    return True


def plan(
    store: Stored,
    topic: str,
    ledgers: Sequence[int] | None = None,
    blocks: Callable[[LedgerRange], bool] = _always,
) -> tuple[LedgerRange, ...]:
    """The parts of these ledgers (None: all of the topic's), by ledger, then by entry.

    What is acknowledged when this is called is in the answer. A part of a complete offload segment for which ``blocks`` is false may
    come without its blocks: it is what the context says, and where no index is needed none is read.

    Raises ``InvalidArgument``, ``LedgerNotFound``, ``Damaged`` (a context, an index or a block header is wrong), and what reading raises.
    """
    return TopicPlanner(store, topic).plan(ledgers, blocks=blocks)


class TopicPlanner:
    """Plans one topic again and again. Of an open offload segment each block header is read once, in whatever call needs it first, and
    of a complete one nothing but its index.

    Where new whole entries are is a matter of positions: ``begin`` says from where on there are any, ``end`` up to where, ``borders`` which
    positions between two of these are ends of blocks (a block is there as a whole, and so are its entries), ``between`` which blocks of
    which ledgers are there. So after reading up to a position, go on with ``between(position, end())``, or up to the last of ``borders``
    that is wanted. Positions may be kept, and given to another planner.

    ``store``: an owner or a replica (refreshed by the caller); not thread-safe. Every call raises ``Damaged`` (a context, an index or a
    block header is wrong), ``SegmentNotFound`` (a data segment was deleted), ``SegmentTruncated``, and what reading raises; it changes
    nothing, so a retry is safe.
    """

    def __init__(self, store: Stored, topic: str) -> None:
        self.topic: str = check_topic(topic)
        self._store = store
        self._walks: dict[bytes, BlockWalk] = {}
        """By uuid: of open offload segments, and of those that were planned last and are complete by now."""
        self._indexes: OrderedDict[bytes, list[BlockSpan]] = OrderedDict()
        """By uuid: the blocks of complete ones, for a while."""

    def plan(
        self, ledgers: Sequence[int] | None = None, *, blocks: Callable[[LedgerRange], bool] = _always
    ) -> tuple[LedgerRange, ...]:
        """As ``chunkstore.pulsar.plan``. Of each ledger of an open offload segment the last block is read, once."""
        wanted = None if ledgers is None else set(ledgers)
        rows = LedgerRows(self._store, self.topic).all()
        ranges: list[LedgerRange] = []
        contexts = self._contexts()
        for context in contexts:
            parts = self._parts(context, wanted, blocks)
            ranges += [item for item in parts if item.ledger not in rows or not rows[item.ledger].is_gone(item.segment)]
        # Entries ascend from one offload segment to the next, and sorting is stable.
        ranges.sort(key=lambda item: item.ledger)
        if not contexts or (wanted is None and not ranges):
            raise LedgerNotFound(self.topic)
        for ledger in sorted((wanted or set()) - {item.ledger for item in ranges}):
            raise LedgerNotFound(self.topic, ledger)
        return tuple(ranges)

    def begin(self) -> TopicPosition:
        """The position in front of all entries that are there; a caller that is below it has lost what was in between."""
        return TopicPosition(next((context.sequence for context in self._contexts()), 0), 0)

    def end(self) -> TopicPosition:
        """The position after all entries that are acknowledged now; ``(0, 0)`` where there are none."""
        for context in reversed(self._contexts()):
            length = context.data_length if context.complete else self._walk(context).position
            if length:
                return TopicPosition(context.sequence, length)
        return TopicPosition(0, 0)

    def borders(self, start: TopicPosition, stop: TopicPosition) -> Iterator[TopicPosition]:
        """The ends of the blocks between two positions, ascending: where a reader may stop. Raises ``InvalidArgument`` as ``between``."""
        for context, spans in self._blocks(start, stop):
            yield from (TopicPosition(context.sequence, span.end) for span in spans)

    def between(self, start: TopicPosition, stop: TopicPosition) -> tuple[LedgerRange, ...]:
        """The blocks between two positions, by offload segment and ledger, as they were written.

        ``last_entry`` is a bound where the last block of a ledger is open or not among them: its entries are those up to it. ``entries`` is
        0 unless a range holds all that its offload segment has of its ledger. Raises ``InvalidArgument`` (a position is no end of a block:
        it is of another topic or container), and see the class.
        """
        found: list[LedgerRange] = []
        for context, spans in self._blocks(start, stop):
            wholes = {item.ledger: item for item in context.ranges}
            following = [span for span in self._spans(context) if span.start >= spans[-1].end]
            for part in self._ranges(context, spans):
                whole = wholes.get(part.ledger)
                later = next((span.first_entry for span in following if span.ledger == part.ledger), None)
                last, entries = part.last_entry if later is None else later - 1, 0
                if later is None and whole is not None:
                    last = whole.last_entry
                    entries = whole.entries if part.first_entry == whole.first_entry else 0
                found.append(part._replace(last_entry=last, entries=entries))
        return tuple(found)

    # Helpers

    def _contexts(self) -> list[Context]:
        contexts = iter_contexts(self._store, self.topic)
        kept = {context.uuid for context in contexts[-_KEPT:]}
        self._walks = {uuid: walk for uuid, walk in self._walks.items() if uuid in kept}
        return contexts

    def _walk(self, context: Context) -> BlockWalk:
        walk = self._walks.setdefault(context.uuid, BlockWalk(context.data))
        walk.go_on(self._store)
        return walk

    def _spans(self, context: Context) -> list[BlockSpan]:
        """The blocks of an offload segment, by position."""
        walk = self._walks.get(context.uuid)
        if not context.complete or (walk is not None and walk.position == context.data_length):
            return self._walk(context).spans
        if context.uuid not in self._indexes:
            self._indexes[context.uuid] = _read_index(self._store, context).spans()
            if len(self._indexes) > _KEPT:
                self._indexes.popitem(last=False)
        return self._indexes[context.uuid]

    def _blocks(self, start: TopicPosition, stop: TopicPosition) -> Iterator[tuple[Context, list[BlockSpan]]]:
        for context in self._contexts():
            if not start.sequence <= context.sequence <= stop.sequence:
                continue
            low = start.offset if context.sequence == start.sequence else 0
            high = stop.offset if context.sequence == stop.sequence else None
            if high == 0 or (context.complete and low == context.data_length):
                continue
            spans = self._spans(context)
            ends = {0, *(span.end for span in spans)}
            if low not in ends or (high is not None and high not in ends):
                what = f"{low} to {spans[-1].end if spans and high is None else high}"
                text = f"bytes {what} of {context.data} do not begin and end at blocks; they belong to another topic or container"
                raise InvalidArgument(text, argument="start" if low not in ends else "stop")
            chosen = [span for span in spans if span.start >= low and (high is None or span.end <= high)]
            if chosen:
                yield context, chosen

    def _parts(
        self, context: Context, wanted: set[int] | None, blocks: Callable[[LedgerRange], bool]
    ) -> list[LedgerRange]:
        """The parts of the ``wanted`` ledgers in one offload segment: by its context where that is enough, else with their blocks."""
        said = {
            ledger: LedgerRange(self.topic, ledger, first, last, context.data, (), True, entries)
            for ledger, first, last, entries in context.ranges
            if wanted is None or ledger in wanted
        }
        if context.complete and not any(map(blocks, said.values())):
            return list(said.values())
        parts = self._ranges(context, self._spans(context), wanted)
        if not context.complete:
            lasts = self._walk(context).last_entries(self._store, wanted)
            return [part._replace(last_entry=lasts[part.ledger]) for part in parts if part.ledger in lasts]
        if any(part.ledger not in said for part in parts):
            text = "the index holds ledgers that the offload context does not"
            raise Damaged(text, object=f"segment {context.index_segment}")
        return [said[part.ledger]._replace(first_entry=part.first_entry, blocks=part.blocks) for part in parts]

    def _ranges(
        self, context: Context, spans: Iterable[BlockSpan], wanted: set[int] | None = None
    ) -> list[LedgerRange]:
        """The parts of (wanted) ledgers in some blocks, by their order there; ``last_entry`` is a bound."""
        rows: dict[int, list[Block]] = {}
        for span in spans:
            if wanted is None or span.ledger in wanted:
                rows.setdefault(span.ledger, []).append(Block(span.first_entry, span.start, span.end))
        return [
            LedgerRange(
                self.topic, ledger, row[0].first_entry, ENTRY_ID_MAX, context.data, tuple(row), context.complete
            )
            for ledger, row in rows.items()
        ]


def _read_index(store: Stored, context: Context) -> SegmentIndex:
    name = f"segment {context.index_segment}"
    if context.index_length > INDEX_BYTES_MAX:
        raise Damaged(f"an index of {context.index_length} bytes; at most {INDEX_BYTES_MAX}", object=name)
    index = read_index(store.read(context.index_segment, 0, context.index_length), object=name)
    stored = store.info(context.data).length
    if index.data_length != context.data_length or stored != context.data_length:
        text = (
            f"{stored} bytes of data are stored; the context has {context.data_length}, the index {index.data_length}"
        )
        raise Damaged(text, object=name, position=8)
    return index


class BlockWalk:
    """The blocks of a data segment that has no index yet, by their headers, each of which is read once: a small read.

    What was read holds as long as the segment is the same one, by its id, no shorter, and the last block is where it was: bytes at a
    position never change but by an accepted rollback, which may give them to other blocks.
    """

    def __init__(self, segment: str) -> None:
        self._segment = segment
        self._begin(0)

    def _begin(self, identity: int) -> None:
        self._identity = identity
        self.spans: list[BlockSpan] = []
        self.position = 0
        self._lasts: dict[int, int] = {}
        """By where a block begins: its last entry."""

    def go_on(self, store: Stored) -> None:
        """Read the headers that are new. Raises ``Damaged`` where no block begins, one reaches beyond the end, or there are too many;
        ``SegmentNotFound``."""
        handle = store.open_read(self._segment)
        length = store.info(handle).length
        if handle.segment_id != self._identity or length < self.position:
            self._begin(handle.segment_id)
        elif self.spans and length > self.position:
            last = self.spans[-1]
            if self._read(store, handle, last.start, length) != last:
                self._begin(handle.segment_id)
        while self.position < length:
            span = self._read(store, handle, self.position, length)
            if len(self.spans) >= BLOCKS_MAX:
                raise self._damage(f"more than {BLOCKS_MAX} blocks", self.position)
            self.spans.append(span)
            self.position = span.end

    def last_entries(self, store: Stored, wanted: set[int] | None = None) -> dict[int, int]:
        """The last entry of each (wanted) ledger: the last block of each is read, once. Raises ``Damaged``."""
        final: dict[int, BlockSpan] = {}
        for span in self.spans:
            before = final.get(span.ledger)
            if before is not None and span.first_entry <= before.first_entry:
                first = f"a block of ledger {span.ledger} begins with entry {span.first_entry}"
                raise self._damage(f"{first} after one of entry {before.first_entry}", span.start)
            if wanted is None or span.ledger in wanted:
                final[span.ledger] = span
        for ledger, span in final.items():
            if span.start not in self._lasts:
                block = Block(span.first_entry, span.start, span.end)
                for window in reader_of(store, self._segment, ledger, (block,)).windows(ledger):
                    self._lasts[span.start] = window.last
        return {ledger: self._lasts[span.start] for ledger, span in final.items() if span.start in self._lasts}

    def _read(self, store: Stored, handle: SegmentHandle, position: int, length: int) -> BlockSpan:
        name = f"segment {self._segment}"
        header = PIP76.parse(store.read(handle, position, BLOCK_HEADER_BYTES), object=name, position=position)
        if header.length > length - position:
            raise self._damage(f"a block of {header.length} bytes, but {length - position} are left", position)
        return BlockSpan(header.ledger, header.first_entry, 1 << 63, position, position + header.length)

    def _damage(self, what: str, position: int) -> Damaged:
        return Damaged(what, object=f"segment {self._segment}", position=position)


def reader_of(store: Stored, segment: str, ledger: int, blocks: Sequence[Block]) -> SegmentReader:
    """A reader of these blocks, which ascend; others may be between them. It sees an object that ends where they end."""
    end = blocks[-1].stop
    refs = tuple(BlockRef(block.first_entry, number, block.start) for number, block in enumerate(blocks, 1))
    holes = tuple(BlockRef(0, 0, block.stop) for block, after in pairwise(blocks) if block.stop != after.start)
    rows = ((ledger, refs), (LEDGER_UNKNOWN, holes))
    index = SegmentIndex(end, tuple(LedgerGroup(owner, LedgerInfo(ledger=owner), b"", row) for owner, row in rows))
    source = DataSource(f"segment {segment}", end, lambda offset, length: store.read(segment, offset, length))
    return SegmentReader(source, index)
