"""One epoch of ours: its journal stream, its view of the cache, pending segments, commit queue and ids.

Promises: it never changes its epoch. A take-over or a roll ends it and puts another one in its place; what was planned in it
can only enter its own queue, which refuses it then, also after a data write that hangs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.config import Settings
from chunkstore.deadline import Deadline
from chunkstore.errors import ChunkstoreError, Damaged
from chunkstore.journal import Journal, Ownership, RecordKind, TakeOverReport
from chunkstore.metadata.codec import decode_chunk, decode_segment
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import MetadataStore
from chunkstore.operations.backlog import Backlog
from chunkstore.operations.commit_queue import CommitQueue, FailedBatch
from chunkstore.operations.pending import (
    PendingOp,
    PendingSegment,
    PendingSegments,
    PendingTables,
    Stale,
    Tail,
    Undecided,
)
from chunkstore.operations.record_builder import BatchWriter
from chunkstore.records.names import CHUNK_ID_BYTES, ContainerNames, chunk_epoch, chunk_id, confined
from chunkstore.records.segments import ACTIVE, ChunkRecord
from chunkstore.storage import ChunkStorage

__all__ = ["BUSY", "EpochStart", "OwnedEpoch", "decode_found_chunk"]


class EpochStart(NamedTuple):
    """Where an epoch of ours began: its OPEN, and what our clocks said then."""

    lsn: int
    at_s: float
    at_ms: int


BUSY: Final = -1
"""The length of a spill's chunk that is being written to, or whose last write was not committed."""
_TOKEN_BYTES = 256
"""Of chance, drawn at a time for names of chunks."""


class OwnedEpoch:
    """See the module. ``failed`` decides a batch that failed; ``committed`` is called with each committed lsn."""

    def __init__(
        self,
        ownership: Ownership,
        names: ContainerNames,
        storage: ChunkStorage,
        settings: Settings,
        backlog: Backlog,
        *,
        failed: Callable[[OwnedEpoch, FailedBatch], None],
        committed: Callable[[int], None],
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
        self.segments: PendingSegments = PendingSegments()
        self.tables: PendingTables = PendingTables()
        self._chunk_numbers = itertools.count(1)
        self._ids = itertools.count((self.epoch << 32) + 1)
        self.spilled: dict[bytes, int] = {}
        """Chunks that spills of this epoch have made, as long as they may grow, and to which length, or ``_BUSY``: appends never write to
        them. A spill grows no other segment's chunk, though a concat may have put one in front: it is in another run of the index."""
        self._spilling = runtime.lock()
        self._random = b""
        capabilities = storage.capabilities
        self.appendable: bool = capabilities.append
        self.writer: BatchWriter = BatchWriter(self.journal, self.store, storage, backlog)
        self.queue: CommitQueue = CommitQueue(
            self.writer,
            self.journal.head,
            background=capabilities.remote,
            linger_s=settings.linger_s,
            failed=partial(failed, self),
            committed=committed,
        )

    def end(self, reason: ChunkstoreError) -> None:
        """Stop serving: what is queued did not happen. The first reason stays."""
        if self.end_reason is None:
            self.end_reason = reason
        self.queue.end(reason)

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
            state.advance(segment, None, generation)
            return
        state.advance(segment, self.tail_of(last, self.chunk(last), state), generation)

    def tail_of(self, identity: bytes, record: ChunkRecord, state: PendingSegment, open_row: bytes = b"") -> Tail:
        """A segment's last chunk. We may extend it if the storage appends, it is ours, of this epoch, and every write of it succeeded."""
        growing = (
            self.appendable
            and record.state == ACTIVE
            and record.epoch == self.epoch
            and chunk_epoch(identity) == self.epoch
            and identity not in state.unwritable
            and identity not in self.spilled
        )
        return Tail(record, self.names.chunk(identity), growing, open_row)

    def begin_growth(self, identity: bytes, length: int) -> bool:
        """Take the one turn to write to a chunk of a spill that has this length; False: another spill has it, or had it and failed."""
        with self._spilling:
            if self.spilled.get(identity) != length:
                return False
            self.spilled[identity] = BUSY
            return True

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
