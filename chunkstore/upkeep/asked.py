"""The owner's side of asking: looks whether somebody rang, carries out what is asked by its ordinary calls, and answers (protocol 3.19).

Promises: appends several at once, so that they share records; other requests one after the other, but for collecting, merging and
snapshots, of which one runs beside them. What a request says
is done once at most where that matters, whoever else has carried it out before; a refusal is given by nobody who was deposed, and
only when the request is gone. Nothing that lies in the box, and no failure, stops it. Leaves out: bytes (``chunkstore_journal``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, Protocol

from chunkstore import runtime
from chunkstore.asks import (
    Answer,
    Ask,
    AskAppend,
    AskBox,
    AskCollect,
    AskCommit,
    AskDefrag,
    AskPin,
    AskSession,
    AskSnapshot,
    AskStage,
    AskUnpin,
    Plain,
)
from chunkstore.changes import Change, TablePut
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    Damaged,
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    Unsupported,
)
from chunkstore.handles import SegmentHandle
from chunkstore.journal import SnapshotReport
from chunkstore.operations.attach import plan_find_session
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.tables import TableEntry
from chunkstore.records import PinRecord
from chunkstore.reports import CollectReport, DefragReport
from chunkstore.tables import TableReader

__all__ = ["Asked", "OwnerCalls", "carry_out", "version_put"]

_LOCAL_S: Final = 0.05
_BUSY_S: Final = 1.0
_IDLE_S: Final = 20.0
_EAGER_LOCAL_S: Final = 0.002
_EAGER_S: Final = 0.1
_EAGER_FOR_S: Final = 2.0
"""How long after a request the next one is expected at once: at most 20 looks behind a network for each request that is the last one."""
_AT_ONCE: Final = 8
_BUSY_FOR_S: Final = 60.0
"""How long after a commit somebody may want an answer soon: as long as it takes to be idle."""
_ASKED_FOR_S: Final = 900.0
"""... and after a request: who streams in asks again and again. That costs 900 looks at most for each request that is the last one."""
_ROUND: Final = 256
_LATE_MS: Final = 60_000
_ACTIONS_MAX: Final = 1_000
_SLOW: Final = (AskCollect, AskDefrag, AskSnapshot)
_UNANSWERED: Final = (Closed, NotOwner, OutcomeUnknown)
"""After these nobody knows, or another owner is to say, what becomes of the request: it stays."""


class OwnerCalls(Protocol):
    """What it needs of ``ChunkedSegmentStorage``."""

    def append(
        self, segment: SegmentHandle, data: bytes, *, expected_offset: int | None, writer_id: bytes, event_number: int
    ) -> int: ...
    def commit(self, changes: Sequence[Change]) -> list[int | None]: ...
    def table(self, namespace: str) -> TableReader: ...
    def unpin(self, name: str) -> bool: ...
    def collect(self) -> CollectReport: ...
    def defrag(self, name: str | None) -> DefragReport: ...
    def snapshot(self) -> SnapshotReport: ...


def carry_out(container: OwnedContainer, calls: OwnerCalls, ask: Ask) -> tuple[Plain, ...]:
    """Do what is asked, and say what came of it. Raises what the calls raise: then it was not done, but for ``OutcomeUnknown``."""
    from chunkstore.operations.pins import pin
    from chunkstore.operations.staging import stage

    match ask:
        case AskSession(holder, ttl_ms):
            plan = partial(plan_find_session, holder=holder, ttl_s=ttl_ms / 1000)
            return (commit_changes(container, (), plan, tables=True, adds=0),)
        case AskCommit(changes, once):
            return (_commit_once(calls, changes, once),)
        case AskAppend(name, segment_id, data, writer_id, number, offset):
            segment = SegmentHandle(name, segment_id, True)
            return (calls.append(segment, data, expected_offset=offset, writer_id=writer_id, event_number=number),)
        case AskStage(session_id, runs):
            stage(container, session_id, runs)
            return ()
        case AskPin(name, note, lasts_ms, holder):
            return (pin(container, name, PinRecord(0, 0, lasts_ms, holder, note)).lsn,)
        case AskUnpin(name):
            return (calls.unpin(name),)
        case AskCollect():
            return tuple(calls.collect())
        case AskDefrag(segment):
            report = calls.defrag(segment)
            actions = tuple(tuple(action) for action in report.actions[:_ACTIONS_MAX])
            refused, ahead = report.refused[:_ACTIONS_MAX], report.ahead[:_ACTIONS_MAX]
            return tuple(report._replace(actions=actions, refused=refused, ahead=ahead))  # type: ignore[arg-type]
        case AskSnapshot():
            taken = calls.snapshot()
            return (taken.name, tuple(taken.position), taken.digest.to_bytes(32, "big"), taken.rows, taken.size_bytes)


def _commit_once(calls: OwnerCalls, changes: Sequence[Change], once: TablePut) -> int:
    """The version that the row ``once`` got: now, or before. That goes first: what else is refused must not hide that it has happened, or
    cannot any more."""
    table = calls.table(once.namespace)
    done = version_put(table.get(once.key), once)
    if done is None:
        calls.commit([once, *changes])
        done = version_put(table.get(once.key), once)
    return done or 0


def version_put(entry: TableEntry | None, once: TablePut) -> int | None:
    """The version of a row if it is there as ``once`` puts it: then that has been committed."""
    if entry is None or entry.version == once.expected_version or entry.value != bytes(once.value):
        return None
    return entry.version


class Asked:
    """One per container; ``maintenance.Beside``. ``call``: ``carry_out`` for this container. ``stopping``: the keeper's."""

    def __init__(
        self,
        container: OwnedContainer,
        box: AskBox,
        call: Callable[[Ask], tuple[Plain, ...]],
        stopping: runtime.Event,
    ) -> None:
        self._container = container
        self._box = box
        self._call = call
        self._stopping = stopping
        self._task: runtime.Task | None = None
        self._slow: runtime.Task | None = None
        self._slow_token = ""
        self._one = runtime.lock()
        """Held while anything but an append is carried out."""
        self._bell = b""
        self._again = False
        """Whether requests are left that nobody will ring for."""
        self._undecided: set[str] = set()
        """Tokens of what was carried out with an unknown outcome. It may happen yet, whatever the next attempt ends with: no refusal."""
        self._pause_s = 0.0
        self._asked_s = -_ASKED_FOR_S
        """When somebody last asked."""
        self._rung_s = -_EAGER_FOR_S
        """When the bell last brought requests: what only waits for its turn does not make the looks more."""

    def tick(self, now_s: float) -> None:
        """Called by the keeper: begin looking, once."""
        if self._stopping.is_set() or self._container.settings.ask_s == 0:
            return
        if self._task is None or not self._task.is_alive():
            self._task = runtime.spawn_if_possible(self._work, "chunkstore-asked")

    def stop(self) -> None:
        """The keeper's event says it."""

    def join(self, wait_s: float) -> None:
        """Wait for the end of what is under way, no longer than that."""
        end_s = runtime.monotonic_s() + wait_s
        for task in (self._task, self._slow):
            if task is not None:
                task.join(max(0.0, end_s - runtime.monotonic_s()))

    def _work(self) -> None:
        with closing(runtime.pool("chunkstore-ask", _AT_ONCE)) as pool:
            self._serve_rounds(pool)

    def _serve_rounds(self, pool: runtime.Pool) -> None:
        failed = False
        while not self._stopping.wait(self._next_s(failed=failed)):
            failed = False
            try:
                self._look(pool)
            except (Closed, NotOwner):
                return
            except Exception as error:  # noqa: BLE001  (nothing that lies in the box may stop it)
                failed = True
                self._container.observer.failed(unexpected(error))

    def _next_s(self, *, failed: bool) -> float:
        """The next pause: longer and longer behind a network while nothing happens, and while looking fails."""
        settings, remote = self._container.settings, self._container.remote
        shortest_s = settings.ask_s or (_BUSY_S if remote else _LOCAL_S)
        now_s = runtime.monotonic_s()
        if settings.ask_s is None and now_s - self._rung_s < _EAGER_FOR_S:
            shortest_s = _EAGER_S if remote else _EAGER_LOCAL_S
        quiet_s = now_s - self._container.current.queue.last_commit_at_s
        is_quiet = quiet_s > _BUSY_FOR_S and now_s - self._asked_s > _ASKED_FOR_S
        idle = remote and settings.ask_s is None and is_quiet
        self._pause_s = min(_IDLE_S, max(shortest_s, self._pause_s * 2)) if failed or idle else shortest_s
        return self._pause_s

    def _look(self, pool: runtime.Pool) -> None:
        container = self._container
        with container.bounded(container.deadline()):
            bell = self._box.bell()
            if bell == self._bell and not self._again:
                return
            tokens = self._box.waiting(_ROUND)
            if not tokens and container.settings.lease_s:
                # A polite claimant rang: it looks for a sign of life.
                container.service.renew_lease(container.current.epoch, released=False)
        if tokens:
            self._asked_s = runtime.monotonic_s()
            if bell != self._bell:
                self._rung_s = self._asked_s
        self._bell, self._again = bell, len(tokens) == _ROUND
        pool.run_all([partial(self._serve, token) for token in tokens if token != self._slow_token])

    def _serve(self, token: str) -> None:
        container = self._container
        if self._stopping.is_set():
            return
        try:
            with container.bounded(container.deadline()):
                request = self._box.request(token)
        except (Damaged, Unsupported) as error:
            self._refuse(token, error)
            return
        if request is None:
            return
        late_ms = runtime.now_ms() - request.made_ms - request.wait_ms
        if late_ms > _LATE_MS:
            # Who asked has given up, unless the clocks differ.
            what = f"a request that was made {late_ms / 1000 + request.wait_ms / 1000:.0f} s ago by the asker's clock"
            late = DeadlineExceeded(what, deadline_s=request.wait_ms / 1000)
            self._refuse(token, late)
        elif isinstance(request.ask, AskAppend):
            self._carry_out(token, request.ask)
        else:
            with self._one:
                self._carry_out_alone(token, request.ask)

    def _carry_out_alone(self, token: str, ask: Ask) -> None:
        if not isinstance(ask, _SLOW):
            self._carry_out(token, ask)
        elif self._slow is None or not self._slow.is_alive():
            self._slow_token = token
            self._slow = runtime.spawn_if_possible(partial(self._carry_out_slow, token, ask), "chunkstore-ask")
            if self._slow is None:
                self._slow_token, self._again = "", True
        else:
            self._again = True

    def _carry_out_slow(self, token: str, ask: Ask) -> None:
        try:
            self._carry_out(token, ask)
        except ChunkstoreError as error:
            self._container.observer.failed(error)
        finally:
            self._slow_token = ""

    def _carry_out(self, token: str, ask: Ask) -> None:
        container = self._container
        epoch = container.current.epoch
        try:
            with container.upkeep.run("ask"):
                answer = Answer(epoch, None, self._call(ask))
        except _UNANSWERED as error:
            if not isinstance(error, OutcomeUnknown):
                raise
            self._undecided.add(token)
            self._again = True
            return
        except Exception as error:  # noqa: BLE001  (what a request makes of us, it is told)
            self._refuse(token, unexpected(error))
            return
        self._respond(token, answer)

    def _refuse(self, token: str, error: ChunkstoreError) -> None:
        """Say no. A deposed owner must not: the request is its successor's, who knows the present state, and perhaps the time."""
        epoch = self._container.current.epoch
        self._container.check_fence()
        self._respond(token, Answer(epoch, error, ()))

    def _respond(self, token: str, answer: Answer) -> None:
        """What fails here is done, and looked at again: the request may still be there."""
        container = self._container
        if answer.error is not None and token in self._undecided:
            self._again = True
            return
        try:
            with container.bounded(container.deadline()):
                self._box.respond(token, answer)
        except ChunkstoreError:
            self._again = True
            raise
        self._undecided.discard(token)
