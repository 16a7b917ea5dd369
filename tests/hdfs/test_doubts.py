"""Renames in doubt, gateways that rename in their own way, and what must not hold up an operation, over the model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

import chunkstore
from chunkstore.config import Settings
from chunkstore.errors import ChunkExists, ChunkstoreError, Damaged, StorageUnavailable, Unsupported
from chunkstore.names import ContainerNames
from chunkstore.registry import open_storage
from chunkstore.storage import ConcatArgument
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.wrappers.probe import PROBE_RACERS
from chunkstore_journal.container import read_format
from chunkstore_journal.slots import put_decided
from tests.hdfs.model import FOLDER, PATIENT_S, made, temporaries
from tests.support import hdfs_names
from tests.support.fake_webhdfs import FakeWebHdfs

Answer = dict[str, object]


def rename_says_no(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> Answer:
    """As HttpFS: the options are ignored, and what is not possible is a mere "false"."""
    try:
        hdfs_names._rename(fake, path, {**params, "renameoptions": "NONE"})
    except hdfs_names.No:
        return {"boolean": False}
    return {"boolean": True}


def rename_replaces(fake: FakeWebHdfs, path: str, params: dict[str, str]) -> Answer:
    """A gateway that ignores the options, and replaces what is there."""
    hdfs_names._rename(fake, path, {**params, "renameoptions": "OVERWRITE"})
    return {"boolean": True}


def becomes(
    monkeypatch: pytest.MonkeyPatch, method: str, op: str, act: Callable[[FakeWebHdfs, str, dict[str, str]], Answer]
) -> None:
    monkeypatch.setitem(hdfs_names._NAMENODE, (method, op), act)


# Gateways


@pytest.mark.parametrize("numbers", [True, False])
def test_a_gateways_false_is_no_success(numbers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    becomes(monkeypatch, "PUT", "RENAME", rename_says_no)
    with FakeWebHdfs(numbers=numbers) as fake:
        storage = made(fake)
        # No folder yet: that is a false, too.
        assert storage.create_if_absent("x/y/z", b"mine")
        assert fake.files["/root/x/y/z"].data == b"mine"
        for data in (b"yours", b"mine"):
            assert not storage.create_if_absent("x/y/z", data), "somebody else's, whatever it holds"
        with pytest.raises(ChunkExists):
            storage.create("x/y/z", b"yours")
        storage.put("hint", b"1")
        with pytest.raises(StorageUnavailable, match="replaces nothing"):
            storage.put("hint", b"2")
        assert fake.files["/root/hint"].data == b"1"
        fake.lose_reply("RENAME", about="/lost")
        fake.lose_request("GETFILESTATUS", about="/lost", times=2)
        assert storage.create_if_absent("lost", b"found"), (
            "the second rename is denied, because the first one was carried out"
        )
        assert fake.files["/root/x/y/z"].data == b"mine"
        assert temporaries(fake) == []
        storage.close()


def opened(fake: FakeWebHdfs, folder: Path) -> chunkstore.ChunkedSegmentStorage:
    return chunkstore.open(fake.root(), settings=Settings(cache_dir=str(folder), op_deadline_s=PATIENT_S, lease_s=0))


def probed(fake: FakeWebHdfs) -> int:
    """How many renames were a probe's, so far."""
    return sum(item.op == "RENAME" and "/tmp/probe-" in item.params["destination"] for item in fake.log)


