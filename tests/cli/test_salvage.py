"""``restore --salvage``: what it says to people and as JSON, its exit codes, and who names it."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import RollingPolicy, Settings
from tests.cli.conftest import Call
from tests.support.data import pattern


@pytest.fixture
def damaged(root: str, tmp_path: Path) -> str:
    """A container with a chunk that is gone and a record that is rotten."""
    settings = Settings(inline_bytes_max=0)
    with chunkstore.open(root, settings=settings) as store:
        store.create("orders", rolling=RollingPolicy(chunk_size_bytes_max=1000))
        store.append("orders", pattern(0, 3000))
    with chunkstore.open(root, settings=settings) as store:
        chunk = [item.name for item in store.layout("orders")][1]
        store.create("later")
        store.create("last")
    folder = Path(root.removeprefix("file://"))
    (folder / chunk).unlink()
    (log,) = folder.glob("default/j/*/*2/log.a")
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    return root


def test_what_is_lost_is_told(call: Call, damaged: str, tmp_path: Path) -> None:
    new = str(tmp_path / "new")
    for verb in (("put", damaged, "a", __file__), ("ls", damaged)):
        error = call(*verb, "--json", code=1).error
        assert error["error"] == "Damaged"
        assert error["message"].count("'chunkstore restore ROOT NEWROOT --salvage'") == 1
    told = call("restore", damaged, new, "--salvage", "--dry-run", code=1).out.decode()
    for text in ("wrong CRC", "2 records, lsn 7 to 8", "last", "orders.after-2000", "1000 B in 1 ranges"):
        assert text in told, told
    before = call("restore", damaged, new, "--salvage", "--dry-run", "--json", code=1).document
    assert not (tmp_path / "new").exists()
    done = call("restore", damaged, new, "--salvage", "--json", code=1).document
    assert done == {**before, "dry_run": False}
    salvaged = done["salvaged"]
    (lost,) = salvaged["lost"]
    assert {**lost, "chunk": ""} == {
        "segment": "orders", "start": 1000, "stop": 2000, "chunk": "", "rest": "orders.after-2000",
    }  # fmt: skip
    assert (salvaged["lost_ranges"], salvaged["lost_bytes"], salvaged["past"]["segments"]) == (1, 1000, ["last"])
    assert call("cat", new, "orders").out == pattern(0, 1000)
    assert call("cat", new, "orders.after-2000").out == pattern(2000, 1000)
    assert call("check", new, "--deep", "--json").document["ok"] is True
