"""What of a backup root is given up, dropped, swept and audited, beside runs that are under way."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import backup, errors, parts, runtime
from chunkstore.backup import copies, files, keeping, rounds, runs
from chunkstore.names import BackupNames
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage, iter_listing
from tests.backup.conftest import SMALL, Place
from tests.support.forwarding import Hook, Hooked

NAMES = BackupNames("default")


def hooked(inner: ChunkStorage, before: Hook) -> Hooked:
    storage = Hooked(inner)
    storage.before = before
    return storage


def test_keep_gives_up_backups_and_what_only_they_name(place: Place) -> None:
    place.backup()
    place.store.delete("a")
    place.store.append("c", b"new" * 100)
    second = place.backup().backup
    names = place.names()
    report = place.backup(keep=2)
    assert report.given_up is not None
    given = report.given_up
    assert (given.backups, given.refused, given.put_off) == (1, 0, 0) and given.chunks >= 2
    gone = names - place.names()
    assert sum(name.startswith(("d/", "o/")) for name in gone) == given.chunks
    assert [item.run for item, _ in backup.list_backups(place.url, settings=place.settings)] == [
        second.run,
        report.backup.run,
    ]
    audit = backup.audit(place.url, settings=place.settings)
    assert audit.ok and audit.unnamed == 0 and audit.backups == 2
    place.assert_sound()


def test_keep_days_goes_by_the_time_of_backups(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = runtime.now_ms()
    runs_made = []
    for days in (0, 10, 20, 21):
        monkeypatch.setattr(runtime, "now_ms", lambda days=days: now_ms + days * 86_400_000)
        place.store.append("c", b"new")
        runs_made.append(place.backup(keep_days=5).backup.run)
    assert [item.run for item, _ in backup.list_backups(place.url, settings=place.settings)] == runs_made[2:]
    assert place.backup(keep_days=0.0001, keep=3).given_up.backups == 0  # type: ignore[union-attr]
    place.assert_sound()


def test_what_a_run_under_way_relies_on_stays(place: Place) -> None:
    first = place.backup().backup
    place.store.delete("a")
    target = place.target()
    runs.note_running(target, NAMES, "ab" * 16, first.lsn)
    report = place.backup(keep=1)
    assert report.given_up == keeping.Given(0, 0, 0, 0, 1)
    runs.note_running(target, NAMES, "ab" * 16, report.backup.lsn)
    assert place.backup(keep=1).given_up.backups == 1  # type: ignore[union-attr]
    target.close()
    place.assert_sound()


def test_two_that_give_up_the_same_backup(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulator, seed 2611230028: what the other one has deleted was asked for, and called damaged."""
    first = place.backup().backup
    place.store.delete("a")
    target = place.target()
    real = copies.named_copies

    def late(storage: ChunkStorage, names: BackupNames, lsn: int, run: str) -> Any:
        if run == first.run:
            target.delete(first.stored(NAMES))
        return real(storage, names, lsn, run)

    with monkeypatch.context() as patch:
        patch.setattr(keeping, "named_copies", late)
        report = place.backup(keep=1)
    target.close()
    assert report.given_up == keeping.Given(0, 0, 0, 0, 1)
    assert [item.run for item, _ in backup.list_backups(place.url, settings=place.settings)] == [report.backup.run]
    place.assert_sound()


def test_a_run_that_begins_while_another_gives_up_its_base(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it relies on behind the first look and in front of the second."""
    first = place.backup().backup
    place.store.delete("a")
    target = place.target()
    real = runs.iter_complete

    def late(storage: ChunkStorage, names: BackupNames) -> Any:
        monkeypatch.setattr(runs, "iter_complete", real)
        found = list(real(storage, names))
        runs.note_running(target, NAMES, "cd" * 16, first.lsn)
        assert runs.find_done(target, NAMES, first.run) is not None, "it sees that it counts"
        return iter(found)

    monkeypatch.setattr(runs, "iter_complete", late)
    names = place.names()
    assert place.backup(keep=1).given_up == keeping.Given(0, 0, 0, 0, 1)
    assert {name for name in names - place.names() if not name.startswith("done/")} == set()
    monkeypatch.undo()
    # Once that run has ended, what was begun is gone on with.
    target.delete(NAMES.running("cd" * 16))
    assert place.backup(keep=1).given_up.backups == 2  # type: ignore[union-attr]
    assert backup.audit(place.url, settings=place.settings).unnamed == 0
    target.close()


def test_a_silent_run_is_given_up_and_notices(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.backup()
    now_ms = runtime.now_ms()

    def meanwhile(_plan: Any) -> None:
        monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + 25 * 3_600_000)
        place.store.delete("a")
        assert place.backup(keep=1).given_up.put_off == 0  # type: ignore[union-attr]

    with pytest.raises(errors.Conflict, match="given up by another one"):
        place.backup(before=meanwhile)
    assert len(list(backup.list_backups(place.url, settings=place.settings))) == 1
    place.assert_sound()


def test_that_a_run_was_given_up_stays_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its export is there already when somebody gives the run up, and goes with the others; only then does it wake up."""
    place.backup()
    now_ms = runtime.now_ms()
    real = runs.decide

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(runs, "decide", real)
        monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + 25 * 3_600_000)
        for _ in range(2):
            place.store.delete(next(iter(place.store.segments())).name)
            place.backup(keep=1)
        real(*arguments)

    monkeypatch.setattr(runs, "decide", late)
    with pytest.raises(errors.Conflict, match="given up by another one"):
        place.backup()
    assert len(list(backup.list_backups(place.url, settings=place.settings))) == 1
    place.assert_sound()


