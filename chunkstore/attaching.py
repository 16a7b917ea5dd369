"""Attaching what a session has written, however many chunks there are, exactly once: what sinks commit.

Promises: everything appears in one record with the row ``once``, or nothing does; that happens one time, whoever tries it how often. What
is too long for a record is staged before: nobody sees it, to stage the same again is no change, and what no commit has taken when its
session ends, the owner's next collection makes garbage. Leaves out: writing chunks (``chunkstore.sessions``), which row, and what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

from chunkstore import runtime
from chunkstore.asker import Asker
from chunkstore.asks import AskCommit, AskedChange, AskSession, AskStage, check_ask
from chunkstore.changes import Attach, Concat, Create, EndSession, Replace, TablePut, check_changes
from chunkstore.config import LIMITS, MIB
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    OutcomeUnknown,
    SegmentNotFound,
)
from chunkstore.metadata.keys import SINKS_NAMESPACE
from chunkstore.metadata.sinks import SinkRow, decode_sink, encode_sink, unnamed_key
from chunkstore.operations.tables import TableEntry
from chunkstore.records import OpenSession
from chunkstore.sessions import (
    SessionChunk,
    SessionWriter,
    check_session_chunks,
    check_session_id,
    staged_name,
    staged_session,
)
from chunkstore.upkeep.asked import version_put

__all__ = ["AskedDoor", "EndingDoor", "Written", "attach_written", "end_by_row", "end_session", "find_session"]

_WAIT_S: Final = 600.0
_COMMIT_BYTES: Final = 7 * MIB
"""Of rows and headers, about: with it a commit is below ``LIMITS.commit_chunks_max``, and a request below its own limit."""
_COMMIT_CHUNKS: Final = 4_096
"""The owner looks at each in the storage, and whoever else asks it waits."""
_LAST_BYTES: Final = 10 * MIB
_TRIES: Final = 8
_TOKEN_BYTES: Final = 16
_CHUNK_BYTES, _CRC_BYTES, _CHANGE_BYTES = 400, 6, 1_000
"""At most, of what a chunk, a border of its blocks and a change take up in a record and in a request."""


class Written(NamedTuple):
    """Chunks to be appended to a segment, in this order. ``create``: it is made in the same commit, and must not be there."""

    segment: str
    chunks: tuple[SessionChunk, ...]
    create: Create | None = None


def find_session(
    target: Asker | ChunkedSegmentStorage, holder: str, *, ttl_s: float = 86_400.0, wait_s: float = _WAIT_S
) -> SessionWriter:
    """The open session of this holder, or a new one: as ``Asker.session``, and the same of an owner. Raises as that. Retry: safe."""
    if isinstance(target, Asker):
        return target.session(holder, ttl_s=ttl_s, wait_s=wait_s)
    (found,) = target.carry_out(AskSession(holder, int(ttl_s * 1000)))
    assert isinstance(found, int)
    return SessionWriter(target.container, found)


def attach_written(
    target: Asker | ChunkedSegmentStorage,
    session_id: int,
    written: Sequence[Written],
    once: TablePut,
    *,
    also: Sequence[AskedChange] = (),
    end_session: bool = False,
    wait_s: float = _WAIT_S,
) -> int:
    """Append what an open session has written, make the changes ``also``, end the session if ``end_session``, and put the row ``once``: all
    in one record. Returns the version of the row.

    ``target``: an owner, or somebody who asks one. ``once`` expects a version, and puts a value that no other commit puts there; if the row
    has it already, at another version, everything has happened, and nothing is done. ``wait_s``: seconds that an owner is waited for
    in all; an owner itself takes ``Settings.op_deadline_s`` for each of its commits.

    As much as fits goes in one commit: 4,096 chunks, or 7 MiB of rows (1,004 chunks of 128 MiB with the CRCs of their blocks). More is
    staged in commits of that size, before the last one, which concats; that has room for 10,000 changes of at most 10 MiB: staged
    commits and segments together, so some 40 million chunks, or 10 million of 128 MiB.

    Raises ``InvalidArgument`` (also where the last commit would not fit: write longer chunks, or to fewer segments), ``Conflict`` (the
    row has another version; the session has ended), what ``commit`` raises for ``also``, ``create`` and ``segment`` (``SegmentExists``,
    ``SegmentNotFound``, ``SegmentSealed``), ``DeadlineExceeded`` (nothing has appeared, and will not), ``OutcomeUnknown`` (it may appear
    yet), ``StorageFull``, ``StorageUnavailable``, ``NotOwner``, ``Closed``, ``Damaged``. Atomic, durable. Retry: safe with the same
    arguments, by anybody; with other chunks and the same ``once`` also, then what was staged before goes when the session ends.
    """
    check_session_id(session_id)
    check_session_chunks(session_id, [chunk for item in written for chunk in item.chunks])
    ends = [EndSession(session_id)] if end_session else []
    check_ask(AskCommit((*also, *ends), once))
    doing = _Asked(target, wait_s) if isinstance(target, Asker) else _Owned(target)
    others, steps = [*also, *ends], list[dict[int, tuple[SessionChunk, ...]]]()
    last = [*_shown_by(written, lambda _, item: [Attach(item.segment, session_id, item.chunks)]), *others]
    check_changes([*last[: LIMITS.batch_ops_max - 1], once])
    if not _fits([*last, once], _COMMIT_BYTES):
        steps = list(_steps(written))
        last = [*_shown_by(written, partial(_concats, session_id, steps)), *others]
        if not _fits([*last, once], _LAST_BYTES):
            chunks = sum(len(item.chunks) for item in written)
            text = (
                f"{chunks} chunks for {len(written)} segments do not fit one commit, even after {len(steps)} staging "
                f"commits; write longer chunks, or to fewer segments at once (of {LIMITS.batch_ops_max} changes each "
                "takes one, a new one two)"
            )
            raise InvalidArgument(text, argument="written")
    has_moved = False
    try:
        has_moved = bool(steps) and _has_moved(doing, once)
        for step in [] if has_moved else steps:
            doing.stage(session_id, tuple(step.values()))
        return doing.commit(last, once)
    except ChunkstoreError as error:
        with suppress(ChunkstoreError):
            if not has_moved and _has_moved(doing, once):
                return doing.commit(last, once)  # somebody else was first, or it was this, as an owner says now
        if not isinstance(error, SegmentNotFound) or staged_session(error.segment) is None:
            raise
        if has_moved:
            text = f"the row {once.key!r} had the expected version and has changed again; repeat the commit"
            raise OutcomeUnknown(text, subject="commit") from error
        # It was there a moment ago: the session has ended, and a collection came.
        raise Conflict(f"session {session_id:x}", expected="open", found="ended") from error


def end_session(target: Asker | ChunkedSegmentStorage, session_id: int, *, wait_s: float = _WAIT_S) -> bool:
    """End a session, whoever opened it; whether it was open. What it has not attached it never will, and is an orphan from now on.

    Raises ``InvalidArgument``, ``OutcomeUnknown`` (nobody answered within ``wait_s`` seconds: it may end yet), ``NotOwner``,
    ``StorageFull``, ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``, ``Closed``. Atomic, durable. Retry: safe.
    """
    check_session_id(session_id)
    if isinstance(target, Asker):
        return end_by_row(AskedDoor(target, wait_s), unnamed_key(session_id), session_id)
    if all(item.id != session_id for item in target.sessions()):
        return False
    try:
        target.commit([EndSession(session_id)])
    except Conflict:
        return False  # whoever wrote in it was first
    return True


class EndingDoor(Protocol):
    """The way to a container's owner that ``end_by_row`` needs."""

    uuid: bytes

    def row(self, key: bytes) -> TableEntry | None:
        """A row of ``!sinks`` as it is now. Raises what reading raises."""

    def session(self, session_id: int) -> OpenSession | None:
        """This session if it is open, as of the last ``row``. Raises what reading raises."""

    def attach(self, session_id: int, written: Sequence[Written], once: TablePut, *, end_session: bool) -> None:
        """As ``attach_written``, which see for what it raises."""


