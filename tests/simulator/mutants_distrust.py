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
        "chunkstore.metadata.rows:unsealed",
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
        "cache-without-root",
        "a metadata cache is found by its container's uuid, whatever root it is of",
        EVERYWHERE,
        "chunkstore.metadata.memory:MemoryMetadataCache.__init__",
        "self._key = (container_uuid, address, role)",
        "self._key = (container_uuid, '', role)",
        needs=("copied_root",),
    ),
)