@pytest.mark.parametrize(
    ("storage_days", "our_days", "stays"), [(0, 36_500, True), (100, 0, True), (89, 89, True), (91, 91, False)]
)
def test_what_was_given_up_stays_said_for_90_days_of_both_clocks(
    place: Place, monkeypatch: pytest.MonkeyPatch, storage_days: int, our_days: int, stays: bool
) -> None:
    """Else a put of the run that arrives late lets it count again, without an export (the simulator's seed 2300000110)."""
    first = place.backup().backup
    place.store.append("c", b"more")
    assert place.backup(keep=1).given_up.backups == 1  # type: ignore[union-attr]
    place.store.append("c", b"more")
    now_ms, day_ms = runtime.now_ms(), 86_400_000

    def shown(storage: ChunkStorage, prefix: str) -> Any:
        """The storage says that all but what is said of the first backup was put so many days later."""
        for info in iter_listing(storage, prefix):
            days = 0 if info.name == NAMES.done(first.run) else storage_days
            yield info._replace(modified_ms=now_ms + days * day_ms)

    monkeypatch.setattr(runs, "iter_listing", shown)
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + our_days * day_ms)
    place.backup(keep=1)
    assert (NAMES.done(first.run).partition("/")[2] in place.names()) is stays


def test_what_comes_to_count_while_others_are_given_up_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that relies on what goes begins behind the first look, and has ended in front of the second."""
    base = place.backup().backup
    real, done = runs.iter_complete, False

    def slow(storage: ChunkStorage, names: BackupNames) -> Any:
        nonlocal done
        found = list(real(storage, names))
        if not done:
            done = True
            target = place.target()
            target.compose(  # the same state once more, by another run
                NAMES.stored(base.lsn, "ef" * 16),
                [ChunkRange(base.stored(NAMES), 0, target.stat(base.stored(NAMES)).length)],
            )
            runs.decide(target, NAMES, base._replace(run="ef" * 16))
            target.close()
        return iter(found)

    place.store.delete("a")
    monkeypatch.setattr(runs, "iter_complete", slow)
    place.backup(keep=1)
    assert "ef" * 16 in [item.run for item, _ in backup.list_backups(place.url, settings=place.settings)]
    place.assert_sound()


def test_what_cannot_be_deleted_is_told_and_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.backup()
    place.store.delete("a")
    locked = True

    def hook(operation: str, names: Any) -> None:
        if locked and operation == "delete" and "/d/" in names[0]:
            raise errors.AccessDenied("object lock", object=names[0], until_ms=len(names[0]))

    monkeypatch.setattr(parts, "open_storage", lambda url, settings: hooked(place.target(), hook))
    given = place.backup(keep=1).given_up
    assert given is not None and given.refused > 0 and given.locked_until_ms
    locked = False
    assert place.backup(keep=1).given_up.chunks >= given.refused  # type: ignore[union-attr]
    assert backup.audit(place.url, settings=place.settings).unnamed == 0


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
    done = backup.remove(place.url, second.run, settings=place.settings)
    assert done.given_up.backups == 0, "the newest's copies stay for now"
    place.assert_sound()
    third = place.backup(keep=2)
    assert [item.run for item, _ in backup.list_backups(place.url, settings=place.settings)] == [
        first.run,
        third.backup.run,
    ]
    with pytest.raises(errors.InvalidArgument, match="no backup"):
        backup.remove(place.url, second.run, settings=place.settings)
    with pytest.raises(errors.InvalidArgument, match="32 hex"):
        backup.remove(place.url, "x", settings=place.settings)
    with place.replica() as replica:
        assert place.content(replica) == place.content()
    place.assert_sound()


def test_one_that_cannot_be_read_stops_giving_up_and_is_dropped_beside_others(place: Place) -> None:
    place.backup()
    place.store.delete("a")
    second = place.backup().backup
    third = place.backup().backup
    spoil(place, second.stored(NAMES))
    with pytest.raises(errors.Damaged, match=f"the new backup counts.*backup rm .* {second.run}"):
        place.backup(keep=3)
    assert not backup.remove(place.url, second.run, settings=place.settings).readable
    found = [item.run for item, _ in backup.list_backups(place.url, settings=place.settings)]
    assert second.run not in found and third.run in found and len(found) == 2
    place.assert_sound()
    assert place.backup(keep=1).given_up is not None
    assert len(copies_of(place)) == place.store.usage().chunks


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


def failed_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What a run leaves that failed behind its copies."""
    before = copies_of(place)

    def full(*_: Any) -> None:
        raise errors.StorageFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "write_export", full)
        with pytest.raises(errors.StorageFull):
            place.backup()
    return copies_of(place) - before