def test_every_open_asks_once_more(fake: FakeWebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(fake, tmp_path) as store:
        store.create("a")
        store.append("a", b"kept")
    once = probed(fake)
    assert once >= PROBE_RACERS + 2
    storage = open_storage(fake.root(), Settings())
    said = read_format(storage, ContainerNames("default")).probe
    assert (said["endpoint"], said["lifecycle"]) == (f"http://127.0.0.1:{fake.port}", "none")
    before = fake.files["/root/default/FORMAT"].number
    opened(fake, tmp_path).close()
    assert fake.files["/root/default/FORMAT"].number == before
    assert probed(fake) == once, "the same address, and it has refused FORMAT's own bytes"
    # It is the same address, and what answers there is another thing.
    becomes(monkeypatch, "PUT", "RENAME", rename_replaces)
    claims = [path for path in fake.files if "/epoch/" in path]
    with pytest.raises(Unsupported, match="put-if-absent does not hold"):
        opened(fake, tmp_path)
    assert [path for path in fake.files if "/epoch/" in path] == claims
    storage.close()


# A refusal behind a lost reply


LATE = [
    ("NSQuotaExceededException", "The NameSpace quota (directories and files) is exceeded"),
    ("ParentNotDirectoryException", "/root/c (is not a directory)"),
    ("AccessControlException", "Permission denied"),
]


@pytest.mark.parametrize(("kind", "message"), LATE)
def test_a_refusal_decides_nothing_about_the_rename_before_it(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, kind: str, message: str
) -> None:
    """The first RENAME is still on its way when the second one is refused, and lands when nobody waits for it any more."""
    storage.create_if_absent("c/0", b"warm")
    for asked, op in (("c/1", "RENAME"), ("c/2", "GETFILESTATUS")):
        if op == "GETFILESTATUS" and kind == "ParentNotDirectoryException":
            continue  # says that nothing is there, so the rename is sent again
        fake.lose_request("RENAME", about=asked)
        fake.refuse(op, kind, message).about = asked
        with pytest.raises(StorageUnavailable, match=kind) as caught:
            storage.create_if_absent(asked, b"record")
        assert "asked again, it was refused" in str(caught.value)
        (temporary,) = temporaries(fake)
        assert fake.files[temporary].data == b"record", "what may still be renamed is still there"
        with fake.lock:
            hdfs_names._rename(fake, temporary, {"destination": f"/root/{asked}"})
        assert storage.create_if_absent(asked, b"record") is False


def test_the_journal_is_not_told_that_a_late_record_did_not_happen(
    fake: FakeWebHdfs, storage: HdfsChunkStorage
) -> None:
    storage.create_if_absent("c/0", b"warm")
    fake.lose_request("RENAME")
    fake.refuse("RENAME", *LATE[0])
    put_decided(storage, "c/1", b"record", deadline_s=PATIENT_S)
    assert fake.files["/root/c/1"].data == b"record"


# What others left, and what a call left that fails


def leave_stale(fake: FakeWebHdfs, count: int) -> None:
    with fake.lock:
        fake.make_folders(FOLDER)
        for number in range(count):
            file = fake.new_file(f"{FOLDER}/old{number}")
            file.open, file.modified_ms = False, file.modified_ms - 48 * 3600_000


def test_a_sweep_ends_at_the_first_silence(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    leave_stale(fake, 20)
    fake.lose_request("DELETE", times=1000)
    assert storage.create_if_absent("a", b"x")
    assert fake.asked("DELETE") == 1


def test_a_source_that_fails_while_it_is_copied_leaves_nothing(fake: FakeWebHdfs, storage: HdfsChunkStorage) -> None:
    storage.create("f/a", b"start")
    storage.create("f/b", bytes(20 << 20))
    real = storage.do_read

    def read(name: str, offset: int, length: int) -> bytes:
        if offset:
            raise Damaged("the bytes are wrong", object=name, position=offset)
        return real(name, offset, length)

    storage.do_read = read  # type: ignore[method-assign]
    with pytest.raises(Damaged):
        storage.concat([ConcatArgument("f/a", 5), ConcatArgument("f/b", 20 << 20)])
    assert temporaries(fake) == []
    assert fake.files["/root/f/a"].data == b"start"


# Time


def test_a_data_node_that_looks_for_a_lost_block_says_nothing(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = storage.create("a", b"0123")
    given_up = threading.Event()

    def silent(*arguments: object) -> bytes:
        given_up.wait(60)
        return b""

    monkeypatch.setattr(FakeWebHdfs, "read", silent)
    ask = storage._rest.session.request

    def hasty(method: str, url: str, *, timeout: tuple[float, float], **more: object) -> requests.Response:
        """All attempts end by this patience, long before the deadline, which would have other words for it."""
        answer_s = 0.3 if f":{fake.datanode_port}/" in url else timeout[1]
        return ask(method, url, timeout=(timeout[0], answer_s), **more)  # type: ignore[arg-type]

    monkeypatch.setattr(storage._rest.session, "request", hasty)
    with pytest.raises(ChunkstoreError, match=r"timed out.*no replica left.*fsck") as caught:
        storage.read(handle, 0, 4)
    given_up.set()
    assert isinstance(caught.value, StorageUnavailable)
