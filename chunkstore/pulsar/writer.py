"""Filling a topic's offload segments: ``SegmentFiller`` as pure bytes, for a caller that stores them; ``OffloadWriter`` at the owner.

Promises: which entries may follow, where blocks and offload segments end, and what index and context say, is decided by the filler alone;
the same entries give the same bytes, added one by one or as arrays, however cut. The writer appends a block at its exact offset, there as a
whole or not at all, durable and fenced: the acknowledgement of its entries (``last_entry``). An offload segment begins with one commit and
ends with one. A writer that is made where an open one was left goes on after the last acknowledged block. After an error of ``append`` or
``commit`` the writer is broken: ``resume`` makes another one. Leaves out: who decides what is offloaded when; two writers of one topic at a
time (the second one to write gets ``BadOffset`` or ``Conflict``, nothing is mixed up).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from chunkstore.changes import Append, Change, Create, Seal, TablePut
from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import BlockSpan
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES, check_entry
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo
from chunkstore.codec.pulsar.pip76 import SegmentEncoder
from chunkstore.config import KIB, MIB, RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Closed, InvalidArgument
from chunkstore.pulsar.contexts import (
    LEDGERS_MAX,
    NAMESPACE,
    Context,
    EntryRange,
    check_topic,
    encode_context,
    iter_contexts,
    key_of,
    new_context,
)
from chunkstore.pulsar.planning import BLOCKS_MAX, BlockWalk

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Filled", "OffloadWriter", "SegmentFiller", "completion"]

_BLOCK_BYTES_LEAST: Final = 4 * KIB
_BLOCK_BYTES_MOST: Final = 64 * MIB
_SEGMENT_BYTES_MOST: Final = 1 << 40
_NO_FIRST_ENTRY: Final = BLOCK_HEADER_BYTES
"""Pulsar's reader begins with the object's first bytes: read as an entry, a block header has its own length as its id."""


class Filled(NamedTuple):
    """What completes an offload segment: the length of its data, its index, and the entries that its context tells of."""

    data_length: int
    index_data: bytes
    ranges: tuple[EntryRange, ...]


class SegmentFiller:
    """Not thread-safe. ``put`` is called with each block, ``complete`` with what completes an offload segment; a block that follows is the
    first of the next one. Where they raise, the error passes through, and the filler is of no use any more.

    An offload segment ends with the block at which its data have reached ``segment_bytes_max``, or where no block or ledger more fits; one
    block later where the next one would go on with entry 128 of its ledger (Pulsar's own reader fails on that as the first entry of a
    ledger in a segment). Raises ``InvalidArgument``.
    """

    def __init__(
        self,
        put: Callable[[EncodedBlock], object],
        complete: Callable[[Filled], object],
        *,
        segment_bytes_max: int = 64 * MIB,
        block_bytes: int = 1 * MIB,
    ) -> None:
        for value, least, most, argument in (
            (segment_bytes_max, 1, _SEGMENT_BYTES_MOST, "segment_bytes_max"),
            (block_bytes, _BLOCK_BYTES_LEAST, _BLOCK_BYTES_MOST, "block_bytes"),
        ):
            if type(value) is not int or not least <= value <= most:
                raise InvalidArgument(f"{argument} is {least} to {most} bytes, not {value!r}", argument=argument)
        self._put = put
        self._complete = complete
        self._segment_bytes_max = segment_bytes_max
        self._block_bytes = block_bytes
        self.lasts: dict[int, int] = {}
        """By ledger: the last entry that ``put`` has taken, or of which somebody else is known to have it."""
        self._sizes: dict[int, int | None] = {}
        """By ledger: bytes of all its payloads; None: not known, because this filler has not seen all of them."""
        self._begin()

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that wait for their block to be cut."""
        return self._encoder.pending_bytes

    def last_added(self, ledger: int) -> int:
        """The last entry of ``ledger`` that was added, or is known; -1 if there is none."""
        return max(self.lasts.get(ledger, -1), self._added.get(ledger, -1))

    def append(self, ledger: int, entry: int, payload: BytesLike) -> None:
        """Add one entry. Ids ascend within a ledger, over all offload segments, and may leave gaps. Another ledger than before ends the
        block. Raises ``InvalidArgument`` (nothing was added)."""
        self._check(ledger, entry, len(payload))
        self._make_room(ledger, entry, len(payload))
        self._encoder.append(entry, payload)
        self._added[ledger] = entry

    def append_batch(self, ledger: int, first: int, payloads: pa.Array | pa.ChunkedArray) -> None:
        """Add an Arrow array of payloads with the ids from ``first`` on, without gaps. As ``append``; needs pyarrow and numpy."""
        from chunkstore.codec.pulsar.arrow import append_fitting, checked_payloads, longest_of

        chunks = checked_payloads(payloads)
        if not chunks:
            return
        self._check(ledger, first, longest_of(chunks))
        check_entry(first + sum(map(len, chunks)) - 1, 0, first - 1)
        for chunk in chunks:
            done = 0
            while done < len(chunk):
                self._make_room(ledger, first, chunk[done].as_buffer().size)
                added = append_fitting(self._encoder, first, chunk.slice(done))
                done, first = done + added, first + added
                self._added[ledger] = first - 1

    def adopt(self, span: BlockSpan, last_entry: int) -> None:
        """As ``SegmentEncoder.adopt``; how many entries there are is not known then."""
        self._encoder.adopt(span, last_entry)
        self._firsts.setdefault(span.ledger, span.first_entry)
        self._counts[span.ledger] = self._sizes[span.ledger] = None
        self._blocks += 1
        self.lasts[span.ledger] = last_entry

    def flush(self) -> None:
        """Hand out the block at hand, however short."""
        self._encoder.cut()

    def complete(self) -> None:
        """Flush, and complete the offload segment at hand if it has entries."""
        self._encoder.cut()
        length = self._encoder.length
        if length:
            for ledger in self._firsts:
                self._encoder.describe(LedgerInfo(ledger=ledger, size=self._sizes[ledger]))
            index = self._encoder.finish()
            ranges = (
                EntryRange(ledger, first, self.lasts[ledger], self._counts[ledger] or 0)
                for ledger, first in sorted(self._firsts.items())
            )
            self._complete(Filled(length, index, tuple(ranges)))
            self._begin()

    # Helpers

    def _begin(self) -> None:
        self._encoder = SegmentEncoder(self._take, block_bytes_max=self._block_bytes)
        self._firsts: dict[int, int] = {}
        self._counts: dict[int, int | None] = {}
        """Entries by ledger; None: there are blocks of another writer."""
        self._added: dict[int, int] = {}
        self._blocks = 0
        self._ledger = -1

    def _check(self, ledger: int, entry: int, length: int) -> None:
        if type(ledger) is not int or type(entry) is not int:
            raise InvalidArgument("ledger and entry are whole numbers", argument="ledger")
        check_entry(entry, length, self.last_added(ledger))
        if ledger < 0 or ledger >> 63:
            raise InvalidArgument(f"ledger id {ledger}", argument="ledger")

    def _make_room(self, ledger: int, entry: int, length: int) -> None:
        """Make ``ledger`` the one at hand, with room for the entry, in this offload segment or the next one."""
        if ledger != self._ledger or ENTRY_HEADER_BYTES + length > self._encoder.room:
            self._encoder.cut()
        if not self.pending_bytes:
            self._begin_block(ledger, entry)

    def _begin_block(self, ledger: int, entry: int) -> None:
        known = ledger in self._firsts
        full = self._encoder.length >= self._segment_bytes_max or self._blocks >= BLOCKS_MAX - 1
        shifted = known and entry == _NO_FIRST_ENTRY and self._blocks < BLOCKS_MAX
        if (full and not shifted) or (not known and len(self._firsts) >= LEDGERS_MAX):
            self.complete()
        if ledger != self._ledger:
            self._encoder.begin_ledger(ledger)
            self._ledger = ledger

    def _take(self, block: EncodedBlock) -> None:
        """The encoder's sink."""
        self._put(block)
        self._blocks += 1
        self._firsts.setdefault(block.ledger, block.first_entry)
        self.lasts[block.ledger] = block.last_entry
        before = self._counts.get(block.ledger, 0)
        self._counts[block.ledger] = None if before is None else before + block.entries
        size = self._sizes.get(block.ledger, None if block.first_entry else 0)
        self._sizes[block.ledger] = None if size is None else size + block.payload_bytes


