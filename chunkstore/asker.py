"""``Asker``: asks a container's owner to do something, where taking over would depose the application (protocol 3.19).

Promises: what is answered with success has happened, and is seen in ``replica``; a commit, a session and a pin count as done only if their
rows are there. What is refused was not done, and will not be. ``OutcomeUnknown``: nobody answered in time, or what came of it cannot be
seen; it may have been done or may be done yet; the same call again is exactly once. Nothing is claimed.
Leaves out: waking an owner that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import index
from typing import Final, Generic, NamedTuple, Self, TypeAlias, TypeVar

from chunkstore import runtime
from chunkstore.arguments import check_pin, writer_bytes
from chunkstore.asks import (
    Answer,
    Ask,
    AskAppend,
    AskBox,
    AskCollect,
    AskCommit,
    AskDefrag,
    AskedChange,
    AskPin,
    AskSession,
    AskSnapshot,
    AskStage,
    AskUnpin,
    Plain,
    Request,
    check_ask,
)
from chunkstore.changes import TablePut
from chunkstore.checksum import BytesLike, check_data
from chunkstore.errors import (
    ChunkstoreError,
    Damaged,
    InvalidArgument,
    OutcomeUnknown,
    SegmentNotFound,
    StorageUnavailable,
)
from chunkstore.journal import SnapshotReport
from chunkstore.metadata.keys import segment_key
from chunkstore.metadata.pins import pin_holder
from chunkstore.metadata.port import MetadataView, Position
from chunkstore.operations.attach import find_session
from chunkstore.records import Pin
from chunkstore.replica import Replica
from chunkstore.reports import CollectReport, DefragAction, DefragReport
from chunkstore.sessions import SessionChunk, SessionWriter, check_holder, staged_name
from chunkstore.upkeep.asked import version_put

__all__ = ["Asker"]

T = TypeVar("T")

_WAIT_S: Final = 60.0
_LONG_S: Final = 3600.0
_WAIT_S_MAX: Final = 7 * 86_400.0
_POLL_S_MIN: Final = 0.01
_POLL_LOCAL_S_MIN: Final = 0.002
_POLL_S_MAX: Final = 0.5
_RING_S: Final = 2.0
_TOKEN_BYTES: Final = 16


class _Shown(NamedTuple, Generic[T]):
    """What a replica shows of something that was asked for, and the lsn of its record."""

    what: T
    lsn: int


_Proof: TypeAlias = Callable[[], "_Shown[T] | None"]


class Asker:
    """See the module. Made by ``chunkstore.open_asker``; a context manager that closes. One call at a time.

    ``replica``: where the container is followed; its reads are the caller's, too. ``syncs_prove``: a sync that succeeds tells the truth
    even behind one that has failed (there is no page cache).
    """

    def __init__(self, replica: Replica, box: AskBox, *, syncs_prove: bool) -> None:
        self.replica = replica
        self._box = box
        self._syncs_prove = syncs_prove
        self._holder = pin_holder()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Asker of {self.replica!r}>"

    def session(self, holder: str, *, ttl_s: float = 86_400.0, wait_s: float = _WAIT_S) -> SessionWriter:
        """The open session of this ``holder`` (1 to 255 bytes), or a new one: what writes its chunks.

        Raises ``InvalidArgument``, ``OutcomeUnknown`` (nobody answered within ``wait_s`` seconds), what the owner's ``session`` raises,
        ``StorageFull``, ``StorageUnavailable``, ``Damaged``, ``Closed``. Atomic, durable. Retry: safe, it finds the session.
        """
        check_holder(holder, ttl_s)
        ask = AskSession(holder, math.ceil(ttl_s * 1000))
        seen: dict[int, int] = {}

        def found() -> _Shown[int] | None:
            session_id = find_session(self.replica.sessions(), holder)
            if session_id is None:
                return None
            return _Shown(session_id, seen.setdefault(session_id, self.replica.lsn))  # which record it is no row says

        session_id = self._ask_once(ask, wait_s, found)
        return SessionWriter(self.replica.container, session_id)

    def commit(self, changes: Sequence[AskedChange], once: TablePut, *, wait_s: float = _WAIT_S) -> int:
        """Have ``changes`` and the row ``once`` committed in one record, all or nothing, exactly once; returns the row's new version.

        ``changes``: any of ``Create``, ``Attach``, ``Replace``, ``Seal``, ``Concat``, ``EndSession``, ``TablePut``. ``once`` expects a
        version, and puts a value that no other commit puts there: by it everybody knows whether this one has happened. A row that holds
        this value already, at another version, is success. A request that was refused or timed out is made impossible by moving the
        row on.

        Raises ``InvalidArgument``; ``Conflict`` (the row has another version) and what else ``store.commit`` raises, said by the
        owner: nothing was changed, and this request will not be carried out (an earlier one may be whose outcome was unknown);
        ``OutcomeUnknown`` (nobody answered within ``wait_s`` seconds, or it cannot be seen: it may still happen), ``StorageFull``,
        ``StorageUnavailable``, ``Damaged``, ``Closed``. Durable. Retry: safe with the same ``once``.
        """
        ask = AskCommit(tuple(changes), once)

        def found() -> _Shown[int] | None:
            version = version_put(self.replica.table(once.namespace).get(once.key), once)
            return None if version is None else _Shown(version, version)

        return self._ask_once(ask, wait_s, found)

    def stage(self, session_id: int, runs: Sequence[tuple[SessionChunk, ...]], *, wait_s: float = _WAIT_S) -> None:
        """Have each run of chunks of an open session kept as a staged segment (``chunkstore.attaching``).

        Raises ``InvalidArgument``, ``Conflict`` (the session is not open), and as ``session``. Atomic, durable. Retry: safe.
        """
        ask = AskStage(session_id, tuple(runs))
        check_ask(ask)
        keys = [segment_key(staged_name(session_id, (item.id for item in run))) for run in ask.runs]
        seen: list[int] = []

        def are_there(view: MetadataView) -> bool:
            return all(view.get(key) is not None for key in keys)

        def found() -> _Shown[bool] | None:
            if not self.replica.look(are_there):
                return None
            seen[:] = seen or [self.replica.lsn]  # which record it is no row says
            return _Shown(True, seen[0])

        self._ask_once(ask, wait_s, found)

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
        of a ``writer_id`` (1 to 64 bytes) rise from call to call. The answer is the proof: ``replica`` shows the bytes once it is
        refreshed. A request never meets another segment that was created under the name since.

        Raises what the owner's ``append`` raises: nothing was appended (an earlier request may still be); ``OutcomeUnknown`` (no answer
        within ``wait_s`` seconds: it may still happen), ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``, ``Damaged``,
        ``Closed``. Durable. Retry: safe with the same event number and bytes.
        """
        event = bytes(check_data(data)), writer_bytes(writer_id), event_number, expected_offset
        with suppress(SegmentNotFound):
            return self._ask(AskAppend(name, self.replica.info(name).id, *event), wait_s, read=index)
        # It is not in the replica yet, or was deleted and created again: then it is another one.
        self.replica.refresh()
        return self._ask(AskAppend(name, self.replica.info(name).id, *event), wait_s, read=index)

    def pin(
        self,
        name: str,
        note: str = "",
        expires_s: float | None = None,
        *,
        wait_s: float = _WAIT_S,
    ) -> Pin:
        """As ``store.pin``, held by this asker. Raises as that, and as ``session``. Retry: safe by the same asker."""
        holder = self._holder
        check_pin(note, expires_s)
        lasts_ms = 0 if expires_s is None else math.ceil(expires_s * 1000)
        ask = AskPin(name, note, lasts_ms, holder)

        def found() -> _Shown[Pin] | None:
            pins = (item for item in self.replica.pins() if item.name == name)
            there = next(pins, None)
            if there is None or there[2:4] != (holder, note):
                return None
            lasts = (there.expires_at or there.created_at) - there.created_at
            return _Shown(there, there.lsn) if lasts == ask.lasts_ms else None

        return self._ask(ask, wait_s, proof=found)

    def unpin(self, name: str, *, wait_s: float = _WAIT_S) -> bool:
        """As ``store.unpin``. Raises as that, and as ``session``. Retry: as that."""
        return self._ask(AskUnpin(name), wait_s, read=bool)

    def collect(self, *, wait_s: float = _LONG_S) -> CollectReport:
        """As ``store.collect``, by the owner's grace. Raises as that, and as ``session``. Retry: safe."""
        return self._ask(AskCollect(), wait_s, read=CollectReport)

    def defrag(self, name: str | None = None, *, wait_s: float = _LONG_S) -> DefragReport:
        """As ``store.defrag`` with the default policy; the report names the first 1,000 actions. Raises as that, and as ``session``.
        Retry: safe."""

        def read(*values: Plain) -> DefragReport:
            report = DefragReport(*values)  # type: ignore[arg-type]
            return report._replace(actions=tuple(DefragAction(*action) for action in report.actions))

        return self._ask(AskDefrag(name), wait_s, read=read)

    def snapshot(self, *, wait_s: float = _LONG_S) -> SnapshotReport:
        """As ``store.snapshot``. Raises as that, and as ``session``. Retry: safe."""

        def read(name: str, position: tuple[int, ...], digest: bytes, rows: int, size_bytes: int) -> SnapshotReport:
            return SnapshotReport(name, Position(*position), int.from_bytes(digest, "big"), rows, size_bytes)  # type: ignore[arg-type]

        return self._ask(AskSnapshot(), wait_s, read=read)

    def close(self) -> None:
        """Release everything. Raises nothing. Safe to repeat."""
        self.replica.close()

    def _ask_once(self, ask: Ask, wait_s: float, proof: _Proof[T]) -> T:
        """What was done before needs no owner."""
        check_ask(ask)
        done = self._look(proof)
        return self._ask(ask, wait_s, proof=proof) if done is None else done

    def _ask(
        self,
        ask: Ask,
        wait_s: float,
        *,
        proof: _Proof[T] = lambda: None,
        read: Callable[..., T] | None = None,
    ) -> T:
        """``proof``: what the replica shows of it; where there is no ``read`` for the answer's result, nothing else counts."""
        if type(wait_s) not in (int, float) or not 0 < wait_s <= _WAIT_S_MAX:
            text = f"wait_s must be a number of seconds above 0 and up to {_WAIT_S_MAX:g}, not {wait_s!r}"
            raise InvalidArgument(text, argument="wait_s")
        check_ask(ask)
        end_s = runtime.monotonic_s() + wait_s
        token = runtime.token(_TOKEN_BYTES).hex()
        answer: Answer | None = None
        try:
            try:
                self._box.send(token, Request(ask, runtime.now_ms(), math.ceil(wait_s * 1000)))
            except StorageUnavailable as error:
                raise _unknown("the request may not have been stored", ask) from error
            try:
                answer = self._wait(token, end_s, proof)
                refusal = None if answer is None else answer.error
                told = answer is not None and refusal is None
                done = None if told and read is not None else self._look(proof, told=told)
                replaced = answer is not None and refusal is not None and self._box.is_succeeded(answer.epoch)
            except ChunkstoreError as error:
                # The request lies there: whatever fails now, it is no answer to it.
                raise _unknown(f"its outcome is unknown ({error.message})", ask) from error
            if done is not None:
                return done
            if answer is None:
                raise _unknown(f"no owner answered within {wait_s:g} s; is one running", ask)
            if replaced:
                raise _unknown("it was refused by an owner that was being replaced", ask) from refusal
            if refusal is not None:
                raise refusal
            if read is None:
                raise _unknown("the owner reports it as done, but history does not show it", ask)
            return _read(read, answer)
        finally:
            # The network may repeat the request: what was refused stays so, and a pin that was given up is not made again.
            repeatable = answer is None or (answer.error is None and not isinstance(ask, (AskPin, AskUnpin)))
            with suppress(ChunkstoreError):
                self._box.withdraw(token, keep_answer=not repeatable)

    def _wait(self, token: str, end_s: float, proof: _Proof[T]) -> Answer | None:
        """Ring until there is an answer, or what was asked for can be seen (None), or the time is over (None)."""
        poll_s = _POLL_S_MIN if self._syncs_prove else _POLL_LOCAL_S_MIN
        ring_s, pause_s = runtime.monotonic_s(), _RING_S
        while True:
            now_s = runtime.monotonic_s()
            with suppress(ChunkstoreError):  # the next look may see more
                if now_s >= ring_s:
                    rings_again = pause_s > _RING_S
                    ring_s, pause_s = now_s + pause_s, min(30.0, pause_s * 2)
                    if rings_again and self._look(proof) is not None:
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

    def _look(self, proof: _Proof[T], *, told: bool = False) -> T | None:
        """What was asked for, if it is there. ``told``: the owner says so, too. Else the last record of all does not count above a page
        cache: the owner's sync of it may have failed, and ours proves nothing then. (Nobody writes behind a record that is not durable.)"""
        self.replica.refresh()
        shown = proof()
        counts = shown is not None and (told or self._syncs_prove or shown.lsn < self.replica.lsn)
        return shown.what if shown is not None and counts else None


def _unknown(why: str, ask: Ask) -> OutcomeUnknown:
    what = type(ask).__name__.removeprefix("Ask").lower()
    return OutcomeUnknown(
        f"asking the owner ({what}): {why}; it may still happen; repeat the same request", subject=what
    )


def _read(read: Callable[..., T], answer: Answer) -> T:
    try:
        return read(*answer.result)
    except (TypeError, ValueError, AttributeError) as error:
        raise Damaged("the owner's answer is of another version of this program", object="answer") from error
