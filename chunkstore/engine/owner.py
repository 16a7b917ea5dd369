"""The owner of a container: this process (``Store``), or another one that is asked (``Asker``, protocol 3.19).

Promises: what is answered with success has happened, and ``Asker.replica`` shows it, except for appends. What is refused was not
done, and will not be. ``OutcomeUnknown``: no answer came in time, or the outcome cannot be seen; it may have been done or may be done yet;
the same call again is exactly once. Nothing is claimed. ``attach_written``: everything appears in one record with the row ``once``, or
nothing does; what is too long for a record is staged before, invisibly (decision 0026).
Leaves out: waking an owner that is not there; writing chunks (``chunkstore.changes.sessions``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, Self, TypeAlias

from chunkstore import runtime
from chunkstore.changes import Append, Attach, Change, Concat, Create, EndSession, TablePut, check_changes
from chunkstore.changes.asks import (
    Answer,
    Ask,
    AskBox,
    AskCommit,
    AskJob,
    AskPin,
    AskSession,
    Event,
    Request,
    Result,
    Stage,
    check_ask,
    expect,
)
from chunkstore.changes.sessions import (
    SessionChunk,
    check_holder,
    check_session_chunks,
    check_session_id,
    staged_name,
    staged_session,
)
from chunkstore.checksum import BytesLike, check_data
from chunkstore.config import LIMITS, MIB
from chunkstore.engine.reading import ReadableContainer
from chunkstore.engine.replica import Replica
from chunkstore.errors import (
    ChunkstoreError,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    OutcomeUnknown,
    SegmentNotFound,
    StorageUnavailable,
)
from chunkstore.journal import SnapshotReport
from chunkstore.metadata.retained import pin_holder
from chunkstore.operations.session_writer import SessionWriter
from chunkstore.operations.tables import TableEntry, version_put
from chunkstore.records.arguments import check_pin, check_timeout, writer_bytes
from chunkstore.records.reports import CollectReport, DefragReport
from chunkstore.records.segments import Pin, PinRecord

__all__ = ["Asker", "Owner", "Written", "attach_written", "end_session", "find_session"]

_WAIT_S: Final = 60.0
_LONG_S: Final = 3600.0
_ATTACH_S: Final = 600.0
_POLL_S_MIN: Final = 0.01
_POLL_LOCAL_S_MIN: Final = 0.002
_POLL_S_MAX: Final = 0.5
_RING_S: Final = 2.0
_TOKEN_BYTES: Final = 16

_COMMIT_BYTES: Final = 7 * MIB
"""Of rows and headers, about: with it a commit is below ``LIMITS.commit_chunks_max``, and a request below its own limit."""
_COMMIT_CHUNKS: Final = 4_096
"""The owner looks at each in the storage, and other clients wait meanwhile."""
_LAST_BYTES: Final = 10 * MIB
_CHUNK_BYTES, _CRC_BYTES, _CHANGE_BYTES = 400, 6, 1_000
"""At most, of what a chunk, a border of its blocks and a change take up in a record and in a request."""


class Owner(Protocol):
    """What changes a container."""

    @property
    def container(self) -> str:
        """The container's name."""

    @property
    def uuid(self) -> bytes:
        """The container's, of 16 bytes."""

    def run(self, ask: Ask, *, wait_s: float = ...) -> Result:
        """Do this. Durable. Raises what ``ask`` raises at the owner, ``OutcomeUnknown`` (it may have been done or may be done yet; of a
        client: no answer came within ``wait_s`` seconds), ``DeadlineExceeded`` (of a client: no time is left, nothing was asked for),
        ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``, ``Damaged``, ``Closed``, ``NotOwner``. Retry: safe."""

    def state(self) -> ReadableContainer:
        """What is committed now. Raises what reading raises."""

    def is_certain(self, version: int) -> bool:
        """Whether the row of this version, which ``state`` has shown, is durable for certain."""


