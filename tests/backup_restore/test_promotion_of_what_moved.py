"""A root that is renamed under a replica that is about to be promoted."""

from __future__ import annotations

import shutil
from pathlib import Path

import chunkstore
from chunkstore.config import Settings
from chunkstore.errors import ContainerNotFound, Damaged
from tests.support.data import refused


def test_what_was_moved_away_is_not_claimed(tmp_path: Path) -> None:
    """A replica holds on to its tree; an owner is of what lies under the root now."""
    root, settings = (tmp_path / "root").as_uri(), Settings(cache_dir=str(tmp_path / "cache"))
    with chunkstore.open(root, settings=settings) as store:
        store.create("a")
        store.append("a", b"x")
    replica = chunkstore.open_replica(root, settings=settings)
    (tmp_path / "root").rename(tmp_path / "away")
    before = sorted(path for path in (tmp_path / "away").rglob("*"))
    refused(ContainerNotFound, replica.promote)
    assert sorted(path for path in (tmp_path / "away").rglob("*")) == before
    with chunkstore.open(root, settings=settings) as other:
        other.create("b")
    refused(Damaged, replica.promote)
    shutil.rmtree(tmp_path / "root")
    (tmp_path / "away").rename(tmp_path / "root")
    with replica.promote() as promoted:
        assert promoted.append("a", b"y") == 1 and not promoted.exists("b")
