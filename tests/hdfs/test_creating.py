"""What becomes of a file that is created when things go wrong, exactly, over the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from chunkstore.deadline import Deadline
from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.hdfs.atomic import Temporary
from tests.hdfs.model import FOLDER, SHORT_S, made, temporaries
from tests.support.data import fails_in_time
from tests.support.fake_webhdfs import FakeWebHdfs

# Creating: RENAME's reply lost (protocol 2.3, #46)


def test_a_lost_rename_is_recognised_by_the_files_number(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    lost = fake.lose_reply("RENAME")
    assert storage.create_if_absent("a", b"mine") is True
    assert lost.fired == 1
    assert fake.asked("RENAME") == 1
    assert fake.asked("OPEN") == 0
    assert fake.files["/root/a"].data == b"mine"
    assert temporaries(fake) == []


@pytest.mark.parametrize("times", [1, 3])
def test_a_rename_that_never_arrived_is_sent_again(fake: FakeWebHdfs, storage: HdfsChunkStorage, times: int) -> None:
    fake.lose_request("RENAME", times=times)
    assert storage.create_if_absent("a", b"mine") is True
    assert fake.asked("RENAME") == times + 1
    assert temporaries(fake) == []


def test_the_name_is_taken_while_our_rename_is_lost(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    fake.lose_request("RENAME")
    other = made(fake)
    real = storage._files.look
    looked = itertools.count()

    def look(path: str, deadline: Deadline) -> dict[str, Any] | None:
        # The first look is at the temporary; then the rename is lost, and somebody is quicker.
        if next(looked) == 1:
            assert other.create_if_absent("a", b"theirs")
        return real(path, deadline)

    storage._files.look = look  # type: ignore[method-assign]
    assert storage.create_if_absent("a", b"mine") is False
    assert fake.files["/root/a"].data == b"theirs"
    assert temporaries(fake) == []
    other.close()


def test_an_undecided_rename_says_so_and_keeps_its_temporary(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    place = storage._atomic.place

    def soon(name: str, temporary: Temporary, path: str, deadline: Deadline, *, replace: bool) -> bool:
        # The temporary had all the time it needed.
        return place(name, temporary, path, Deadline(SHORT_S), replace=replace)

    storage._atomic.place = soon  # type: ignore[method-assign]
    fake.lose_request("RENAME", times=1000)
    fails_in_time(StorageUnavailable, lambda: storage.create_if_absent("a", b"mine"))
    # A rename that is still under way somewhere must find it, and then it is the frozen bytes that appear.
    assert [fake.files[path].data for path in temporaries(fake)] == [b"mine"]


@pytest.mark.parametrize("kind", ["FileAlreadyExistsException", "AlreadyBeingCreatedException"])
def test_both_ways_to_say_taken_mean_lost(fake: FakeWebHdfs, storage: HdfsChunkStorage, kind: str) -> None:
    fake.refuse("RENAME", kind)
    assert storage.create_if_absent("a", b"mine") is False
    fake.refuse("RENAME", kind)
    with pytest.raises(ChunkExists):
        storage.create("a", b"mine")
    assert temporaries(fake) == []


# Creating: the body


def test_a_body_that_is_cut_never_gets_the_name(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    fake.cut_body("CREATE")
    with pytest.raises(StorageUnavailable):
        storage.create_if_absent("a", b"x" * 100_000)
    assert "/root/a" not in fake.files
    assert temporaries(fake) == []
    assert storage.create_if_absent("a", b"x" * 100_000)


@pytest.mark.parametrize("where", ["namenode", "datanode"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("DSQuotaExceededException", "The DiskSpace quota of /q is exceeded: quota = 4096 B"),
        ("NSQuotaExceededException", "The NameSpace quota (directories and files) of directory /q is exceeded"),
        ("QuotaByStorageTypeExceededException", "Quota by storage type : DISK on path : /q is exceeded"),
        ("RemoteException", "No space left on device"),
        (
            "RemoteException",
            "could only be written to 0 of the 1 minReplication nodes. There are 3 datanode(s) running and no node(s) are",
        ),
    ],
)
def test_full_is_full(fake: FakeWebHdfs, storage: HdfsChunkStorage, kind: str, message: str, where: str) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("CREATE", lambda: storage.create_if_absent("a", b"x")),
        ("CREATE", lambda: storage.put("a", b"x")),
    ]
    if where == "namenode":
        calls.append(("RENAME", lambda: storage.create_if_absent("a", b"x")))
    for op, call in calls:
        fake.refuse(op, kind, message, where=where)
        with pytest.raises(StorageFull) as caught:
            call()
        assert "free space" in str(caught.value)
        assert temporaries(fake) == []
    assert storage.create_if_absent("a", b"x")


@pytest.mark.parametrize(
    ("kind", "message", "says"),
    [
        ("SafeModeException", "Cannot create /x. Name node is in safe mode.", "safe mode"),
        ("StandbyException", "Operation category WRITE is not supported in state standby", "active one"),
        ("AccessControlException", "Permission denied: user=bob, access=WRITE", "user=NAME"),
        ("InvalidToken", "token (...) can't be found in cache", "token_file=PATH"),
        ("IOException", "Something odd", "IOException: Something odd"),
    ],
)
def test_refusals_with_a_remedy(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, kind: str, message: str, says: str
) -> None:
    for op in ("CREATE", "RENAME"):
        fake.refuse(op, kind, message)
        with pytest.raises(StorageUnavailable) as caught:
            storage.create_if_absent("a", b"x")
        assert says in str(caught.value)
    assert temporaries(fake) == []


def test_folders_and_chunks_do_not_mix(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    storage.create("a/b/c", b"x")
    for call in (storage.create_if_absent, storage.put, storage.create):
        with pytest.raises(InvalidArgument):
            call("a/b", b"x")
        with pytest.raises(InvalidArgument):
            call("a/b/c/d", b"x")
    assert not storage.exists("a/b")
    assert not storage.exists("a/b/c/d")
    with pytest.raises(ChunkNotFound):
        storage.delete("a/b")
    storage.delete("a/b/c")
    with pytest.raises(ChunkNotFound):
        storage.delete("a/b")
    assert "/root/a/b" in fake.folders
    assert temporaries(fake) == []


def test_what_the_dead_left_is_swept_after_a_day(fake: FakeWebHdfs) -> None:
    with fake.lock:
        fake.make_folders(FOLDER)
        for name, age_ms in (("old", 25 * 3600_000), ("young", 23 * 3600_000)):
            file = fake.new_file(f"{FOLDER}/{name}")
            file.open, file.modified_ms = False, file.modified_ms - age_ms
    storage = made(fake, deadline_s=60)  # of which a sweep takes a small share
    storage.create("a", b"x")
    assert temporaries(fake) == [f"{FOLDER}/young"]
    assert [item.name for item in storage.list().items] == ["a"]
    for call in (storage.exists, storage.stat, storage.open_read):
        with pytest.raises(InvalidArgument):
            call(".chunkstore-tmp/young")
    storage.close()