class Asker:
    """A client of the owner; see the module. Made by ``chunkstore.open_asker``; a context manager that closes. One call at a time.

    ``replica``: where the container is followed; its reads are the caller's, too. ``syncs_prove``: a sync that succeeds tells the truth
    even after one that has failed (there is no page cache). Calls raise as ``Owner.run`` does, and so is their retry.
    """

    def __init__(self, replica: Replica, box: AskBox, *, syncs_prove: bool) -> None:
        self.replica = replica
        self.container = replica.container
        self.uuid = replica.uuid
        self._box = box
        self._syncs_prove = syncs_prove
        self._holder = pin_holder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Asker of {self.replica!r}>"

    def close(self) -> None:
        """Release everything. Raises nothing. Safe to repeat."""
        self.replica.close()

    def session(self, holder: str, *, ttl_s: float = 86_400.0, wait_s: float = _WAIT_S) -> SessionWriter:
        """The open session of this ``holder`` (1 to 255 bytes), or a new one: what writes its chunks."""
        return find_session(self, holder, ttl_s=ttl_s, wait_s=wait_s)

    def commit(self, changes: Sequence[Change], once: TablePut, *, wait_s: float = _WAIT_S) -> int:
        """Have ``changes`` and the row ``once`` committed in one record, all or nothing, exactly once; returns the row's new version.

        ``changes``: as of ``store.commit``; a ``Replace`` names chunks of a session. ``once`` expects a version (else ``Conflict``), and
        puts a value that no other commit puts there: a row that holds it already, at another version, is success. Moving the row on makes
        a request impossible that was refused or timed out."""
        return expect(int, self.run(AskCommit(tuple(changes), once), wait_s=wait_s))

    def append(
        self,
        name: str,
        data: BytesLike,
        *,
        writer_id: bytes | str,
        event_number: int,
        expected_offset: int | None = None,
        wait_s: float = _WAIT_S,
    ) -> int:
        """As ``store.append``, exactly once; returns the offset. ``data``: up to ``LIMITS.ask_append_bytes_max`` bytes. Event numbers
        of a ``writer_id`` (1 to 64 bytes) rise from call to call. ``replica`` shows the bytes once it is refreshed. A request never meets
        another segment that was created under the name since."""
        change = Append(name, bytes(check_data(data)), expected_offset)

        def ask(state: Replica) -> int:
            event = Event(state.info(name).id, writer_bytes(writer_id), event_number)
            return expect(int, self.run(AskCommit((change,), event), wait_s=wait_s))

        with suppress(SegmentNotFound):
            return ask(self.replica)
        # It is not in the replica yet, or was deleted and created again: then it is another one.
        return ask(self.state())

    def pin(self, name: str, note: str = "", expires_s: float | None = None, *, wait_s: float = _WAIT_S) -> Pin:
        """As ``store.pin``, held by this asker."""
        check_pin(note, expires_s)
        wanted = PinRecord(0, 0, 0 if expires_s is None else math.ceil(expires_s * 1000), self._holder, note)
        return expect(Pin, self.run(AskPin(name, wanted), wait_s=wait_s))

    def unpin(self, name: str, *, wait_s: float = _WAIT_S) -> bool:
        """As ``store.unpin``."""
        return expect(bool, self.run(AskPin(name, None), wait_s=wait_s))

    def collect(self, *, wait_s: float = _LONG_S) -> CollectReport:
        """As ``store.collect``, by the owner's grace."""
        return expect(CollectReport, self.run(AskJob("collect"), wait_s=wait_s))

    def defrag(self, name: str | None = None, *, wait_s: float = _LONG_S) -> DefragReport:
        """As ``store.defrag`` with the default policy; the report names the first 1,000 actions."""
        return expect(DefragReport, self.run(AskJob("defrag", name), wait_s=wait_s))

    def snapshot(self, *, wait_s: float = _LONG_S) -> SnapshotReport:
        """As ``store.snapshot``."""
        return expect(SnapshotReport, self.run(AskJob("snapshot"), wait_s=wait_s))

    def state(self) -> Replica:
        """The replica, refreshed. Raises as ``Replica.refresh``."""
        self.replica.refresh()
        return self.replica

    def is_certain(self, version: int) -> bool:
        """On a page cache the last record of all is not: the owner's sync of it may have failed, and ours proves nothing then. (No one
        writes after a record that is not durable.)"""
        return self._syncs_prove or version < self.replica.lsn

    def run(self, ask: Ask, *, wait_s: float = _WAIT_S) -> Result:
        """As ``Owner.run``. A commit with a row that was done before needs no owner."""
        check_ask(ask)
        check_timeout(wait_s, "wait_s")
        if (done := self._done(ask)) is not None:
            return done
        if wait_s <= 0:
            raise DeadlineExceeded("asking the owner", deadline_s=wait_s)
        end_s = runtime.monotonic_s() + wait_s
        token = runtime.token(_TOKEN_BYTES).hex()
        answer: Answer | None = None
        try:
            try:
                self._box.send(token, Request(ask, runtime.now_ms(), math.ceil(wait_s * 1000)))
            except StorageUnavailable as error:
                raise _unknown("the request may not have been stored", ask) from error
            try:
                answer = self._wait(token, end_s, ask)
                if answer is not None and answer.error is None:
                    if not isinstance(ask, AskCommit) or not isinstance(ask.once, Event):
                        self.replica.refresh()
                    return answer.result
                done = self._done(ask)
                replaced = answer is not None and self._box.is_succeeded(answer.epoch)
            except ChunkstoreError as error:
                # The request is stored: whatever fails now is no answer to it.
                raise _unknown(f"its outcome is unknown ({error.message})", ask) from error
            if done is not None:
                return done
            if answer is None or answer.error is None:
                raise _unknown(f"no owner answered within {wait_s:g} s; is one running", ask)
            if replaced:
                raise _unknown("it was refused by an owner that was being replaced", ask) from answer.error
            raise answer.error
        finally:
            # The network may repeat the request: what was refused stays so, and a pin that was given up is not made again.
            final = answer is not None and (answer.error is not None or isinstance(ask, AskPin))
            with suppress(ChunkstoreError):
                self._box.withdraw(token, keep_answer=final)

    def _wait(self, token: str, end_s: float, ask: Ask) -> Answer | None:
        """Ring until there is an answer, or ``ask`` is shown as done (None), or the time is over (None)."""
        poll_s = _POLL_S_MIN if self._syncs_prove else _POLL_LOCAL_S_MIN
        ring_s, pause_s = runtime.monotonic_s(), _RING_S
        while True:
            now_s = runtime.monotonic_s()
            with suppress(ChunkstoreError):  # the next look may see more
                if now_s >= ring_s:
                    rings_again = pause_s > _RING_S
                    ring_s, pause_s = now_s + pause_s, min(30.0, pause_s * 2)
                    if rings_again and self._done(ask) is not None:
                        return None
                    self._box.ring()
                answer = self._box.answer(token)
                if answer is not None:
                    return answer
            left_s = end_s - runtime.monotonic_s()
            if left_s <= 0:
                return None
            runtime.sleep_s(min(poll_s, left_s))
            poll_s = min(_POLL_S_MAX, poll_s * 1.25)

    def _done(self, ask: Ask) -> int | None:
        """The version of a commit's row, if it is there for certain: then no answer is needed."""
        if not isinstance(ask, AskCommit) or not isinstance(ask.once, TablePut):
            return None
        version = version_put(_row(self, ask.once), ask.once)
        return version if version is not None and self.is_certain(version) else None


