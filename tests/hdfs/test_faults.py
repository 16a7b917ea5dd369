"""What the binding makes of each thing that can go wrong, exactly, over the model."""

from __future__ import annotations

import itertools
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore.config import Settings
from chunkstore.deadline import until
from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    ChunkstoreError,
    InvalidArgument,
    InvalidOffset,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle, ConcatArgument, ReadRange
from chunkstore_bindings import hdfs
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.hdfs_atomic import Temporary, pauses
from chunkstore_bindings.in_time import Deadline
from tests.support.fake_webhdfs import FakeWebHdfs

FOLDER = "/root/.chunkstore-tmp"
APPENDS = "?append=yes"
PATIENT_S = 30.0
"""The deadline of what must succeed; a server may be silent for a third of it, which no busy machine's is."""
ELAPSED_S_MAX = 15.0
"""What must end by a short deadline has ended by then, whoever was held up meanwhile; a patient one has not."""
SHORT_S = 0.6


@pytest.fixture
def storage(fake: FakeWebHdfs) -> Iterator[HdfsChunkStorage]:
    storage = made(fake)
    yield storage
    storage.close()


@pytest.fixture
def ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that wait for something end ``SHORT_S`` after they have met it, however long that took."""

    class EndingPauses(pauses):
        begun = False

        def __call__(self) -> bool:
            if not self.begun:
                self.begun = True
                self._deadline._end_s = time.monotonic() + SHORT_S
            return super().__call__()

    monkeypatch.setattr(hdfs, "pauses", EndingPauses)


def made(fake: FakeWebHdfs, query: str = APPENDS, *, deadline_s: float = PATIENT_S) -> HdfsChunkStorage:
    return HdfsChunkStorage(fake.root(query=query), deadline_s=deadline_s)


def temporaries(fake: FakeWebHdfs) -> list[str]:
    return [path for path in fake.files if path.startswith(FOLDER + "/")]


# Creating: RENAME's reply lost (protocol 2.3, #46)


def test_a_lost_rename_is_recognised_by_the_files_number(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    lost = fake.lose_reply("RENAME")
    assert storage.create_if_absent("a", b"mine") is True
    assert lost.fired == 1
    assert fake.asked("RENAME") == 1
    assert fake.asked("OPEN") == 0
    assert fake.files["/root/a"].data == b"mine"
    assert temporaries(fake) == []


def test_a_lost_rename_of_equal_bytes_is_not_mistaken(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    """Somebody else's file with the very same bytes is somebody else's."""
    assert storage.create_if_absent("a", b"same")
    fake.lose_request("RENAME")
    assert storage.create_if_absent("a", b"same") is False
    assert temporaries(fake) == []


def test_without_file_numbers_contents_decide() -> None:
    with FakeWebHdfs(numbers=False) as fake:
        storage = made(fake)
        fake.lose_reply("RENAME")
        assert storage.create_if_absent("a", b"mine") is True
        fake.lose_reply("RENAME")
        assert storage.create_if_absent("a", b"yours") is False
        fake.lose_reply("RENAME")
        storage.put("hint", b"new")
        assert fake.files["/root/hint"].data == b"new"
        storage.close()


@pytest.mark.parametrize("times", [1, 3])
def test_a_rename_that_never_arrived_is_sent_again(fake: FakeWebHdfs, storage: HdfsChunkStorage, times: int) -> None:
    fake.lose_request("RENAME", times=times)
    assert storage.create_if_absent("a", b"mine") is True
    assert fake.asked("RENAME") == times + 1
    assert temporaries(fake) == []


def test_the_name_is_taken_while_our_rename_is_lost(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    fake.lose_request("RENAME")
    other = made(fake)
    real_status = storage._atomic._status
    looked = itertools.count()

    def status(path: str, deadline: object) -> object:
        # The first look is at the temporary; then the rename is lost, and somebody is quicker.
        if next(looked) == 1:
            assert other.create_if_absent("a", b"theirs")
        return real_status(path, deadline)  # type: ignore[arg-type]

    storage._atomic._status = status  # type: ignore[method-assign,assignment]
    assert storage.create_if_absent("a", b"mine") is False
    assert fake.files["/root/a"].data == b"theirs"
    assert temporaries(fake) == []
    other.close()


def test_the_rename_is_sent_again_and_refused(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    """RENAME done, its reply lost, the look lost, too: the second RENAME misses its source, and the number says why."""
    fake.lose_reply("RENAME", about="/root/a")
    fake.lose_request("GETFILESTATUS", about="/root/a", times=2)
    assert storage.create_if_absent("a", b"mine") is True
    assert fake.asked("RENAME") == 2
    assert fake.files["/root/a"].data == b"mine"
    assert temporaries(fake) == []


def test_an_undecided_rename_says_so_and_keeps_its_temporary(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    place = storage._atomic.place

    def soon(name: str, temporary: Temporary, path: str, deadline: Deadline, *, replace: bool) -> bool:
        # The temporary had all the time it needed.
        return place(name, temporary, path, Deadline(SHORT_S), replace=replace)

    storage._atomic.place = soon  # type: ignore[method-assign]
    fake.lose_request("RENAME", times=1000)
    began = time.monotonic()
    with pytest.raises(StorageUnavailable):
        storage.create_if_absent("a", b"mine")
    assert time.monotonic() - began < ELAPSED_S_MAX
    # A rename that is still under way somewhere must find it, and then it is the frozen bytes that appear.
    assert [fake.files[path].data for path in temporaries(fake)] == [b"mine"]


def test_a_gateways_error_page_decides_nothing(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    for status in (502, 504, 200):
        fake.garble("RENAME", status)
        assert storage.create_if_absent(f"a{status}", b"mine") is True
    fake.garble("GETFILESTATUS", 503, times=2)
    with pytest.raises(StorageUnavailable):
        storage.exists("a200")


@pytest.mark.parametrize("kind", ["FileAlreadyExistsException", "AlreadyBeingCreatedException"])
def test_both_ways_to_say_taken_mean_lost(fake: FakeWebHdfs, storage: HdfsChunkStorage, kind: str) -> None:
    fake.refuse("RENAME", kind)
    assert storage.create_if_absent("a", b"mine") is False
    fake.refuse("RENAME", kind)
    with pytest.raises(ChunkExists):
        storage.create("a", b"mine")
    assert temporaries(fake) == []


def test_put_is_decided_too(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    storage.put("hint", b"1")
    fake.lose_reply("RENAME")
    storage.put("hint", b"2")
    assert fake.files["/root/hint"].data == b"2"
    fake.lose_request("RENAME")
    storage.put("hint", b"3")
    assert fake.files["/root/hint"].data == b"3"
    assert temporaries(fake) == []


# Creating: the body


def test_a_body_that_is_cut_never_gets_the_name(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    fake.cut_body("CREATE")
    with pytest.raises(StorageUnavailable):
        storage.create_if_absent("a", b"x" * 100_000)
    assert "/root/a" not in fake.files
    assert temporaries(fake) == []
    assert storage.create_if_absent("a", b"x" * 100_000)


def test_a_shorter_file_is_noticed_even_when_the_data_node_says_created(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support import fake_webhdfs

    real_end = fake_webhdfs._end_write
    monkeypatch.setattr(fake_webhdfs, "_end_write", lambda fake, file, data: real_end(fake, file, data[:-1]))
    with pytest.raises(StorageUnavailable, match="arrived instead of"):
        storage.create_if_absent("a", b"whole")
    assert "/root/a" not in fake.files
    monkeypatch.undo()
    storage.create("b", b"0123")
    monkeypatch.setattr(fake_webhdfs, "_end_write", lambda fake, file, data: real_end(fake, file, data[:-1]))
    with pytest.raises(StorageUnavailable, match="write a new chunk"):
        storage.write(ChunkHandle("b", True), 4, b"4567")


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
    storage.create("there", b"0")
    calls: list[tuple[str, Callable[[], object]]] = [
        ("CREATE", lambda: storage.create_if_absent("a", b"x")),
        ("CREATE", lambda: storage.put("a", b"x")),
        ("APPEND", lambda: storage.write(ChunkHandle("there", True), 1, b"x")),
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


NO_NODE = "Failed to find datanode, suggest to check cluster health."


@pytest.mark.parametrize(
    ("nodes", "safe_mode", "error", "says"),
    [
        (
            {"a": {"capacity": 1 << 40, "remaining": 1 << 20}, "b": {"capacity": 1 << 40, "remaining": 0}},
            "",
            StorageFull,
            "room",
        ),
        ({"a": {"capacity": 1 << 40, "remaining": 1 << 30}}, "", StorageUnavailable, "Failed to find"),
        (
            {"a": {"capacity": 1 << 40, "remaining": 0}, "b": {"capacity": 0, "remaining": 0}},
            "",
            StorageUnavailable,
            "find",
        ),
        ({"a": {"capacity": 0, "remaining": 0}}, "", StorageUnavailable, "Failed to find"),
        ({"a": {"capacity": 0, "remaining": 0}}, "Safe mode is ON.", StorageUnavailable, "is in safe mode"),
        ({}, "", StorageUnavailable, "Failed to find"),
    ],
    ids=["full", "room", "one has just come", "the only one has just come", "safe mode", "none"],
)
def test_why_no_data_node_is_named(
    fake: FakeWebHdfs,
    storage: HdfsChunkStorage,
    nodes: dict[str, dict[str, int]],
    safe_mode: str,
    error: type[ChunkstoreError],
    says: str,
) -> None:
    """A data node that has registered and not yet told of its disks has no room, and is not full."""
    fake.live_nodes, fake.safe_mode = nodes, safe_mode
    fake.refuse("CREATE", "IOException", NO_NODE)
    with pytest.raises(error, match=says):
        storage.create_if_absent("a", b"x")
    assert storage.create_if_absent("a", b"x")


def test_no_data_node_alive_is_not_full(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    text = "File /a could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running and 0 node(s)"
    fake.refuse("CREATE", "RemoteException", text, where="datanode")
    with pytest.raises(StorageUnavailable):
        storage.create_if_absent("a", b"x")


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


# Appending


def test_a_lost_append_is_in_doubt_and_not_sent_twice(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    fake.lose_reply("APPEND", where="datanode")
    with pytest.raises(StorageUnavailable):
        storage.write(handle, 4, b"4567")
    assert fake.files["/root/a"].data == b"01234567"
    fake.cut_body("APPEND")
    with pytest.raises(StorageUnavailable):
        storage.write(handle, 8, b"89AB")
    assert fake.files["/root/a"].data == b"0123456789"
    with pytest.raises(InvalidOffset) as caught:
        storage.write(handle, 8, b"89AB")
    assert caught.value.expected == 10


def test_the_retrying_wrapper_recognises_a_lost_append(fake: FakeWebHdfs) -> None:
    storage = open_storage(fake.root(query=APPENDS), Settings(op_deadline_s=PATIENT_S))
    handle = storage.create("a", b"0123")
    fake.lose_reply("APPEND", where="datanode")
    assert storage.write(handle, 4, b"4567") == 4
    assert fake.asked("APPEND", "datanode") == 1
    storage.close()


def test_a_lease_is_waited_for(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    fake.die_while_writing("/root/a", closes_after_s=0.3)
    assert storage.write(handle, 4, b"4567") == 4
    assert storage.read(handle, 0, 100) == b"01234567"
    fake.die_while_writing("/root/a", closes_after_s=0.3)
    storage.truncate(handle, 2)
    assert storage.read(handle, 0, 100) == b"01"
    fake.die_while_writing("/root/a", closes_after_s=0.3)
    assert storage.read(handle, 0, 100) == b"01"
    fake.die_while_writing("/root/a", closes_after_s=0.3)
    storage.harden("a")
    assert fake.files["/root/a"].open is False


def test_a_lease_that_never_ends_ends_at_the_deadline(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    hasty = made(fake, deadline_s=SHORT_S)
    handle = storage.create("a", b"0123")
    fake.die_while_writing("/root/a", closes_after_s=None)
    calls: list[Callable[[], object]] = [
        lambda: hasty.write(handle, 4, b"x"),
        lambda: hasty.read(handle, 0, 4),
        lambda: hasty.truncate(handle, 1),
        lambda: hasty.harden("a"),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(StorageUnavailable):
            call()
        assert time.monotonic() - began < ELAPSED_S_MAX
    assert storage.stat("a").length == 4
    hasty.close()


LATE = "append: lastBlock=blk_1_2 of src=/root/a is not sufficiently replicated yet."


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("IOException", LATE),
        ("RetriableException", "append: lastBlock=blk_1_2 of src=/root/a is COMMITTED but not yet COMPLETE."),
        ("RemoteException", "append: lastBlock=blk_1_2 of src=/root/a is COMMITTED but not yet COMPLETE."),
    ],
)
@pytest.mark.parametrize("where", ["namenode", "datanode"])
def test_a_late_report_is_waited_for(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, kind: str, message: str, where: str
) -> None:
    """The data node has closed the block and the name node has not heard of it yet."""
    handle = storage.create("a", b"0123")
    late = fake.refuse("APPEND", kind, message, where=where, times=3)
    assert storage.write(handle, 4, b"4567") == 4
    assert late.fired == 3
    assert fake.files["/root/a"].data == b"01234567"
    late = fake.refuse("TRUNCATE", kind, message, times=3)
    storage.truncate(handle, 2)
    assert late.fired == 3


@pytest.mark.usefixtures("ends_soon")
def test_a_report_that_never_comes_ends_at_the_deadline(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    fake.refuse("APPEND", "IOException", LATE, times=1000)
    began = time.monotonic()
    with pytest.raises(StorageUnavailable, match="sufficiently replicated"):
        storage.write(handle, 4, b"4567")
    assert 0.5 < time.monotonic() - began < ELAPSED_S_MAX


@pytest.mark.usefixtures("ends_soon")
def test_a_question_cut_off_by_the_deadline_does_not_hide_what_was_waited_for(
    fake: FakeWebHdfs, storage: HdfsChunkStorage
) -> None:
    handle = storage.create("a", b"0123")
    fake.refuse("APPEND", "IOException", LATE, times=1)
    # Longer than is left, and less than a server may be silent: cut off by the deadline and by nothing else.
    fake.refuse("APPEND", "IOException", LATE, times=1000).seconds = 5
    with pytest.raises(StorageUnavailable, match="sufficiently replicated"):
        storage.write(handle, 4, b"4567")


def test_bytes_that_may_have_been_added_are_told_before_what_was_waited_for(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = storage.create("a", b"0123")
    fake.refuse("APPEND", "IOException", LATE, times=1)
    fake.lose_reply("APPEND", where="datanode").seconds = 30
    exchange = storage._rest._exchange

    def cut_off(method: str, url: str, deadline: Deadline, **more: Any) -> Any:
        if "namenoderpcaddress" in url:
            # The data node was reached in time; its answer is what the deadline cuts off.
            deadline._end_s = time.monotonic() + SHORT_S
        return exchange(method, url, deadline, **more)

    monkeypatch.setattr(storage._rest, "_exchange", cut_off)
    with pytest.raises(StorageUnavailable, match=r"timed out|deadline passed while"):
        storage.write(handle, 4, b"4567")


def test_by_default_nothing_that_was_closed_is_opened_again(fake: FakeWebHdfs) -> None:
    """A reader must never meet a data node that re-opens a block: Hadoop 3.3.6 then deletes the replica."""
    storage = made(fake, "")
    storage.create("a", b"0123")
    handle = storage.open_write("a")
    for call in (lambda: storage.write(handle, 4, b"x"), lambda: storage.truncate(handle, 2)):
        with pytest.raises(Unsupported):
            call()
    with pytest.raises(Unsupported):
        storage.create("empty")
    # Somebody else's file whose lease ends while it is looked at: asking for its end would open it once more.
    fake.die_while_writing("/root/a", closes_after_s=1.5)
    assert storage.read(handle, 0, 10) == b"0123"
    fake.die_while_writing("/root/a", closes_after_s=1.5)
    storage.harden("a")
    assert {item.op for item in fake.log} & {"APPEND", "TRUNCATE"} == set()
    storage.close()


# Reading, and data nodes that are not there


def test_a_short_read_is_no_end_while_the_file_is_longer(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    """A data node may answer with nothing of a block that is under construction, and call that a whole answer."""
    handle = storage.create("a", b"0123456789")
    fake.shorten_reads("/root/a", 4, times=3)
    assert storage.read(handle, 0, 100) == b"0123456789"
    fake.shorten_reads("/root/a", 4, times=3)
    assert storage.read(handle, 2, 8) == b"23456789"
    fake.shorten_reads("/root/a", 0, times=1)
    buffer = bytearray(12)
    assert storage.read_into(handle, 1, buffer) == 9
    assert buffer == b"123456789\0\0\0"
    fake.shorten_reads("/root/a", 4, times=1)
    assert storage.read_ranges(handle, [ReadRange(0, 3), ReadRange(3, 3)]) == [b"012", b"345"]


@pytest.mark.usefixtures("ends_soon")
def test_a_read_that_stays_short_is_unavailable(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123456789")
    fake.shorten_reads("/root/a", 4, times=1000)
    calls: list[Callable[[], object]] = [
        lambda: storage.read(handle, 0, 10),
        lambda: storage.read_into(handle, 0, bytearray(10)),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(StorageUnavailable, match="the file is longer"):
            call()
        assert time.monotonic() - began < ELAPSED_S_MAX


def test_a_short_read_of_a_file_that_grows_ends(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    """What is added after the look need not be read, so a writer that never pauses holds no reader."""
    handle = storage.create("a", b"0123")
    fake.grow_after_reads("/root/a", b"45")
    data = storage.read(handle, 0, 1_000)
    assert data == (b"0123" + b"45" * 100)[: len(data)]
    assert len(data) >= 4
    assert fake.asked("OPEN", "datanode") <= 2


def test_a_short_read_of_a_file_that_was_cut(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123456789")
    short = fake.shorten_reads("/root/a", 4, times=1000)
    fake.cut_after("/root/a", 4, reads=2)
    assert storage.read(handle, 0, 100) == b"0123"
    assert short.fired <= 3


def test_more_than_was_asked_for_is_no_answer(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123456789")
    fake.too_much = 1 << 20
    buffer = bytearray(4)
    with pytest.raises(StorageUnavailable, match="longer than 4 bytes"):
        storage.read_into(handle, 0, buffer)
    with pytest.raises(StorageUnavailable, match="longer than 4 bytes"):
        storage.read(handle, 0, 4)
    fake.too_much = 0
    assert storage.read(handle, 0, 4) == b"0123"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("IOException", "No active nodes contain this block"),
        ("BlockMissingException", "Could not obtain block: BP-1 file=/root/a No live nodes contain current block"),
    ],
)
def test_missing_replicas_are_named(fake: FakeWebHdfs, storage: HdfsChunkStorage, kind: str, message: str) -> None:
    handle = storage.create("a", b"0123456789")
    refusal = fake.refuse("OPEN", kind, message, times=1000)
    with pytest.raises(StorageUnavailable, match=r"replica.*start those that are down.*fsck") as caught:
        storage.read(handle, 0, 4)
    assert message in str(caught.value)
    assert refusal.fired < 10, "the file is closed: waiting does not help"
    fake.faults.clear()
    fake.refuse("OPEN", kind, message, times=2)
    assert storage.read(handle, 0, 4) == b"0123"


def test_reading_at_the_end_costs_two_questions(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    before = len(fake.log)
    assert storage.read(handle, 4, 10) == b""
    assert len(fake.log) - before == 2
    before = len(fake.log)
    assert storage.read(handle, 1, 2) == b"12"
    assert storage.read(handle, 1, 3) == b"123"
    assert len(fake.log) - before == 4
    before = len(fake.log)
    assert storage.read(handle, 1, 10) == b"123"
    assert len(fake.log) - before == 3


def test_a_read_that_breaks_off_is_read_again(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    fake.lose_reply("OPEN", where="datanode", times=2)
    assert storage.read(handle, 0, 10) == b"0123"
    buffer = bytearray(6)
    fake.lose_reply("OPEN", where="datanode")
    assert storage.read_into(handle, 1, buffer) == 3
    assert buffer == b"123\0\0\0"
    fake.lose_reply("OPEN", where="datanode", times=100)
    with pytest.raises(StorageUnavailable):
        storage.read(handle, 0, 10)


def test_connections_to_the_name_node_are_kept(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    for number in range(10):
        storage.read(handle, 0, 4)
        storage.exists("none")
        storage.create_if_absent(f"b{number}", b"x")
        storage.list("")
    pools = storage._rest.session.get_adapter("http://x").poolmanager.pools  # type: ignore[attr-defined]
    keys = pools.keys()
    opened = {pool.port: pool.num_connections for pool in (pools[key] for key in keys)}
    assert opened[fake.port] == 1


def test_proxies_of_the_environment_are_used(fake: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    # A port that nobody is ever given.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    storage = HdfsChunkStorage("hdfs://name-node.example:9870/x", deadline_s=PATIENT_S)
    with pytest.raises(StorageUnavailable, match="refused"):
        storage.exists("a")
    storage.close()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    storage = made(fake)
    assert not storage.exists("a")
    storage.close()


def test_another_data_node_is_asked_for() -> None:
    with FakeWebHdfs(datanodes=2) as fake:
        storage = made(fake)
        handle = storage.create("a", b"0123")
        fake.stop_datanode(0)
        assert storage.read(handle, 0, 10) == b"0123"
        assert storage.create_if_absent("b", b"x")
        assert storage.write(handle, 4, b"45") == 2
        assert fake.asked("APPEND", "datanode") == 1
        storage.close()


def test_no_data_node_left() -> None:
    with FakeWebHdfs() as fake:
        storage = made(fake)
        handle = storage.create("a", b"0123")
        fake.stop_datanode()
        calls: list[Callable[[], object]] = [
            lambda: storage.read(handle, 0, 4),
            lambda: storage.read_into(handle, 0, bytearray(4)),
            lambda: storage.read_ranges(handle, [ReadRange(0, 1), ReadRange(1, 1)]),
            lambda: storage.write(handle, 4, b"x"),
            lambda: storage.create_if_absent("b", b"x"),
            lambda: storage.put("c", b"x"),
        ]
        for call in calls:
            with pytest.raises(StorageUnavailable, match="data nodes are up"):
                call()
        assert storage.stat("a").length == 4
        storage.close()


def test_no_name_node() -> None:
    # The port of a model that has ended may be another test's by now.
    storage = HdfsChunkStorage("hdfs://127.0.0.1:1/root", deadline_s=PATIENT_S)
    for call in (storage.exists, storage.stat, storage.open_read, storage.delete, storage.harden, storage.list):
        with pytest.raises(StorageUnavailable):
            call("a")
    storage.close()


def test_the_operations_deadline_is_kept(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    with until(time.monotonic() - 1):
        for call in (lambda: storage.read(handle, 0, 4), lambda: storage.create_if_absent("b", b"x")):
            with pytest.raises(StorageUnavailable):
                call()
    assert fake.asked("OPEN") == 0


# Joining


def test_concat_leaves_its_sources_alone(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    storage.create("f/a", b"aa")
    storage.create("f/b", b"bb")
    assert storage.concat([ConcatArgument("f/a", 2), ConcatArgument("f/b", 2)]) == 4
    assert fake.files["/root/f/a"].data == b"aabb"
    assert fake.files["/root/f/b"].data == b"bb"
    assert fake.asked("CONCAT") == 0


def test_concat_in_one_folder_moves_no_bytes_where_it_may_consume(fake: FakeWebHdfs) -> None:
    storage = made(fake, "?concat=consume")
    for name, data in (("f/a", b"aa"), ("f/b", b"bb"), ("f/c", b"cc"), ("g/d", b"dd")):
        storage.create(name, data)
    before = len([item for item in fake.log if item.where == "datanode"])
    assert storage.concat([ConcatArgument("f/a", 2), ConcatArgument("f/b", 2), ConcatArgument("f/c", 2)]) == 6
    assert len([item for item in fake.log if item.where == "datanode"]) == before
    assert fake.files["/root/f/a"].data == b"aabbcc"
    assert not storage.exists("f/b")
    # Elsewhere it copies, and leaves the sources where they are.
    assert storage.concat([ConcatArgument("f/a", 6), ConcatArgument("g/d", 2)]) == 8
    assert fake.files["/root/f/a"].data == b"aabbccdd"
    assert storage.exists("g/d")
    assert temporaries(fake) == []
    storage.close()


def test_concat_copies_through_bounded_memory(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    data = bytes(range(256)) * 80_000
    storage.create("f/a", b"start")
    storage.create("g/b", data)
    storage.create("g/c", b"end")
    items = [("f/a", 5), ("g/b", len(data)), ("g/c", 2), ("g/b", 3)]
    assert storage.concat([ConcatArgument(*item) for item in items]) == 10 + len(data)
    assert fake.files["/root/f/a"].data == b"start" + data + b"en" + data[:3]
    assert max(int(item.params["length"]) for item in fake.log if item.op == "OPEN") <= 8 << 20


# Who asks, and secrets


def test_users_are_named(fake: FakeWebHdfs) -> None:
    storage = made(fake, "?user=alice")
    storage.create("a", b"x")
    assert {item.params["user.name"] for item in fake.log} == {"alice"}
    storage.close()


def test_new_files_have_what_the_root_says(fake: FakeWebHdfs) -> None:
    storage = made(fake, "?replication=2&block_size_bytes=1048576")
    storage.create("a", b"x")
    created = next(item for item in fake.log if item.op == "CREATE")
    assert (created.params["replication"], created.params["blocksize"]) == ("2", "1048576")
    storage.close()


def test_a_token_is_sent_and_never_shown(fake: FakeWebHdfs, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret, renewed = "HAAEcm9vdARzZXNhbWU", "HAAEcm9vdAhyZW5ld2Vk"
    file = tmp_path / "token"
    file.write_text(secret + "\n")
    caplog.set_level(logging.DEBUG)
    storage = made(fake, f"?token_file={file}")
    storage.create("a", b"x")
    assert {item.params.get("delegation") for item in fake.log} == {secret}
    assert not any("user.name" in item.params for item in fake.log)
    time.sleep(0.01)
    file.write_text(renewed)
    assert storage.exists("a")
    assert fake.log[-1].params["delegation"] == renewed
    texts = [storage.url, repr(storage), caplog.text]
    failing: list[tuple[str, str]] = [("GETFILESTATUS", "namenode"), ("OPEN", "datanode"), ("OPEN", "namenode")]
    for op, where in failing:
        fake.lose_request(op, where=where, times=8)
        with pytest.raises(ChunkstoreError) as caught:
            storage.exists("a") if op == "GETFILESTATUS" else storage.read(ChunkHandle("a", False), 0, 1)
        texts.append("".join(traceback.format_exception(caught.value)))
        error: BaseException | None = caught.value
        while error is not None:
            texts.append(repr(error))
            error = error.__cause__ or error.__context__
        fake.faults.clear()
    fake.refuse("GETFILESTATUS", "InvalidToken", f"token=({secret}) is expired: /webhdfs/v1/a?delegation={renewed}&x=1")
    with pytest.raises(StorageUnavailable) as refused:
        storage.exists("a")
    texts.append("".join(traceback.format_exception(refused.value)))
    fake.close()
    storage.close()
    storage = made(fake, f"?token_file={file}")
    with pytest.raises(StorageUnavailable) as gone:
        storage.exists("a")
    texts.append("".join(traceback.format_exception(gone.value)))
    texts.append(caplog.text)
    for text in texts:
        assert secret not in text.replace(f"token=({secret})", "")
        assert renewed not in text
    assert "delegation=..." in caplog.text
    storage.close()


@pytest.mark.parametrize("content", ["", "two words", "x" * 20_000, "a/b"])
def test_a_token_file_that_holds_something_else(fake: FakeWebHdfs, tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(StorageUnavailable, match="does not hold"):
        made(fake, f"?token_file={file}")
    with pytest.raises(StorageUnavailable, match="cannot be read"):
        made(fake, f"?token_file={tmp_path}/none")
