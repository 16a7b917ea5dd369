"""The LMDB store keeps the metadata contract, and what only LMDB can suffer: growth, full disks, restarts, lost directories."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, Closed, Damaged, StorageFull, StorageUnavailable
from chunkstore.metadata import cachedir
from chunkstore.metadata.lmdb import LmdbMetadataCache, environment
from chunkstore.metadata.port import GENESIS, MetadataCache
from chunkstore.metadata.rows import sealed
from tests.faults.disks import small_disk
from tests.support.lmdb_caches import CONTAINER, SMALL, big_commit, lmdb_of, made_current, state_file, token_directories
from tests.support.metadata_basics import compare
from tests.support.metadata_contract import MetadataStoreContract
from tests.support.metadata_history import History, World
from tests.support.scripts import run_script


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


def test_growth_waits_for_an_open_view(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_VIEWS_WAIT_S", 60.0)
    cache = LmdbMetadataCache(folder, CONTAINER, "here", settings=SMALL)
    store, history = cache.create(), History()
    view = store.view()
    assert list(view.scan(b"", b"\xff")) == []
    started = runtime.event()

    def grow() -> None:
        started.set()
        for number in range(5):
            assert store.apply([big_commit(history, number)], verify=False)

    task = runtime.spawn(grow, "grow")
    assert started.wait(60)
    time.sleep(0.3)
    assert view.get(b"S000000") is None  # still its own point of history
    assert task.is_alive()
    view.close()
    task.join(60)
    assert not task.is_alive()
    assert store.head().position == history.position
    store.close(clean=True)


def test_a_view_that_outlasts_the_wait_is_ended_and_says_so(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_VIEWS_WAIT_S", 0.05)
    cache = LmdbMetadataCache(folder, CONTAINER, "here", settings=SMALL)
    store, history = cache.create(), History()
    view = store.view()
    scan = view.scan(b"", b"\xff")
    for number in range(5):
        assert store.apply([big_commit(history, number)], verify=False)
    for call in (
        lambda: view.get(b"S"),
        lambda: list(scan),
        lambda: view.locate(1, 0),
        lambda: view.count_chunks(1, 0, 1),
    ):
        with pytest.raises(StorageUnavailable, match="new view"):
            call()
    view.close()
    assert store.get(b"S000000") == b"x" * 100
    store.close(clean=True)


def test_little_address_space(tmp_path: Path) -> None:
    """Where a huge map cannot be had, a small one is taken and grows."""
    script = f"""
import resource
from chunkstore.metadata.lmdb import LmdbMetadataCache
from tests.support.metadata_history import History
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
store = LmdbMetadataCache({str(tmp_path)!r}, bytes(16), "here").create()
history = History()
for number in range(3):
    rows = [(b"T%06d" % (number * 100 + row), b"x" * 500_000) for row in range(60)]
    assert store.apply([history.commit(rows)._replace(digest=0)], verify=False)
