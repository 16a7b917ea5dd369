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
from chunkstore.deadline import Deadline
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, ChunkstoreError, StorageUnavailable, Unsupported
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.hdfs import HdfsChunkStorage, held
from chunkstore_bindings.hdfs.atomic import Temporary
from tests.faults.ground import FULL_RUN
from tests.hdfs.model import made
from tests.hdfs.moving import WAYS, Tree, replaced_by_a_copy, served_from_a_copy
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


def test_a_folder_that_comes_back_is_served_again(tree: Tree, home: str, tmp_path: Path) -> None:
    with opened(tree, f"{home}/old", tmp_path) as store:
        store.create("a")
        store.append("a", b"before")
        tree.move(f"{home}/old", f"{home}/new")
        with within(store, SOON_S):
            error = refused(lambda: store.append("a", b" late"))
        assert f"{home}/old/default" in str(error)
        assert not tree.is_there(f"{home}/old")
        tree.move(f"{home}/new", f"{home}/old")
        assert store.append("a", b" after") == 6
        assert store.read("a", 0, 100) == b"before after"


# The storage alone


def uses_paths(storage: HdfsChunkStorage) -> bool:
    return not storage._files.path("c/a", Deadline(PATIENT_S)).startswith("/.reserved")


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


# Not ``served_from_a_copy``: that copy has the temporary, too, and takes its place before the rename (``held``).
@pytest.mark.parametrize("way", [way for way in WAYS.values() if way is not served_from_a_copy])
def test_a_rename_that_was_under_way(tree: Tree, home: str, way: Callable[[Tree, str], str]) -> None:
    """Its temporary is written; then the folder is moved and a successor has the slot; then the rename arrives."""
    storage = storage_of(tree, f"{home}/old")
    storage.create("default/j/0", b"OPEN")
    place = storage._atomic.place
    found: list[HdfsChunkStorage] = []

    def late(name: str, temporary: Temporary, path: str, deadline: Deadline, *, replace: bool) -> bool:
        if not found:
            found.append(storage_of(tree, way(tree, home)))
            assert found[0].create_if_absent("default/j/1", b"SEAL")
        return place(name, temporary, path, deadline, replace=replace)

    storage._atomic.place = late  # type: ignore[method-assign]
    with contextlib.suppress(StorageUnavailable):
        assert storage.create_if_absent("default/j/1", b"record") is False
    assert found[0].read(ChunkHandle("default/j/1", False), 0, 9) == b"SEAL"
    if not found[0].url.endswith("/old") and way is not replaced_by_a_copy:
        assert not tree.is_there(f"{home}/old/default")
    storage.close()
    found[0].close()


def test_a_gateway_without_numbers_is_refused_until_the_root_says_otherwise(tmp_path: Path) -> None:
    with FakeWebHdfs(numbers=False) as fake:
        tree = Tree(fake)
        with pytest.raises(Unsupported, match="guard=none"):
            opened(tree, "/root", tmp_path)
        assert "/root/default" not in fake.folders
        with opened(tree, "/root", tmp_path, query="?guard=none") as store:
            store.create("a")
            assert store.append("a", b"x") == 0
        with pytest.raises(Unsupported, match="guard=none"):
            opened(tree, "/root", tmp_path)


@pytest.mark.parametrize("op", ["CREATE", "RENAME", "MKDIRS", "SETPERMISSION", "LISTSTATUS_BATCH", "OPEN"])
def test_a_server_that_fails_one_operation_is_asked_by_path(
    fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    monkeypatch.setattr(held, "_proven", set())
    fake.refuse(op, "IOException", f"{op} doesn't support .reserved relative path").about = "/probe-"
    storage = made(fake)
    assert storage.create_if_absent("c/a", b"x")
    assert uses_paths(storage)
    assert storage.read(ChunkHandle("c/a", False), 0, 9) == b"x"
    fake.remove("/root")
    with pytest.raises(StorageUnavailable):
        storage.create_if_absent("c/b", b"x")
    assert "/root" not in fake.folders
    storage.close()
