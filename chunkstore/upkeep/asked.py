"""The owner's loop for requests: it looks whether somebody rang, runs what is asked for, and answers (protocol 3.19).

Promises: several appends run at once, so that they share records. Other requests run one after the other; one job runs next to them.
No deposed owner refuses a request, and a refusal is stored once the request is gone. No content of the box and no failure stops the loop.
Leaves out: what a request does (``Store.run``), stored bytes (``chunkstore_journal``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final

from chunkstore import runtime
from chunkstore.changes.asks import Answer, Ask, AskBox, AskCommit, AskJob, Event, Result
from chunkstore.errors import Closed, Damaged, DeadlineExceeded, NotOwner, OutcomeUnknown, Unsupported
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.maintenance import BackgroundJob

__all__ = ["Asked"]

_LOCAL_S, _REMOTE_S, _IDLE_S = 0.05, 1.0, 20.0
"""Pauses between looks: on a local storage, on a network, and there where nothing happens."""
_EAGER_LOCAL_S, _EAGER_REMOTE_S, _EAGER_FOR_S = 0.002, 0.1, 2.0
"""... and for so long after a request: the next one is expected at once."""
_BUSY_FOR_S, _ASKED_FOR_S = 60.0, 900.0
"""How long after a commit, and after a request, an answer may be wanted soon: a stream asks again and again."""
_AT_ONCE: Final = 8
_ROUND: Final = 256
_LATE_MS: Final = 60_000


class Asked(BackgroundJob):
    """One per container. ``run``: of the store."""

    def __init__(self, container: OwnedContainer, box: AskBox, run: Callable[[Ask], Result]) -> None:
        super().__init__()
        self._container = container
        self._box = box
        self._run = run
        self._job: runtime.Task | None = None
        self._job_token = ""
        self._one = runtime.lock()
        """Held while anything but an append or a job runs."""
        self._bell = b""
        self._again = False
        """Whether requests are left that no one will ring for."""
        self._failed = False
        self._undecided: set[str] = set()
        """Tokens of requests with an unknown outcome: they may happen yet, whatever the next attempt ends with, so none is refused."""
        self._pause_s = 0.0
        self._asked_s, self._rung_s = -_ASKED_FOR_S, -_EAGER_FOR_S
        """When a request was last seen; and when the bell brought one: one that waits for its turn causes no more looks."""

    def tick(self, now_s: float) -> None:
        """Called by the keeper: begin looking, once."""
        if self._container.settings.tuning.ask_s != 0:
            self.begin(self._work, "chunkstore-asked")

    def join(self, wait_s: float) -> None:
        end_s = runtime.monotonic_s() + wait_s
        for task in (self._task, self._job):
            if task is not None:
                task.join(max(0.0, end_s - runtime.monotonic_s()))

    def _work(self) -> None:
        with closing(runtime.pool("chunkstore-ask", _AT_ONCE)) as pool:
            while not self.stopping.wait(self._next_s()) and self._container.fence.error is None:
                self._failed = False
                self._guarded(partial(self._look, pool))

    def _guarded(self, call: Callable[[], None]) -> None:
        """A failure is looked at again. A closed store or a deposed owner leaves requests to the next owner."""
        try:
            call()
        except (Closed, NotOwner):
            return
        except Exception as error:  # noqa: BLE001  (no content of the box may stop the loop)
            self._again = self._failed = True
            self._container.observer.failed(unexpected(error))

    def _next_s(self) -> float:
        """The next pause: longer and longer on a network while nothing happens, and while looking fails."""
        settings, remote = self._container.settings, self._container.remote
        now_s, slower = runtime.monotonic_s(), self._failed
        shortest_s = settings.tuning.ask_s or (_REMOTE_S if remote else _LOCAL_S)
        if settings.tuning.ask_s is None:
            if now_s - self._rung_s < _EAGER_FOR_S:
                shortest_s = _EAGER_REMOTE_S if remote else _EAGER_LOCAL_S
            quiet_s = now_s - self._container.current.queue.last_commit_at_s
            slower |= remote and quiet_s > _BUSY_FOR_S and now_s - self._asked_s > _ASKED_FOR_S
        self._pause_s = min(_IDLE_S, max(shortest_s, self._pause_s * 2)) if slower else shortest_s
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
        others = [token for token in tokens if token != self._job_token or not _is_alive(self._job)]
        pool.run_all([partial(self._guarded, partial(self._serve, token)) for token in others])

    def _serve(self, token: str) -> None:
        container = self._container
        if self.stopping.is_set():
            return
        try:
            with container.bounded(container.deadline()):
                request = self._box.request(token)
        except (Damaged, Unsupported) as error:
            self._respond(token, Answer(container.current.epoch, error, None))
            return
        if request is None:
            return
        ask = request.ask
        late_ms = runtime.now_ms() - request.made_ms - request.wait_ms
        if late_ms > _LATE_MS:
            # The client has given up, unless the clocks differ.
            what = f"a request that was made {(late_ms + request.wait_ms) / 1000:.0f} s ago by the asker's clock"
            late = DeadlineExceeded(what, deadline_s=request.wait_ms / 1000)
            self._respond(token, Answer(container.current.epoch, late, None))
        elif isinstance(ask, AskCommit) and isinstance(ask.once, Event):
            self._answer(token, ask)
        else:
            with self._one:
                if isinstance(ask, AskJob):
                    self._begin(token, ask)
                else:
                    self._answer(token, ask)

    def _begin(self, token: str, ask: AskJob) -> None:
        """Run a job next to the other requests, unless one runs already: then it waits for its turn."""
        if not _is_alive(self._job):
            run = partial(self._guarded, partial(self._answer, token, ask))
            self._job_token, self._job = token, runtime.spawn_if_possible(run, "chunkstore-ask")
        self._again |= self._job is None or self._job_token != token

    def _answer(self, token: str, ask: Ask) -> None:
        epoch = self._container.current.epoch
        try:
            with self._container.upkeep.run("ask"):
                answer = Answer(epoch, None, self._run(ask))
        except (Closed, NotOwner):
            raise
        except OutcomeUnknown:
            self._undecided.add(token)
            self._again = True
            return
        except Exception as error:  # noqa: BLE001  (the client is told what its request makes of us)
            answer = Answer(epoch, unexpected(error), None)
        self._respond(token, answer)

    def _respond(self, token: str, answer: Answer) -> None:
        container = self._container
        if answer.error is not None:
            if token in self._undecided:
                self._again = True
                return
            # A deposed owner must not refuse: the request is its successor's, who knows the present state, and perhaps the time.
            container.check_fence()
        with container.bounded(container.deadline()):
            self._box.respond(token, answer)
        self._undecided.discard(token)


def _is_alive(task: runtime.Task | None) -> bool:
    return task is not None and task.is_alive()
