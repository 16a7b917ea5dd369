"""Planning changes of structure: a draft over one consistent view, and one planner for each verb.

Promises
* A draft reads committed rows through a view and its own changes on top, so several changes in one draft see each other and
  become one record: all or nothing.
* Splices cost O(1) journal bytes: concat touches two chunks, truncate one, delete none; what leaves the list goes to garbage
  as a range (protocol A7). Counting what a truncate dropped costs a scan of the index over exactly those chunks.
* Planning does no chunk I/O (an append inside a draft is planned here and written by ``transact``).

Order of checks: segment exists, sealed, offset. Leaves out: locks and commits (``transact``).
"""

from __future__ import annotations

from collections.abc import Mapping

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.config import LIMITS, RollingPolicy
from chunkstore.errors import (
    BadOffset,
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentExists,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
)
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import CHUNK, chunk_key, segment_key, writer_range
from chunkstore.metadata.port import MetadataView, Op
from chunkstore.names import NO_CHUNK, utf8_bytes
from chunkstore.operations.append_plan import PlannedAppend, plan_on_tail
from chunkstore.operations.core import Core, decode_found_chunk
from chunkstore.operations.pending import RowRecord, SegmentState
from chunkstore.records import ACTIVE, CLOSED, FLAG_SEALED, AttributeValue, ChunkRecord, GarbageRecord, SegmentRecord

__all__ = ["Draft", "check_attribute_changes", "check_attributes", "check_not_itself"]


