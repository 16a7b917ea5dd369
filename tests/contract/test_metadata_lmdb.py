"""The LMDB store keeps the metadata contract, and what only LMDB can suffer: growth, full disks, restarts, lost directories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.config import MIB
from chunkstore.errors import StorageFull, StorageUnavailable
from chunkstore.metadata.lmdb import LmdbMetadataCache, environment_of
from chunkstore.metadata.port import GENESIS, MetadataCache
from chunkstore.metadata.rows import sealed
from tests.faults.disks import small_disk
from tests.support.lmdb_caches import CONTAINER, SMALL, big_commit, made_current, state_file, token_directories
from tests.support.metadata_contract import MetadataStoreContract
from tests.support.metadata_history import History


class TestLmdbStore(MetadataStoreContract):
    def make_cache(self, folder: Path, container: bytes, address: str, role: str) -> MetadataCache:
        return LmdbMetadataCache(str(folder), container, address, role)


class TestLmdbStoreWithSmallMap(MetadataStoreContract):
    """Everything once more while the map grows under it."""

    def make_cache(self, folder: Path, container: bytes, address: str, role: str) -> MetadataCache:
        return LmdbMetadataCache(str(folder), container, address, role, settings=SMALL)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


@pytest.fixture
def cache(folder: str) -> Iterator[LmdbMetadataCache]:
    cache = LmdbMetadataCache(folder, CONTAINER, "here")
    yield cache
    cache.close()


# ---- growth


def test_the_map_grows_and_the_whole_transaction_is_repeated(folder: str) -> None:
    cache = LmdbMetadataCache(folder, CONTAINER, "here", settings=SMALL)
    store, history = cache.create(), History()
    for number in range(10):
        assert store.apply([big_commit(history, number)], verify=True)
    with store.view() as view:
        assert dict(view.scan(b"", b"\xff")) == history.rows
    store.close(clean=True)


# ---- disks


@pytest.fixture
def full_soon(tmp_path: Path) -> Iterator[Path]:
    with small_disk("tmpfs", tmp_path / "small", MIB) as disk:
        yield disk.path


def test_a_full_disk_is_said_and_leaves_the_last_commit(full_soon: Path) -> None:
    cache = LmdbMetadataCache(str(full_soon), CONTAINER, "here")
    store, history = cache.create(), History()
    cache.make_current(store)
    applied = GENESIS
    with pytest.raises(StorageFull) as caught:
        for number in range(1000):
            commit = big_commit(history, number)
            assert store.apply([commit._replace(digest=0)], verify=False)
            applied = commit.position
    assert str(full_soon) in str(caught.value)
    assert applied.lsn > 3
    assert store.head().position == applied
    with store.view() as view:
        assert sum(1 for _ in view.scan(b"S", b"T")) == 300 * applied.lsn
    free = store.free_bytes()
    assert free is not None
    assert free < MIB
    (full_soon / "filler").write_bytes(b"x" * free)
    with pytest.raises(StorageFull):
        cache.create()
    store.close(clean=False)
    assert cache.open_current() is None


def test_a_network_file_system_is_avoided_aloud(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkstore.metadata.cachedir.is_local", lambda path: False)
    with pytest.warns(RuntimeWarning, match="not on a local file system"):
        cache = LmdbMetadataCache(folder, CONTAINER, "here")
    assert not cache.path.startswith(folder)
    store = cache.create()
    cache.make_current(store)
    place = cache.path
    store.close(clean=True)
    cache.close()
    assert not os.path.exists(place)


def test_a_cache_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageUnavailable, match="file"):
        LmdbMetadataCache(str(tmp_path / "file"), CONTAINER, "here")


# ---- trust


def test_only_a_clean_store_is_used_again(cache: LmdbMetadataCache) -> None:
    store, history = made_current(cache)
    store.close(clean=True)
    assert "open" not in state_file(cache).read_text()
    found = cache.open_current()
    assert found is not None
    assert found.head().position == history.position
    assert state_file(cache).read_text().endswith(" open\n")
    found.close(clean=False)
    assert cache.open_current() is None
    assert token_directories(cache) == []


def test_a_clean_mark_does_not_cover_later_writes(cache: LmdbMetadataCache) -> None:
    store, history = made_current(cache)
    store.close(clean=True)
    path = state_file(cache)
    clean = path.read_text()
    found = cache.open_current()
    assert found is not None
    assert found.apply([history.commit([(b"Sa", b"later")])], verify=False)
    found.close(clean=False)
    path.write_text(clean)  # as if the machine had lost the newer mark, but not the newer pages
    assert cache.open_current() is None


@pytest.mark.parametrize("content", [None, b"", b"chunkstore-cache 4 here open\n", b"\xff" * 100])
def test_a_damaged_state_is_not_trusted(cache: LmdbMetadataCache, content: bytes | None) -> None:
    store, _ = made_current(cache)
    store.close(clean=True)
    path = state_file(cache)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert cache.open_current() is None


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "missing"])
def test_a_damaged_data_file_is_not_opened(cache: LmdbMetadataCache, damage: str) -> None:
    store = cache.create()
    store.load((b"S%06d" % number, b"x" * 200) for number in range(3000))
    cache.make_current(store)
    store.close(clean=True)
    path = state_file(cache).with_name("data.mdb")
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_bytes(b"not LMDB\n" * 4000)
    elif damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()
    assert cache.open_current() is None


def test_a_store_of_another_container_or_version(cache: LmdbMetadataCache, folder: str) -> None:
    store, _ = made_current(cache)
    store.close(clean=True)
    stranger = bytes(reversed(CONTAINER))
    shutil.copytree(os.path.join(folder, CONTAINER.hex()), os.path.join(folder, stranger.hex()))
    assert LmdbMetadataCache(folder, stranger, "here").open_current() is None
    found = cache.open_current()
    assert found is not None
    with environment_of(found).handle.begin(write=True) as txn:
        raw = txn.get(b"\0head")
        assert raw is not None
        # Version 2 ended in front of the totals.
        txn.put(b"\0head", sealed(b"\0head", b"\x02" + raw[1:113]))
    found.close(clean=True)
    assert cache.open_current() is None


# ---- directories
