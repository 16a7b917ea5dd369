"""Classes of lies: what a run may not take for granted, and which of it is drawn for a seed.

Each class is drawn from a chance of its own, so that everything else about a seed stays what it was. Leaves out: the lies themselves,
and when they are told (``distrust``).
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final

__all__ = ["CLASSES", "ENABLED", "SELDOM", "draw_distrust"]

_CHANCES: Final[dict[str, tuple[float, ...]]] = {
    "rotten_chunk": (0.1, 0.3),
    "rotten_journal": (0.1, 0.3),
    "rotten_rows": (0.1, 0.3),
    "late_list": (0.1, 0.3),
    "old_answer": (0.1, 0.3),
    "ignored_condition": (0.1, 0.2),
    "copied_root": (0.05, 0.2),
    "restored_backup": (0.05, 0.1),
    "rolled_back": (0.1, 0.2),
    "cut_tail": (0.3, 0.6),
}
"""Per turn of the nemesis."""

CLASSES: Final = tuple(_CHANCES)
ENABLED: Final = frozenset(CLASSES)
"""Those that runs draw unless they are told otherwise: those that the product answers."""
SELDOM: Final = {"rotten_rows": 0.05}
"""How many runs allow it; of the others, half. Such runs keep their caches in LMDB, and take longer."""

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
        if random.random() < SELDOM.get(name, 0.5) and name in wanted and _ONLY.get(name, storage) == storage:
            drawn.append((name, random.choice(chances)))
    return tuple(drawn)
