"""Stored bytes that rot at rest: a bit of an object reads wrong, for everybody, until it is put right.

Only what is read lies; what is stored stays, so that judges see the truth and a power cut takes nothing of it.
"""

from __future__ import annotations

from random import Random

from chunkstore.errors import ChunkstoreError
from tests.judges.stored_records import record_size
from tests.simulator.posix import PosixBackend
from tests.simulator.s3 import S3Backend
from tests.simulator.world import World


class RottenObject:
    """One bit of one object."""

    def __init__(self, world: World, name: str, place: int, bit: int) -> None:
        self._rotten = _backend(world).rotten
        self._name = name
        self._place = place
        self._rotten[name] = (place, 1 << bit)

    def __repr__(self) -> str:
        return f"byte {self._place} of {self._name}"

    @property
    def is_over(self) -> bool:
        """Whether it was put right."""
        return self._name not in self._rotten

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
