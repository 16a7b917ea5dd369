"""What chaos finds in a container that nobody uses any more."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from tests.chaos.survey import survey
from tests.support.data import problems

pytestmark = pytest.mark.proof


def test_a_zombies_late_hint_is_no_violation_while_the_next_snapshot_mends_it(tmp_path: Path) -> None:
    """A run of chaos called this a violation: a zombie woke, and named a snapshot that its successors had collected."""
    root, hint = f"file://{tmp_path}/store", tmp_path / "store" / "default" / "snap" / "LATEST"

    def opened() -> ChunkedSegmentStorage:
        return chunkstore.open(root, settings=Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, snapshots_kept=1))

    with opened() as store:
        store.create("s")
        store.snapshot()
        late = hint.read_bytes()
    for _ in range(3):
        with opened() as store:
            store.append("s", b"x")
            store.snapshot()
            store.collect()
    with opened() as store:
        hint.write_bytes(late)
        assert [(finding.invariant, finding.severity) for finding in problems(store.check("deep"))] == [(11, "warning")]
    found = survey(root, str(tmp_path), {"lease_s": 0})
    assert found.problems == []
    assert found.segments["s"].data == b"xxx"