class Draft:
    """Changes being planned. Use one for one commit, with the locks of every segment it names."""

    def __init__(self, core: Core, view: MetadataView, states: Mapping[str, SegmentState]) -> None:
        self.core = core
        self.view = view
        self._states = states
        self.rows: dict[bytes, RowRecord] = {}
        self.headers: list[Op] = []
        self.garbage: list[GarbageRecord] = []
        self.appends: list[tuple[PlannedAppend, BytesLike]] = []
        self.table_keys: list[bytes] = []
        self.conditional_keys: set[bytes] = set()
        self.mentioned_keys: set[bytes] = set()
        self._restructured: set[int] = set()
        self._chunks_planned = 0

    # Reading through the draft

    def segment(self, name: str, identity: int | None = None) -> SegmentRecord:
        """The segment as the draft has it. Raises ``SegmentNotFound``."""
        return self.core.require(self.find(name), name, identity)

    def find(self, name: str) -> SegmentRecord | None:
        """The segment as the draft has it, or None."""
        key = segment_key(name)
        if key in self.rows:
            record = self.rows[key]
            assert record is None or isinstance(record, SegmentRecord)
            return record
        state = self._states.get(name)
        if state is not None and not state.dead:
            # Locked, and nothing undecided: the pending fields are the committed ones.
            return state.segment
        raw = self.view.get(key)
        return None if raw is None else decode_segment(name, raw)

    def last_chunk(self, segment: SegmentRecord) -> ChunkRecord | None:
        """The segment's last chunk as the draft has it; None without chunks. Raises ``Damaged``."""
        if not segment.last_chunk:
            return None
        state = self._states.get(segment.name)
        if state is None or state.dead or chunk_key(segment.last_chunk) in self.rows:
            return self.chunk(segment.last_chunk)
        known = state.segment
        if known is not None and known.last_chunk == segment.last_chunk and state.tail is not None:
            return state.tail
        return self.chunk(segment.last_chunk)

    def hand_over(self, state: SegmentState) -> None:
        """Leave in ``state`` what the draft made of its segment, so that the next operation need not read it again."""
        segment = self.find(state.name)
        if segment is None or not segment.last_chunk:
            state.tail, state.tail_name, state.growing = None, "", False
        else:
            tail = self.last_chunk(segment)
            assert tail is not None
            known = state.segment
            if state.dead or known is None or known.last_chunk != segment.last_chunk or not state.tail_name:
                state.tail_name = self.core.names.chunk(segment.last_chunk)
            state.tail = tail
            state.growing = self.core.may_grow(segment.last_chunk, tail, state.poisoned)
        state.segment = segment
        state.dead = False

    def chunk(self, identity: bytes) -> ChunkRecord:
        """A chunk as the draft has it. Raises ``Damaged`` when there is no such row."""
        key = chunk_key(identity)
        if key in self.rows:
            record = self.rows[key]
            assert isinstance(record, ChunkRecord)
            return record
        return decode_found_chunk(self.core.names, identity, self.view.get(key))

    def settled(self, key: bytes) -> bytes | None:
        """The committed value of a row that no lock of a segment protects (tables, sessions and what they guard).

        Raises ``KeyBusy`` while a change of it is undecided. Read afresh: what was decided a moment ago may be younger than
        the draft's view. Stays true until the draft enters the queue, for ``tables.lock`` is held until then.
        """
        self.core.tables.check(key)
        return self.core.store.get(key)

    def _put(self, segment: SegmentRecord) -> None:
        self.rows[segment_key(segment.name)] = segment

    # The verbs

    def create(
        self, name: str, rolling: RollingPolicy, attributes: Mapping[str, AttributeValue] | None = None
    ) -> SegmentRecord:
        """A new, empty segment with attributes that have been checked. Raises ``SegmentExists``."""
        if self.find(name) is not None:
            raise SegmentExists(name)
        now_ms = runtime.now_ms()
        segment = SegmentRecord(
            name=name,
            id=self.core.new_id(),
            flags=0,
            start_offset=0,
            length=0,
            first_chunk=NO_CHUNK,
            last_chunk=NO_CHUNK,
            last_chunk_offset=0,
            first_chunk_skip=0,
            chunk_size_bytes_max=rolling.chunk_size_bytes_max,
            owner_epoch=self.core.epoch,
            chunk_count=0,
            attributes=attributes or {},
            created_ms=now_ms,
            modified_ms=now_ms,
        )
        self._put(segment)
        self.headers.append((int(OpCode.CREATE), segment.id, name))
        return segment

    def append(self, name: str, data: BytesLike, *, expected_offset: int | None, identity: int | None = None) -> int:
        """Plan an append; ``transact`` writes the bytes. Raises ``SegmentSealed``, ``BadOffset``."""
        segment = self.segment(name, identity)
        if segment.sealed:
            raise SegmentSealed(name)
        if expected_offset is not None and expected_offset != segment.length:
            raise BadOffset(name, expected=segment.length, given=expected_offset)
        if len(data) == 0:
            return segment.length
        last = self.last_chunk(segment)
        state = self._states[name]
        grows = last is not None and self.core.may_grow(segment.last_chunk, last, state.poisoned)
        known = state.segment if not state.dead else None
        if known is not None and known.last_chunk == segment.last_chunk:
            tail_name = state.tail_name
        else:
            tail_name = self.core.names.chunk(segment.last_chunk) if last is not None else ""
        planned = plan_on_tail(self.core, segment, last, grows, tail_name, data)
        self._chunks_planned += len(planned.pieces)
        if self._chunks_planned > LIMITS.commit_chunks_max:
            raise InvalidArgument(
                f"these appends would make more than {LIMITS.commit_chunks_max} chunks; use several commits",
                argument="changes",
            )
        self.appends.append((planned, data))
        self.rows.update(planned.rows)
        self.headers.append(planned.header)
        return segment.length

    def seal(self, name: str, identity: int | None = None) -> bool:
        """Seal; returns whether anything changed. The tail chunk is closed with it."""
        segment = self.segment(name, identity)
        if segment.sealed:
            return False
        if segment.last_chunk:
            last = self.chunk(segment.last_chunk)
            if last.state == ACTIVE:
                self.rows[chunk_key(segment.last_chunk)] = last._replace(state=CLOSED)
        self._put(segment._replace(flags=segment.flags | FLAG_SEALED, modified_ms=runtime.now_ms()))
        self.headers.append((int(OpCode.SEAL), segment.id))
        return True

    def unseal(self, name: str, identity: int | None = None) -> None:
        """Make a sealed segment writable again. Raises ``SegmentNotSealed``."""
        segment = self.segment(name, identity)
        if not segment.sealed:
            raise SegmentNotSealed(name)
        self._put(segment._replace(flags=segment.flags & ~FLAG_SEALED, modified_ms=runtime.now_ms()))
        self.headers.append((int(OpCode.UNSEAL), segment.id))

    def truncate(self, name: str, offset: int, identity: int | None = None) -> bool:
        """Move the start offset up; returns whether anything changed. Raises ``BadOffset`` beyond the length."""
        segment = self.segment(name, identity)
        if offset > segment.length:
            raise BadOffset(name, expected=segment.length, given=offset)
        if offset <= segment.start_offset:
            return False
        now_ms = runtime.now_ms()
        first_offset = segment.start_offset - segment.first_chunk_skip
        if offset == segment.length:
            after = segment._replace(
                start_offset=offset,
                first_chunk=NO_CHUNK,
                last_chunk=NO_CHUNK,
                last_chunk_offset=offset,
                first_chunk_skip=0,
                chunk_count=0,
                modified_ms=now_ms,
            )
            if segment.chunk_count:
                self._discard(segment.first_chunk, segment.last_chunk, segment.chunk_count, offset - first_offset, 0)
        else:
            identity_at, chunk_offset, dropped = self._locate(segment, offset)
            after = segment._replace(
                start_offset=offset,
                first_chunk=identity_at,
                first_chunk_skip=offset - chunk_offset,
                chunk_count=segment.chunk_count - dropped,
                modified_ms=now_ms,
            )
            if dropped:
                kept = self.chunk(identity_at)
                self._discard(segment.first_chunk, kept.previous, dropped, chunk_offset - first_offset, 0)
                self.rows[chunk_key(identity_at)] = kept._replace(previous=NO_CHUNK)
        self._put(after)
        self.headers.append((int(OpCode.TRUNCATE), segment.id, offset))
        self._restructured.add(segment.id)
        return True

    def concat(
        self,
        target_name: str,
        offset: int | None,
        source_name: str,
        identity: int | None = None,
        source_id: int | None = None,
    ) -> None:
        """Splice a sealed source behind the target; the source ceases to exist.

        Raises ``SegmentSealed`` (target), ``SegmentNotSealed`` (source), ``SegmentTruncated`` (source), ``BadOffset``.
        That they are two segments has been checked (``check_not_itself``).
        """
        target = self.segment(target_name, identity)
        if target.sealed:
            raise SegmentSealed(target_name)
        source = self.segment(source_name, source_id)
        if not source.sealed:
            raise SegmentNotSealed(source_name)
        if source.start_offset:
            raise SegmentTruncated(source_name, start_offset=source.start_offset, offset=0)
        if offset is not None and offset != target.length:
            raise BadOffset(target_name, expected=target.length, given=offset)
        after = target._replace(modified_ms=runtime.now_ms())
        if source.chunk_count:
            if target.last_chunk:
                last = self.chunk(target.last_chunk)
                self.rows[chunk_key(target.last_chunk)] = last._replace(next=source.first_chunk, state=CLOSED)
                first = self.chunk(source.first_chunk)
                self.rows[chunk_key(source.first_chunk)] = first._replace(previous=target.last_chunk)
            after = after._replace(
                length=target.length + source.length,
                first_chunk=target.first_chunk or source.first_chunk,
                last_chunk=source.last_chunk,
                last_chunk_offset=target.length + source.last_chunk_offset,
                chunk_count=target.chunk_count + source.chunk_count,
                owner_epoch=self.core.epoch,
            )
        self._put(after)
        self.rows[segment_key(source_name)] = None
        self._end(source.id)
        self.headers.append((int(OpCode.CONCAT), target.id, target.length, source.id))
        self._restructured.update((target.id, source.id))

    def delete(self, name: str, identity: int | None = None) -> None:
        """Remove a segment; its chunks become garbage."""
        segment = self.segment(name, identity)
        self.rows[segment_key(name)] = None
        if segment.chunk_count:
            size_bytes = segment.length - segment.start_offset + segment.first_chunk_skip
            self._discard(segment.first_chunk, segment.last_chunk, segment.chunk_count, size_bytes, segment.id)
        else:
            self._end(segment.id)
        self.headers.append((int(OpCode.DELETE), segment.id))
        self._restructured.add(segment.id)

    def update_attributes(
        self,
        name: str,
        changes: Mapping[str, AttributeValue | None],
        expected: Mapping[str, AttributeValue | None],
        identity: int | None = None,
    ) -> None:
        """Set (or, with None, remove) attributes if every expected one has its value (None: absent). Raises ``Conflict``."""
        segment = self.segment(name, identity)
        for key, value in expected.items():
            found = segment.attributes.get(key)
            if found != value or type(found) is not type(value):
                raise Conflict(f"attribute {key!r} of segment {name!r}", expected=value, found=found)
        merged: dict[str, AttributeValue] = dict(segment.attributes)
        for key, value in changes.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        self._put(segment._replace(attributes=check_attributes(merged), modified_ms=runtime.now_ms()))
        self.headers.append((int(OpCode.ATTRIBUTES), segment.id))

    # Garbage

    def _discard(self, first: bytes, last: bytes, count: int, size_bytes: int, ended_segment_id: int) -> None:
        self.garbage.append(GarbageRecord(first, last, count, size_bytes, 0, 0, ended_segment_id))

    def _end(self, segment_id: int) -> None:
        """A segment ends without chunks of its own to discard: its writers' rows still have to be collected."""
        if next(self.view.scan(*writer_range(segment_id)), None) is not None:
            self._discard(NO_CHUNK, NO_CHUNK, 0, 0, segment_id)

    # Finding chunks

    def _locate(self, segment: SegmentRecord, offset: int) -> tuple[bytes, int, int]:
        """(chunk id, its segment offset, chunks before it) for an offset inside the segment."""
        first_offset = segment.start_offset - segment.first_chunk_skip
        if segment.id not in self._restructured and not self.appends:
            found = self.view.locate(segment.id, offset)
            if found is None:
                raise Damaged(
                    "the offset index has no entry; run check", object=f"segment {segment.name}", position=offset
                )
            identity, chunk_offset = found
            return identity, chunk_offset, self.view.count_chunks(segment.id, first_offset, chunk_offset)
        # The index does not know this draft's own changes yet: walk the list.
        identity, chunk_offset = segment.first_chunk, first_offset
        for passed in range(segment.chunk_count):
            if identity == NO_CHUNK:
                break
            record = self.chunk(identity)
            if offset < chunk_offset + record.length:
                return identity, chunk_offset, passed
            identity, chunk_offset = record.next, chunk_offset + record.length
        raise Damaged(
            "the chunk list is shorter than the segment; run check", object=f"segment {segment.name}", position=offset
        )

    def restructure(self, segment_id: int) -> None:
        """Say that the offset index does not show this segment as the draft has it."""
        self._restructured.add(segment_id)

    def changed_chunks(self) -> set[bytes]:
        """Ids of chunks with a row in this draft."""
        return {key[1:] for key in self.rows if key[:1] == CHUNK}


