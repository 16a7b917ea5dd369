"""What a backup root has lost: it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore import backup, errors
from chunkstore.records.names import BackupNames
from chunkstore.storage import ChunkHandle
from tests.backup.conftest import Place

NAMES = BackupNames("default")


def lose(place: Place, prefix: str, left: int | None = None) -> str:
    """Delete a copy, or cut it short."""
    target = place.target()
    name = f"default/{max(name for name in place.names() if name.startswith(prefix))}"
    data = target.read(ChunkHandle(name, False), 0, 1000)
    target.delete(name)
    if left is not None:
        target.put(name, data[:left])
    target.close()
    return name


def test_a_copy_that_is_short_is_not_taken(place: Place) -> None:
    """Of a run that does not count, so that the next one looks at its copies."""
    made = place.backup()
    name = lose(place, "d/", 10)
    target = place.target()
    target.delete(NAMES.done(made.lsn, made.run))
    target.close()
    with pytest.raises(errors.Damaged, match="delete it") as caught:
        place.backup()
    assert caught.value.object == name and list(backup.list_backups(place.url, settings=place.settings)) == []


def test_an_export_that_is_gone_is_damage_and_says_how_to_go_on(place: Place) -> None:
    first = place.backup()
    place.store.append("c", b"more")
    second = place.backup()
    expected = place.content()
    target = place.target()
    target.delete(second.stored(NAMES))
    target.close()
    with pytest.raises(errors.Damaged, match="choose another lsn") as caught:
        place.replica()
    assert caught.value.object == second.stored(NAMES)
    with pytest.raises(errors.Damaged, match="begin another backup root"):
        place.backup()  # the base
    with place.replica(at_lsn=first.lsn) as past:
        assert place.content(past) == {**expected, "c": expected["c"][:-4]}


def test_verify_finds_what_is_missing_and_short(place: Place) -> None:
    place.backup()
    target = place.target()
    copies = sorted(name for name in place.names() if name.startswith("d/"))
    target.delete(f"default/{copies[0]}")
    target.put(f"default/{copies[1]}", b"short")
    target.put("default/d/00/stranger", b"")
    found = backup.verify_copies(place.url, settings=place.settings)
    assert {finding.object for finding in found.findings} == {f"default/{name}" for name in copies[:2]}
    stored = next(name for name in place.names() if name.startswith("backups/"))
    target.delete(f"default/{stored}")
    assert not backup.verify_copies(place.url, settings=place.settings).ok
    assert [ok for _, ok in backup.list_backups(place.url, settings=place.settings)] == [False]
    target.close()


def test_what_is_damaged_is_put_back_from_a_backup(tmp_path: Path) -> None:
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    url = (tmp_path / "backup").as_uri()
    with chunkstore.open((tmp_path / "root").as_uri(), settings=settings) as store:
        store.create("a", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=100))
        store.append("a", b"x" * 250)
        backup.backup(store, url)
        chunk = next(iter(store.layout("a"))).name
    (tmp_path / "root" / chunk).unlink()
    (tmp_path / "root" / chunk).write_bytes(b"y" * 100)
    with chunkstore.open((tmp_path / "root").as_uri(), settings=settings) as store:
        report = store.scrub(repair_from=url)
        assert report.repaired == 1 and store.read("a", 0, 250) == b"x" * 250
        made = backup.backup(store, url)
        assert made.copied_chunks == 2, "the new chunk, and the tail of the former epoch, which grows no more"
    assert backup.verify_copies(url).ok
