"""What a planted bug is, and where one can show. Leaves out: the bugs (``mutants_journal``, ``mutants_engine``)."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["APPEND", "EVERYWHERE", "POSIX", "SLOT", "Mutant", "Patch"]

APPEND: Final = ("posix-append",)
SLOT: Final = ("s3-slot", "posix-slot")
POSIX: Final = ("posix-slot", "posix-append")
EVERYWHERE: Final = ("s3-slot", "posix-slot", "posix-append")


class Patch(NamedTuple):
    """``old``, which stands exactly once in the function ``target`` (``module:Class.name``), becomes ``new``."""

    target: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One planted bug. ``kinds``: the worlds (storage and journal mode) it can show in."""

    name: str
    what: str
    kinds: tuple[str, ...]
    patches: tuple[Patch, ...]
