"""Planted bugs in what keeps a container's states: exports, backups, restores, views of the past, promotions.

Promises: as ``mutants_engine``. Runs in which somebody keeps what the container holds look for them. Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import EVERYWHERE, POSIX, Mutant, Patch

__all__ = ["BACKUP_MUTANTS"]

_REMOVING: Final = "chunkstore.backup.removing"
_ROUNDS: Final = "chunkstore.backup.rounds:_Run"
_COPIES: Final = "chunkstore.backup.copies"
_FOUNDING: Final = "chunkstore.backup.founding"
_BRING: Final = "chunkstore.operations.bring_chunks"


def _mutant(
    name: str,
    what: str,
    *patches: Patch,
    kinds: tuple[str, ...] = EVERYWHERE,
    needs: tuple[str, ...] = (),
    tests: tuple[str, ...] = (),
) -> Mutant:
    return Mutant(name, what, kinds, patches, needs=("keepers", *needs), tests=tests)


BACKUP_MUTANTS: Final = (
    _mutant(
        "export-unpinned",
        "the pin of an export is taken back before it is written",
        Patch(
            "chunkstore.backup.exporting:made_pin",
            "    try:\n        if isinstance(store, Replica):",
            "    if made is not None:\n        maker.unpin(name)\n    try:\n        if isinstance(store, Replica):",
        ),
    ),
    _mutant(
        "backup-counts-early",
        "a backup counts before its export is there",
        Patch(
            f"{_ROUNDS}.make",
            "self._store_export(path, header, found)",
            "runs.decide(self._target, self._names, found); self._store_export(path, header, found)",
        ),
    ),
    _mutant(
        "backup-open-by-chunk",
        "the copy of a chunk that may still grow has the chunk's own name, without a length",
        Patch(
            f"{_COPIES}:copies",
            "growing = record.length if record.state != CLOSED and record.epoch == epoch else -1",
            "growing = -1",
        ),
        kinds=POSIX,
    ),
    _mutant(
        "backup-unhardened",
        "a copy that is seen is relied on, durable or not",
        Patch(f"{_COPIES}:Copier._hardened", "self._target.harden(item.name(self._names))", "pass"),
        Patch(f"{_COPIES}:Copier._check_length", "if not new:", "if False:"),
        kinds=POSIX,
        needs=("power_cut",),
        tests=("tests/simulation/test_kept.py",),
    ),
    _mutant(
        "drop-shared",
        "dropping a backup deletes all copies that it names",
        Patch(
            f"{_REMOVING}:_delete_unneeded",
            "if item.run in counts or _is_whole(storage, names, item)",
            "if False",
        ),
    ),
    _mutant(
        "drop-busy-base",
        "dropping backups looks at no run that is under way",
        Patch(
            f"{_REMOVING}:_delete_unneeded",
            "low = min((item.base_lsn for item in running), default=newest_lsn)",
            "low = newest_lsn",
        ),
        Patch(
            f"{_REMOVING}:_delete_unneeded",
            "low = min((item.base_lsn for item in runs.under_way(storage, names)), default=newest_lsn)",
            "low = newest_lsn",
        ),
        tests=("tests/backup/test_removing.py",),
    ),
    _mutant(
        "drop-undone",
        "that a backup counts no more is said by a deletion, which a power cut undoes",
        Patch(
            "chunkstore.backup.runs:withdraw",
            "storage.put(names.done(run), small_object(DONE, (False,)))",
            "storage.delete(names.done(run))",
        ),
        kinds=POSIX,
        needs=("power_cut",),
        tests=("tests/simulation/test_kept.py",),
    ),
    _mutant(
        "past-too-far",
        "a view of the past shows one record more than was asked for",
        Patch("chunkstore_journal.past:Asked.is_before", "header.lsn > self.lsn", "header.lsn > self.lsn + 1"),
    ),
    _mutant(
        "restore-ids",
        "segments that are restored keep their ids",
        Patch(
            f"{_FOUNDING}:State._pages",
            "identity, left = next(self._ids),",
            "identity, left = segment.id,",
        ),
    ),
    _mutant(
        "restore-no-crc",
        "a restore compares no CRCs",
        Patch(f"{_BRING}:_windows", "if chunk.borders is not None:", "if False:"),
    ),
    _mutant(
        "restore-no-length",
        "a restore compares no lengths",
        Patch("chunkstore.backup.survey:_why_missing", "length >= chunk.length", "True"),
        Patch(f"{_BRING}:_windows", "if len(data) != wanted:", "if False:"),
        tests=("tests/backup_restore/test_restore.py",),
    ),
    _mutant(
        "restore-no-events",
        "a restore leaves out the last events of writers",
        Patch(f"{_FOUNDING}:State._keep_writers", "for key, raw in view.scan(start, stop):", "for key, raw in ():"),
    ),
    _mutant(
        "restore-empty-first",
        "a container that is about to be restored can be opened empty",
        Patch("chunkstore.backup.target:make_container", "imports=True", "imports=False"),
        tests=("tests/simulation/test_kept.py",),
    ),
    _mutant(
        "restore-unread-copies",
        "what a restore that died has copied is believed, whatever is in it",
        Patch(
            f"{_BRING}:_find_copied",
            "_windows(place, _Pieces(place, ids), segment, chunk)",
            "_windows(place, _Pieces(place, ids), segment, chunk._replace(borders=None))",
        ),
        tests=("tests/backup_restore/test_founding.py",),
    ),
    _mutant(
        "restore-other-digest",
        "the first record does not say what the rows of its snapshot sum up to",
        Patch(
            "chunkstore_journal.founding:Founding._go_on",
            "Head(Position(link.lsn, link.hash, 0, 0, 0), link.digest)",
            "Head(Position(link.lsn, link.hash, 0, 0, 0), 0)",
        ),
        tests=("tests/backup_restore/test_founding.py",),
    ),
    _mutant(
        "restore-before-chunks",
        "the first record counts before the chunks that it speaks of are durable",
        Patch(f"{_BRING}:_copy_chunk", "storage.sync((handle.name,))", "pass"),
        kinds=POSIX,
        needs=("power_cut",),
        tests=("tests/backup_restore/test_founding.py",),
    ),
    _mutant(
        "restore-before-snapshot",
        "the first record counts before the snapshot that it carries was read back",
        Patch(
            "chunkstore_journal.snapshot:write_base",
            "reader = read_back(storage, name, container=container)",
            "return SnapshotLink(name, 0, position.hash, tally.digest, 0, 0, 0)",
        ),
        tests=("tests/backup_restore/test_founding.py",),
    ),
)
