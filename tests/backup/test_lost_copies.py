"""What a backup root has lost: it is told."""

from __future__ import annotations

import pytest

from chunkstore import backup, errors, runtime
from chunkstore.backup import files, runs
from chunkstore.names import BackupNames
from chunkstore.storage import ChunkHandle
from tests.backup.conftest import Place

NAMES = BackupNames("default")
DAY_MS = 86_400_000


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


def test_a_copy_that_a_killed_run_left_short_is_not_taken(place: Place) -> None:
    """Its ``running/<run>`` is still there, so that copies are listed."""
    made = place.backup().backup
    name = lose(place, "d/", 10)
    target = place.target()
    target.delete(NAMES.done(made.run))
    runs.note_running(target, NAMES, made.run, 0)
    target.close()
    with pytest.raises(errors.Damaged, match="delete it") as caught:
        place.backup()
    assert caught.value.object == name and list(backup.list_backups(place.url, settings=place.settings)) == []


def test_reading_a_backup_that_was_dropped_is_no_damage(place: Place) -> None:
    first = place.backup().backup
    with place.replica(at_lsn=first.lsn) as past:
        place.store.delete("b")
        place.backup()
        place.drop(first.run)
        with pytest.raises(errors.PastCollected, match="dropped") as caught:
            past.read("b", 0, 10)
        assert caught.value.lsn == first.lsn


def test_an_export_that_is_gone_is_damage_and_says_how_to_go_on(place: Place) -> None:
    first = place.backup().backup
    place.store.append("c", b"more")
    second = place.backup().backup
    expected = place.content()
    target = place.target()
    target.delete(second.stored(NAMES))
    target.close()
    with pytest.raises(errors.Damaged, match="choose another lsn") as caught:
        place.replica()
    assert caught.value.object == second.stored(NAMES)
    with place.replica(at_lsn=first.lsn) as past:
        assert place.content(past) == {**expected, "c": expected["c"][:-4]}


def test_a_dead_run_whose_clock_ran_ahead_holds_nothing_up_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = place.backup().backup
    target, now_ms = place.target(), runtime.now_ms()
    mark = files.small_object(files.RUNNING, (first.lsn, now_ms + 3650 * DAY_MS, "host", 1))
    target.put(NAMES.running("ab" * 16), mark)
    place.store.delete("b")
    place.backup()
    with pytest.raises(errors.Conflict):
        place.drop(first.run)
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + 2 * DAY_MS)
    assert place.drop(first.run).chunks > 0
    target.close()
    place.assert_sound()


def test_a_check_reads_the_stored_metadata_whatever_the_cache_holds(place: Place) -> None:
    made = place.backup().backup
    with place.replica() as replica:
        assert replica.check() == []
        target = place.target()
        name = made.stored(NAMES)
        raw = target.read(ChunkHandle(name, False), 0, 1 << 20)
        target.delete(name)
        (found,) = replica.check()
        assert (found.severity, found.object) == ("damage", name)
        target.put(name, raw[:-1] + bytes((raw[-1] ^ 1,)))
        (found,) = replica.check("deep")
        assert (found.severity, found.object) == ("damage", name) and found.position > 0
        target.close()


def test_a_backup_of_a_clock_far_ahead_has_no_age_and_hides_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = runtime.now_ms()
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + 3650 * DAY_MS)
    place.backup()
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms)
    assert "age_s" not in backup.backup_figures(place.url)
    first = place.backup().backup
    assert backup.backup_figures(place.url) == {"count": 2, "age_s": 0}
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + 3650 * DAY_MS)
    place.store.delete("b")
    ahead = place.backup().backup
    monkeypatch.setattr(runtime, "now_ms", lambda: now_ms + DAY_MS)
    with pytest.raises(errors.InvalidArgument, match=f"after lsn {first.lsn} .* by its lsn"):
        place.replica(at_time=now_ms + DAY_MS)
    with place.replica(at_lsn=ahead.lsn) as replica:
        assert replica.lsn == ahead.lsn


def test_a_time_in_the_future_is_refused_as_for_a_root(place: Place) -> None:
    made = place.backup().backup
    with place.replica(at_time=made.time_ms) as replica:
        assert replica.lsn == made.lsn
    with pytest.raises(errors.InvalidArgument, match="is in the future") as caught:
        place.replica(at_time=made.time_ms + 365 * DAY_MS)
    assert caught.value.argument == "at_time"
