"""``defrag``: what it says beforehand, and what it does."""

from __future__ import annotations

from pathlib import Path

import chunkstore
from tests.cli.conftest import Call


def small_chunks(root: str, count: int = 9) -> None:
    with chunkstore.open(root) as store:
        store.create("small", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=5))
        store.append("small", b"12345" * count)
        store.seal("small")
        store.create("a")
        store.concat("a", 0, "small")


def test_defrag(call: Call, root: str, tmp_path: Path) -> None:
    small_chunks(root)
    before = call("owner", root, "--json").document["claimed_epoch"]
    action = {"action": "merge", "segment": "a", "start": 0, "stop": 45, "chunks": 9, "requests": 13, "bytes": 45}
    plan = call("defrag", root, "--dry-run", "--json").document
    expected = {"actions": [action], "bytes": 45, "requests": 13, "segments": 1, "chunks_before": 9, "chunks_after": 1}
    assert plan == {**expected, "refused": [], "ahead": []}
    assert "9, then 1" in call("defrag", root, "a", "--dry-run").out.decode()
    assert call("owner", root, "--json").document["claimed_epoch"] == before
    assert call("defrag", root, "none", "--dry-run", "--json", code=1).error["error"] == "SegmentNotFound"
    done = call("defrag", root, "a", "--json").document
    assert done == {**plan, "carried_bytes": done["carried_bytes"]}
    assert call("defrag", root, "--json").document["actions"] == []
    assert call("cat", root, "a").out == b"12345" * 9
    assert call("stat", root, "a", "--json").document["chunk_count"] == 1
    assert call("gc", root, "--grace-s", "0", "--json").document["chunks"] == 9
    assert call("check", root, "--deep", "--json").document["findings"] == []
