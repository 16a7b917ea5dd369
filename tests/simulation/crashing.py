"""Crash points of processes in simulated worlds: one story, told again for every storage call of a process, which dies there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from tests.simulation.scene import Scene
from tests.simulator import Job, Process
from tests.simulator.wire import Gate

_POINTS_MAX = 1000


class Story(NamedTuple):
    """Who dies, what is going on meanwhile, and what must hold afterwards (called with the number of the call)."""

    victim: Process
    job: Job[Any]
    judge: Callable[[], None]


def _is_over(gate: Gate, job: Job[Any]) -> bool:
    return gate.call is not None or job.done


def at_every_call(scene_of: Callable[[], AbstractContextManager[Scene]], begin: Callable[[Scene], Story]) -> int:
    """Tell the story until its job is done before the victim dies; returns how many calls there were."""
    for number in range(_POINTS_MAX):
        for effect in (False, True):
            with scene_of() as scene:
                story = begin(scene)
                gate = story.victim.gate(skip=number)
                scene.world.run_until(partial(_is_over, gate, story.job))
                if gate.call is None:
                    return number
                arrives = gate.call.outlive()
                if effect:
                    arrives()
                story.judge()
    raise AssertionError(f"more than {_POINTS_MAX} calls")
