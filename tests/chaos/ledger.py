"""What all processes of a phase noted, put together: attempts and their outcomes, take-overs, what the replica showed.

Promises: reads only what is new at each call; an attempt without an answer stays open, whether its process is dead or merely
stopped. Leaves out: judging (``verdict``).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tests.chaos.notes import NoteReader

__all__ = ["Attempt", "Ledger", "Opening", "Shown", "Slice"]

_EVENTS: Final = {"event": 1, "plain": 1, "part": 1, "pair": 2}
"""How many events an attempt of a kind appends."""


@dataclass(slots=True)
class Attempt:
    """One call: ``outcome`` is "open" until it was answered ("ok", "no", "un"). Times are seconds, epochs those noted."""

    identity: str
    kind: str
    process: str
    tried_s: float
    tried_epoch: int
    details: list[Any]
    outcome: str = "open"
    answered_s: float = 0.0
    answered_epoch: int = 0
    result: Any = None

    fields: tuple[Any, ...] = ()
    """What the error of a "no" carries."""


class Opening(NamedTuple):
    """A take-over that succeeded."""

    epoch: int
    began_s: float
    opened_s: float
    process: str
    source: str
    tail_cut: list[int] | None
    polite: bool
    """Whether it was to wait for a sign of life first."""


class Slice(NamedTuple):
    """Bytes that a replica read."""

    replica: str
    segment: str
    start: int
    stop: int
    crc: int
    lsn: int
    at_s: float


class Shown(NamedTuple):
    """How long segments were in a replica after a refresh that began at ``began_s``."""

    replica: str
    began_s: float
    at_s: float
    lsn: int
    lengths: dict[str, int]


class Ledger:
    """See the module. ``folder`` holds one file a process life."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._readers: dict[str, NoteReader] = {}
        self._began: dict[str, tuple[float, float]] = {}
        self.attempts: dict[str, Attempt] = {}
        self.owners: dict[int, str] = {}
        """Processes by their number; "" for one that several had."""
        self.openings: list[Opening] = []
        self.opening_now: set[str] = set()
        """Processes in the middle of a take-over, dead ones included."""
        self.refused: dict[str, int] = {}
        self.slices: list[Slice] = []
        self.shown: list[Shown] = []
        self.rows_shown: list[tuple[str, float, str, tuple[str, int], int]] = []
        self._replica = "replica-0"
        """The one that is open: each opening is another one, which may be behind the one before."""
        self.bad: list[str] = []
        self.outcomes = {"ok": 0, "no": 0, "un": 0}
        self.last_ok_s = 0.0
        self.events_acknowledged = 0

    def read(self) -> None:
        """Take in what was added."""
        for name in sorted(os.listdir(self._folder)):
            reader = self._readers.get(name)
            if reader is None:
                reader = self._readers[name] = NoteReader(os.path.join(self._folder, name))
            for at_s, kind, *rest in reader.more():
                self._take(name, at_s, kind, rest)

    def _take(self, process: str, at_s: float, kind: str, rest: list[Any]) -> None:
        if kind == "try":
            attempt = Attempt(rest[0], rest[1], process, at_s, rest[2], rest[3:])
            self.attempts[attempt.identity] = attempt
        elif kind in ("ok", "no", "un"):
            attempt = self.attempts[rest[0]]
            attempt.outcome, attempt.answered_s = kind, at_s
            self.outcomes[kind] += 1
            if kind == "ok":
                attempt.answered_epoch, attempt.result = rest[1], rest[2]
                self.events_acknowledged += _EVENTS.get(attempt.kind, 0)
                self.last_ok_s = max(self.last_ok_s, at_s)
            else:
                attempt.result = rest[1]
                attempt.fields = tuple(rest[2]) if kind == "no" else ()
        elif kind == "opening":
            self._began[process] = at_s, rest[0]
            owner = process.removesuffix(".notes")
            self.owners[rest[1]] = owner if self.owners.get(rest[1], owner) == owner else ""
            self.opening_now.add(process)
        elif kind == "opened":
            began_s, wait_s = self._began[process]
            self.opening_now.discard(process)
            self.openings.append(Opening(rest[0], began_s, at_s, process, rest[1], rest[3], wait_s > 0))
        elif kind == "refused":
            self.opening_now.discard(process)
            reason = str(rest[0]).partition(":")[0].partition("(")[0]
            self.refused[reason] = self.refused.get(reason, 0) + 1
        elif kind == "bad":
            self.bad.append(f"{process}: {' '.join(str(item) for item in rest)}")
        elif kind == "following":
            self._replica = f"replica-{at_s}"
        elif kind == "seen":
            self.slices.append(Slice(self._replica, rest[0], rest[1], rest[2], rest[3], rest[4], at_s))
        elif kind == "shows":
            self.shown.append(Shown(self._replica, rest[2], at_s, rest[0], rest[1]))
        elif kind == "row":
            self.rows_shown.append((self._replica, at_s, rest[0], (rest[1], rest[2]), rest[3]))

    def present_owner(self) -> str:
        """The process that opened the newest epoch, or ""."""
        return max(self.openings, key=lambda opening: opening.epoch).process if self.openings else ""


class EpochsServed:
    """The newest epoch that had been opened before a moment."""

    def __init__(self, openings: list[Opening]) -> None:
        ordered = sorted(openings, key=lambda opening: opening.opened_s)
        self._times = [opening.opened_s for opening in ordered]
        self._epochs: list[int] = []
        self._claims: list[float] = []
        newest, began_s = 0, 0.0
        for opening in ordered:
            newest, began_s = max(newest, opening.epoch), max(began_s, opening.began_s)
            self._epochs.append(newest)
            self._claims.append(began_s)

    def before(self, at_s: float) -> int:
        """0 when none was."""
        place = bisect_left(self._times, at_s)
        return self._epochs[place - 1] if place else 0

    def claim_before(self, at_s: float) -> float:
        """When the latest of the take-overs began that had ended before ``at_s``: what was acknowledged before is behind its OPEN."""
        place = bisect_left(self._times, at_s)
        return self._claims[place - 1] if place else 0.0
