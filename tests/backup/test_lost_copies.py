"""What a backup root has lost: it is told."""

from __future__ import annotations

import pytest

from chunkstore import backup, errors
from chunkstore.backup import runs
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
