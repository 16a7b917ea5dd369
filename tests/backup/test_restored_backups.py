"""A backup root is all that is left: any machine makes a container of it again."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore import backup
from chunkstore.errors import ChunksMissing, InvalidArgument


def test_a_burnt_machine(tmp_path: Path) -> None:
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), gc_grace_s=0)
    root, backups = ((tmp_path / name).as_uri() for name in ("root", "backups"))
    states: dict[int, dict[str, bytes]] = {}
    times: dict[int, int] = {}
    with chunkstore.open(root, settings=settings) as store:
        store.create("a", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=100))
        store.create("gone")
        for number in range(4):
            store.append("a", bytes([number]) * 250, writer_id="w", event_number=number + 1)
            if number == 2:
                store.delete("gone")
                store.truncate("a", 120)
            made = backup.backup(store, backups).backup
            states[made.lsn] = {
                info.name: store.read(info.name, info.start_offset, 10_000) for info in store.segments()
            }
            times[made.lsn] = made.time_ms
            store.collect()
    (tmp_path / "root").rename(tmp_path / "burnt")
    other = chunkstore.Settings(cache_dir=str(tmp_path / "elsewhere"))
    for lsn, state in states.items():
        with chunkstore.open_replica(backups, settings=other, at_lsn=lsn) as past:
            assert past.lsn == past.refresh() == lsn
            assert {info.name: past.read(info.name, info.start_offset, 10_000) for info in past.segments()} == state
            assert past.check("deep") == []
        again = (tmp_path / f"again {lsn}").as_uri()
        by_lsn = lsn % 2 == 0
        moment = (lsn, None) if by_lsn else (None, times[lsn])
        done = backup.restore(backups, again, settings=other, lsn=moment[0], time=moment[1])
        assert done.lsn == lsn and not done.missing
        with chunkstore.open(again, settings=other) as store:
            assert {info.name: store.read(info.name, info.start_offset, 10_000) for info in store.segments()} == state
            assert store.last_event_number("a", "w") == list(states).index(lsn) + 1
            assert store.check("deep") == []
    newest = (tmp_path / "newest").as_uri()
    assert backup.restore(backups, newest, settings=other).lsn == max(states)
    with pytest.raises(InvalidArgument, match="backup ls"):
        chunkstore.open_replica(backups, settings=other, at_lsn=max(states) + 1)
    with pytest.raises(InvalidArgument, match="backup ls"):
        backup.restore(backups, (tmp_path / "never").as_uri(), time=1, settings=other)
    for copy in (tmp_path / "backups/default/d").rglob("*-*"):
        copy.unlink()
    with pytest.raises(ChunksMissing):
        backup.restore(backups, (tmp_path / "never").as_uri(), lsn=min(states), settings=other)
    assert not (tmp_path / "never").exists() or not any((tmp_path / "never").rglob("FORMAT"))
