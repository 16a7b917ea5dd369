"""Leaders that are killed, stopped, or deposed while they copy, each a process with a store of its own: no FINISHED range is lost."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest

import chunkstore
from chunkstore.errors import NotOwner
from chunkstore.kafka import RemoteLogMetadataManager
from chunkstore.kafka.storage import LogSegmentData, RemoteStorageManager
from tests.kafka.support_metadata import FINISHED, PARTITION, Leader, segment
from tests.support.paths import SOURCES
from tests.support.servers.base import ServerProcess, wait_until

LEADERS = 15


def log_of(start: int) -> bytes:
    """The bytes of the segment from offset ``start`` on."""
    return b"%d " % start * 30_000


def lead(root: str, epoch: int) -> None:
    """Copy range after range, each acknowledged by a line, until killed or fenced."""
    try:
        with chunkstore.open(root, take_over=True) as store:
            leader, storage = Leader(RemoteLogMetadataManager(store)), RemoteStorageManager(store)
            items = leader.manager.list_remote_log_segments(PARTITION)
            for start in count(max((item.end_offset + 1 for item in items if item.state == FINISHED), default=0), 10):
                item = segment(1_000_000 * epoch + start, start, start + 9, {epoch: start})
                leader.add(item)
                storage.copy_log_segment_data(item, LogSegmentData(log_of(start), b"", b"", None, b""))
                leader.move(item, FINISHED)
                print(start, flush=True)
    except NotOwner:
        print("fenced", flush=True)


@pytest.mark.proof
def test_kill_9_of_leaders_and_zombies_loses_no_finished_range(tmp_path: Path) -> None:
    root = (tmp_path / "root").as_uri()
    logs = [tmp_path / f"{epoch}.log" for epoch in range(LEADERS)]

    def acknowledged(epoch: int) -> list[int]:
        return [int(line) for line in logs[epoch].read_text().splitlines() if line != "fenced"]

    def led(process: ServerProcess, epoch: int) -> bool:
        assert process.is_running(), logs[epoch].read_text()
        return len(acknowledged(epoch)) > 2

    leaders: list[ServerProcess] = []
    try:
        for epoch in range(LEADERS):
            command = [sys.executable, "-m", "tests.kafka.test_zombie_leaders", root, str(epoch)]
            process = ServerProcess(command, log=logs[epoch], env={**os.environ, "PYTHONPATH": SOURCES})
            leaders.append(process)
            wait_until(partial(led, process, epoch), deadline_s=60, what=f"leader {epoch}")
            if epoch % 3 == 1:  # the one before was stopped in a copy, and goes on as a zombie
                leaders[-2].signal(signal.SIGCONT)
                assert leaders[-2].process.wait(60) == 0
                assert logs[epoch - 1].read_text().endswith("fenced\n")
            elif epoch % 3 == 2:  # the one before was deposed while it copied, and may not know it yet
                leaders[-2].kill()
                process.kill()
            else:
                process.signal(signal.SIGSTOP)
    finally:
        for process in leaders:
            process.kill()
    found = [(epoch, start) for epoch in range(LEADERS) for start in acknowledged(epoch)]
    assert len({start for _, start in found}) == len(found) >= 3 * LEADERS
    with chunkstore.open(root) as store:
        manager, storage = RemoteLogMetadataManager(store), RemoteStorageManager(store)
        for epoch, start in found:
            item = manager.remote_log_segment_metadata(PARTITION, epoch, start)
            assert item is not None
            assert item == manager.remote_log_segment_metadata(PARTITION, epoch, start + 9)
            with storage.fetch_log_segment(item, 0) as stream:
                assert stream.read() == log_of(start)


if __name__ == "__main__":
    lead(sys.argv[1], int(sys.argv[2]))
