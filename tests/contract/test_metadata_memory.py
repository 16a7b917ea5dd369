"""The memory store keeps the metadata contract; and its shelf is what a machine is."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.errors import InvalidArgument
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf, memory_store
from chunkstore.metadata.port import MetadataCache
from tests.support.metadata_contract import MetadataStoreContract
from tests.support.metadata_history import History


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


def test_without_a_shelf_the_process_is_the_machine() -> None:
    container = b"shared by process"[:16]
    cache = MemoryMetadataCache(container, "here")
    store = cache.create()
    cache.make_current(store)
    store.close(clean=True)
    again = MemoryMetadataCache(container, "here").open_current()
    assert again is not None
    cache.discard(again)
    assert MemoryMetadataCache(container, "here").open_current() is None


def test_a_stranger_is_not_made_current() -> None:
    cache = MemoryMetadataCache(bytes(16), "here", shelf=MemoryShelf())
    cache.make_current(memory_store())
    with pytest.raises(InvalidArgument):
        cache.make_current(object())  # type: ignore[arg-type]


def test_rolling_back_restores_rows_under_open_views() -> None:
    store = memory_store()
    history = History()
    assert store.apply([history.commit([(b"Sa", b"1"), (b"Sc", b"1")])], verify=True)
    with store.view() as view:
        bad = history.commit([(b"Sa", b"2"), (b"Sb", b"2"), (b"Sc", None)], [(5, None)])
        with pytest.raises(Exception, match="operation"):
            store.apply([bad], verify=False)
        with store.view() as after:
            assert dict(view.scan(b"", b"\xff")) == dict(after.scan(b"", b"\xff")) == {b"Sa": b"1", b"Sc": b"1"}
