"""Lies: a bit of a stored object reads wrong for a while. Every answer is right then, or ``Damaged`` that names the object.

Roots that are copied, moved or
older than they were have directed tests (schedules 52 to 54, ``tests/faults``); so have caches (``tests/faults/test_cache_rot.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final, NamedTuple

from chunkstore.errors import Damaged
from tests.simulator.rotting import RottenObject, rot
from tests.simulator.world import World

_CHANCES: Final[dict[str, tuple[float, ...]]] = {"rotten_chunk": (0.1, 0.3), "rotten_journal": (0.1, 0.3)}
"""Per turn of the nemesis."""

CLASSES: Final = tuple(_CHANCES)


def draw_distrust(random: Random) -> tuple[tuple[str, float], ...]:
    """The classes that a run allows, with their chances."""
    return tuple((name, random.choice(chances)) for name, chances in _CHANCES.items() if random.random() < 0.5)


class _Told(NamedTuple):
    lie: RottenObject
    name: str
    until: int


class Lies:
    """Those of one run. An answer of damage is excused only by a lie that it names and that was told while the call was made."""

    def __init__(self, world: World, seed: int, chances: Iterable[tuple[str, float]], unit_ns: int) -> None:
        self._world = world
        self._random = Random(f"lies {seed}")
        self._chances = dict(chances)
        self._unit_ns = unit_ns
        self._told: list[_Told] = []
        self._over: list[tuple[RottenObject, int]] = []

    def turn(self, referenced_chunks: Callable[[], list[str]]) -> bool:
        """A turn of the nemesis: some lies end, others begin. Whether a chunk has begun to rot."""
        world, random, rots = self._world, self._random, False
        for told in [told for told in self._told if told.until <= world.scheduler.now]:
            self._end(told)
        for name, chance in self._chances.items():
            if random.random() < chance and all(told.name != name for told in self._told):
                is_chunk = name == "rotten_chunk"
                lie = rot(world, random, referenced_chunks() if is_chunk else _journal(world))
                if lie is not None:
                    turns = random.choice((1, 3, 10)) * random.random()
                    self._told.append(_Told(lie, name, world.scheduler.now + int(self._unit_ns * turns)))
                    world.faults.note(name)
                    world.log(f"{name}: {lie!r}")
                    rots = rots or is_chunk
        return rots

    def end(self) -> None:
        """The end of all faults."""
        self._chances = {}
        while self._told:
            self._end(self._told[0])

    def _end(self, told: _Told) -> None:
        self._told.remove(told)
        self._over.append((told.lie, self._world.scheduler.now))
        self._world.log(f"put right: {told.lie!r}")
        told.lie.undo()

    def excuses(self, error: Damaged, since: int) -> bool:
        """Whether a call that was made at ``since`` may be answered so."""
        lies = [told.lie for told in self._told] + [lie for lie, until in self._over if until >= since]
        return any(lie.excuses(error) for lie in lies)


def _journal(world: World) -> list[str]:
    """The objects beside the chunks: records, snapshots, claims, hints, FORMAT."""
    container, prefix = f"{world.names.container}/", world.names.data_prefix()
    return [name for name in world.backend.names() if name.startswith(container) and not name.startswith(prefix)]
