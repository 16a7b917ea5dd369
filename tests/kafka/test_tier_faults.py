"""Log directories that change, mislead or are in use: no byte is lost in silence, and no running broker's file is replaced."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from chunkstore.codec.kafka.batches import OFFSET_MAX
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.kafka import tier as copies
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.storage import RemoteStorageManager
from chunkstore.kafka.tier import restore, tier
from tests.kafka.support_leader import batches, leading, write_log
from tests.kafka.support_metadata import Store
from tests.kafka.support_tier import lock_command, locked, spans

LOGS = {0: batches(0, 99), 100: batches(100, 199), 200: batches(200, 299), 300: batches(300, 349)}
FOLDER = "orders-3"
LENGTH = len(batches(0, 9))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs", LOGS, [(0, 0)], 350)


def log_of(logs: Path, start: int, more: str = "") -> Path:
    return logs / FOLDER / f"{start:020d}.log{more}"


@pytest.mark.parametrize("left", [".swap", ".cleaned"])
def test_a_log_that_the_cleaner_renames_is_not_covered_by_the_one_before(logs: Path, store: Store, left: str) -> None:
    renamed = log_of(logs, 200).rename(log_of(logs, 200, left))
    with leading(logs) as leader:
        assert "replaced during the copy" in tier(str(logs), store).notes[0]
        assert spans(store) == [(0, 99)]
        assert len(leader.manager.run_once()) == 1
        assert leader.spans == [(0, 99, "FINISHED")]
    renamed.rename(log_of(logs, 200))
    assert tier(str(logs), store).copied == 2
    assert spans(store) == [(0, 99), (100, 199), (200, 299)]


def test_a_segment_whose_end_compaction_has_emptied_is_copied(logs: Path, store: Store) -> None:
    log_of(logs, 200).rename(log_of(logs, 200, ".deleted"))
    assert tier(str(logs), store)[0] == 2
    assert spans(store) == [(0, 99), (100, 299)]


def test_a_log_that_is_listed_late_is_not_covered(logs: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = log_of(logs, 200).rename(log_of(logs, 200, ".swap"))
    genuine = tier.__globals__["plan"]

    def plan(*arguments: object) -> object:  # after the listing
        if missed.exists():
            missed.rename(log_of(logs, 200))
        return genuine(*arguments)

    monkeypatch.setattr("chunkstore.kafka.tier.plan", plan)
    assert "replaced during the copy" in tier(str(logs), store).notes[0]
    assert spans(store) == [(0, 99)]


def test_a_log_that_is_no_file_is_found_and_ends_the_one_before(logs: Path, store: Store, tmp_path: Path) -> None:
    os.symlink(log_of(logs, 200).rename(tmp_path / "cold.log"), log_of(logs, 200))
    assert "no regular file" in tier(str(logs), store).notes[0]
    assert spans(store) == []
    with KafkaBucket(str(logs)) as directory:
        assert [each.end_offset for each in directory.segments()] == [99, 199, 349]
        assert next(directory.verify()).kind == "metadata"
    with leading(logs) as leader:
        assert not leader.manager.run_once()
        assert leader.spans == [(0, 99, "FINISHED"), (100, 199, "FINISHED")]


def test_folders_that_are_left_out_are_told(logs: Path, store: Store, tmp_path: Path) -> None:
    stray = logs / f"{FOLDER[:-2]}-4.{'a' * 32}-stray"
    stray.mkdir()
    (stray / log_of(logs, 0).name).write_bytes(LOGS[0])
    (logs / ".kafka_cleanshutdown").touch()
    assert any(stray.name in note for note in tier(str(logs), store, whole=True).notes)
    os.symlink((logs / FOLDER).rename(tmp_path / "elsewhere"), logs / FOLDER)
    with pytest.raises(Damaged, match=f"{FOLDER}: a symbolic link"):
        tier(str(logs), store, whole=True)


@pytest.mark.parametrize(("start", "end", "count"), [(0, 1000, 350), (5000, OFFSET_MAX, 0)])
def test_a_range_past_the_end_is_noted(logs: Path, start: int, end: int, count: int) -> None:
    with KafkaBucket(str(logs)) as directory:
        assert len(list(directory.read("orders", start_offset=start, end_offset=end))) == count
        assert list(directory.notes) == [f"{FOLDER}: offsets from 350 on are not here"]
        directory.notes.clear()
        list(directory.read("orders", end_offset=350))
        assert not directory.notes


def test_restore_holds_the_lock_of_the_directory(
    logs: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier(str(logs), store)
    back = tmp_path / "back"
    back.mkdir()
    with locked(back), pytest.raises(InvalidArgument, match="a broker, or another restore, holds"):
        restore(store, str(back))
    genuine, others = copies.staged, []

    def staged(log_dir: str) -> str:
        with pytest.raises(InvalidArgument, match="another restore"):
            restore(store, str(back), "orders")
        others.append(subprocess.run(lock_command(back), check=False, input=b"", stderr=subprocess.PIPE, timeout=60))
        return genuine(log_dir)

    monkeypatch.setattr(copies, "staged", staged)
    restore(store, str(back))
    assert b"BlockingIOError" in others[0].stderr
    assert [path.name for path in back.iterdir()] == [FOLDER]


def test_a_whole_directory_is_stored_as_it_is_now(logs: Path, store: Store, tmp_path: Path) -> None:
    (logs / ".kafka_cleanshutdown").touch()
    assert tier(str(logs), store, whole=True).copied == 4
    other = batches(100, 199, max_timestamp=1)
    assert len(other) == len(LOGS[100])  # compaction may keep a segment's span, and even its size
    for number, data in enumerate((other, other[LENGTH:])):
        log_of(logs, 100).write_bytes(data)
        assert tier(str(logs), store, whole=True)[:3:2] == (1, 3)
        restore(store, str(tmp_path / f"{number}"))
        assert log_of(tmp_path / f"{number}", 100).read_bytes() == data
        assert spans(store) == [(0, 99), (100, 199), (200, 299), (300, 349)]  # what was replaced is deleted
    assert tier(str(logs), store, whole=True)[:3:2] == (0, 4)


def test_what_was_not_committed_does_not_change_the_whole(logs: Path, store: Store, tmp_path: Path) -> None:
    (logs / ".kafka_cleanshutdown").touch()
    tier(str(logs), store, whole=True)
    before = log_of(logs, 100).read_bytes()
    log_of(logs, 100).write_bytes(before[LENGTH:])
    (logs / FOLDER / f"{200:020d}.timeindex").write_bytes(b"damaged")
    log_of(logs, 200).write_bytes(LOGS[200][LENGTH:])
    with pytest.raises(Damaged):
        tier(str(logs), store, whole=True)
    assert restore(store, str(tmp_path / "back")).missing == ()
    assert log_of(tmp_path / "back", 100).read_bytes() == before
    [item] = [each for each in RemoteStorageManager(store).stored_segments() if each.end_offset == 349]
    RemoteStorageManager(store).delete_log_segment_data(item)
    [line] = [line for line in restore(store, str(tmp_path / "less")).missing if "stored" in line]
    assert line.startswith(f"{FOLDER}: 1 of 4 segments")