class _Guard:
    """Breaks a writer where a step fails that may have changed something."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.closed = False
        self.error: ChunkstoreError | None = None

    def __enter__(self) -> None:
        if self.closed:
            raise Closed(f"the writer of topic {self._topic!r}")
        if self.error is not None:
            raise self.error.copy()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, InvalidArgument):
            return  # before anything was done
        if isinstance(error, ChunkstoreError):
            self.error = error
        elif error is not None:
            self.closed = True


class OffloadWriter:
    """Writes ``topic``; not thread-safe. A context manager: left in peace it flushes and completes, left by an error it does not.

    Arguments: ``segment_bytes_max``: an offload segment is completed when its data has reached this many bytes (it ends with a
    block, so it may be longer by one); ``block_bytes``: how many bytes of entries are acknowledged together (4 KiB to 64 MiB;
    an entry that is longer gets a block of its own); ``rolling``: of the data segments' chunks.

    Raises ``InvalidArgument``, ``Damaged`` (an open offload segment cannot be gone on with), and what reading raises.
    """

    def __init__(
        self,
        store: ChunkedSegmentStorage,
        topic: str,
        *,
        segment_bytes_max: int = 64 * MIB,
        block_bytes: int = 1 * MIB,
        rolling: RollingPolicy | None = None,
    ) -> None:
        self.topic: str = check_topic(topic)
        self._filler = SegmentFiller(
            self._put_block, self._complete_segment, segment_bytes_max=segment_bytes_max, block_bytes=block_bytes
        )
        self._store = store
        self._segment_bytes_max = segment_bytes_max
        self._block_bytes = block_bytes
        self._rolling = rolling
        self._guard = _Guard(topic)
        self._sequence = -1
        self._context: Context | None = None
        self.completed: Context | None = None
        """The last offload segment that this writer has completed."""
        self.segments_completed: int = 0
        """Offload segments that this writer has completed."""
        self.entries_acknowledged: int = 0
        """Entries that were acknowledged to this writer."""
        lasts = self._filler.lasts
        for context in iter_contexts(store, topic):
            self._sequence = context.sequence
            for item in context.ranges:
                lasts[item.ledger] = max(item.last_entry, lasts.get(item.ledger, -1))
            if not context.complete:
                self._go_on(context)

    # What there is

    @property
    def open_segment(self) -> str | None:
        """The name of the data segment that is being filled; None between two of them."""
        return None if self._context is None else self._context.data

    @property
    def open_context(self) -> Context | None:
        """The offload segment that is being filled; None between two of them."""
        return self._context

    @property
    def pending_bytes(self) -> int:
        """Bytes of added entries, each with its header of 12 bytes, that no append has taken."""
        return self._filler.pending_bytes

    @property
    def last_position(self) -> tuple[int, int] | None:
        """The highest ledger that has entries, and its last acknowledged one; None: there are none."""
        return max(self._filler.lasts.items(), default=None)

    def last_entry(self, ledger: int) -> int:
        """The last acknowledged entry of ``ledger``, of any writer; -1 if there is none."""
        return self._filler.lasts.get(ledger, -1)

    # Writing

    def assign(
        self, begin: tuple[int, int], *, uuid: bytes | None = None, driver: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Begin the next offload segment at once, as one of a streaming offload that starts with ledger and entry ``begin``; durable.

        Raises ``InvalidArgument`` (one is open), ``SegmentExists`` (the uuid was used), ``Closed``, and see the class.
        """
        with self._guard:
            if self._context is not None:
                raise InvalidArgument(f"{self._context.data} is open: complete it first", argument="begin")
            new = new_context(self.topic, self._sequence + 1)
            self._begin_segment(new._replace(uuid=uuid or new.uuid, begin=begin, driver=driver))

    def append(self, ledger: int, entry: int, payload: BytesLike) -> None:
        """Add one entry; acknowledged when ``last_entry(ledger)`` has reached it. May append a block, begin and end segments.

        Ids ascend within a ledger, over all offload segments, and may leave gaps. Another ledger than before ends the block.
        Raises ``InvalidArgument`` (nothing changed), ``Closed``, and see the class.
        """
        with self._guard:
            self._filler.append(ledger, entry, payload)

    def append_batch(self, ledger: int, first: int, payloads: pa.Array | pa.ChunkedArray) -> None:
        """Add an Arrow array of payloads with the ids from ``first`` on, without gaps. As ``append``; needs pyarrow.

        If its bytes span several blocks, these are acknowledged one by one.
        """
        with self._guard:
            self._filler.append_batch(ledger, first, payloads)

    def flush(self) -> None:
        """Have everything acknowledged that was added: appends the block at hand, however short. Raises: see the class."""
        with self._guard:
            self._filler.flush()

    def complete(self) -> None:
        """Flush, then complete the open offload segment, if there is one with entries: data sealed, index there, in one commit.

        Not after entry 127 of a ledger that goes on: Pulsar's own reader fails where a segment's first entry of a ledger is 128.
        Raises: see the class. Retry: make another writer, and call its ``complete``.
        """
        with self._guard:
            self._filler.complete()

    def close(self) -> None:
        """``complete``, then take no more. Safe to repeat; of a broken writer only the second half."""
        if not self._guard.closed:
            try:
                if self._guard.error is None:
                    self.complete()
            finally:
                self._guard.closed = True

    def resume(self, store: ChunkedSegmentStorage | None = None) -> OffloadWriter:
        """Another writer of the topic, on ``store`` (perhaps a new owner), after what is acknowledged. Ends this one.

        Its ``last_entry`` tells for each ledger where the acknowledged stream ended: add again every entry above.
        """
        self._guard.closed = True
        return OffloadWriter(
            self._store if store is None else store,
            self.topic,
            segment_bytes_max=self._segment_bytes_max,
            block_bytes=self._block_bytes,
            rolling=self._rolling,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        self._guard.closed = True

    # Helpers

    def _put_block(self, block: EncodedBlock) -> None:
        """One append, which is the acknowledgement."""
        context = self._context or self._begin_segment(new_context(self.topic, self._sequence + 1))
        self._store.append_many(context.data, block.buffers, expected_offset=block.offset)
        self.entries_acknowledged += block.entries

    def _complete_segment(self, filled: Filled) -> None:
        context = self._context
        assert context is not None
        done = context.completed(filled.data_length, len(filled.index_data), filled.ranges)
        self._store.commit(completion(done, filled))
        self.segments_completed += 1
        self.completed = done
        self._context = None

    def _begin_segment(self, context: Context) -> Context:
        key = key_of(self.topic, context.sequence)
        row = TablePut(NAMESPACE, key, encode_context(context), 0)
        self._store.commit([Create(context.data, rolling=self._rolling), row])
        stored = self._store.table(NAMESPACE).get(key)
        self._sequence = context.sequence
        self._context = context._replace(version=0 if stored is None else stored.version)
        return self._context

    def _go_on(self, context: Context) -> None:
        """Take up an open offload segment after its last block."""
        walk = BlockWalk(context.data)
        walk.go_on(self._store)
        lasts = walk.last_entries(self._store)
        for span in walk.spans:
            self._filler.adopt(span, lasts[span.ledger])
        self._context = context


def completion(done: Context, filled: Filled) -> list[Change]:
    """What completes an offload segment: data sealed, index there, its row in the place of the open one, of the same version."""
    return [
        Seal(done.data),
        Create(done.index_segment),
        Append(done.index_segment, filled.index_data, expected_offset=0),
        Seal(done.index_segment),
        TablePut(NAMESPACE, key_of(done.topic, done.sequence), encode_context(done), done.version),
    ]
