"""Lies: a bit of a stored object reads wrong for a while. Every answer is right then, or ``Damaged`` that names the object.

Only what is read lies; what is stored stays, so that judges see the truth and a power cut takes nothing of it. Roots that are
copied, moved or older have directed tests (schedules 52 to 54, ``tests/faults``); so have caches (``tests/faults/test_cache_rot.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final, NamedTuple

from chunkstore.errors import ChunkstoreError, Damaged
from tests.judges.stored_records import record_size
from tests.simulator.posix import PosixBackend
from tests.simulator.s3 import S3Backend
from tests.simulator.world import World

_CHANCES: Final[dict[str, tuple[float, ...]]] = {"rotten_chunk": (0.1, 0.3), "rotten_journal": (0.1, 0.3)}
"""Per turn of the nemesis."""

CLASSES: Final = tuple(_CHANCES)


class RottenObject:
    """One bit of one object."""

    def __init__(self, world: World, name: str, place: int, bit: int) -> None:
        self._rotten = _backend(world).rotten
        self._name = name
        self._place = place
        self._rotten[name] = (place, 1 << bit)

    def __repr__(self) -> str:
        return f"byte {self._place} of {self._name}"

    def undo(self) -> None:
        """The bytes are what was written."""
        self._rotten.pop(self._name, None)

    def excuses(self, error: ChunkstoreError) -> bool:
        """Whether it names the object."""
        return self._name in str(error)


def _backend(world: World) -> S3Backend | PosixBackend:
    backend = world.backend
    assert isinstance(backend, S3Backend | PosixBackend)
    return backend


def rot(world: World, random: Random, names: list[str]) -> RottenObject | None:
    """A bit of one of these objects; None where it has none that is certain to be there."""
    if not names:
        return None
    name = random.choice(names)
    size = _sure_bytes(world, name)
    if not size or name in _backend(world).rotten:
        return None
    return RottenObject(world, name, random.randrange(size), random.randrange(8))


def _sure_bytes(world: World, name: str) -> int:
    """How many bytes of an object are there for certain, and are no torn write if they are wrong."""
    data = _backend(world).durable(name) or b""
    if not name.endswith("/log.a"):
        return len(data)
    last = end = 0
    while (size := record_size(data, end)) is not None and end + size <= len(data):
        last, end = end, end + size
    return last


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