def test_leftovers_whose_chunks_are_gone_are_swept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while their epoch may bring them back, not while a run is under way, and not while they are young."""
    place.backup()
    place.store.append("c", b"left" * 100)
    place.store.create("d", rolling=SMALL)
    place.store.append("d", b"d" * 300)
    left = failed_run(place, monkeypatch)
    assert left
    place.store.delete("d")
    place.store.truncate("c", place.store.info("c").length)
    now_ms = runtime.now_ms()
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + 2 * 86_400_000)
    assert place.backup(keep=1).given_up.swept == 0 and left & copies_of(place), "of the present epoch"  # type: ignore[union-attr]
    place.reopen()
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms)
    assert place.backup(keep=1).given_up.swept == 0 and left & copies_of(place), "young"  # type: ignore[union-attr]
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + 2 * 86_400_000)
    target = place.target()
    newest = list(backup.list_backups(place.url, settings=place.settings))[-1][0]
    runs.note_running(target, NAMES, "ab" * 16, newest.lsn)
    target.put(NAMES.temporary("cd" * 16), b"a piece")
    with monkeypatch.context() as patch:
        patch.setattr(keeping, "_SILENT_MS", 10 * 86_400_000)  # a storage's own clock does not go along
        assert place.backup(keep=1).given_up.swept == 0 and left & copies_of(place), "beside a run"  # type: ignore[union-attr]
    target.delete(NAMES.running("ab" * 16))
    target.close()
    given = place.backup(keep=1).given_up
    assert given is not None and given.swept and given.swept_bytes
    assert backup.audit(place.url, settings=place.settings).unnamed == 0
    assert not any(name.startswith("running/") for name in place.names())
    with place.replica() as replica:
        assert place.content(replica) == place.content()
    place.assert_sound()


def test_audit_finds_what_is_missing_and_short(place: Place) -> None:
    place.backup()
    target = place.target()
    copies = sorted(name for name in place.names() if name.startswith("d/"))
    target.delete(f"default/{copies[0]}")
    target.put(f"default/{copies[1]}", b"short")
    target.put("default/d/00/stranger", b"")
    found = backup.audit(place.url, settings=place.settings)
    assert {finding.object for finding in found.findings} == {f"default/{name}" for name in copies[:2]}
    stored = next(name for name in place.names() if name.startswith("backups/"))
    target.delete(f"default/{stored}")
    assert not backup.audit(place.url, settings=place.settings).ok
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
    assert backup.audit(url).ok


@pytest.mark.parametrize("what", ["other state", "flipped", "gone", "another container"])
def test_an_export_that_is_not_what_counts_is_not_shown(place: Place, what: str) -> None:
    made = place.backup().backup
    target, name = place.target(), made.stored(NAMES)
    size = target.stat(name).length
    raw = target.read(ChunkHandle(name, False), 0, size)
    target.delete(name)
    if what == "flipped":
        target.put(name, raw[: size // 2] + bytes((raw[size // 2] ^ 1,)) + raw[size // 2 + 1 :])
    elif what != "gone":
        target.put(name, raw)
    if what == "other state":
        target.delete(NAMES.done(made.run))
        runs.decide(target, NAMES, made._replace(hash=bytes(16)))
    elif what == "another container":
        target.put(NAMES.backup, files.small_object(files.MARKER, (b"other" + bytes(11), "default", 0)))
    target.close()
    with pytest.raises((errors.Damaged, errors.ChunkNotFound)):
        place.replica()
