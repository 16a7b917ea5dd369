"""Backups that are dropped, beside runs that are under way; copies that are compared with what names them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import chunkstore
from chunkstore import backup, errors
from chunkstore.backup import runs
from chunkstore.records.names import BackupNames
from chunkstore.storage import ChunkStorage
from tests.backup.conftest import Place

NAMES = BackupNames("default")


def test_a_backup_goes_with_what_only_it_names(place: Place) -> None:
    first = place.backup().backup
    place.store.delete("a")
    place.store.append("c", b"new" * 100)
    second, third = place.backup().backup, place.backup().backup
    names = place.names()
    done = place.drop(first.run)
    assert (done.run, done.lsn, done.readable, done.dry_run) == (first.run, first.lsn, True, False)
    gone = names - place.names()
    assert sum(name.startswith(("d/", "o/")) for name in gone) == done.chunks >= 2 and done.size_bytes > 0
    listed = [item.run for item, _ in backup.list_backups(place.url, settings=place.settings)]
    assert listed == [second.run, third.run]
    assert backup.verify_copies(place.url, settings=place.settings).backups == 2
    place.assert_sound()


def test_a_run_that_begins_while_its_base_is_dropped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it relies on behind the first look and in front of the second."""
    first = place.backup().backup
    place.store.delete("a")
    place.backup()
    target = place.target()
    real = runs.withdraw

    def late(storage: ChunkStorage, names: BackupNames, run: str) -> None:
        runs.note_running(target, NAMES, "cd" * 16, first.lsn)
        assert runs.find_done(target, NAMES, first.run) is not None, "it sees that it counts"
        real(storage, names, run)

    names = place.names()
    with monkeypatch.context() as patch:
        patch.setattr(runs, "withdraw", late)
        assert place.drop(first.run).chunks == 0
    assert names - place.names() == set()
    # Once that run has ended, what was begun is gone on with.
    target.delete(NAMES.running("cd" * 16))
    target.close()
    assert place.drop(first.run).chunks > 0
    assert len(copies_of(place)) == place.store.usage().chunks
    with pytest.raises(errors.InvalidArgument, match="no backup"):
        place.drop(first.run)
    place.assert_sound()


def copies_of(place: Place) -> set[str]:
    return {name for name in place.names() if name.startswith(("d/", "o/"))}


def spoil(place: Place, name: str) -> None:
    """Somebody else's bytes lie there."""
    target = place.target()
    with contextlib.suppress(errors.ChunkNotFound):
        target.delete(name)
    target.put(name, b"rotten")
    target.close()


@pytest.mark.parametrize("what", ["export", "done"])
def test_a_kept_backup_that_cannot_be_read_is_dropped_by_name(place: Place, what: str) -> None:
    first = place.backup().backup
    place.store.delete("a")
    place.store.append("c", b"new" * 100)
    second = place.backup().backup
    place.store.append("c", b"newer" * 100)
    spoil(place, second.stored(NAMES) if what == "export" else NAMES.done(second.run))
    if what == "export":
        # As base, and as one that stays.
        with pytest.raises(errors.Damaged, match=f"backup rm .* {second.run}"):
            place.backup()
    else:
        with pytest.raises(errors.Damaged, match=f"{second.run} cannot be read.*backup rm"):
            list(backup.list_backups(place.url, settings=place.settings))
    there = place.names()
    look = backup.remove(place.url, second.run, settings=place.settings, dry_run=True)
    assert not look.readable and look.dry_run and place.names() == there
    assert place.drop(second.run).chunks == 0, "the newest's copies stay for now"
    place.assert_sound()
    third = place.backup().backup
    listed = [item.run for item, _ in backup.list_backups(place.url, settings=place.settings)]
    assert listed == [first.run, third.run]
    place.drop(first.run)
    with pytest.raises(errors.InvalidArgument, match="no backup"):
        place.drop(second.run)
    with pytest.raises(errors.InvalidArgument, match="32 hex"):
        backup.remove(place.url, "x", settings=place.settings)
    with place.replica() as replica:
        assert place.content(replica) == place.content()
    place.assert_sound()


def test_a_backup_that_a_run_relies_on_is_not_dropped(place: Place) -> None:
    first = place.backup().backup
    target = place.target()
    runs.note_running(target, NAMES, "ab" * 16, first.lsn)
    before = place.names()
    with pytest.raises(errors.Conflict, match="relies on it"):
        backup.remove(place.url, first.run, settings=place.settings)
    assert place.names() == before
    target.delete(NAMES.running("ab" * 16))
    target.close()
    assert backup.remove(place.url, first.run, settings=place.settings).readable
    assert list(backup.list_backups(place.url, settings=place.settings)) == []
    place.assert_sound()


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
        made = backup.backup(store, url).backup
        assert made.copied_chunks == 2, "the new chunk, and the tail of the former epoch, which grows no more"
    assert backup.verify_copies(url).ok
