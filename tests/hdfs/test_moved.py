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


def opened(tree: Tree, path: str, cache: Path) -> ChunkedSegmentStorage:
    settings = Settings(
        cache_dir=str(cache),
        op_deadline_s=PATIENT_S,
        lease_s=0,
        retry_s_max=0.5,
        inline_bytes_max=0,  # a chunk's own error names its folder; a record's is an unknown outcome
        tuning=Tuning(lmdb_map_bytes=1 << 26),
    )
    return chunkstore.open(tree.root(path), settings=settings)


def check_zombie(tree: Tree, home: str, way: Callable[[Tree, str], str], tmp_path: Path) -> None:
    zombie = opened(tree, f"{home}/old", tmp_path / "zombie")
    zombie.create("a")
    assert zombie.append("a", b"before") == 0
    place = way(tree, home)
    is_left = not tree.is_there(f"{home}/old/default")
    successor = opened(tree, place, tmp_path / "successor")
    try:
        assert successor.append("a", b" after") == 6
        # A record alone, one with bytes, and one more, because a failure may have ended the epoch.
        with within(zombie, SOON_S):
            for call in (
                lambda: zombie.create("late"),
                lambda: zombie.append("a", b" late"),
                lambda: zombie.create("later"),
            ):
                with pytest.raises(ChunkstoreError):
                    call()
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
    with opened(tree, place, tmp_path / "later") as store:
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


def storage_of(tree: Tree, path: str) -> HdfsChunkStorage:
    return HdfsChunkStorage(tree.root(path), deadline_s=PATIENT_S)


def test_nothing_is_made_where_a_folder_was_removed(tree: Tree, home: str) -> None:
    storage = storage_of(tree, home)
    storage.create("c/a", b"x")
    writing: list[Callable[[], object]] = [
        lambda: storage.create("c/b", b"x"),
        lambda: storage.create("c/new/b", b"x"),
        lambda: storage.create_if_absent("c/b", b"x" * 3_000_000),
        lambda: storage.put("c/hint", b"x"),
    ]
    for removed in (f"{home}/c", home):
        tree.remove(removed)
        for call in writing:
            with pytest.raises(StorageUnavailable):
                call()
            assert not tree.is_there(removed)
        with pytest.raises(StorageUnavailable, match="no longer there"):
            storage.create("c/b", b"x")
        with pytest.raises(ChunkNotFound):
            storage.identity("c/a")
    storage.close()


def test_temporaries_alone_that_were_removed_are_made_again(tree: Tree, home: str) -> None:
    storage = storage_of(tree, home)
    storage.create("c/a", b"x")
    tree.remove(f"{home}/.chunkstore-tmp")
    with pytest.raises(StorageUnavailable, match="no longer there"):
        storage.create("c/b", b"x")
    storage.create("c/b", b"x")
    storage.close()


def test_a_copy_is_told_from_the_folder_and_not_written_to(tree: Tree, home: str) -> None:
    storage = storage_of(tree, f"{home}/old")
    storage.create("c/a", b"x")
    number = storage.identity("c/a")
    tree.move(f"{home}/old", f"{home}/new")
    with pytest.raises(ChunkNotFound):
        storage.identity("c/a")
    other = storage_of(tree, f"{home}/new")
    assert other.identity("c/a") == number
    tree.copy(f"{home}/new", f"{home}/old")
    assert storage.identity("c/a") != number
    for call in (storage.create, storage.create_if_absent, storage.put):
        with pytest.raises(StorageUnavailable, match=f"{home}/old/c.*no longer there"):
            call("c/b", b"x")
    assert tree.files(f"{home}/old") == [f"{home}/old/c/a"]
    assert tree.files(f"{home}/new") == [f"{home}/new/c/a"]
    storage.close()
    other.close()
