"""``repair``: the report for people and as JSON, and what the other verbs then find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.support.packed import unpack

GOLDEN = Path(__file__).parents[1] / "golden" / "wrecks"


@pytest.fixture
def wreck(tmp_path: Path, root: str) -> str:
    unpack(GOLDEN / "append-flipped-name.tar.gz", tmp_path / "store")
    return root


def test_repair(call: Call, wreck: str) -> None:
    assert call("put", wreck, "a", __file__, "--json", code=1).error["error"] == "Damaged"
    told = call("repair", wreck, "--dry-run").out.decode()
    for text in (
        "lsn 14 of epoch 3",
        "does not lead to the state",
        "would be a new epoch",
        "kept",
        "lost",
        "the name belongs",
    ):
        assert text in told
    assert call("check", wreck, "--json", code=1).document["ok"] is False
    before = call("repair", wreck, "--dry-run", "--json").document
    done = call("repair", wreck, "--json").document
    assert done["epoch"] > 3 and not done["sound"]
    assert {**done, "epoch": 0, "dry_run": True} == before
    assert [item for item in done["segments"] if item["lost"]] == [
        {
            "segment": "lost",
            "segment_id": (3 << 32) + 1,
            "kept": [],
            "lost": [[0, 14]],
            "reason": "at the last good record the name belongs to another segment",
            "deleted": False,
        }
    ]
    assert call("check", wreck, "--deep", "--json").document["ok"] is True
    assert call("cat", wreck, "rest").out == b"first of rest;behind the snapshot;beside it;"
    assert "nothing to repair" in call("repair", wreck).out.decode()
    assert call("repair", wreck, "--json").document["sound"] is True


def test_where_there_is_nothing_to_repair(call: Call, root: str) -> None:
    assert call("repair", root, "--json", code=1).error["error"] == "ContainerNotFound"
    call("put", root, "a", __file__)
    before = call("owner", root, "--json").document
    assert call("repair", root, "--json").document["sound"] is True
    assert call("owner", root, "--json").document == before, "nothing was claimed"
