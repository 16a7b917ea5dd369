"""A disk that can lose its power: production code in real threads, over the simulator's file system with its two layers.

What is visible and what is durable are apart, file bytes and directory entries too (``tests.simulator.posix``). Every
*system call* passes the gate of ``tests.support.faulty``: creating a name with content is five of them, and a process may
die, get an error, or lose its power between any two. Here nothing is scheduled: one lock makes each system call atomic.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from tests.simulator.posix import PosixBackend, PosixChunkStorage
from tests.support.faulty import Dead, Faults, Outcome, happen

POWER_CUTS = (
    Outcome.POWER_NOTHING,
    Outcome.POWER_NAMES,
    Outcome.POWER_CONTENTS,
    Outcome.POWER_SOME,
    Outcome.POWER_OTHERS,
)
_KEEPS, _LOSES = 0.99, 0.0
_SYNCS = ("fsync", "fsync-temporary")
_numbers = itertools.count(1)


class Disk:
    """A kernel and its disk, shared by all storages that are opened on it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._dice: Callable[[], float] = random.Random(0).random
        world = SimpleNamespace(
            scheduler=SimpleNamespace(now=0),
            faults=SimpleNamespace(random=SimpleNamespace(random=self._roll)),
        )
        self.backend = PosixBackend(cast("Any", world))

    def _roll(self) -> float:
        return self._dice()

    def power_cut(self, outcome: Outcome, seed: int) -> None:
        """Lose the power: of what was not synced, names and contents are kept as ``outcome`` says."""
        with self.lock:
            self._dice = self._dice_of(outcome, seed)
            self.backend.power_cut()

    def _dice_of(self, outcome: Outcome, seed: int) -> Callable[[], float]:
        if outcome is Outcome.POWER_NOTHING:
            return lambda: _LOSES
        names = sum(map(len, self.backend._dirty.values()))
        asked = itertools.count()
        if outcome is Outcome.POWER_NAMES:
            return lambda: _KEEPS if next(asked) < names else _LOSES
        if outcome is Outcome.POWER_CONTENTS:
            return lambda: _LOSES if next(asked) < names else _KEEPS
        return random.Random(f"{outcome.value} {seed}").random


class DiskStorage(PosixChunkStorage, Faults):
    """A process's way to the disk, with a gate before every system call."""

    def __init__(self, disk: Disk) -> None:
        Faults.__init__(self)
        self._disk = disk
        self._backend = disk.backend
        self._begin()
        self._process = cast("Any", SimpleNamespace(number=next(_numbers)))
        self._wire_call = cast("Any", self._system_call)

    def _system_call(
        self,
        op: str,
        step: str,
        name: str,
        apply: Callable[[], Any],
        *,
        data: bytes | None = None,
        changes: bool = True,
        remote: bool = False,
    ) -> Any:
        with self._disk.lock:
            outcome = self._step(op, (name,), data is not None and step == "pwrite", step=step)
            if outcome in POWER_CUTS:
                self._disk.power_cut(outcome, len(self.trace))
                raise Dead
            if outcome is Outcome.ERROR_BEFORE and step in _SYNCS and name in self._backend.entries:
                # The pages are marked clean and never written: the next sync says that all is well.
                self._backend.entries[name].sync_fails()

            def half() -> None:
                assert data is not None
                self._backend.find(name).data.extend(data[: len(data) // 2])

            return happen(outcome, f"{step} of {name}", apply, half)
