"""The history of what clients were told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from greenlet import GreenletExit

from chunkstore.errors import (
    ChunkstoreError,
    Damaged,
    InvalidArgument,
    OutcomeUnknown,
    RolledBack,
)
from tests.judges.causes import hidden_cause
from tests.judges.events import Event, error_fields
from tests.simulator.world import World


class Recorder:
    """The history of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.events: list[Event] = []
        self._open: dict[int, Event] = {}
        """Calls that were not answered yet, as what they are if they never will be."""
        self._calls = 0
        self.listener: Callable[[Event], None] | None = None
        """Told of every event that has been answered, at once."""
        self.on_damage: Callable[[Damaged, int], bool] = lambda _error, _since: False
        """Told of every answer that something is damaged, and since when it was asked for; true if it has judged it."""

    def call(
        self,
        process: str,
        kind: str,
        segment: str,
        args: tuple[Any, ...],
        epoch: Callable[[], int],
        call: Callable[[], Any],
        *,
        owner: str = "",
    ) -> Any:
        """Make a call, and record what it answered. ``owner``: as in ``Event``. Raises what it raised."""
        number = self._begin(process, kind, segment, args, epoch(), owner)
        try:
            result = call()
        except BaseException as error:
            self._failed(number, kind, segment, error, epoch)
            raise
        self._record(number, "ok", result, epoch())
        return result

    def now(self) -> int:
        """The time of events."""
        return self._world.scheduler.now

    def _begin(self, process: str, kind: str, segment: str, args: tuple[Any, ...], epoch: int, owner: str) -> int:
        self._calls += 1
        now = self._world.scheduler.now
        self._open[self._calls] = Event(process, kind, segment, args, now, None, "unknown", None, epoch, owner)
        return self._calls

    def _failed(self, number: int, kind: str, segment: str, error: BaseException, epoch: Callable[[], int]) -> None:
        if self._world.scheduler.killing or isinstance(error, GreenletExit):
            return  # whoever asked is dead: nobody was told anything, and the call stays open
        since = self._open[number].invoked
        if isinstance(error, OutcomeUnknown):
            self._record(number, "unknown", type(error).__name__, epoch())
        elif isinstance(error, ChunkstoreError):
            self._record(number, "failed", type(error).__name__, epoch(), error_fields(error))
        else:
            self._record(number, "unknown", type(error).__name__, epoch())
            self._world.fail(f"{kind} of {segment!r} raised {error!r}, which is not chunkstore's")
            return
        self.judge(kind, segment, error, since)

    def _record(self, number: int, outcome: Any, result: Any, epoch: int, fields: tuple[Any, ...] = ()) -> None:
        asked = self._open.pop(number)
        if asked.kind == "replica_read" and outcome == "ok" and result is None:
            return  # what it would have said is of another segment than was asked about
        event = replace(
            asked, returned=self._world.scheduler.now, outcome=outcome, result=result, epoch=epoch, fields=fields
        )
        self.events.append(event)
        if self.listener is not None:
            self.listener(event)
        if self._world.trace is not None:
            self._world.log(f"{event.process}: {event.kind} {event.segment} {event.args!r} -> {outcome} {result!r}")

    def future(
        self, process: str, kind: str, segment: str, args: tuple[Any, ...], epoch: Callable[[], int], *, owner: str = ""
    ) -> Callable[..., None]:
        """A call is made now that a future will answer. Returns what to tell the future once nobody waits for it any more."""
        number = self._begin(process, kind, segment, args, epoch(), owner)

        def settle(future: Any, *, never: bool = False) -> None:
            """``never``: since then it is known that it was not committed."""
            error = future.exception() if future.done() else None
            if never and isinstance(error, OutcomeUnknown):
                self._record(number, "failed", "NotCommitted", epoch())
            elif error is not None:
                self._failed(number, kind, segment, error, epoch)
            elif future.done():  # else nobody was told anything
                self._record(number, "ok", future.result(), epoch())

        return settle

    def judge(self, kind: str, segment: str, error: ChunkstoreError, since: int) -> None:
        """Fail the run if this is no answer that fine storage in bad weather may lead to. ``since``: when it was asked for."""
        if isinstance(error, Damaged) and self.on_damage(error, since):
            return
        if isinstance(error, RolledBack):
            self._world.fail(f"history wrong-refusal: {kind} was answered {error!r}, and nothing was rolled back")
        elif isinstance(error, Damaged | InvalidArgument):
            self._world.fail(f"{kind} of {segment!r} was answered {error!r}")
        hidden = hidden_cause(error, weather=self._world.backend.causes)
        if hidden is not None:
            self._world.fail(f"{kind} of {segment!r}: {error!r} hides {hidden!r}")

    def finish(self) -> list[Event]:
        """The whole history; calls that never answered have an unknown outcome."""
        self.events += self._open.values()
        self._open.clear()
        return self.events
