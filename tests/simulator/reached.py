"""Roots that the product opens by their URLs: folders of the simulated storage, as the process sees them that asks.

Promises: while a world is open, URLs under that of its storage lead to its folders, with caches in memory that nobody else has. Leaves out:
URLs that lead elsewhere, which are nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chunkstore import parts, registry
from chunkstore.config import Settings
from chunkstore.errors import InvalidArgument
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.storage import ChunkStorage
from tests.simulator.bound import Replaced

__all__ = ["ROOTS", "Reached", "folder_of"]

ROOTS = ("file:///simulated", "s3://simulated/bucket", "hdfs://127.0.0.1:9870/root")
"""What containers of a world may adopt from, as their settings name it."""


def folder_of(base: str, url: str) -> str | None:
    """The folder that a URL leads to, under the URL of a storage; None: another storage."""
    rest = url.removeprefix(base).strip("/")
    return None if not url.startswith(base) else f"{rest}/" if rest else ""


class Reached:
    """See the module; until ``close``. ``storage_at``: the storage at a URL, for the process that is at work; None: there is none."""

    def __init__(self, storage_at: Callable[[str], ChunkStorage | None]) -> None:
        self._storage_at = storage_at
        self._replaced = Replaced()
        self._replaced.replace(registry, "_open_binding", self._open)
        self._replaced.replace(parts, "cache_of", self._cache)
        self._replaced.replace(parts, "memory_of_owner", lambda *_: None)

    def close(self) -> None:
        """URLs mean again what they say."""
        self._replaced.close()

    def _open(self, _scheme: str, url: str, _settings: Settings) -> ChunkStorage:
        found = self._storage_at(url)
        if found is None:
            raise InvalidArgument(f"no simulated storage lies at {url!r}", argument="root")
        return found

    @staticmethod
    def _cache(storage: ChunkStorage, container: bytes, _settings: Settings, role: str) -> Any:
        return MemoryMetadataCache(container, storage.address, role, shelf=MemoryShelf())
