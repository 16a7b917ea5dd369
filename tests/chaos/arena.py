"""The processes of one phase: starting, killing, stopping, waking.

Promises: every process started is ended by ``close``, stopped ones too; who ends by itself, or writes a traceback to its standard
error, is reported. Leaves out: when to do what (``phase``).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chunkstore import runtime
from tests.chaos.plan import Phase, draw_settings

__all__ = ["Arena", "Life"]

_WATCHER_SLOT: Final = -1
_STANDS_STILL_S: Final = 120.0
_SEES_SLEEPERS: Final = os.path.exists("/proc/self/stat")
"""Whether a process that has stopped itself can be told from one that runs."""


@dataclass(slots=True)
class Life:
    """One process from start to end. ``stops`` are the times it was stopped, for judging how long things took."""

    slot: int
    tag: str
    process: subprocess.Popen[bytes]
    errors: str
    stopped_s: float = 0.0
    wake_s: float = 0.0
    wake_at_epoch: int = 0
    """Woken a little after this epoch has opened, if that is sooner."""
    stops: list[tuple[float, float]] = field(default_factory=list)

    @property
    def notes(self) -> str:
        """The name of its file of notes."""
        return f"{self.tag}.notes"


class Arena:
    """See the module. ``folder`` is the phase's own; ``container`` where the container lies."""

    def __init__(self, phase: Phase, folder: str, container: str, chance: random.Random, rate: float) -> None:
        self._phase = phase
        self._folder = folder
        self._chance = chance
        self._rate = rate
        self.root = f"file://{container}"
        self.container = container
        self.verified = os.path.join(folder, "verified.json")
        self.kept = os.path.join(folder, "kept")
        """Copies of what was deleted."""
        self.notes = os.path.join(folder, "notes")
        os.makedirs(self.notes, exist_ok=True)
        self.lives: dict[int, Life] = {}
        self.past: list[Life] = []
        self.problems: list[str] = []
        self._numbers: dict[int, int] = {}
        self.kills = self.stops = self.caches_lost = 0

    def start_missing(self) -> None:
        """Start whoever is not there."""
        for slot in (*range(self._phase.processes), _WATCHER_SLOT):
            if slot not in self.lives:
                self._start(slot)

    def _cache(self, slot: int) -> str:
        if slot != _WATCHER_SLOT and self._chance.random() < 0.3:
            return os.path.join(self._folder, "cache-shared")
        if self._phase.full_disk and slot in (0, _WATCHER_SLOT):
            return os.path.join(os.path.dirname(self.container), f"cache-{slot}")
        return os.path.join(self._folder, f"cache-{slot}")

    def _start(self, slot: int) -> None:
        chance = self._chance
        number = self._numbers[slot] = self._numbers.get(slot, 0) + 1
        tag = f"replica-{number}" if slot == _WATCHER_SLOT else f"p{slot}-{number}"
        config: dict[str, Any] = {
            "tag": tag,
            "seed": chance.randrange(1 << 62),
            "root": self.root,
            "container": self.container,
            "kept": self.kept,
            "cache": self._cache(slot),
            "lose_cache": chance.random() < 0.15,
            "notes": os.path.join(self.notes, f"{tag}.notes"),
            "verified": self.verified,
            "settings": draw_settings(chance, self._phase),
            "rate": self._rate,
            "stumbles": chance.choice((0.0, 0.0003, 0.0015)) if _SEES_SLEEPERS else 0.0,
            "patience_s": self._phase.processes * chance.choice((0.15, 0.5, 1.5)),
        }
        role = "watcher" if slot == _WATCHER_SLOT else self._phase.role(slot)
        config["role"] = role
        module = "command" if role in ("serve", "gc") else role
        errors = os.path.join(self._folder, f"{tag}.stderr")
        with open(errors, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", f"tests.chaos.{module}", json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self.lives[slot] = Life(slot, tag, process, errors)

    def by_notes(self, notes: str) -> Life | None:
        """The living process of a file of notes."""
        return next((life for life in self.lives.values() if life.notes == notes), None)

    def kill(self, life: Life) -> None:
        """``SIGKILL``, also while it is stopped."""
        life.process.send_signal(signal.SIGKILL)
        self.kills += 1
        self._end(life)

    def _end(self, life: Life) -> None:
        life.process.wait(120)
        self.lives.pop(life.slot, None)
        self.past.append(life)
        if life.stopped_s:
            life.stops.append((life.stopped_s, runtime.monotonic_s()))
        with open(life.errors, "rb") as file:
            text = file.read().decode("utf-8", "replace")
        if text:
            self.problems.append(f"{life.tag} wrote to its standard error: {text[-1500:]}")
        else:
            os.unlink(life.errors)

    def look_for_deaths(self) -> None:
        """Nobody may end by itself."""
        for life in list(self.lives.values()):
            code = life.process.poll()
            if code is not None:
                self.problems.append(f"{life.tag} ended by itself with code {code}")
                self._end(life)

    def stop(self, life: Life, wake_s: float, *, wake_at_epoch: int = 0) -> None:
        """``SIGSTOP`` until ``wake_s``, or until ``wake_at_epoch`` has opened."""
        if not life.stopped_s:
            # (Harmless to one that has stopped itself.)
            life.process.send_signal(signal.SIGSTOP)
            life.stopped_s = runtime.monotonic_s()
            self.stops += 1
        life.wake_s, life.wake_at_epoch = wake_s, wake_at_epoch

    def find_sleepers(self) -> list[Life]:
        """Who has stopped itself since the last look."""
        return [life for life in self.lives.values() if not life.stopped_s and _sleeps(life.process.pid)]

    def wake_due(self, now_s: float, newest_epoch: int) -> None:
        """Wake whose time has come."""
        for life in self.lives.values():
            if not life.stopped_s:
                continue
            if life.wake_at_epoch and newest_epoch >= life.wake_at_epoch:
                life.wake_at_epoch = 0
                life.wake_s = min(life.wake_s, now_s + self._chance.uniform(0.0, 0.5))
            if now_s >= life.wake_s:
                self.wake(life)

    def wake(self, life: Life) -> None:
        """``SIGCONT``."""
        life.process.send_signal(signal.SIGCONT)
        life.stops.append((life.stopped_s, runtime.monotonic_s()))
        life.stopped_s = life.wake_s = 0.0
        life.wake_at_epoch = 0

    def stop_everybody(self) -> list[Life]:
        """``SIGSTOP`` to all; those who were running. On return nobody runs: who is inside a write ends it first."""
        running = [life for life in self.lives.values() if not life.stopped_s]
        for life in running:
            self.stop(life, float("inf"))
        end_s = runtime.monotonic_s() + _STANDS_STILL_S
        for life in self.lives.values() if _SEES_SLEEPERS else ():
            while life.process.poll() is None and not _sleeps(life.process.pid):
                if runtime.monotonic_s() > end_s:
                    self.problems.append(f"{life.tag} did not stop in {_STANDS_STILL_S:g} s")
                    break
                runtime.sleep_s(0.001)
        return running

    def was_stopped(self, notes: str, from_s: float, to_s: float) -> bool:
        """Whether a process was stopped at any time in between."""
        lives = (*self.past, *self.lives.values())
        return any(
            start < to_s and stop > from_s for life in lives if life.notes == notes for start, stop in life.stops
        )

    def close(self) -> None:
        """End everybody."""
        for life in list(self.lives.values()):
            life.process.send_signal(signal.SIGKILL)
            self._end(life)


def _sleeps(pid: int) -> bool:
    """Whether every thread of a process has stopped."""
    try:
        return all(
            Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
            for thread in os.listdir(f"/proc/{pid}/task")
        )
    except (OSError, IndexError):
        return False
