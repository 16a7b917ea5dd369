"""What the binding makes of short reads and of servers that are not there, exactly, over the model."""

from __future__ import annotations

import time

import pytest

from chunkstore.deadline import until
from chunkstore.errors import StorageUnavailable
from chunkstore_bindings.hdfs import HdfsChunkStorage
from tests.hdfs.model import made
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


def test_another_data_node_is_asked_for() -> None:
    with FakeWebHdfs(datanodes=2) as fake:
        storage = made(fake)
        handle = storage.create("a", b"0123")
        fake.stop_datanode(0)
        assert storage.read(handle, 0, 10) == b"0123"
        assert storage.create_if_absent("b", b"x")
        storage.close()


def test_the_operations_deadline_is_kept(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    with until(time.monotonic() - 1):
        for call in (lambda: storage.read(handle, 0, 4), lambda: storage.create_if_absent("b", b"x")):
            with pytest.raises(StorageUnavailable):
                call()
    assert fake.asked("OPEN") == 0
