"""One epoch of ours: its journal stream, its view of the cache, pending segments, commit queue and ids.

Promises: it never changes its epoch. A take-over or a roll ends it and puts another one in its place; what was planned in it
can only enter its own queue, which refuses it then, also after a data write that hangs.
Leaves out: beginning and ending epochs (``recovery``), whether we still own the container (``fence``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import crc32c_of_bytes, crc32c_of_more
from chunkstore.config import Settings
from chunkstore.deadline import Deadline
from chunkstore.errors import ChunkstoreError, Damaged
from chunkstore.journal import Batch, Journal, Ownership, RecordKind, TakeOverReport
from chunkstore.metadata.codec import decode_chunk, decode_segment
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import Line, Lines, MetadataStore, Position
from chunkstore.metadata.tail_cache import TailCache
from chunkstore.operations.backlog import Backlog
from chunkstore.operations.commit_queue import CommitEnvironment, CommitQueue, FailedBatch
from chunkstore.operations.pending import (
    Pending,
    PendingLine,
    PendingOp,
    PendingSegment,
    PendingSegments,
    PendingTables,
    Stale,
    Undecided,
)
from chunkstore.operations.record_builder import RecordBuilder
from chunkstore.records.names import CHUNK_ID_BYTES, ContainerNames, chunk_epoch, chunk_id, confined
from chunkstore.records.segments import ACTIVE, ChunkRecord
from chunkstore.storage import ChunkStorage

__all__ = ["EpochStart", "OwnedEpoch", "decode_found_chunk"]


class EpochStart(NamedTuple):
    """Where an epoch of ours began: its OPEN, and what our clocks said then."""

    lsn: int
    at_s: float
    at_ms: int


_make = tuple.__new__  # what a NamedTuple's constructor does, without its argument handling
_by_segment: Final = attrgetter("segment_id")
_TOKEN_BYTES = 256
"""Of chance, drawn at a time for names of chunks."""


class OwnedEpoch:
    """See the module. ``failed`` decides a batch that failed; ``committed`` is called with each committed lsn."""

    def __init__(
        self,
        ownership: Ownership,
        *,
        storage: ChunkStorage,
        names: ContainerNames,
        settings: Settings,
        failed: Callable[[OwnedEpoch, FailedBatch], None],
        committed: Callable[[int], None],
        tail: TailCache,
        backlog: Backlog,
    ) -> None:
        self.journal: Journal = ownership.journal
        self.store: MetadataStore = ownership.store
        self.report: TakeOverReport = ownership.report
        self.epoch: int = self.journal.epoch
        self.names = names
        self.end_reason: ChunkstoreError | None = None
        """Why it has ended; None while it serves."""
        self.in_doubt: FailedBatch | None = None
        """The batch whose record may or may not be part of history."""
        self.opened_s: float = runtime.monotonic_s()
        self.opened_ms: int = runtime.now_ms()
        self.segments: PendingSegments = PendingSegments()
        self.tables: PendingTables = PendingTables()
        self.appendable: bool = storage.capabilities.append
        self._chunk_numbers = itertools.count(1)
        self._ids = itertools.count((self.epoch << 32) + 1)
        self.spilled: set[bytes] = set()
        """Chunks that spills of this epoch have made, as long as they may grow: appends never write to them."""
        self.spillable: dict[int, tuple[bytes, int]] = {}
        """By segment id, the one of them that another spill of that segment may write to, and where: the last write was committed, and
        no one is at it. A spill grows no other segment's chunk, though a concat may have put one in front: it is in another run."""
        self._tail = tail
        self.backlog: Backlog = backlog
        self._random = b""
        builder = self._builder = RecordBuilder(
            lambda: self.store.head().digest, self.store.get, self.opened_s, self.opened_ms, lambda: self.journal.place
        )
        environment = CommitEnvironment(
            head=self.journal.head,
            sync=storage.sync,
            build=builder.build,
            append=self._append,
            append_lines=self._append_lines,
            apply=partial(self.store.apply, verify=False),
            applied=self.applied,
            committed=committed,
            failed=partial(failed, self),
            background=storage.capabilities.remote,
            linger_s=settings.linger_s,
        )
        self.queue: CommitQueue = CommitQueue(environment)

    def end(self, reason: ChunkstoreError) -> None:
        """Stop serving: what is queued did not happen. The first reason stays."""
        if self.end_reason is None:
            self.end_reason = reason
        self.queue.end(reason)

    def _append(self, batch: Batch) -> Position:
        if not batch.blob:
            return self.journal.append(batch)
        # Only after that: what was refused, or may have been, is no one's to read.
        position = self.journal.append(batch)
        self._tail.put_record(batch.ops, batch.blob)
        return position

    def _append_lines(self, batch: Sequence[PendingLine], now_s: float) -> tuple[Position, Lines]:
        """One record of appends. Those of one segment go on in one extent, as far as one may be long."""
        if len(batch) > 1:
            batch = sorted(batch, key=_by_segment)
        lines: list[Line] = []
        pieces: list[bytes] = []
        run = run_id = crc = 0
        for op in batch:
            data, segment_id, (state,) = op.data, op.segment_id, op.segments
            length = len(data)
            op.joined = joined = segment_id == run_id and run + length <= state.extent_bytes_max
            if joined:
                run, crc = run + length, crc32c_of_more(crc, data)
            else:
                run, crc, run_id = length, crc32c_of_bytes(data), segment_id
            pieces.append(data)
            lines.append(_make(Line, (segment_id, op.offset, length, crc, joined, state.encoded, op.event)))
        self._builder.lined = True
        done = self.journal.append_lines(lines, pieces, self._builder.label(now_s))
        put = self._tail.put
        for op in batch:
            put(op.segment_id, op.offset, op.data)
        return done

    def applied(self, batch: Sequence[Pending]) -> None:
        """The cache shows these operations: count their extents. Not before: what is counted can be looked up."""
        for op in batch:
            if isinstance(op, PendingLine):
                self.backlog.came(op.segments[0].name, len(op.data), not op.joined)
            else:
                for count in op.counts:
                    count()

    # Rows and ids

    def load(self, state: PendingSegment) -> None:
        """With ``state.lock`` held: make the pending fields those of the committed rows.

        Raises ``Undecided`` (waiting here would hold the lock), ``Stale``, ``Damaged``.
        """
        state.settle_write()
        generation = self.queue.generation
        if self.queue.ended:
            raise Stale
        if undecided := state.undecided():
            raise Undecided(undecided)
        state.writers.clear()
        raw = self.store.get(segment_key(state.name))
        segment = None if raw is None else decode_segment(state.name, raw)
        last = segment.last_chunk if segment is not None else b""
        if last not in state.unwritable:
            # Only the last chunk of a list ever grows: the others are closed for ever.
            state.unwritable = frozenset()
        if not last:
            state.advance(segment, None, "", False, b"", generation)
            return
        tail = self.chunk(last)
        state.advance(segment, tail, self.names.chunk(last), self.may_grow(last, tail, state), b"", generation)

    def may_grow(self, identity: bytes, tail: ChunkRecord, state: PendingSegment) -> bool:
        """Whether we may extend the chunk: the storage appends, it is ours, of this epoch, and every write of it succeeded."""
        return (
            self.appendable
            and tail.state == ACTIVE
            and tail.epoch == self.epoch
            and chunk_epoch(identity) == self.epoch
            and identity not in state.unwritable
            and identity not in self.spilled
        )

    def chunk(self, identity: bytes) -> ChunkRecord:
        """A chunk's committed record. Raises ``Damaged`` if it is missing or unreadable."""
        return decode_found_chunk(self.names, identity, self.store.get(chunk_key(identity)))

    def new_chunk(self, segment_id: int) -> bytes:
        """A fresh chunk id of this epoch."""
        random = self._random or runtime.token(_TOKEN_BYTES)
        self._random = random[4:]  # two threads may take the same: the number tells their chunks apart
        return chunk_id(segment_id, self.epoch, next(self._chunk_numbers), int.from_bytes(random[:4], "big"))

    def new_id(self) -> int:
        """A fresh segment or session id: epoch and a counter, so that no id is ever used twice."""
        return next(self._ids)

    # Notes

    def note(self, kind: RecordKind, notes: tuple[object, ...]) -> PendingOp:
        """Enter a record without operations. Raises ``Stale`` if the epoch has ended."""
        op = PendingOp([], {}, (), (), self.queue.generation, kind, notes)
        self.queue.enter(op)
        return op

    def last_note(self, kind: RecordKind, deadline: Deadline) -> None:
        """Commit the last record of the epoch, whose queue has ended idle. Raises errors of commits."""
        op = PendingOp([], {}, (), (), self.queue.generation, kind)
        self.queue.enter_last(op)
        self.queue.wait(op, deadline)


def decode_found_chunk(names: ContainerNames, identity: bytes, raw: bytes | None) -> ChunkRecord:
    """The record in a chunk's row. Raises ``Damaged`` naming the chunk if there is none, it cannot be decoded or leads elsewhere."""
    if raw is None:
        # A list that ends too early leads to no chunk at all, which has no name.
        where = names.chunk(identity) if identity else "a chunk list"
        raise Damaged("the metadata refers to a chunk it has no record of; run check", object=where)
    try:
        record = decode_chunk("chunk row", raw)
    except Damaged as error:
        # Names cost more than decoding, so they are made only for people.
        where = names.chunk(identity) if len(identity) == CHUNK_ID_BYTES else f"chunk row {identity!r}"
        raise Damaged(error.message, object=where) from error
    return confined(names, identity, record)