def end_by_row(door: EndingDoor, key: bytes, session_id: int) -> bool:
    """End a session by a commit that can be asked for: it leaves the sink's row at ``key`` as it is but for its token, or puts one of a
    session that was given up. Whether it was open. Raises ``OutcomeUnknown`` and what the owner says. Retry: safe."""
    for _ in range(_TRIES):
        entry = door.row(key)
        if door.session(session_id) is None:
            return False
        stored = None if entry is None else decode_sink(key, entry.value)
        row = SinkRow(session_id, door.uuid, bytes(16), b"") if stored is None else stored
        value = encode_sink(row._replace(token=runtime.token(_TOKEN_BYTES)))
        once = TablePut(SINKS_NAMESPACE, key, value, 0 if entry is None else entry.version)
        with suppress(Conflict):
            door.attach(session_id, (), once, end_session=True)
            return True
    raise OutcomeUnknown(f"session {session_id} could not be ended: others keep moving its row", subject="session")


class AskedDoor:
    """An ``EndingDoor`` of somebody who asks. ``wait_s``: as of ``attach_written``, for each call."""

    def __init__(self, asker: Asker, wait_s: float) -> None:
        self._asker = asker
        self._wait_s = wait_s
        self.uuid: bytes = asker.replica.uuid

    def row(self, key: bytes) -> TableEntry | None:
        self._asker.replica.refresh()
        return self._asker.replica.table(SINKS_NAMESPACE).get(key)

    def session(self, session_id: int) -> OpenSession | None:
        return next((item for item in self._asker.replica.sessions() if item.id == session_id), None)

    def attach(self, session_id: int, written: Sequence[Written], once: TablePut, *, end_session: bool) -> None:
        attach_written(self._asker, session_id, written, once, end_session=end_session, wait_s=self._wait_s)


