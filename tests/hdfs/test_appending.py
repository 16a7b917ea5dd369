"""What becomes of an append when things go wrong, exactly, over the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from chunkstore.config import Settings
from chunkstore.errors import (
    InvalidOffset,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.registry import open_storage
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.in_time import Deadline
from tests.hdfs.model import APPENDS, ELAPSED_S_MAX, PATIENT_S, SHORT_S, made
from tests.support.fake_webhdfs import FakeWebHdfs


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