def _unknown(why: str, ask: Ask) -> OutcomeUnknown:
    what = type(ask).__name__.removeprefix("Ask").lower()
    return OutcomeUnknown(
        f"asking the owner ({what}): {why}; it may still happen; repeat the same request", subject=what
    )


# Attaching what a session has written


class Written(NamedTuple):
    """Chunks to be appended to a segment, in this order. ``create``: it is made in the same commit, and must not be there."""

    segment: str
    chunks: tuple[SessionChunk, ...]
    create: Create | None = None


def find_session(owner: Owner, holder: str, *, ttl_s: float = 86_400.0, wait_s: float = _ATTACH_S) -> SessionWriter:
    """The open session of this holder (1 to 255 bytes), or a new one. Raises as ``Owner.run``. Retry: safe."""
    check_holder(holder, ttl_s)
    session_id = expect(int, owner.run(AskSession(holder, math.ceil(ttl_s * 1000)), wait_s=wait_s))
    return SessionWriter(owner.container, session_id)


def end_session(owner: Owner, session_id: int, *, wait_s: float = _ATTACH_S) -> bool:
    """End a session, also one that another process opened; whether it was open. What it has not attached is an orphan from now on.

    Raises as ``Owner.run``. Atomic, durable. Retry: safe."""
    check_session_id(session_id)
    if all(item.id != session_id for item in owner.state().sessions()):
        return False
    try:
        owner.run(AskCommit((EndSession(session_id),), None), wait_s=wait_s)
    except Conflict:
        return False
    return True


