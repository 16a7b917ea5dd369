"""The folder of a live owner's container is renamed, removed or replaced, and a successor opens it where it is now.

Asked of a real Hadoop and of the model: what was the owner is never acknowledged again, and nothing appears where the folder was.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import Settings, Tuning
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, ChunkstoreError, StorageUnavailable
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.hdfs import HdfsChunkStorage
from tests.faults.ground import FULL_RUN
from tests.hdfs.moving import WAYS, Tree
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.hooked import within
from tests.support.servers.hdfs import hdfs_or_end

PATIENT_S = 60.0
SOON_S = 1.5
"""What cannot succeed is given up by then."""


_numbers = itertools.count(1)


@pytest.fixture(params=["real", "model"])
def tree(request: pytest.FixtureRequest) -> Iterator[Tree]:
    if request.param == "real":
        yield Tree(hdfs_or_end())
        return
    with FakeWebHdfs() as fake:
        yield Tree(fake)


@pytest.fixture
def home() -> str:
    """A folder for this test alone."""
    return f"/moved-{next(_numbers)}"


def opened(tree: Tree, path: str, cache: Path, *, query: str = "") -> ChunkedSegmentStorage:
    settings = Settings(
        cache_dir=str(cache),
        op_deadline_s=PATIENT_S,
        lease_s=0,
        retry_s_max=0.5,
        inline_bytes_max=0,  # a chunk's own error names its folder; a record's is an unknown outcome
        tuning=Tuning(lmdb_map_bytes=1 << 26),
    )
    return chunkstore.open(tree.root(path) + query, settings=settings)


def refused(call: Callable[[], object]) -> ChunkstoreError:
    with pytest.raises(ChunkstoreError) as caught:
        call()
    assert ".inodes" not in str(caught.value)
    return caught.value


def check_zombie(tree: Tree, home: str, way: Callable[[Tree, str], str], tmp_path: Path, query: str = "") -> None:
    zombie = opened(tree, f"{home}/old", tmp_path / "zombie", query=query)
    zombie.create("a")
    assert zombie.append("a", b"before") == 0
    place = way(tree, home)
    is_left = not tree.is_there(f"{home}/old/default")
    successor = opened(tree, place, tmp_path / "successor", query=query)
    try:
        assert successor.append("a", b" after") == 6
        # A record alone, one with bytes, and one more, because a failure may have ended the epoch.
        with within(zombie, SOON_S):
            refused(lambda: zombie.create("late"))
            refused(lambda: zombie.append("a", b" late"))
            refused(lambda: zombie.create("later"))
        if is_left:
            assert not tree.is_there(f"{home}/old/default")
        assert successor.read("a", 0, 100) == b"before after"
        assert successor.append("a", b" again") == 12
    finally:
        with contextlib.suppress(ChunkstoreError), within(zombie, 0.2):  # what it says is of no interest any more
            zombie.close()
        successor.close()
    if is_left:
        assert not tree.is_there(f"{home}/old/default")
    with opened(tree, place, tmp_path / "later", query=query) as store:
        assert store.read("a", 0, 100) == b"before after again"
        assert store.check("deep") == []


# Of a real Hadoop every way; of the model one that is followed and one that is not (all of it at any moment below).
ZOMBIES = [
    *(pytest.param("real", way, marks=pytest.mark.proof) for way in WAYS),
    *(("model", way) for way in WAYS if FULL_RUN or way in ("renamed_container", "removed")),
]


@pytest.mark.parametrize(("tree", "way"), ZOMBIES, indirect=["tree"])
def test_a_zombie_is_never_acknowledged(tree: Tree, home: str, way: str, tmp_path: Path) -> None:
    check_zombie(tree, home, WAYS[way], tmp_path)


# The storage alone


def storage_of(tree: Tree, path: str, query: str = "") -> HdfsChunkStorage:
    return HdfsChunkStorage(tree.root(path) + query, deadline_s=PATIENT_S)


def test_a_folder_that_is_gone_is_an_error_and_no_absence(tree: Tree, home: str) -> None:
    storage = storage_of(tree, home)
    storage.create("c/a", b"x")
    tree.remove(home)
    calls: list[Callable[[], object]] = [
        lambda: storage.exists("c/a"),
        lambda: storage.stat("c/a"),
        lambda: storage.read(ChunkHandle("c/a", False), 0, 1),
        lambda: storage.list("c/"),
        lambda: storage.create("c/b", b"x"),
        lambda: storage.create("c/new/b", b"x"),
        lambda: storage.create_if_absent("c/b", b"x" * 3_000_000),
        lambda: storage.put("c/hint", b"x"),
        lambda: storage.harden("c/a"),
        lambda: storage.delete("c/a"),
        lambda: storage.set_read_only(ChunkHandle("c/a", True), read_only=True),
    ]
    for call in calls:
        with pytest.raises(StorageUnavailable) as caught:
            call()
        assert ".inodes" not in str(caught.value)
        assert not tree.is_there(home)
    with pytest.raises(StorageUnavailable, match=f"{home}/c"):
        storage.create("c/b", b"x")
    # A copy in its place is another folder.
    copy = storage_of(tree, home)
    copy.create("c/a", b"copy")
    copy.close()
    with pytest.raises(StorageUnavailable):
        storage.read(ChunkHandle("c/a", False), 0, 1)
    with pytest.raises(StorageUnavailable):
        storage.create_if_absent("c/b", b"x")
    storage.close()


def test_a_container_is_followed_by_those_who_read(tree: Tree, home: str) -> None:
    storage = storage_of(tree, f"{home}/old")
    storage.create("c/e/a", b"x")
    tree.move(f"{home}/old", f"{home}/new")
    assert storage.exists("c/e/a")
    assert storage.read(ChunkHandle("c/e/a", False), 0, 9) == b"x"
    assert [item.name for item in storage.list("c/").items] == ["c/e/a"]
    # This very name leads nowhere.
    with pytest.raises(ChunkNotFound):
        storage.identity("c/e/a")
    other = storage_of(tree, f"{home}/new")
    number = other.identity("c/e/a")
    assert other.create_if_absent("c/e/b", b"theirs")
    assert storage.create_if_absent("c/e/b", b"ours") is False
    with pytest.raises(StorageUnavailable, match=f"{home}/old/c is no longer the folder"):
        storage.create_if_absent("c/e/c", b"ours")
    assert not other.exists("c/e/c")
    assert not tree.is_there(f"{home}/old")
    tree.copy(f"{home}/new", f"{home}/old")
    assert storage_of(tree, f"{home}/old").identity("c/e/a") != number
    with pytest.raises(StorageUnavailable, match=f"{home}/old/c is no longer the folder"):
        storage.create_if_absent("c/e/c", b"ours")
    assert tree.files(f"{home}/old") == [f"{home}/old/c/e/a", f"{home}/old/c/e/b"]
    assert tree.files(f"{home}/new") == [f"{home}/new/c/e/a", f"{home}/new/c/e/b"]
    storage.close()
    other.close()
