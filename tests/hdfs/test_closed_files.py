"""Files are never opened again once they are closed, and a file that somebody else left open is waited for; over the model."""

from __future__ import annotations

import pytest

from chunkstore.errors import Unsupported
from chunkstore_bindings.hdfs import HdfsChunkStorage
from tests.support.fake_webhdfs import FakeWebHdfs


def test_a_lease_is_waited_for(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    handle = storage.create("a", b"0123")
    fake.die_while_writing("/root/a", closes_after_s=0.3)
    assert storage.read(handle, 0, 100) == b"0123"
    fake.die_while_writing("/root/a", closes_after_s=0.3)
    storage.harden("a")
    assert fake.files["/root/a"].open is False


def test_nothing_that_was_closed_is_opened_again(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    """A reader must never meet a data node that re-opens a block: Hadoop 3.3.6 then deletes the replica."""
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
