"""Log directories that change, mislead or are in use: no byte is lost in silence, and no running broker's file is replaced."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument
from chunkstore.kafka import folders
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.tier import restore, tier
from tests.kafka.support_leader import batches, leading, write_log
from tests.kafka.support_metadata import PARTITION, Store, fresh_root
from tests.kafka.support_tier import Killed, files_below, lock_command, locked, spans

LOGS = {0: batches(0, 99), 100: batches(100, 199), 200: batches(200, 299), 300: batches(300, 349)}
FOLDER = "orders-3"
LENGTH = len(batches(0, 9))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs", LOGS, [(0, 0)], 350)


def log_of(logs: Path, start: int, more: str = "") -> Path:
    return logs / FOLDER / f"{start:020d}.log{more}"


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


def test_restore_holds_the_lock_of_the_directory(
    logs: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier(str(logs), store)
    back = tmp_path / "back"
    back.mkdir()
    with locked(back), pytest.raises(InvalidArgument, match="a broker, or another restore, holds"):
        restore(store, str(back))
    genuine, others = folders.staged, []

    def staged(log_dir: str) -> str:
        with pytest.raises(InvalidArgument, match="another restore"):
            restore(store, str(back), "orders")
        others.append(subprocess.run(lock_command(back), check=False, input=b"", stderr=subprocess.PIPE, timeout=60))
        return genuine(log_dir)

    monkeypatch.setattr(folders, "staged", staged)
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


def test_what_a_container_has_under_any_id_is_not_copied_again(logs: Path, store: Store) -> None:
    (logs / ".kafka_cleanshutdown").touch()
    with leading(logs, store) as leader:
        assert leader.manager.copy(PARTITION) == 3
    for whole, copied, present in ((False, 0, 3), (True, 1, 3), (True, 0, 4), (False, 0, 3)):
        assert tier(str(logs), store, whole=whole)[:3:2] == (copied, present)
    assert len(spans(store)) == 4


def test_a_whole_copy_that_is_killed_anywhere_goes_on(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / ".kafka_cleanshutdown").touch()
    (logs / "meta.properties").write_text("version=1\n")
    genuine, left = ChunkedSegmentStorage.commit, 0

    def commit(store: ChunkedSegmentStorage, *args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        return genuine(store, *args)

    monkeypatch.setattr(ChunkedSegmentStorage, "commit", commit)
    earlier = files_below(logs)
    changed = batches(100, 199, max_timestamp=1)
    for number in range(1, 100):
        log_of(logs, 100).write_bytes(LOGS[100])
        with chunkstore.open(fresh_root()) as store:
            tier(str(logs), store, whole=True)
            log_of(logs, 100).write_bytes(changed)
            left = number
            with suppress(Killed):
                tier(str(logs), store, whole=True)
            killed, left = not left, 0
            restore(store, str(tmp_path / f"killed-{number}"))
            found = files_below(tmp_path / f"killed-{number}")
            assert found == files_below(logs) or found == earlier
            tier(str(logs), store, whole=True)
            assert len(spans(store)) == len({*spans(store)}) == 4
            assert len([each for each in store.segments() if "-indexes" in each.name]) == 4
            restore(store, str(tmp_path / f"back-{number}"))
        assert files_below(tmp_path / f"back-{number}") == files_below(logs)
        if not killed:
            break
    assert number > 6