class _Target(Protocol):
    def commit(self, changes: Sequence[AskedChange], once: TablePut) -> int: ...
    def stage(self, session_id: int, runs: tuple[tuple[SessionChunk, ...], ...]) -> None: ...
    def row(self, once: TablePut) -> TableEntry | None: ...


class _Owned:
    def __init__(self, store: ChunkedSegmentStorage) -> None:
        self._store = store

    def commit(self, changes: Sequence[AskedChange], once: TablePut) -> int:
        (version,) = self._store.carry_out(AskCommit(tuple(changes), once))
        assert isinstance(version, int)
        return version

    def stage(self, session_id: int, runs: tuple[tuple[SessionChunk, ...], ...]) -> None:
        self._store.carry_out(AskStage(session_id, runs))

    def row(self, once: TablePut) -> TableEntry | None:
        return self._store.table(once.namespace).get(once.key)


class _Asked:
    def __init__(self, asker: Asker, wait_s: float) -> None:
        self._asker = asker
        self._wait_s = wait_s
        self._end_s = runtime.monotonic_s() + wait_s

    def commit(self, changes: Sequence[AskedChange], once: TablePut) -> int:
        return self._asker.commit(changes, once, wait_s=self._left_s())

    def stage(self, session_id: int, runs: tuple[tuple[SessionChunk, ...], ...]) -> None:
        self._asker.stage(session_id, runs, wait_s=self._left_s())

    def row(self, once: TablePut) -> TableEntry | None:
        self._asker.replica.refresh()
        return self._asker.replica.table(once.namespace).get(once.key)

    def _left_s(self) -> float:
        left_s = self._end_s - runtime.monotonic_s()
        if left_s <= 0:
            raise DeadlineExceeded("asking the owner to attach what was written", deadline_s=self._wait_s)
        return left_s


def _has_moved(doing: _Target, once: TablePut) -> bool:
    """Whether the row is shown as it is put here, or beyond the version that is expected: then it is for an owner to say what that means,
    and to stage anything would be in vain."""
    row = doing.row(once)
    return version_put(row, once) is not None or (row is not None and row.version > (once.expected_version or 0))


def _shown_by(
    written: Sequence[Written], appending: Callable[[int, Written], Iterable[AskedChange]]
) -> Iterator[AskedChange]:
    for number, item in enumerate(written):
        if item.create is not None:
            yield item.create
        yield from appending(number, item)


def _concats(
    session_id: int, steps: Sequence[dict[int, tuple[SessionChunk, ...]]], number: int, item: Written
) -> Iterator[AskedChange]:
    for step in steps:
        if number in step:
            yield Concat(item.segment, staged_name(session_id, (chunk.id for chunk in step[number])))


def _fits(changes: Sequence[AskedChange], bytes_max: int) -> bool:
    chunks = sum(len(change.chunks) for change in changes if isinstance(change, Attach))
    few = len(changes) <= LIMITS.batch_ops_max and chunks <= _COMMIT_CHUNKS
    return few and sum(map(_bytes_of, changes)) <= bytes_max


def _bytes_of(change: AskedChange) -> int:
    """About how many bytes of a record, or of a request, a change takes up at most."""
    found = _CHANGE_BYTES
    if isinstance(change, Attach):
        found += sum(map(_bytes_of_chunk, change.chunks))
    elif isinstance(change, Replace):
        new = [item for item in change.new if isinstance(item, SessionChunk)]
        found += 32 * len(change.old) + sum(map(_bytes_of_chunk, new))
    elif isinstance(change, TablePut):
        found += len(change.key) + len(change.value)
    elif isinstance(change, Create):
        found += sum(256 + LIMITS.attribute_bytes_max for _ in change.attributes)
    return found


def _bytes_of_chunk(chunk: SessionChunk) -> int:
    return _CHUNK_BYTES + _CRC_BYTES * len(chunk.border_crcs)


def _steps(written: Sequence[Written]) -> Iterator[dict[int, tuple[SessionChunk, ...]]]:
    """What each commit stages: chunks by their place in ``written``, of each a run. The same for the same chunks."""
    step: dict[int, tuple[SessionChunk, ...]] = {}
    chunks = size_bytes = 0
    for number, item in enumerate(written):
        begin = 0
        for position, chunk in enumerate(item.chunks):
            added = _bytes_of_chunk(chunk) + (_CHANGE_BYTES if position == begin else 0)
            if chunks == _COMMIT_CHUNKS or size_bytes + added > _COMMIT_BYTES:
                if position > begin:
                    step[number] = item.chunks[begin:position]
                yield step
                step, begin, chunks, size_bytes, added = {}, position, 0, 0, _bytes_of_chunk(chunk) + _CHANGE_BYTES
            chunks, size_bytes = chunks + 1, size_bytes + added
        if len(item.chunks) > begin:
            step[number] = item.chunks[begin:]
    if step:
        yield step
