"""Log directories that change, mislead or are in use: no byte is lost in silence, and no running broker's file is replaced."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from chunkstore.errors import InvalidArgument
from chunkstore.kafka import folders
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.tier import restore, tier
from tests.kafka.support_leader import batches, leading, write_log
from tests.kafka.support_metadata import Store
from tests.kafka.support_tier import lock_command, locked, spans

LOGS = {0: batches(0, 99), 100: batches(100, 199), 200: batches(200, 299), 300: batches(300, 349)}
FOLDER = "orders-3"


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
