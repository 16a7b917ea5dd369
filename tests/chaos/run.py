"""A whole run: phases over both journal modes, with and without a disk that fills up.

Promises: the time and the kills that were asked for are divided among the phases; each phase has a fresh container; after the
first phase with violations the run ends and the evidence (container, notes, caches) stays.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from tests.chaos.disk import NoDisk, SmallDisk, small_disk
from tests.chaos.phase import Outcome, PhaseRun
from tests.chaos.plan import Cast, Mode, Phase

__all__ = ["Options", "Result", "run_chaos"]

_FULL_DISK_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for. ``root``: a folder for everything (None: a temporary one); ``kills`` and ``seconds`` are of the whole run."""

    seconds: float = 60.0
    kills: int = 20
    seed: int = 0
    processes: int = 4
    root: str | None = None
    mode: Literal["slot", "append", "both"] = "both"
    full_disk: Literal["auto", "yes", "no"] = "auto"
    keep: bool = False
    rate: float = 100.0
    check_every_s: float = 45.0
    cast: Cast = "applications"


@dataclass(slots=True)
class Result:
    """What came of it. ``evidence`` is the folder that was kept, or None."""

    outcomes: list[Outcome]
    notes: list[str]
    evidence: str | None

    @property
    def violated(self) -> bool:
        """Whether anything was."""
        return any(outcome.violations for outcome in self.outcomes)


def plan_phases(options: Options, *, disk: bool) -> list[Phase]:
    """The phases of a run: each chosen mode, and a quarter of its time on a disk that fills up."""
    modes: tuple[Mode, ...] = ("slot", "append") if options.mode == "both" else (options.mode,)
    parts = [(False, 1.0 - _FULL_DISK_SHARE), (True, _FULL_DISK_SHARE)] if disk else [(False, 1.0)]
    phases = []
    for full_disk, share in parts:
        for mode in modes:
            seconds = options.seconds * share / len(modes)
            phases.append(
                Phase(
                    mode=mode,
                    full_disk=full_disk,
                    seconds=seconds,
                    kills=-(-int(options.kills * share) // len(modes)),
                    processes=options.processes,
                    check_every_s=min(options.check_every_s, max(5.0, seconds / 2.5)),
                    cast=options.cast,
                )
            )
    return phases


def run_chaos(
    options: Options,
    *,
    begin: Callable[[str], None] = lambda _: None,
    show: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Result:
    """Run it. ``begin`` is told each phase's name, ``show`` its figures. Raises ``NoDisk`` if a full disk was insisted upon."""
    folder = options.root or tempfile.mkdtemp(prefix="chunkstore-chaos-")
    os.makedirs(folder, exist_ok=True)
    result = Result([], [], None)
    seed = options.seed or random.randrange(1, 1 << 32)
    result.notes.append(f"seed {seed} (what is drawn; not how the machine schedules it)")
    with ExitStack() as stack:
        disk = None
        if options.full_disk != "no":
            try:
                disk = stack.enter_context(small_disk(os.path.join(folder, "small")))
            except NoDisk as error:
                if options.full_disk == "yes":
                    raise
                result.notes.append(f"full disks were not tested: mounting needs root and loop devices ({error})")
        for phase in plan_phases(options, disk=disk is not None):
            begin(phase.name)
            outcome = _run_phase(phase, folder, disk if phase.full_disk else None, seed, options.rate, show)
            result.outcomes.append(outcome)
            if outcome.violations:
                if phase.full_disk and disk is not None:
                    # The image goes with the mount; what lies in it is evidence.
                    shutil.copytree(disk.path, os.path.join(folder, "small-disk-kept"), dirs_exist_ok=True)
                break
    if result.violated or options.keep:
        result.evidence = folder
    elif options.root is None:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _run_phase(
    phase: Phase, folder: str, disk: SmallDisk | None, seed: int, rate: float, show: Callable[[dict[str, Any]], None]
) -> Outcome:
    own = os.path.join(folder, phase.name)
    os.makedirs(own, exist_ok=True)
    if disk is not None:
        for name in os.listdir(disk.path):
            if name != "lost+found":
                shutil.rmtree(os.path.join(disk.path, name), ignore_errors=True)
    return PhaseRun(phase, own, seed=seed, rate=rate, disk=disk, show=show).run()
