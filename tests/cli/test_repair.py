"""``repair``: the report for people and as JSON, and what the other verbs then find."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import chunkstore
from tests.cli.conftest import Call
from tests.engine.wrecks import wreck


def test_repair(call: Call, root: str, tmp_path: Path) -> None:
    wreck("append", tmp_path)
    (tmp_path / "root").rename(tmp_path / "store")
    (path,) = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.read_bytes() == b"anew;"]
    path.unlink()
    for verb in (("put", root, "a", __file__), ("ls", root)):
        error = call(*verb, "--json", code=1).error
        assert error["error"] == "Damaged" and error["message"].count("'chunkstore repair ROOT --dry-run'") == 1
    told = call("repair", root, "--dry-run").out.decode()
    for text in ("lsn 12 of epoch 2", "does not lead to the state", "would be a new epoch", "kept", "lost"):
        assert text in told
    assert "repair ROOT" not in told, "who repairs knows it"
    assert call("check", root, "--json", code=1).document["ok"] is False
    before = call("repair", root, "--dry-run", "--json").document
    done = call("repair", root, "--json").document
    assert done["epoch"] > 2 and not done["sound"]
    assert {**done, "epoch": 0, "dry_run": True} == before
    (lost,) = [item for item in done["segments"] if item["lost"]]
    assert "differs from its record" in lost.pop("reason")
    assert lost == {
        "segment": "lost",
        "segment_id": (2 << 32) + 1,
        "kept": [],
        "lost": [[0, 5]],
        "deleted": False,
    }
    assert call("check", root, "--deep", "--json").document["ok"] is True
    assert call("cat", root, "rest").out == b"first of rest;behind the snapshot;after it;"
    assert "nothing to repair" in call("repair", root).out.decode()
    assert call("repair", root, "--json").document["sound"] is True


@pytest.mark.parametrize("mode", ["append", "slot"])
def test_records_that_are_missing_behind_a_clean_close_are_named(
    call: Call, root: str, tmp_path: Path, mode: Literal["append", "slot"]
) -> None:
    """There is nothing to repair, and nobody opens it: the way on is another one."""
    with chunkstore.open(root, settings=chunkstore.Settings(journal_mode=mode)) as store:
        store.create("a")
    last = call("journal", root, "--json").lines[-1]
    path = tmp_path / "store" / last["object"]
    if mode == "append":
        path.write_bytes(path.read_bytes()[: last["position"]])
    else:
        path.unlink()
    for flags in (("--dry-run",), ()):
        told = call("repair", root, *flags, "--json", code=1).document
        assert told["sound"] and [item["severity"] for item in told["findings"]] == ["damage"]
        said = call("repair", root, *flags, code=1).out.decode()
        assert f"lsn {last['lsn']} (1 record) is missing here" in said and "--accept-rollback" in said
    assert call("put", root, "b", __file__, "--json", code=1).error["error"] == "Damaged"
    call("put", root, "b", __file__, "--accept-rollback")
    assert call("repair", root, "--json").document["findings"] == []


@pytest.mark.parametrize("mode", ["append", "slot"])
def test_pins_that_were_given_up_behind_the_cut(
    call: Call, root: str, tmp_path: Path, mode: Literal["append", "slot"]
) -> None:
    settings = chunkstore.Settings(journal_mode=mode, gc_grace_s=0)
    with chunkstore.open(root, settings=settings) as store:
        store.create("a")
        kept, _, again = (store.pin(name) for name in ("kept", "given up", "again"))
        store.table("t").put(b"k", b"v")
        store.append("a", b"12345")
        for name in ("given up", "again"):
            store.unpin(name)
        store.pin("again")
    (record,) = [record for record in call("journal", root, "--json").lines if record["lsn"] == again.lsn + 1]
    path = tmp_path / "store" / record["object"]
    data = bytearray(path.read_bytes())
    data[record["position"] + record["size"] - 1] ^= 1
    path.write_bytes(data)
    assert call("repair", root, "--dry-run", "--json").document["pins"] == ["again", "given up"]
    assert b"given up" in call("repair", root, "--dry-run").out
    assert call("repair", root, "--json").document["pins"] == ["again", "given up"]
    with chunkstore.open(root, settings=settings) as store:
        assert store.pins() == [kept], "and a pin behind the cut is gone"
    assert call("check", root, "--exists", "--json").document["ok"]


def test_where_there_is_nothing_to_repair(call: Call, root: str) -> None:
    assert call("repair", root, "--json", code=1).error["error"] == "ContainerNotFound"
    call("put", root, "a", __file__)
    before = call("owner", root, "--json").document
    assert call("repair", root, "--json").document["sound"] is True
    assert call("owner", root, "--json").document == before, "nothing was claimed"
