"""Backups of a container whose root was put back to an older state."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import chunkstore
from chunkstore import backup, errors
from chunkstore.config import Tuning


def test_an_accepted_rollback_needs_another_root_also_once_it_has_outrun_the_last_backup(tmp_path: Path) -> None:
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, tuning=Tuning(collect_s=0))
    root, backups = (tmp_path / "root").as_uri(), (tmp_path / "backups").as_uri()
    with chunkstore.open(root, settings=settings) as store:
        store.create("a")
        backup.backup(store, backups)
    shutil.copytree(tmp_path / "root", tmp_path / "old")
    for _ in range(3):
        with chunkstore.open(root, settings=settings) as store:
            store.append("a", b"newer")
            last = backup.backup(store, backups).backup
    shutil.rmtree(tmp_path / "root")
    (tmp_path / "old").rename(tmp_path / "root")
    with chunkstore.open(root, settings=settings, accept_rollback=True) as store:
        with pytest.raises(errors.RolledBack):
            backup.backup(store, backups)
        for _ in range(20):
            store.append("a", b"other")
        with pytest.raises(errors.RolledBack, match="another root for its backups") as caught:
            backup.backup(store, backups)
        assert caught.value.lsn_now > caught.value.lsn_seen == last.lsn
        made = backup.backup(store, (tmp_path / "others").as_uri()).backup
        assert made.chunk_bytes == 100
