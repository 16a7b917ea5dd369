"""What a run may not take for granted: stored bytes, caches, the root itself. Which of it goes wrong, when, and for how long.

A class (``lies``) is *temporary* (it begins, every answer is right or a typed error that names what is wrong, it is put right, and
everything goes on), or it ends in another truth, of which the judges are told (``at_rest``, ``copies``).

Promises: at the end of all faults everything is as it was.
Leaves out: the lies themselves (``rot``, ``rotten_rows``, ``gateways``, ``at_rest``, ``copies``).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from tests.simulator.at_rest import cut_tail, restore_backup, show_backup
from tests.simulator.copies import CopiedRun
from tests.simulator.gateways import ignore_conditions, list_late, show_old_answers
from tests.simulator.roots import RootRun
from tests.simulator.rot import rot_a_chunk, rot_the_journal
from tests.simulator.rotten_rows import rot_a_row
from tests.simulator.told import Lie, ToldLies

__all__ = ["Distrust"]

_COPIES_MAX: Final = 2


class Distrust(ToldLies):
    """The lies of one run."""

    def __init__(self, run: RootRun) -> None:
        super().__init__(run.world)
        self._run = run
        self._random = Random(f"lies {run.plan.seed}")
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

    def end(self) -> None:
        """The end of all faults."""
        self.put_right()
        self._chances = {}


def _copy_the_root(run: RootRun, _random: Random) -> None:
    if len(run.copies) < _COPIES_MAX:
        run.copies.append(CopiedRun(run, f"copy{len(run.copies)}/"))
        run.world.faults.note("copied_root")
        run.world.log(f"the root was copied to {run.copies[-1].side}")


_TELL: Final[dict[str, Callable[[RootRun, Random], Lie | None]]] = {
    "late_list": list_late,
    "old_answer": show_old_answers,
    "rotten_chunk": rot_a_chunk,
    "rotten_journal": rot_the_journal,
    "rotten_rows": rot_a_row,
}
_AT_ONCE: Final[dict[str, Callable[[RootRun, Random], None]]] = {
    "ignored_condition": ignore_conditions,
    "copied_root": _copy_the_root,
    "restored_backup": restore_backup,
    "rolled_back": show_backup,
    "cut_tail": cut_tail,
}
