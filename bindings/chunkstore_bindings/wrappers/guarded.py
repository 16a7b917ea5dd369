"""The border of the port: what a binding raises that is not an error of chunkstore's own becomes one, chained.

Promises: bindings that are built on ``BaseChunkStorage`` translate at their own border and are left as they are, also behind
the wrappers of this package; everything else gets one more wrapper.
Leaves out: ``AssertionError`` and ``MemoryError``, which say nothing about the storage, and what interrupts a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from chunkstore.errors import ChunkstoreError
from chunkstore.storage import BaseChunkStorage, ChunkStorage, translated
from chunkstore_bindings.wrappers.wrapping import WrappingChunkStorage, layers

__all__ = ["GuardedChunkStorage", "guarded"]

T = TypeVar("T")


class GuardedChunkStorage(WrappingChunkStorage):
    """Translates foreign exceptions of every call into ``StorageUnavailable``."""

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        try:
            return call()
        except (ChunkstoreError, AssertionError, MemoryError):
            raise
        except Exception as error:
            raise translated(error, operation, ", ".join(names)) from error


def guarded(storage: ChunkStorage) -> ChunkStorage:
    """``storage``, behind a guard unless it has one. Doing it twice is doing it once."""
    for layer in layers(storage):
        if isinstance(layer, (BaseChunkStorage, GuardedChunkStorage)):
            return storage
    return GuardedChunkStorage(storage)
