"""Writers outside the owner (protocol A9): sessions, the chunks they write, and attaching those to a segment.

Promises: a session is a committed record; its chunks have names of their own (``d/<2 hex>/s<session>-<n>-<random>``) and are left
alone by every sweep until a commit ends the session; attaching and ending are one record, so they are ordered by
history, and an attach that names an ended session is refused.
``SessionWriter`` is plain data and picklable: it travels to executors that have the storage, but neither the metadata nor
the claim. Leaves out: expiry by itself (the owner ends a session; ``expires_ms`` is a label).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import BytesLike, crc32c
from chunkstore.errors import BadOffset, ChunkNotFound, Conflict, InvalidArgument, SegmentSealed
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import chunk_key, segment_key, session_key
from chunkstore.names import NO_CHUNK, ContainerNames, session_chunk_id
from chunkstore.operations.append import check_data
from chunkstore.operations.core import Core
from chunkstore.records import CLOSED, KIND_OBJECT, ChunkRecord, SessionRecord
from chunkstore.storage import ChunkStorage

if TYPE_CHECKING:
    from chunkstore.operations.draft import Draft

__all__ = [
    "SessionChunk",
    "SessionWriter",
    "check_chunk_number",
    "check_session_chunks",
    "check_session_id",
    "plan_attach",
    "plan_end",
    "plan_open",
]

_NUMBER_MAX: Final = (1 << 64) - 1


class SessionChunk(NamedTuple):
    """A chunk that a session has written and made durable."""

    id: bytes
    length: int
    crc32c: int


class SessionWriter(NamedTuple):
    """Writes chunks for one session. ``first_number`` must differ between writers of one session (e.g. the task's number
    shifted left by 32), so that names never meet; the random part makes retried tasks safe."""

    container: str
    session_id: int
    first_number: int = 0

    def write_chunk(self, storage: ChunkStorage, number: int, data: BytesLike) -> SessionChunk:
        """Write one chunk, durable on return. ``number``: from 0 on; with ``first_number`` below 2**64.

        Raises ``InvalidArgument``, and what the storage raises. A retry writes another chunk: safe.
        """
        data = check_data(data)
        if len(data) == 0:
            raise InvalidArgument("a chunk cannot be empty", argument="data")
        check_session_id(self.session_id)
        check_chunk_number(self.first_number, "first_number")
        check_chunk_number(number, "number", _NUMBER_MAX - self.first_number)
        random = int.from_bytes(runtime.token(4), "big")
        identity = session_chunk_id(self.session_id, self.first_number + number, random)
        name = ContainerNames(self.container).chunk(identity)
        storage.create(name, data)
        if storage.capabilities.append:
            storage.sync((name,))
        return SessionChunk(identity, len(data), crc32c(data))


def plan_open(draft: Draft, holder: str, ttl_s: float) -> int:
    """Plan the record of a new session; returns its id."""
    session_id = draft.core.new_id()
    now_ms = runtime.now_ms()
    draft.rows[session_key(session_id)] = SessionRecord(holder, now_ms, now_ms + int(ttl_s * 1000))
    draft.headers.append((int(OpCode.SESSION_OPEN), session_id))
    return session_id


def check_session_id(session_id: object) -> None:
    """A whole number of 63 bits. Raises ``InvalidArgument``."""
    if type(session_id) is not int or not 1 <= session_id < 1 << 63:
        raise InvalidArgument(f"{session_id!r} is not a session's id", argument="session_id")


def check_chunk_number(number: object, argument: str, most: int = _NUMBER_MAX) -> None:
    """A whole number from 0 to ``most``. Raises ``InvalidArgument``."""
    if type(number) is not int or not 0 <= number <= most:
        raise InvalidArgument(f"{argument} must be a whole number from 0 to {most}, not {number!r}", argument=argument)


def check_session_chunks(session_id: int, chunks: object) -> None:
    """Chunks that this session wrote, each once. Raises ``InvalidArgument`` naming a bad one."""
    if not isinstance(chunks, (tuple, list)):
        raise InvalidArgument("chunks are a tuple of SessionChunk", argument="chunks")
    prefix = session_chunk_id(session_id, 0, 0)[:16]
    seen: set[bytes] = set()
    for position, item in enumerate(chunks):
        good = isinstance(item, SessionChunk) and isinstance(item.id, bytes) and len(item.id) == 28
        if not good or type(item.length) is not int or type(item.crc32c) is not int:
            raise InvalidArgument(f"chunk {position} is not a SessionChunk", argument="chunks")
        if item.id[:16] != prefix or item.length < 1 or not 0 <= item.crc32c < 1 << 32:
            raise InvalidArgument(f"chunk {position} was not written by session {session_id:x}", argument="chunks")
        if item.id in seen:
            raise InvalidArgument(f"chunk {position} is named twice", argument="chunks")
        seen.add(item.id)


def _require_session(draft: Draft, session_id: int) -> None:
    """The session is open; and nobody ends it, or attaches its chunks elsewhere, before this commit is decided."""
    key = session_key(session_id)
    committed = draft.settled(key)
    draft.table_keys.append(key)
    present = draft.rows[key] is not None if key in draft.rows else committed is not None
    if not present:
        raise Conflict(f"session {session_id:x}", expected="open", found="ended, or never opened")


def plan_end(draft: Draft, session_id: int) -> None:
    """Plan the end of a session. Raises ``Conflict`` when it is not open."""
    _require_session(draft, session_id)
    draft.rows[session_key(session_id)] = None
    draft.headers.append((int(OpCode.SESSION_END), session_id))


def _require_stored(core: Core, chunks: tuple[SessionChunk, ...]) -> None:
    """Every chunk is there in its length.

    A row that is gone says nothing: the chunk may have been attached, removed and collected since it was written. Objects are
    deleted before their rows, so whoever sees neither row nor object sees the truth.
    """
    found = core.pool.run_all([_StoredLength(core, item) for item in chunks])
    for position, (item, length) in enumerate(zip(chunks, found, strict=True)):
        if length is None:
            raise InvalidArgument(
                f"chunk {position} is not in the storage: it was never written here, or was attached, removed and collected",
                argument="chunks",
            )
        if length != item.length:
            raise InvalidArgument(
                f"chunk {position} has {length} bytes in the storage, not {item.length}", argument="chunks"
            )


class _StoredLength:
    __slots__ = ("core", "item")

    def __init__(self, core: Core, item: SessionChunk) -> None:
        self.core = core
        self.item = item

    def __call__(self) -> int | None:
        try:
            return self.core.storage.stat(self.core.names.chunk(self.item.id)).length
        except ChunkNotFound:
            return None


def plan_attach(
    core: Core,
    draft: Draft,
    name: str,
    session_id: int,
    chunks: tuple[SessionChunk, ...],
    *,
    expected_offset: int | None,
    identity: int | None = None,
) -> int:
    """Plan appending chunks that a session wrote; returns their offset in the segment.

    Raises ``Conflict`` (session not open), ``SegmentSealed``, ``BadOffset``, ``InvalidArgument`` (a chunk is attached already, is
    not there, or has another length), and what the storage raises. ``check_session_chunks`` has seen them.
    """
    segment = draft.segment(name, identity)
    if segment.sealed:
        raise SegmentSealed(name)
    if expected_offset is not None and expected_offset != segment.length:
        raise BadOffset(name, expected=segment.length, given=expected_offset)
    _require_session(draft, session_id)
    if not chunks:
        return segment.length
    now_ms = runtime.now_ms()
    added: list[tuple[int, bytes]] = []
    offset = segment.length
    for position, item in enumerate(chunks):
        key = chunk_key(item.id)
        if key in draft.rows or draft.settled(key) is not None:
            raise InvalidArgument(f"chunk {position} is attached already", argument="chunks")
    _require_stored(core, chunks)
    for position, item in enumerate(chunks):
        key = chunk_key(item.id)
        before = chunks[position - 1].id if position else segment.last_chunk
        after = chunks[position + 1].id if position + 1 < len(chunks) else NO_CHUNK
        draft.rows[key] = ChunkRecord(
            "", 0, item.length, item.crc32c, before, after, segment.id, core.epoch, CLOSED, KIND_OBJECT, now_ms
        )
        added.append((offset, item.id))
        offset += item.length
    if segment.last_chunk:
        last = draft.chunk(segment.last_chunk)
        draft.rows[chunk_key(segment.last_chunk)] = last._replace(next=chunks[0].id, state=CLOSED)
    draft.rows[segment_key(name)] = segment._replace(
        length=offset,
        first_chunk=segment.first_chunk or chunks[0].id,
        last_chunk=chunks[-1].id,
        last_chunk_offset=offset - chunks[-1].length,
        chunk_count=segment.chunk_count + len(chunks),
        owner_epoch=core.epoch,
        modified_ms=now_ms,
    )
    draft.headers.append((int(OpCode.ATTACH), segment.id, segment.length, offset - segment.length, tuple(added)))
    draft.restructure(segment.id)
    return segment.length
