"""Judging a run: what may never be seen while it goes on, and what must hold at its end.

Levels: "none" (only the end), "steps" (the invariants of steps whenever something happens, those of the metadata at each
take-over, all of them and the history of what clients were told at the end). Every finding begins with what found it:
``invariant N``, or ``history ANOMALY``. Promises: looks only; takes no step of the simulation's time at its own account.
Leaves out: the rules themselves (``chunkstore.testing.step_invariants``, ``chunkstore.testing.history``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Damaged, DeadlineExceeded
from chunkstore.operations.check import check
from chunkstore.replica import Replica
from chunkstore.testing.events import Event
from chunkstore.testing.history import check_history
from chunkstore.testing.simulator.watching import Watch

if TYPE_CHECKING:
    from chunkstore.testing.simulator.world import Process, World

__all__ = ["Checks", "Level", "contents"]

T = TypeVar("T")

_LAZY_STATES_MAX: Final = 500
Level: TypeAlias = Literal["none", "steps"]
_ATTEMPTS = 100
_WRONG: Final = frozenset(("damage", "leak"))
"""Severities of findings that no correct run leads to."""


class Checks:
    """The judge of one run."""

    def __init__(self, world: World, level: Level) -> None:
        self._world = world
        self.level = level
        self._final: dict[str, tuple[int, bytes]] | None = None
        self._watch = Watch(world) if level == "steps" else None
        self.undecided = ""
        """Why the history could not be judged whole; empty if it was."""

    def after_take_over(self, process: Process, store: ChunkedSegmentStorage) -> None:
        """A process has begun to serve; called in one of its tasks."""
        if self._watch is None:
            return
        self._watch.serving(process, store)
        with self._world.scheduler.atomic():
            if store._core.store.head().owner_epoch != store.epoch:  # noqa: SLF001
                return  # it slept, and a newer owner on its machine has the cache
            findings = list(check(store._context, "quick", epoch=store.epoch))  # noqa: SLF001
        for finding in findings:
            if finding.severity in _WRONG:
                self._world.fail(f"invariant {finding.invariant}: after the take-over by {process.name}: {finding}")

    def watch_replica(self, process: Process, replica: Replica) -> None:
        """A replica has begun to follow."""
        if self._watch is not None:
            self._watch.following(process, replica)

    def damaged(self, error: Damaged) -> bool:
        """Somebody was answered this; whether the storage really lost what was named, which then is the violation."""
        return self._watch is not None and self._watch.invariants.answered_damaged(error.object or "")

    def told(self, event: Event) -> None:
        """A client was answered."""
        if self._watch is not None:
            self._watch.told(event)

    def at_the_end(self, store: ChunkedSegmentStorage, *, early: bool) -> list[Event]:
        """After all faults, in a task of the heir. ``early``: requests may still be on their way.

        Returns what the heir reads, as events of the history, if ``early``.
        """
        world = self._world
        findings = [finding for finding in _patiently(lambda: store.check("deep")) if finding.severity in _WRONG]
        for finding in findings:
            world.fail(f"invariant {finding.invariant}: at the end: {finding}")
        if self._watch is not None and not early:
            self._watch.look()
            self._watch.invariants.finish()
        found = contents(store)
        if self._final is not None and found != self._final:
            world.fail(f"invariant 9: contents changed without a change: {self._final} -> {found}")
        self._final = found
        if not early:
            return []
        finals: list[Event] = []
        for name, (_, data) in found.items():
            info = _patiently(partial(store.info, name))
            now = world.scheduler.now
            args = (info.start_offset, len(data), info.id)
            finals.append(Event("heir", "final", name, args, now, now, "ok", data, store.epoch))
        return finals

    def history(self, events: Sequence[Event]) -> None:
        """The whole history, once nothing can be added to it any more."""
        verdict = check_history(events)
        if verdict.anomalies and self._world.settings.lengths == "lazy":
            # Most histories need no half append, and trying them all takes long.
            verdict = check_history(events, lengths="lazy", states_max=_LAZY_STATES_MAX)
        self.undecided = verdict.undecided
        for anomaly in verdict.anomalies:
            shown = "; ".join(repr(events[index]) for index in anomaly.events[:3])
            self._world.fail(f"history {anomaly.name}: segment {anomaly.segment!r}: {anomaly.message} ({shown})")


def contents(store: ChunkedSegmentStorage) -> dict[str, tuple[int, bytes]]:
    """Start offset and bytes of every segment."""
    found: dict[str, tuple[int, bytes]] = {}
    for info in _patiently(lambda: list(store.segments())):
        read = partial(store.read, info.name, info.start_offset, 1 << 20)
        try:
            found[info.name] = (info.start_offset, _patiently(read))
        except ChunkstoreError as error:
            raise AssertionError(f"segment {info.name!r} cannot be read: {error!r}") from error
    return found


def _patiently(call: Callable[[], T]) -> T:
    """A call in spite of drawn deadlines shorter than what it may have to wait for: a roll of the journal, a record of a read."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return call()
        except DeadlineExceeded:
            pass
    return call()
