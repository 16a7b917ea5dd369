"""The memory store keeps the metadata contract; and its shelf is what a machine is."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.errors import InvalidArgument
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf, memory_store
from chunkstore.metadata.port import MetadataCache
from tests.support.metadata_contract import MetadataStoreContract


class TestMemoryStore(MetadataStoreContract):
    shelves: dict[Path, MemoryShelf]

    @pytest.fixture(autouse=True)
    def _new_shelves(self) -> None:
        self.shelves = {}

    def make_cache(self, folder: Path, container: bytes, address: str, role: str) -> MetadataCache:
        return MemoryMetadataCache(container, address, role, shelf=self.shelves.setdefault(folder, MemoryShelf()))


def test_machines_have_shelves_of_their_own() -> None:
    here, there = MemoryShelf(), MemoryShelf()
    cache = MemoryMetadataCache(bytes(16), "here", shelf=here)
    store = cache.create()
    cache.make_current(store)
    store.close(clean=True)
    assert MemoryMetadataCache(bytes(16), "here", shelf=there).open_current() is None
    assert MemoryMetadataCache(bytes(16), "here", shelf=here).open_current() is not None
    here.clear()
    assert MemoryMetadataCache(bytes(16), "here", shelf=here).open_current() is None
    assert MemoryMetadataCache(bytes(16), "here", shelf=here).seen() is None


def test_a_stranger_is_not_made_current() -> None:
    cache = MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf())
    cache.make_current(memory_store())
    with pytest.raises(InvalidArgument):
        cache.make_current(object())  # type: ignore[arg-type]
