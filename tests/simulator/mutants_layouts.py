"""Planted bugs in header files that follow the journal.

Promises: as ``mutants_engine``; all runs have header files. Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, Mutant, Patch

__all__ = ["LAYOUT_MUTANTS"]

_KEEPER: Final = "chunkstore.backup.header_keeper:HeaderKeeper"


def _mutant(name: str, what: str, *patches: Patch, kinds: tuple[str, ...] = EVERYWHERE) -> Mutant:
    return Mutant(name, what, kinds, patches, needs=("keepers", "layouts"))


LAYOUT_MUTANTS: Final = (
    _mutant(
        "header-believed",
        "a header that is marked as ours and whole counts as up to date, whatever the journal says",
        Patch(
            f"{_KEEPER}._write",
            "plan.entries == present.entries",
            "(present.marked or plan.entries == present.entries)",
        ),
    ),
    _mutant(
        "header-of-deleted-imported",
        "a header of ours whose segment is deleted is imported like one of others",
        Patch(f"{_KEEPER}._import", "if present.ours:", "if False:"),
    ),
    _mutant(
        "header-not-mended",
        "headers are not compared before an owner serves",
        Patch(f"{_KEEPER}.begin", "if self._follows:", "if False:"),
    ),
    _mutant(
        "header-follows-later",
        "chunks are collected before headers have followed their removal",
        Patch(f"{_KEEPER}.flush", "if self._follows and (self._changed or self._missed):", "if False:"),
    ),
    _mutant(
        "header-not-put-empty",
        "a header that was imported is only deleted, which a power cut takes back",
        Patch("chunkstore.backup.header_writer:HeaderWriter.remove", "if for_good:", "if False:"),
        kinds=("posix-slot", "posix-append"),
    ),
    _mutant(
        "header-of-others-replaced",
        "a header of others that was never imported is deleted",
        Patch(
            f"{_KEEPER}._settle",
            "if imported or present.marked or (was_there and not present.strange):",
            "if present is not None:",
        ),
    ),
)