def attach_written(
    owner: Owner,
    session_id: int,
    written: Sequence[Written],
    once: TablePut,
    *,
    also: Sequence[Change] = (),
    end_session: bool = False,
    wait_s: float = _ATTACH_S,
) -> int:
    """Append what an open session has written, make the changes ``also``, end the session if ``end_session``, and put the row ``once``: all
    in one record. Returns the version of the row.

    ``once``: as of ``Asker.commit``; if the row has its value already, nothing is done. ``wait_s``: seconds that a client waits in all.

    As much as fits goes in one commit: 4,096 chunks, or 7 MiB of rows (1,004 chunks of 128 MiB). More is staged in commits of that size
    before the last one, which has room for 10,000 changes of at most 10 MiB: one for each staged run, so some 40 million chunks.

    Raises as ``Owner.run``; ``InvalidArgument`` also where the last commit would not fit; ``Conflict`` (the row has another version; the
    session has ended), and what ``commit`` raises. After ``DeadlineExceeded`` nothing appears. Atomic, durable. Retry: safe with the same
    ``once``; what other chunks were staged for it goes with the first collection after the session's end."""
    check_session_id(session_id)
    check_session_chunks(session_id, [chunk for item in written for chunk in item.chunks])
    others = [*also, *([EndSession(session_id)] if end_session else [])]
    check_ask(AskCommit(tuple(others), once))
    end_s = runtime.monotonic_s() + wait_s

    def run(changes: Sequence[Change], once: TablePut | Stage) -> Result:
        return owner.run(AskCommit(tuple(changes), once), wait_s=max(0.0, end_s - runtime.monotonic_s()))

    last, steps = [*_shown_by(session_id, written, None), *others], list[_Step]()
    check_changes([*last[: LIMITS.batch_ops_max - 1], once])
    if not _fits([*last, once], _COMMIT_BYTES):
        steps = list(_steps(written))
        last = [*_shown_by(session_id, written, steps), *others]
        if not _fits([*last, once], _LAST_BYTES):
            chunks = sum(len(item.chunks) for item in written)
            text = (
                f"{chunks} chunks for {len(written)} segments do not fit one commit of {LIMITS.batch_ops_max} changes, even "
                f"after {len(steps)} staging commits; write longer chunks, or to fewer segments at once"
            )
            raise InvalidArgument(text, argument="written")
    try:
        row = _row(owner, once) if steps else None
        # What a row means that has moved on, an owner says; to stage anything would be in vain.
        for step in [] if row is not None and row.version > (once.expected_version or 0) else steps:
            run((), Stage(session_id, tuple(map(tuple, step.values()))))
        return expect(int, run(last, once))
    except ChunkstoreError as error:
        with suppress(ChunkstoreError):
            if version_put(_row(owner, once), once) is not None:
                return expect(int, run(last, once))  # another was first, or it was this one, as an owner says now
        if isinstance(error, SegmentNotFound) and staged_session(error.segment) is not None:
            # It was there a moment ago: the session has ended, and a collection came.
            raise Conflict(f"session {session_id:x}", expected="open", found="ended") from error
        raise


def _row(owner: Owner, once: TablePut) -> TableEntry | None:
    return owner.state().table(once.namespace).get(once.key)


_Step: TypeAlias = dict[int, list[SessionChunk]]
"""What one commit stages: a run of chunks of each item, by the item's number in ``written``."""


def _shown_by(session_id: int, written: Sequence[Written], steps: Sequence[_Step] | None) -> Iterator[Change]:
    """What shows the chunks: they are attached, or concatenated where ``steps`` have staged them."""
    for number, item in enumerate(written):
        if item.create is not None:
            yield item.create
        if steps is None:
            yield Attach(item.segment, session_id, item.chunks)
        else:
            runs = (step[number] for step in steps if number in step)
            yield from (Concat(item.segment, staged_name(session_id, (chunk.id for chunk in run))) for run in runs)


def _fits(changes: Sequence[Change], bytes_max: int) -> bool:
    chunks = sum(len(change.chunks) for change in changes if isinstance(change, Attach))
    few = len(changes) <= LIMITS.batch_ops_max and chunks <= _COMMIT_CHUNKS
    return few and sum(map(_bytes_of, changes)) <= bytes_max


def _bytes_of(change: Change) -> int:
    """About how many bytes of a record, or of a request, a change takes up at most."""
    more = sum(map(_bytes_of_chunk, change.chunks)) if isinstance(change, Attach) else 0
    return _CHANGE_BYTES + more + (len(change.key) + len(change.value) if isinstance(change, TablePut) else 0)


def _bytes_of_chunk(chunk: SessionChunk) -> int:
    return _CHUNK_BYTES + _CRC_BYTES * len(chunk.border_crcs)


def _steps(written: Sequence[Written]) -> Iterator[_Step]:
    """The same for the same chunks."""
    step: _Step = {}
    chunks = size_bytes = 0
    for number, item in enumerate(written):
        for chunk in item.chunks:
            added = _bytes_of_chunk(chunk) + (0 if number in step else _CHANGE_BYTES)
            if chunks == _COMMIT_CHUNKS or size_bytes + added > _COMMIT_BYTES:
                yield step
                step, chunks, size_bytes, added = {}, 0, 0, _bytes_of_chunk(chunk) + _CHANGE_BYTES
            step.setdefault(number, []).append(chunk)
            chunks, size_bytes = chunks + 1, size_bytes + added
    if step:
        yield step
