"""Changes being planned for one commit, over one consistent view of the committed rows.

Promises
* Several changes in one see each other and become one record: all or nothing.
* Splices cost O(1) journal bytes; what leaves a chunk list goes to garbage as a range (protocol A7).
* Planning does no chunk I/O (an append inside a change set is planned here and written by ``commit_changes``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from typing import TypeVar

from chunkstore import runtime
from chunkstore.changes import ADDS_NOTHING
from chunkstore.checksum import BytesLike
from chunkstore.config import LIMITS
from chunkstore.deadline import Deadline
from chunkstore.errors import (
    BadOffset,
    ChunkExists,
    ChunkNotFound,
    Conflict,
    Damaged,
    InvalidArgument,
    InvalidOffset,
    SegmentNotFound,
    SegmentSealed,
)
from chunkstore.journal import RecordKind
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import chunk_key, segment_key, session_key, writer_range
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import last_row_key
from chunkstore.operations.append_plan import PlannedAppend, plan_inline, write_pieces
from chunkstore.operations.backlog import Arrival
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.owned_epoch import OwnedEpoch, decode_found_chunk
from chunkstore.operations.pending import NOT_LOADED, PendingOp, PendingSegment, Stale, Tail
from chunkstore.records.blocks import BLOCK_BYTES
from chunkstore.records.names import NO_CHUNK, chunk_segment
from chunkstore.records.segments import ChunkRecord, GarbageRecord, SegmentRecord, TableRecord

__all__ = ["ChangeSet", "commit_changes"]

T = TypeVar("T")


def commit_changes(
    container: OwnedContainer,
    names: Iterable[str],
    plan: Callable[[ChangeSet], T],
    *,
    tables: bool = False,
    adds: int = ADDS_NOTHING,
) -> T:
    """Plan and commit changes of ``names`` (segments) and, with ``tables``, of table rows. Returns what ``plan`` returned, which may
    be called several times. ``adds``: bytes of chunks, or 0 for rows alone, that safe mode refuses. Raises what planning raises, and the
    errors of commits."""
    deadline = container.deadline()

    def attempt(owned: OwnedEpoch) -> tuple[PendingOp | None, T]:
        by_name = owned.segments.by_name
        states = {name: by_name.get(name) or owned.segments.find(name) for name in sorted(set(names))}
        with ExitStack() as turns:
            for state in states.values():
                _take(turns, state.turn, deadline, state.name)
            while True:
                with ExitStack() as locks:
                    for state in states.values():
                        _take(locks, state.lock, deadline, state.name)
                        if by_name.get(state.name) is not state:
                            raise Stale
                    undecided = next((op for state in states.values() if (op := state.undecided())), None)
                    if undecided is None:
                        if tables:
                            _take(locks, owned.tables.lock, deadline, "the tables")
                        with container.bounded(deadline):
                            return _plan_and_enter(container, owned, states, plan, deadline)
                # Without the locks, which others need, but with the turns: no later operation overtakes.
                if not owned.queue.wait_decided(undecided, deadline):
                    deadline.fail("waiting for an earlier operation")

    return container.run(attempt, deadline, adds)


def _take(taken: ExitStack, lock: runtime.Lock, deadline: Deadline, name: str) -> None:
    if not lock.acquire(False):
        deadline.acquire(lock, f"the lock of {name!r}")
    taken.callback(lock.release)


def _plan_and_enter(
    container: OwnedContainer,
    owned: OwnedEpoch,
    states: dict[str, PendingSegment],
    plan: Callable[[ChangeSet], T],
    deadline: Deadline,
) -> tuple[PendingOp | None, T]:
    if container.draining or owned.queue.ended:
        raise Stale  # before anything is written
    for state in states.values():
        state.settle_write()
    with closing(ChangeSet(owned, states)) as changes:
        op = changes.op
        result = plan(changes)
        if not op.headers and op.kind is RecordKind.OPS:
            return None, result
        if changes.appends:
            for state in op.segments:
                state.generation, state.writing = NOT_LOADED, op.rows
        for planned, data in changes.appends:
            try:
                write_pieces(container, planned, data, deadline)
            except (InvalidOffset, ChunkNotFound, ChunkExists) as error:
                # The tail differs from its record: it is closed for ever; plan again, with a new chunk.
                raise Stale from error
            if owned.appendable:
                changes.sync_names.extend(planned.targets)
        outcomes = [changes.outcome(state) for state in op.segments]
        for state in op.segments:
            state.unload()
        try:
            owned.tables.remember(op)
            owned.queue.enter(op)
        except Stale:
            op.decided = True
            raise
        except BaseException as error:
            # Interrupted: whether it is queued is unknown, and what depends on it must not wait for ever.
            owned.end(unexpected(error))
            raise
        for state, outcome in zip(op.segments, outcomes, strict=True):
            state.advance(*outcome, op.generation)
    return op, result


class ChangeSet:
    """See the module. Use one for one commit, with the locks of every segment it names and nothing undecided on them."""

    def __init__(self, owned: OwnedEpoch, states: Mapping[str, PendingSegment]) -> None:
        self.owned = owned
        self._view: MetadataView | None = None
        self.states = states
        op = self.op = PendingOp([], {}, tuple(states.values()), [], owned.queue.generation, reshapes=True)
        """What the changes come to. A record of another kind than OPS says what it is about in ``notes`` instead of ``headers``."""
        self.rows = op.rows
        self.headers = op.headers
        self.garbage = op.garbage
        self.table_keys = op.table_keys
        self.counts = op.counts
        self.sync_names: list[str] = []
        """Objects that were written before the commit, to be made durable first."""
        op.sync_names = self.sync_names
        self.appends: list[tuple[PlannedAppend, BytesLike]] = []
        self._extents: set[bytes] = set()
        self._appended: dict[str, tuple[SegmentRecord, Tail]] = {}
        """What planned appends make of their segments, for as long as nothing else changes those."""
        self._chunks_planned = 0
        self.now_ms: int = runtime.now_ms()
        self.conditional_keys: set[bytes] = set()
        self.mentioned_keys: set[bytes] = set()
        self._restructured: set[int] = set()

    # Reading

    @property
    def view(self) -> MetadataView:
        """The committed rows, as of the first look at them: appends need none."""
        if self._view is None:
            self._view = self.owned.store.view()
        return self._view

    def close(self) -> None:
        """End the view."""
        if self._view is not None:
            self._view.close()

    def segment(self, name: str, identity: int | None = None) -> SegmentRecord:
        """The segment as it would be. Raises ``SegmentNotFound``."""
        segment = self.find(name)
        if segment is None or (identity is not None and segment.id != identity):
            raise SegmentNotFound(name)
        return segment

    def find(self, name: str) -> SegmentRecord | None:
        """The segment as it would be, or None."""
        key = segment_key(name)
        if key in self.rows:
            record = self.rows[key]
            assert record is None or isinstance(record, SegmentRecord)
            return record
        state = self.states.get(name)
        if state is not None and self._is_loaded(state):
            return state.segment
        raw = self.view.get(key)
        return None if raw is None else decode_segment(name, raw)

    def open_segment(self, name: str, expected_offset: int | None, identity: int | None = None) -> SegmentRecord:
        """As ``segment``, to append to. Raises ``SegmentSealed``, ``BadOffset``, too."""
        segment = self.segment(name, identity)
        if segment.sealed:
            raise SegmentSealed(name)
        if expected_offset is not None and expected_offset != segment.length:
            raise BadOffset(name, expected=segment.length, given=expected_offset)
        return segment

    def _is_loaded(self, state: PendingSegment) -> bool:
        # Locked, and nothing undecided: the pending fields are the committed ones.
        return state.generation == self.owned.queue.generation

    def outcome(self, state: PendingSegment) -> tuple[SegmentRecord | None, Tail | None]:
        """What ``state`` will be: the segment, and its last chunk. Raises ``Damaged``."""
        key = segment_key(state.name)
        if self._appended and (after := self._appended.get(state.name)) and self.rows[key] is after[0]:
            return after
        if self._is_loaded(state) and key not in self.rows:
            return state.segment, state.tail
        segment = self.find(state.name)
        if segment is None or not segment.last_chunk:
            return segment, None
        identity = segment.last_chunk
        tail = self.chunk(identity)
        row = self.rows.get(last_row_key(identity, tail.length))
        open_row = row.value if isinstance(row, TableRecord) else b""
        return segment, self.owned.tail_of(identity, tail, state, open_row)

    def append(self, planned: PlannedAppend, data: BytesLike) -> None:
        """Add a planned append, whose bytes ``commit_changes`` writes."""
        self.appends.append((planned, data))
        self.count_chunks(len(planned.targets))
        self._add(planned)

    def _add(self, planned: PlannedAppend) -> None:
        self.rows.update(planned.rows)
        self.headers.append(planned.header)
        self._appended[planned.segment.name] = planned.segment, planned.tail

    def append_inline(self, segment: SegmentRecord, tail: Tail | None, data: bytes) -> None:
        """Add an append whose bytes go into the record: to the extent that this change set made last of the segment, or as one more. What a
        concat brought is another segment's: readers of the record take bytes that are added to an extent for the segment's own."""
        size_max = min(BLOCK_BYTES, segment.chunk_size_bytes_max)
        extends = (
            segment.last_chunk in self._extents and tail is not None and tail.record.length + len(data) <= size_max
        )
        extends = extends and chunk_segment(segment.last_chunk) == segment.id
        planned = plan_inline(self.owned, segment, tail, extends, data, self.now_ms)
        if not extends:
            self.count_chunks(1)
            self.restructure(segment.id)
        self._extents.add(planned.segment.last_chunk)
        self.op.inline.append((chunk_key(planned.segment.last_chunk), data))
        self.op.inline_bytes += len(data)
        self.counts.append(Arrival(segment.name, len(data), not extends))
        self._add(planned)

    def count_chunks(self, count: int) -> None:
        """Say that the record takes so many chunks more. Raises ``InvalidArgument`` where it would grow too long."""
        self._chunks_planned += count
        if self._chunks_planned > LIMITS.commit_chunks_max:
            what = f"this would make more than {LIMITS.commit_chunks_max} chunks; use several commits"
            raise InvalidArgument(what, argument="changes")

    def chunk(self, identity: bytes) -> ChunkRecord:
        """A chunk as it would be. Raises ``Damaged`` when there is no such row."""
        key = chunk_key(identity)
        if key in self.rows:
            record = self.rows[key]
            assert isinstance(record, ChunkRecord)
            return record
        return decode_found_chunk(self.owned.names, identity, self.view.get(key))

    def settled(self, key: bytes, *, guard: bytes = b"") -> bytes | None:
        """The committed value of a row that no segment's lock protects (tables, sessions and what they guard): read afresh, for
        the view may be older; true until the change set enters the queue, for ``tables.lock`` is held. ``guard``: the key in
        ``table_keys`` of all changes of such rows, if not their own. Raises ``Undecided``."""
        self.owned.tables.check(guard or key)
        return self.owned.store.get(key)

    def is_present(self, key: bytes) -> bool:
        """Whether such a row would be there. Raises as ``settled``."""
        committed = self.settled(key)
        return committed is not None if key not in self.rows else self.rows[key] is not None

    def require_session(self, session_id: int) -> None:
        """Check that the session is open, and keep it so until this commit is decided. Raises ``Conflict``, ``Undecided``."""
        key = session_key(session_id)
        present = self.is_present(key)
        self.table_keys.append(key)
        if not present:
            raise Conflict(f"session {session_id:x}", expected="open", found="ended, or never opened")

    # Changing

    def put(self, segment: SegmentRecord) -> None:
        """Set a segment's row."""
        self.rows[segment_key(segment.name)] = segment

    def discard(self, first: bytes, last: bytes, count: int, size_bytes: int, *, ended_segment_id: int = 0) -> None:
        """Put a range of a chunk list, removed from it, into garbage."""
        self.garbage.append(GarbageRecord(first, last, count, size_bytes, 0, 0, ended_segment_id))

    def end_segment(self, segment_id: int) -> None:
        """A segment ends without chunks of its own to discard: its writers' rows still have to be collected."""
        if next(self.view.scan(*writer_range(segment_id)), None) is not None:
            self.discard(NO_CHUNK, NO_CHUNK, 0, 0, ended_segment_id=segment_id)

    def restructure(self, segment_id: int) -> None:
        """Say that the offset index does not show this segment as it would be."""
        self._restructured.add(segment_id)

    def locate(self, segment: SegmentRecord, offset: int) -> tuple[bytes, int, int]:
        """(chunk id, its segment offset, chunks before it) for an offset inside the segment. Raises ``Damaged``."""
        if not self._is_indexed(segment):
            return self._walk(segment, offset)
        identity, chunk_offset = self.chunk_at(segment, offset)
        first_offset = segment.start_offset - segment.first_chunk_skip
        return identity, chunk_offset, self.view.count_chunks(segment.id, first_offset, chunk_offset)

    def chunk_at(self, segment: SegmentRecord, offset: int) -> tuple[bytes, int]:
        """As ``locate``, without counting."""
        if not self._is_indexed(segment):
            return self._walk(segment, offset)[:2]
        found = self.view.locate(segment.id, offset)
        if found is None:
            where = f"segment {segment.name}"
            raise Damaged("the offset index has no entry; run check", object=where, position=offset)
        return found

    def _is_indexed(self, segment: SegmentRecord) -> bool:
        return segment.id not in self._restructured and not self.appends

    def _walk(self, segment: SegmentRecord, offset: int) -> tuple[bytes, int, int]:
        """As ``locate``, by the list: the index does not know these changes yet."""
        identity, chunk_offset = segment.first_chunk, segment.start_offset - segment.first_chunk_skip
        for passed in range(segment.chunk_count):
            if identity == NO_CHUNK:
                break
            record = self.chunk(identity)
            if offset < chunk_offset + record.length:
                return identity, chunk_offset, passed
            identity, chunk_offset = record.next, chunk_offset + record.length
        where = f"segment {segment.name}"
        raise Damaged("the chunk list is shorter than the segment; run check", object=where, position=offset)
