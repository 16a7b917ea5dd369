"""Planted bugs in what the product does not take for granted: bytes, caches, the root, the storage behind it.

Promises: each shows in runs that allow one class of ``distrust`` only. Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import APPEND, EVERYWHERE, S3, Mutant, Patch, single

__all__ = ["DISTRUST_MUTANTS"]

_SEEN: Final = "chunkstore_journal.ends:SeenEnds"

DISTRUST_MUTANTS: Final = (
    single(
        "row-unchecked",
        "a row of the cache is believed, whatever its CRC says",
        EVERYWHERE,
        "chunkstore.metadata.lmdb.rows:unsealed",
        "if crc32c_of_bytes(key + raw) != RESIDUE:",
        "if False:",
        needs=("rotten_rows",),
    ),
    single(
        "rot-as-torn",
        "a record that reads wrong is taken for a torn write, though records lie intact behind it",
        APPEND,
        "chunkstore_journal.append_stream:judge_tail",
        "if later is not None:",
        "if False:",
        needs=("rotten_journal",),
    ),
    single(
        "gateway-unprobed",
        "nobody asks an existing container's gateway whether it still obeys conditions",
        S3,
        "chunkstore_bindings.probe:confirm_storage",
        "created = storage.create_if_absent(format_name, format_bytes)",
        "created = False",
        needs=("ignored_condition",),
    ),
    single(
        "lease-end-not-judged",
        "a take-over does not look where the released lease says that the journal ends",
        EVERYWHERE,
        f"{_SEEN}.judge",
        "if lease is not None and contradicts(lease, end):",
        "if False:",
        needs=("cut_tail",),
    ),
    Mutant(
        "older-root-served",
        "a root that is older than what the local cache has seen of it is served",
        EVERYWHERE,
        (
            Patch("chunkstore_journal.takeover:TakeOver._claim", "self._seen.check_claims(top)", "pass"),
            Patch(f"{_SEEN}.judge", "self._is_elsewhere(cache, end)", "False"),
        ),
        needs=("rolled_back",),
    ),
    single(
        "longer-root-served",
        "an older root in which others have gone on until it is longer is served on machines that have seen the newer one",
        EVERYWHERE,
        f"{_SEEN}._is_elsewhere",
        "if not at.lsn:",
        "if True:",
        tests=("tests/journal/test_rolled_back.py",),
    ),
    single(
        "acceptance-of-everything",
        "an accepted rollback counts for what others have seen, too",
        EVERYWHERE,
        "chunkstore_journal.ends:_cuts_off",
        "if leaving is None or not leaving.payload.flags & FLAG_REPAIR:\n        return False",
        "if leaving is None:\n        return False\n    if leaving.payload.flags & 2:\n        return True",
        tests=("tests/backup_restore/test_branches.py",),
    ),
    single(
        "restore-lsnonly",
        "a replica compares the lsn of its state with history's, not the hash",
        EVERYWHERE,
        "chunkstore_journal.follower:Follower._catch_up",
        "(head.position.lsn, head.position.hash) == (leg.end.lsn, leg.end.hash)",
        "head.position.lsn == leg.end.lsn",
        tests=("tests/engine/test_repair.py",),
    ),
    single(
        "restore-former-snapshots",
        "a former owner that has heard of nothing collects its successor's snapshots, which stand below its own",
        EVERYWHERE,
        "chunkstore_journal.collect:Collector.run",
        "if item.epoch <= self._own.epoch",
        "if True",
        tests=("tests/journal/test_collect.py",),
    ),
    single(
        "cache-without-root",
        "a metadata cache is found by its container's uuid, whatever root it is of",
        EVERYWHERE,
        "chunkstore.metadata.memory:MemoryMetadataCache.__init__",
        "self._key = (container_uuid, address, role)",
        "self._key = (container_uuid, '', role)",
        needs=("copied_root",),
    ),
)
