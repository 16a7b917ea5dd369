"""``--ask``: beside a live owner the verbs of upkeep have it do them; without one they claim, as ever."""

from __future__ import annotations

import os
from pathlib import Path

import chunkstore
from chunkstore.config import LIMITS, RollingPolicy, Settings, Tuning
from tests.cli.conftest import Call


def test_a_live_owner_does_it_and_stays(call: Call, root: str) -> None:
    settings = Settings(lease_s=0.2, gc_grace_s=0, tuning=Tuning(collect_s=0))
    with chunkstore.open(root, settings=settings) as store:
        store.create("a", rolling=RollingPolicy(chunk_size_bytes_max=1000))
        for number in range(10):
            store.create("part")
            store.append("part", bytes([number]) * 50)
            store.seal("part")
            store.concat("a", 50 * number, "part")
        busy = call("gc", root, "--json", code=1).error
        assert busy["error"] == "ContainerBusy"
        pin = call("pins", "add", root, "nightly", "--note", "backup", "--ask", "--json").document
        assert [item.lsn for item in store.pins()] == [pin["lsn"]]
        merged = call("defrag", root, "--ask", "--json").document
        assert merged["chunks_before"] == 10 and merged["chunks_after"] == store.info("a").chunk_count < 10
        gone = 10 - merged["chunks_after"] + 1
        assert call("gc", root, "--ask", "--json").document["pinned"] == gone
        assert call("pins", "rm", root, "nightly", "--ask", "--json").document == {"pin": "nightly", "removed": True}
        assert call("pins", "rm", root, "nightly", "--ask", "--json", code=1).error["error"] == "NoSuchPin"
        assert call("gc", root, "--ask", "--json").document["chunks"] == gone
        taken = call("snapshot", root, "--ask", "--json").document
        assert (taken["lsn"], taken["digest"]) == (taken["lsn"], f"{store._container.current.store.head().digest:064x}")
        assert b"backup" not in call("pins", "ls", root).out
        assert store.append("a", b"still the owner") == 500
        assert store.epoch == 1
    assert "collected" in call("gc", root, "--ask").out.decode(), "nobody to be asked: it claims"
    assert call("owner", root, "--json").document["opened_epoch"] == 2


def test_misuse(call: Call, root: str) -> None:
    with chunkstore.open(root) as store:
        store.create("a")
    for arguments in (
        ("gc", root, "--ask", "--take-over"),
        ("gc", root, "--ask", "--orphans"),
        ("gc", root, "--ask", "--grace-s", "0"),
        ("snapshot", root, "--ask", "--take-over"),
    ):
        assert call(*arguments, "--json", code=2).error["fields"] == {"argument": "--ask"}
    assert call("owner", root, "--json").document["opened_epoch"] == 1


def test_put_appends_through_a_live_owner_which_stays(call: Call, root: str, tmp_path: Path) -> None:
    file, data = tmp_path / "file", os.urandom(LIMITS.ask_append_bytes_max + 1000)
    file.write_bytes(data)
    with chunkstore.open(root, settings=Settings(lease_s=0.2)) as store:
        made = call("put", root, "new", file, "--chunk-size", str(1 << 20), "--ask", "--json").document
        assert made == {"segment": "new", "offset": 0, "length": len(data), "epoch": 1}
        assert store.read("new", 0, len(data) + 1) == data and store.info("new").chunk_count == 5
        assert call("put", root, "new", file, "--ask", "--json", code=1).error["error"] == "SegmentExists"
        store.append("new", b"owner;")
        file.write_bytes(b"file;")
        put = call("put", root, "new", file, "--append", "--ask", "--json").document
        assert (put["offset"], put["length"]) == (len(data) + 6, 5)
        file.write_bytes(data + b"owner;file;rest")
        put = call("put", root, "new", file, "--resume", "--seal", "--ask", "--json").document
        assert (put["offset"], put["length"]) == (len(data) + 11, 4)
        assert store.read("new", len(data), 100) == b"owner;file;rest" and store.info("new").sealed
        assert call("put", root, "new", file, "--append", "--ask", "--json", code=1).error["error"] == "SegmentSealed"
        assert call("put", root, "no", file, "--append", "--ask", "--json", code=1).error["error"] == "SegmentNotFound"
        file.write_bytes(b"")
        assert call("put", root, "empty", file, "--seal", "--ask", "--json").document["length"] == 0
        assert store.info("empty").sealed and store.epoch == 1