def check_attributes(attributes: object) -> Mapping[str, AttributeValue]:
    """A sorted copy: bounded, and of plain types. Raises ``InvalidArgument`` naming the attribute."""
    if not isinstance(attributes, Mapping):
        raise InvalidArgument("attributes are given as a mapping", argument="attributes")
    if len(attributes) > LIMITS.attribute_count_max:
        raise InvalidArgument(f"a segment has at most {LIMITS.attribute_count_max} attributes", argument="attributes")
    for key, value in attributes.items():
        _check_attribute_name(key)
        if isinstance(value, bool) or not isinstance(value, (int, str, bytes)):
            raise InvalidArgument(f"attribute {key!r} must be int, str or bytes, not {value!r}", argument="attributes")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise InvalidArgument(f"attribute {key!r} does not fit 64 bits", argument="attributes")
        size_bytes = utf8_bytes(value) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 0
        if not 0 <= size_bytes <= LIMITS.attribute_bytes_max:
            raise InvalidArgument(
                f"attribute {key!r} must be valid UTF-8 (or bytes) and at most {LIMITS.attribute_bytes_max} bytes long",
                argument="attributes",
            )
    return dict(sorted(attributes.items()))


def check_not_itself(target_name: str, source_name: str) -> None:
    """Raise ``InvalidArgument`` for a concat of a segment to itself."""
    if target_name == source_name:
        raise InvalidArgument(f"segment {source_name!r} cannot be concatenated to itself", argument="source")


def check_attribute_changes(changes: object) -> None:
    """As ``check_attributes``; None as a value means "absent". Raises ``InvalidArgument``."""
    if isinstance(changes, Mapping):
        for name in changes:
            _check_attribute_name(name)
        changes = {name: value for name, value in changes.items() if value is not None}
    check_attributes(changes)


def _check_attribute_name(name: object) -> None:
    """1 to 255 bytes of UTF-8. Raises ``InvalidArgument``."""
    if not isinstance(name, str) or not 1 <= utf8_bytes(name) <= 255:
        raise InvalidArgument(
            f"attribute name {name!r} must be a str of 1 to 255 bytes of UTF-8", argument="attributes"
        )
