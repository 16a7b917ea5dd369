"""What a run may not take for granted: stored bytes, caches, the root itself. Which of it goes wrong, when, and for how long.

Each class is drawn from a chance of its own, so that everything else about a seed stays what it was. A class is *temporary* (it
begins, every answer is right or a typed error that names what is wrong, it is put right, and everything goes on), or it ends in
another truth, of which the judges are told (``at_rest``, ``copies``).

Promises: at the end of all faults everything is as it was. An answer of damage is excused only by a lie that it names and that
was told while the call was made. Leaves out: the lies themselves (``rot``, ``rotten_rows``, ``gateways``, ``at_rest``, ``copies``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from chunkstore.errors import ChunkstoreError
from tests.simulator.at_rest import Backup, cut_tail, restore_backup, show_backup
from tests.simulator.gateways import ignore_conditions, list_late, show_old_answers
from tests.simulator.rot import rot_a_chunk, rot_the_journal
from tests.simulator.rotten_rows import rot_a_row_at_rest, rot_a_row_live

if TYPE_CHECKING:
    from tests.simulator.runs import Run

__all__ = ["CLASSES", "ENABLED", "Distrust", "Lie", "draw_distrust"]

_CHANCES: Final[dict[str, tuple[float, ...]]] = {
    "rotten_chunk": (0.1, 0.3),
    "rotten_journal": (0.1, 0.3),
    "rotten_rows": (0.1, 0.3),
    "rotten_rows_live": (0.1, 0.3),
    "late_list": (0.1, 0.3),
    "old_answer": (0.1, 0.3),
    "ignored_condition": (0.1, 0.2),
    "copied_root": (0.05, 0.2),
    "restored_backup": (0.05, 0.1),
    "rolled_back": (0.1, 0.2),
    "cut_tail": (0.3, 0.6),
}
"""Per turn of the nemesis."""

_COPIES_MAX: Final = 2
_NEVER: Final = 1 << 62
CLASSES: Final = tuple(_CHANCES)
ENABLED: Final = frozenset(
    (
        "copied_root",
        "cut_tail",
        "late_list",
        "old_answer",
        "ignored_condition",
        "restored_backup",
        "rolled_back",
        "rotten_journal",
    )
)
"""Those that runs draw unless they are told otherwise: those that the product answers."""

_ONLY: Final[dict[str, str]] = {"late_list": "s3", "old_answer": "s3", "ignored_condition": "s3"}
"""The storage that a class needs."""


def draw_distrust(seed: int, storage: str, enabled: Iterable[str] = ENABLED) -> tuple[tuple[str, float], ...]:
    """The classes that a run allows, with their chances. Raises ``ValueError`` for a class that there is not."""
    wanted = frozenset(enabled)
    if not wanted <= frozenset(CLASSES):
        raise ValueError(f"no such class: {', '.join(sorted(wanted - frozenset(CLASSES)))}; there are {CLASSES}")
    drawn = []
    for name, chances in _CHANCES.items():
        random = Random(f"distrust {seed} {name}")
        if random.random() < 0.5 and name in wanted and _ONLY.get(name, storage) == storage:
            drawn.append((name, random.choice(chances)))
    return tuple(drawn)


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


class Distrust:
    """The lies of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._random = Random(f"lies {run.plan.seed}")
        self._told: list[_Told] = []
        self._over: list[tuple[Lie, int]] = []
        self.backup: Backup | None = None
        self.old_backup: Backup | None = None
        self._chances = dict(run.plan.distrust) if run.level != "none" else {}

    def turn(self) -> None:
        """A turn of the nemesis: some lies end, others begin."""
        world = self._run.world
        for told in [told for told in self._told if told.until <= world.scheduler.now]:
            self._end(told)
        for name, chance in self._chances.items():
            if name in _AT_ONCE and self._random.random() < chance:
                _AT_ONCE[name](self._run, self._random)
            elif name in _TELL and self._random.random() < chance and all(told.name != name for told in self._told):
                lie = _TELL[name](self._run, self._random)
                if lie is not None:
                    turns = self._random.choice((1, 3, 10)) * self._random.random()
                    self.tell(name, lie, int(self._run.unit_ns * turns))

    def tell(self, name: str, lie: Lie, duration_ns: int) -> None:
        """A lie of a class begins, and ends at the first turn after so long."""
        world = self._run.world
        self._told.append(_Told(lie, name, world.scheduler.now + duration_ns))
        world.faults.note(name)
        world.log(f"{name}: {lie!r}")

    def _end(self, told: _Told) -> None:
        self._told.remove(told)
        self._over.append((told.lie, self._run.world.scheduler.now))
        self._run.world.log(f"put right: {told.lie!r}")
        told.lie.undo()

    def tell_for_ever(self, lie: Lie) -> None:
        """What is never put right."""
        self._over.append((lie, _NEVER))

    def put_right(self) -> None:
        """Nothing is a lie any more."""
        while self._told:
            self._end(self._told[0])

    def end(self) -> None:
        """The end of all faults."""
        self.put_right()
        self._chances = {}

    def excuses(self, error: ChunkstoreError, since: int) -> bool:
        """Whether a call that was made at ``since`` may be answered so."""
        lies = [told.lie for told in self._told] + [lie for lie, until in self._over if until >= since]
        return any(lie.excuses(error) for lie in lies)


def _copy_the_root(run: Run, _random: Random) -> None:
    from tests.simulator.copies import CopiedRun  # which is a run, too

    if len(run.copies) < _COPIES_MAX:
        run.copies.append(CopiedRun(run, f"copy{len(run.copies)}/"))
        run.world.faults.note("copied_root")
        run.world.log(f"the root was copied to {run.copies[-1].side}")


_TELL: Final[dict[str, Callable[[Run, Random], Lie | None]]] = {
    "late_list": list_late,
    "old_answer": show_old_answers,
    "rotten_chunk": rot_a_chunk,
    "rotten_journal": rot_the_journal,
    "rotten_rows": rot_a_row_at_rest,
    "rotten_rows_live": rot_a_row_live,
}
_AT_ONCE: Final[dict[str, Callable[[Run, Random], None]]] = {
    "ignored_condition": ignore_conditions,
    "copied_root": _copy_the_root,
    "restored_backup": restore_backup,
    "rolled_back": show_backup,
    "cut_tail": cut_tail,
}
