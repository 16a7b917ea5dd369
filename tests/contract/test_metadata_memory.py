"""The memory store keeps the metadata contract; and its shelf is what a machine is."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.errors import InvalidArgument
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryMetadataStore, MemoryShelf
from chunkstore.metadata.port import MetadataCache
from chunkstore.testing.metadata_contract import MetadataStoreContract


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
    class Other(MemoryMetadataStore):
        pass

    cache = MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf())
    cache.make_current(Other())
    with pytest.raises(InvalidArgument):
        cache.make_current(object())  # type: ignore[arg-type]


def test_who_dies_lets_go_of_what_it_holds_and_of_nothing_else() -> None:
    """Found by seed 1310100804: a dead process let go of the store that another one had taken after it, and a third one shared it."""
    shelf = MemoryShelf()
    first, second, third = (MemoryMetadataCache(bytes(16), "here", shelf=shelf) for _ in range(3))
    made = first.create()
    first.make_current(made)
    made.close(clean=True)
    taken = second.open_current()
    assert taken is not None
    first.abandon()
    assert third.open_current() is None
    second.abandon()
    again = MemoryMetadataCache(bytes(16), "here", shelf=shelf).open_current()
    assert again is not None
    assert again._content is taken._content  # type: ignore[attr-defined]
