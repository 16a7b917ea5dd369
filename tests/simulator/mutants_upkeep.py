"""Planted bugs in upkeep: merges, pins, retention, collection. Their runs have all verbs of upkeep.

Promises: as ``mutants_engine``. Leaves out: sweeps, and pins in the collections (``mutants_engine``, ``mutants_journal``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, POSIX, Mutant, Patch

__all__ = ["UPKEEP_MUTANTS"]

_REPLACE: Final = "chunkstore.operations.replace"
_RETENTION: Final = "chunkstore.upkeep.retention"


def _upkeep(
    name: str,
    what: str,
    *patches: Patch,
    kinds: tuple[str, ...] = EVERYWHERE,
    needs: tuple[str, ...] = (),
) -> Mutant:
    return Mutant(name, what, kinds, patches, needs, upkeep=True)


UPKEEP_MUTANTS: Final = (
    _upkeep(
        "replace-former-epoch",
        "a merge that an epoch has begun is committed by the next one",
        Patch(f"{_REPLACE}:_new_chunks", "if found != expected:", "if found[0] != expected[0]:"),
    ),
    _upkeep(
        "replace-forgets-skip",
        "a merge of the first chunk brings back bytes that were truncated",
        Patch(f"{_REPLACE}:exchange", "segment.start_offset - run.start if is_first", "0 if is_first"),
    ),
    _upkeep(
        "replace-half-linked",
        "the chunk behind a merge still names the one that was there",
        Patch(f"{_REPLACE}:exchange", "if not is_last:", "if False:"),
    ),
    _upkeep(
        "replace-leaks",
        "what a merge has replaced never becomes garbage",
        Patch(
            f"{_REPLACE}:exchange",
            "changes.discard(run.ids[0], run.ids[-1], len(run.ids), run.stop - run.begin)",
            "pass",
        ),
    ),
    _upkeep(
        "replace-unsynced",
        "a merge is committed before its bytes are durable",
        Patch(
            f"{_REPLACE}:plan_replace",
            "if change.session_id is None and changes.owned.appendable:",
            "if False:",
        ),
        kinds=POSIX,
        needs=("power_cut",),
    ),
    _upkeep(
        "replace-deletes-at-once",
        "a merge deletes what it replaces before it is committed",
        Patch(
            f"{_REPLACE}:exchange",
            "changes.discard(",
            "storage = changes.owned.queue._environment.sync.__self__\n"
            "    storage.delete(changes.owned.names.chunk(run.ids[0]))\n"
            "    changes.discard(",
        ),
    ),
    _upkeep(
        "merge-crc",
        "the CRC of a merged chunk is combined as if a part of it were a byte longer",
        Patch("chunkstore.blocks:merged_borders", "behind, border - low)", "behind, border - low + 1)"),
    ),
    _upkeep(
        "pin-newest",
        "of several pins the newest counts, not the oldest",
        Patch(
            "chunkstore.metadata.pins:pinned_lsn", "return min(found, default=None)", "return max(found, default=None)"
        ),
    ),
    _upkeep(
        "retention-old-policy",
        "a policy that was changed or removed since the plan still truncates",
        Patch(f"{_RETENTION}:carry_out", "return Policies(view).find(cut.segment.encode()) == policy and", "return"),
    ),
)
