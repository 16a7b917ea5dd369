"""The lies that are told in a run: which are, which were, and what they excuse.

Promises: an answer of damage is excused only by a lie that it names and that was told while the call was made.
Leaves out: who tells them, and when (``distrust``).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from chunkstore.errors import ChunkstoreError
from tests.simulator.checks import Checks
from tests.simulator.recorder import Recorder
from tests.simulator.world import World

__all__ = ["Backup", "Lie", "ToldLies"]

_NEVER: Final = 1 << 62


class Lie(Protocol):
    """Something that is not so, for a while."""

    def undo(self) -> None:
        """Put it right."""

    def excuses(self, error: ChunkstoreError) -> bool:
        """Whether this answer names what is wrong here."""


class _Told(NamedTuple):
    lie: Lie
    name: str
    until: int


class Backup(NamedTuple):
    """A root as it was, and what was known of it."""

    objects: dict[str, bytes]
    point: tuple[int, bytes]
    checks: Checks
    recorder: Recorder
    numbers: list[int]


class ToldLies:
    """The lies of one world, and the backups that wait to be put in a root's place."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: list[_Told] = []
        self._over: list[tuple[Lie, int]] = []
        self.backup: Backup | None = None
        self.old_backup: Backup | None = None

    def tell(self, name: str, lie: Lie, duration_ns: int) -> None:
        """A lie of a class begins, and ends at the first turn after so long."""
        world = self._world
        self._told.append(_Told(lie, name, world.scheduler.now + duration_ns))
        world.faults.note(name)
        world.log(f"{name}: {lie!r}")

    def _end(self, told: _Told) -> None:
        self._told.remove(told)
        self._over.append((told.lie, self._world.scheduler.now))
        self._world.log(f"put right: {told.lie!r}")
        told.lie.undo()

    def tell_for_ever(self, lie: Lie) -> None:
        """What is never put right."""
        self._over.append((lie, _NEVER))

    def put_right(self) -> None:
        """Nothing is a lie any more."""
        while self._told:
            self._end(self._told[0])

    def excuses(self, error: ChunkstoreError, since: int) -> bool:
        """Whether a call that was made at ``since`` may be answered so."""
        lies = [told.lie for told in self._told] + [lie for lie, until in self._over if until >= since]
        return any(lie.excuses(error) for lie in lies)
