"""Copies of a root in the middle of a run, opened by processes of the same machines; original and copy both go on.

A copy is a run of its own in the same world: it has a judge that knows what the original's knew at that moment, a history that goes on
from there, owners and clients. Promises: the copy holds what was visible at one moment, durably; what was on its way arrives at the
original only. Leaves out: copies that were made file by file under an owner (they may be anything; ``check`` says what).
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from random import Random
from typing import Final

from tests.simulator.result import RunResult
from tests.simulator.roots import RootRun
from tests.simulator.world import Process

__all__ = ["CopiedRun"]

_CLAIMS: Final = 8
"""Claims of one copy."""


class CopiedRun(RootRun):
    """What becomes of a copy."""

    def __init__(self, original: RootRun, side: str) -> None:
        self.plan = replace(original.plan, claims=_CLAIMS, distrust=())
        self.level = original.level
        self.side = side
        self.world = original.world
        self.scheduler = original.scheduler
        self.random = Random(f"story {self.plan.seed} {side}")
        self.result = RunResult(self.plan.seed, self.plan.storage, self.world.mode)
        self.writers = [copy(writer) for writer in original.writers]
        self.distrust = original.distrust
        self.unit_ns = original.unit_ns
        self.accepting = []
        self._start()
        self.go_on_as(original.recorder.copied(), original.checks.copied(side))
        backend, prefix = self.world.backend, f"{self.world.container}/"
        for name in [name for name in backend.names() if name.startswith(prefix)]:
            backend.overwrite(side + name, backend.content(name) or b"")
        self.begin_replicas(self.plan.replicas)

    def process(self, name: str, machine: str) -> Process:
        """A new process that works on the copy."""
        return self.world.process(name, machine, self.side)
