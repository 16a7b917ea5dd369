"""Planted bugs in what the product does not take for granted: bytes, caches, the root, the storage behind it.

Promises: each shows in runs that allow one class of ``distrust`` only. Leaves out: planting (``mutants``).
"""

from __future__ import annotations

from typing import Final

from tests.simulator.mutant import APPEND, S3, single

__all__ = ["DISTRUST_MUTANTS"]

DISTRUST_MUTANTS: Final = (
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
)