print(store._environment.handle.info()["map_size"], store.head().position.lsn)
"""
    found = run_script(script).split()
    assert found == [str(128 * MIB), "3"]


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


def test_a_network_file_system_is_avoided_aloud(folder: str) -> None:
    with pytest.warns(RuntimeWarning, match="not on a local file system"):
        cache = LmdbMetadataCache(folder, CONTAINER, "here", local=lambda path: False)
    assert not cache.path.startswith(folder)
    store = cache.create()
    cache.make_current(store)
    place = cache.path
    store.close(clean=True)
    cache.close()
    assert not os.path.exists(place)


def test_local_file_systems(tmp_path: Path) -> None:
    assert cachedir.is_local(str(tmp_path))
    assert cachedir.is_local(str(tmp_path / "not" / "there" / "yet"))
    assert not cachedir.is_local("/proc/self")


def test_a_cache_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
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
    with lmdb_of(found).begin(write=True) as txn:
        raw = txn.get(b"\0head")
        assert raw is not None
        # Version 2 ended in front of the totals.
        txn.put(b"\0head", sealed(b"\0head", b"\x02" + raw[1:113]))
    found.close(clean=True)
    assert cache.open_current() is None


# ---- directories


def test_one_store_of_each_of_some_addresses_is_kept(folder: str) -> None:
    stores, last = [], ""
    for number in range(12):
        for _ in range(3):
            cache = LmdbMetadataCache(folder, CONTAINER, f"file:///place {number}")
            stores.append(cache.create())
            cache.make_current(stores[-1])
            last = cache.path
    assert len(token_directories(cache)) == 36, "all are in use"
    for store in stores:
        store.close(clean=True)
    cache.discard(cache.create())
    found = [Path(last, name, "STATE").read_text().split()[2] for name in token_directories(cache)]
    assert sorted(found) == sorted(f"file%3A///place%20{number}" for number in range(4, 12))


def test_deleting_the_cache_beside_its_owner(cache: LmdbMetadataCache, folder: str) -> None:
    store, history = made_current(cache)
    shutil.rmtree(folder)
    assert store.apply([history.commit([(b"Sa", b"on")])], verify=True)
    again = cache.open_current()
    assert again is not None, "its files live as long as they are open"
    assert again.head() == store.head()
    assert LmdbMetadataCache(folder, CONTAINER, "here").open_current() is None
    fresh = cache.create()
    cache.make_current(fresh)
    for handle in (store, again, fresh):
        handle.close(clean=True)
    found = LmdbMetadataCache(folder, CONTAINER, "here").open_current()
    assert found is not None
    assert found.head().position == GENESIS
    found.close(clean=True)


def test_discard_deletes(cache: LmdbMetadataCache) -> None:
    store, _ = made_current(cache)
    cache.discard(store)
    assert token_directories(cache) == []
    assert cache.open_current() is None
    with pytest.raises(Closed):
        store.head()


def test_a_store_whose_directory_vanished_is_not_made_current(cache: LmdbMetadataCache) -> None:
    store = cache.create()
    for name in os.listdir(os.path.join(cache.path, token_directories(cache)[0])):
        os.unlink(os.path.join(cache.path, token_directories(cache)[0], name))
    with pytest.raises(StorageUnavailable, match="deleted"):
        cache.make_current(store)
    assert store.apply([History().commit([(b"Sa", b"1")])], verify=True)  # it goes on alone
    store.close(clean=True)


def test_views_end_with_the_store(cache: LmdbMetadataCache) -> None:
    store, _ = made_current(cache)
    view = store.view()
    store.close(clean=True)
    with pytest.raises(Closed):
        view.get(b"Sa")
    view.close()


def test_forgotten_views_do_not_fill_the_reader_table(cache: LmdbMetadataCache) -> None:
    store, _ = made_current(cache)
    for _ in range(2000):
        store.view()
    views = [store.view() for _ in range(400)]
    for view in views:
        assert view.get(b"Sa") == b"2"
        view.close()
    store.close(clean=True)


def test_too_many_views_are_said(cache: LmdbMetadataCache) -> None:
    store, _ = made_current(cache)
    views = [store.view() for _ in range(505)]
    with pytest.raises(StorageFull, match="close views"):
        views.extend(store.view() for _ in range(200))
    for view in views:
        view.close()
    assert store.get(b"Sa") == b"2"
    store.close(clean=True)


def test_unusable_keys(cache: LmdbMetadataCache) -> None:
    store, _ = made_current(cache)
    with pytest.raises(ChunkstoreError):
        store.get(b"")
    with pytest.raises(ChunkstoreError):
        store.load([(b"S" * 600, b"x")])
    store.close(clean=True)


def test_a_failing_source_of_rows_leaves_the_store_usable(cache: LmdbMetadataCache) -> None:
    def source() -> Iterator[tuple[bytes, bytes]]:
        yield b"Sa", b"1"
        raise Damaged("block", object="snapshot")

    store = cache.create()
    with pytest.raises(Damaged, match="block"):
        store.load(source())
    cache.discard(store)


def test_index_in_lmdb_across_processes(cache: LmdbMetadataCache, folder: str) -> None:
    world = World()
    store = cache.create()
    for commit in (world.create(), world.append(1, 5, 6, 7), world.create(), world.append(2, 8), world.concat(1, 2)):
        assert store.apply([commit], verify=True)
    cache.make_current(store)
    store.close(clean=True)
    answer = run_script(f"""
from chunkstore.metadata.lmdb import LmdbMetadataCache
store = LmdbMetadataCache({folder!r}, {CONTAINER!r}, "here").open_current()
with store.view() as view:
    print(view.locate(1, 20)[1], view.count_chunks(1, 0, 26))
store.close(clean=True)
""")
    assert answer.split() == ["18", "4"]
    again = cache.open_current()
    assert again is not None
    with again.view() as view:
        compare(view, world)
    again.close(clean=True)


def test_opening_and_closing_leaves_no_file_open(cache: LmdbMetadataCache, folder: str) -> None:
    store, _ = made_current(cache)
    store.close(clean=True)
    before = open_files(folder)
    for _ in range(5):
        found = cache.open_current()
        assert found is not None
        found.close(clean=True)
        cache.discard(cache.create())
        LmdbMetadataCache(folder, CONTAINER, "here", "replica").close()
        assert LmdbMetadataCache(folder, bytes(16), "here").open_current() is None
    assert open_files(folder) == before


def open_files(folder: str) -> list[str]:
    """What this process has open there (elsewhere other threads may open and close what they like)."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(path for path in found if path.startswith(folder))
