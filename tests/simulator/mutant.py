"""What a planted bug is, and where one can show. Leaves out: the bugs (``mutants_journal``, ``mutants_engine``, ``mutants_bindings``)."""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from tests.simulator.drawing import PINS, Plan, draw_plan
from tests.simulator.lies import CLASSES
from tests.simulator.world import StorageKind

__all__ = ["APPEND", "EVERYWHERE", "POSIX", "S3", "SLOT", "Mutant", "Patch", "single"]

APPEND: Final = ("posix-append",)
SLOT: Final = ("s3-slot", "posix-slot")
S3: Final = ("s3-slot",)
POSIX: Final = ("posix-slot", "posix-append")
EVERYWHERE: Final = ("s3-slot", "posix-slot", "posix-append")


class Patch(NamedTuple):
    """``old``, which stands exactly once in the function ``target`` (``module:Class.name``), becomes ``new``."""

    target: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One planted bug.

    ``kinds``: the worlds (storage and journal mode) it can show in. ``needs``: what a run must have besides for it to show:
    fault classes, "replicas", "askers", "machines" (more than one), "pins" (across spills),
    or "tail" (where reads inside a segment look at no fence).
    ``bound``: it is in a binding. ``upkeep``: its runs have all verbs of
    upkeep, or only what others have.
    """

    name: str
    what: str
    kinds: tuple[str, ...]
    patches: tuple[Patch, ...]
    needs: tuple[str, ...] = ()
    bound: bool = False
    upkeep: bool = False

    def plan(self, seed: int, claims: int) -> Plan:
        """The run of a seed in which the bug is hunted."""
        if not self.bound:
            return draw_plan(
                seed,
                claims=claims,
                lmdb="rotten_rows" in self.needs,
                upkeep=self.upkeep,
                asks="askers" in self.needs,
            )
        storage = cast("StorageKind", self.kinds[0].partition("-")[0])
        return draw_plan(
            seed,
            claims=claims,
            lmdb=False,
            upkeep=self.upkeep,
            bindings=True,
            storage=storage,
            asks=False,
        )

    def suits(self, plan: Plan) -> bool:
        """Whether the bug can show in this run: hunting in others would be a waste."""
        has = {"replicas": plan.replicas > 0, "askers": plan.askers > 0}
        has["machines"] = plan.machines > 1
        has["pins"], has["tail"] = PINS in plan.mix, plan.settings.read_fence == "tail"
        has.update((name, any(name == allowed for allowed, _ in plan.distrust)) for name in CLASSES)
        return f"{plan.storage}-{plan.settings.journal_mode}" in self.kinds and all(
            has[need] if need in has else getattr(plan.weather, need) for need in self.needs
        )


def single(
    name: str,
    what: str,
    kinds: tuple[str, ...],
    target: str,
    old: str,
    new: str,
    needs: tuple[str, ...] = (),
) -> Mutant:
    """A bug of one patch."""
    return Mutant(name, what, kinds, (Patch(target, old, new),), needs)
