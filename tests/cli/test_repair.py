"""``repair``: the report for people and as JSON, and what the other verbs then find."""

from __future__ import annotations

from pathlib import Path

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


def test_where_there_is_nothing_to_repair(call: Call, root: str) -> None:
    assert call("repair", root, "--json", code=1).error["error"] == "ContainerNotFound"
    call("put", root, "a", __file__)
    before = call("owner", root, "--json").document
    assert call("repair", root, "--json").document["sound"] is True
    assert call("owner", root, "--json").document == before, "nothing was claimed"
