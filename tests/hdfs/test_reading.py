"""What the binding makes of short reads and of servers that are not there, exactly, over the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from chunkstore.deadline import until
from chunkstore.errors import StorageUnavailable
from chunkstore.storage import ChunkHandle, ReadRange
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.in_time import Deadline
from tests.hdfs.model import PATIENT_S, made
from tests.support.data import fails_in_time
from tests.support.fake_webhdfs import FakeWebHdfs

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


@pytest.mark.proof
@pytest.mark.parametrize("then", ["it stays closed", "the next append begins", "a read breaks off"])
def test_what_was_waited_for_counts_for_no_failure(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The lease ends between a refusal and the look behind it, at the tenth look or, where it begins again, at each of ten."""
    handle = storage.create("a", b"0123456789")
    fake.die_while_writing("/root/a", closes_after_s=None)
    look = storage._files.closed_length
    looks = 0

    def ending_before_it(name: str, deadline: Deadline) -> int | None:
        nonlocal looks
        looks += 1
        again = then == "the next append begins" and looks < 10
        if again or looks == 10:
            fake.die_while_writing("/root/a", closes_after_s=0)
        found = look(name, deadline)
        if again:
            fake.die_while_writing("/root/a", closes_after_s=None)
        elif then == "a read breaks off" and looks == 10:
            fake.lose_reply("OPEN", where="datanode", times=2)
        return found

    monkeypatch.setattr(storage._files, "closed_length", ending_before_it)
    assert storage.read(handle, 0, 10) == b"0123456789"
    assert looks == 10


def test_what_a_given_up_attempt_took_is_no_answer(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a short read and the next one the hint is replaced by a shorter one, which ends before the offset."""
    look = storage._files.must_have
    handle = ChunkHandle("hint", False)
    buffer = bytearray(8)
    for call, nothing in ((lambda: storage.read(handle, 2, 8), b""), (lambda: storage.read_into(handle, 2, buffer), 0)):
        storage.put("hint", b"0123456789")
        fake.shorten_reads("/root/hint", 4, times=1)

        def replaced_behind_it(name: str, deadline: Deadline) -> dict[str, Any]:
            found = look(name, deadline)
            monkeypatch.setattr(storage._files, "must_have", look)
            storage.put("hint", b"Z")
            return found

        monkeypatch.setattr(storage._files, "must_have", replaced_behind_it)
        assert call() == nothing


@pytest.mark.usefixtures("ends_soon")
def test_a_read_that_stays_short_is_unavailable(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123456789")
    fake.shorten_reads("/root/a", 4, times=1000)
    calls = lambda: storage.read(handle, 0, 10), lambda: storage.read_into(handle, 0, bytearray(10))
    fails_in_time(StorageUnavailable, *calls, match="the file is longer")


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
    with pytest.raises(StorageUnavailable, match=r"replica.*start the stopped ones.*fsck") as caught:
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
            lambda: storage.create_if_absent("b", b"x"),
            lambda: storage.put("c", b"x"),
        ]
        for call in calls:
            with pytest.raises(StorageUnavailable, match="data nodes are reachable"):
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
