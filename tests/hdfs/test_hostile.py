"""Servers that answer with nonsense, and callers that ask for it: a typed error, in time, and never a wrong answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from chunkstore.errors import StorageUnavailable
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.hdfs import HdfsChunkStorage
from tests.hdfs.model import made
from tests.support.fake_webhdfs import FakeWebHdfs

HANDLE = ChunkHandle("a", True)


@pytest.fixture
def storage(fake: FakeWebHdfs) -> Iterator[HdfsChunkStorage]:
    storage = made(fake)
    storage.create("a", b"0123")
    yield storage
    storage.close()


def file_status(**changes: object) -> bytes:
    return json.dumps(
        {"FileStatus": {"type": "FILE", "length": 4, "fileId": 7, "permission": "644", **changes}}
    ).encode()


def entries(*statuses: object, remaining: object = 0) -> bytes:
    listing = {"partialListing": {"FileStatuses": {"FileStatus": list(statuses)}}, "remainingEntries": remaining}
    return json.dumps({"DirectoryListing": listing}).encode()


NOT_JSON = [b"", b"null", b"[]", b"7", b'"text"', b"{", b"\xff\xfe", b"[" * 100_000, b"{}", b'{"FileStatus": 3}']


@pytest.mark.parametrize(
    "body",
    [
        *NOT_JSON,
        b'{"FileStatus": {}}',
        file_status(type="SYMLINK"),
        file_status(type=None),
        file_status(length=-1),
        file_status(length=True),
        file_status(length="4"),
        file_status(length=4.0),
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_nonsense_is_never_taken_for_an_absent_chunk(fake: FakeWebHdfs, storage: HdfsChunkStorage, body: bytes) -> None:
    """ "There is none" is an answer that is acted upon: a fence that is not there, a chunk that is damaged."""
    said = fake.say("GETFILESTATUS", body, times=1000)
    for call in (storage.exists, storage.stat, storage.open_read, storage.delete):
        with pytest.raises(StorageUnavailable):
            call("a")
    with pytest.raises(StorageUnavailable):
        storage.create_if_absent("b", b"xy")
    assert said.fired >= 5
    assert "/root/b" not in fake.files
    assert fake.asked("DELETE") <= 2, "of temporaries"
    assert "/root/a" in fake.files


@pytest.mark.parametrize(
    "body",
    [
        *NOT_JSON,
        entries("text"),
        entries(None, {"pathSuffix": "a", "type": "FILE"}),
        entries(remaining="many"),
        entries(remaining=None),
        b'{"DirectoryListing": {"partialListing": {"FileStatuses": {"FileStatus": 3}}, "remainingEntries": 0}}',
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_nonsense_is_never_taken_for_an_empty_listing(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, body: bytes
) -> None:
    fake.say("LISTSTATUS_BATCH", body, times=1000)
    with pytest.raises(StorageUnavailable):
        storage.list()


def test_a_listing_that_goes_round_ends(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    fake.say("LISTSTATUS_BATCH", entries({"pathSuffix": "a", "type": "FILE", "length": 1}, remaining=9), times=1000)
    with pytest.raises(StorageUnavailable, match="is invalid"):
        storage.list()
    assert fake.asked("LISTSTATUS_BATCH") <= 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"RemoteException": 3}',
        b'{"RemoteException": {"exception": {"a": 1}}}',
        b'{"RemoteException": {"message": "only"}}',
        b"[" * 100_000,
        json.dumps({"RemoteException": {"exception": "E" * 100_000, "message": "m" * 1_000_000}}).encode(),
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
def test_refusals_that_say_nothing(fake: FakeWebHdfs, storage: HdfsChunkStorage, body: bytes) -> None:
    for op in ("GETFILESTATUS", "LISTSTATUS_BATCH", "OPEN", "CREATE", "RENAME"):
        fake.say(op, body, status=404, times=1000)
    calls: list[Callable[[], object]] = [
        lambda: storage.exists("a"),
        storage.list,
        lambda: storage.read(HANDLE, 0, 4),
        lambda: storage.create_if_absent("b", b"x"),
    ]
    for call in calls:
        with pytest.raises(StorageUnavailable) as caught:
            call()
        assert len(str(caught.value)) < 2_000


def test_an_answer_without_end(fake: FakeWebHdfs, storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkstore_bindings.hdfs.rest._ANSWER_BYTES_MAX", 1 << 16)
    fake.say("GETFILESTATUS", b" " * (1 << 22), times=1000)
    with pytest.raises(StorageUnavailable, match="longer than 65536 bytes"):
        storage.exists("a")


def test_the_rpc_port_is_called_that(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    said = b"It looks like you are making an HTTP request to a Hadoop IPC port. This is not the correct port.\r\n"
    fake.say("GETFILESTATUS", said, status=404)
    with pytest.raises(StorageUnavailable, match=r"RPC port.*HTTP port \(9870"):
        storage.exists("a")
