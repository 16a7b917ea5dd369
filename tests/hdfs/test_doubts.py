"""Renames in doubt, gateways that rename in their own way, and what must not hold up an operation, over the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chunkstore.errors import StorageUnavailable
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_journal.slots import put_decided
from tests.hdfs.model import PATIENT_S, temporaries
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


def becomes(
    monkeypatch: pytest.MonkeyPatch, method: str, op: str, act: Callable[[FakeWebHdfs, str, dict[str, str]], Answer]
) -> None:
    monkeypatch.setitem(hdfs_names._NAMENODE, (method, op), act)


# Gateways


def test_a_gateways_false_is_no_success(
    fake: FakeWebHdfs, storage: HdfsChunkStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create_if_absent("c/a", b"mine")
    becomes(monkeypatch, "PUT", "RENAME", rename_says_no)
    for call in (storage.create_if_absent, storage.put):
        with pytest.raises(StorageUnavailable, match="renames without options"):
            call("c/a", b"yours")
    assert fake.files["/root/c/a"].data == b"mine"
    assert temporaries(fake) == []


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
