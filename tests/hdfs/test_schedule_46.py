"""Schedule 46, webhdfs-rename-reply-lost: RENAME done, reply lost, the second one refused; the token says that it was ours."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from tests.support.fake_webhdfs import FakeWebHdfs

pytestmark = pytest.mark.proof


def opened(fake: FakeWebHdfs, folder: Path) -> ChunkedSegmentStorage:
    settings = Settings(cache_dir=str(folder), op_deadline_s=180, lease_s=0, lmdb_map_bytes=1 << 26)
    return chunkstore.open(fake.root(), settings=settings)


def lose(fake: FakeWebHdfs, about: str) -> None:
    """The reply to the next rename about this is lost, and the first look at what became of it."""
    fake.lose_reply("RENAME", about=about)
    fake.lose_request("GETFILESTATUS", about=about, times=2)


def check_fired(fake: FakeWebHdfs) -> None:
    assert [(fault.op, fault.about) for fault in fake.faults if fault.fired < fault.times] == []
    fake.faults.clear()


def test_commit(fake: FakeWebHdfs, tmp_path: Path) -> None:
    with opened(fake, tmp_path) as store:
        store.create("a")
        for number in range(5):
            lose(fake, "/j/")
            assert store.append("a", b"0123456789") == number * 10
            check_fired(fake)
        assert store.epoch == 1
    with opened(fake, tmp_path / "elsewhere") as store:
        assert store.read("a", 0, 100) == b"0123456789" * 5
        assert store.check("deep") == []


def test_format_claim_and_open(fake: FakeWebHdfs, tmp_path: Path) -> None:
    for about in ("/FORMAT", "/epoch/", "0000000000000001/0000000000000000.s"):
        lose(fake, about)
    with opened(fake, tmp_path) as store:
        check_fired(fake)
        assert store.epoch == 1
        store.create("a")
    # SEAL of the former stream, the claim and OPEN.
    for about in ("0000000000000001/", "/epoch/", "0000000000000002/0000000000000000.s"):
        lose(fake, about)
    with opened(fake, tmp_path / "elsewhere") as store:
        check_fired(fake)
        assert store.epoch == 2
        assert store.append("a", b"on") == 0
        assert store.check("deep") == []


def test_a_zombies_commit_is_foreign(fake: FakeWebHdfs, tmp_path: Path) -> None:
    """The name is taken by the successor's SEAL: the number is not ours, and the zombie is told so."""
    old = opened(fake, tmp_path)
    old.create("a")
    with opened(fake, tmp_path / "elsewhere") as new:
        fake.lose_request("RENAME", about="/j/")
        with pytest.raises(chunkstore.errors.NotOwner):
            old.append("a", b"late")
        assert new.info("a").length == 0
    old.close()
