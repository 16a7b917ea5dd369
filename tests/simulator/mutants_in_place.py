"""Planted bugs in restores in place, those of the model (``tests.models.restore``) by name. Their runs go back in place now and then.

Promises: as ``mutants_engine``. Leaves out: what makes a run do so (``rewinds``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, Mutant, Patch

__all__ = ["IN_PLACE_MUTANTS"]

_BRING_BACK: Final = "chunkstore.operations.bring_back"
_SAME_ID: Final = Patch(
    f"{_BRING_BACK}:plan_open",
    "copies[item.identity] = chunk_id(item.segment.id, epoch, _FIRST_NUMBER + number, random)",
    "copies[item.identity] = item.identity",
)
_COMPOSE: Final = "storage.compose(target, [ChunkRange(source, begin, length)])"


def _in_place(name: str, what: str, *patches: Patch) -> Mutant:
    return Mutant(
        name, what, EVERYWHERE, patches, needs=("went_back",), tests=("tests/simulation/test_schedules_in_place.py",)
    )


IN_PLACE_MUTANTS: Final = (
    _in_place(
        "restore-nocopy",
        "a restore in place refers to the chunks that were removed since, where they lie",
        Patch(f"{_BRING_BACK}:removed_chunks", "if identity not in kept", "if False"),
    ),
    _in_place(
        "restore-copyafter",
        "a restore in place makes its copies when history says already that they are there",
        Patch(
            f"{_BRING_BACK}:bring_back",
            "gone = [item for item, copied in zip(group, pool.run_all(calls), strict=True) if not copied]",
            'gone = runtime.spawn(lambda calls=calls: runtime.sleep_s(1.0) or [call() for call in calls], "late") and []',
        ),
    ),
    _in_place(
        "restore-checkonly",
        "a restore in place looks whether a removed chunk is there, and refers to it",
        _SAME_ID,
        Patch(f"{_BRING_BACK}:_copy", _COMPOSE, "storage.stat(source)"),
    ),
    _in_place(
        "restore-samename",
        "a restore in place puts the copy of a chunk under the chunk's own name",
        _SAME_ID,
        Patch(
            f"{_BRING_BACK}:_copy",
            _COMPOSE,
            "storage.put(target, storage.read(ChunkHandle(source, False), begin, length))",
        ),
    ),
    _in_place(
        "restore-lsnonly",
        "a replica compares the lsn of its state with history's, not the hash",
        Patch(
            "chunkstore_journal.follower:Follower._catch_up",
            "(head.position.lsn, head.position.hash) == (leg.end.lsn, leg.end.hash)",
            "head.position.lsn == leg.end.lsn",
        ),
    ),
    Mutant(
        "restore-former-snapshots",
        "a former owner that has heard of nothing collects its successor's snapshots, which stand below its own",
        EVERYWHERE,
        (Patch("chunkstore_journal.collect:Collector.run", "if item.epoch <= self._own.epoch", "if True"),),
        needs=("went_back",),
        tests=("tests/backup_restore/test_in_place_others.py",),
    ),
)
