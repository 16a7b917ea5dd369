"""The engine on Ceph's gateway: a server killed in the middle of commits, processes that fight for a container, the command line."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import Settings
from tests.chaos.harness import Fight
from tests.faults.ground import FULL_RUN
from tests.support.data import problems
from tests.support.real_servers import (
    Writer,
    check_command_line,
    finish,
    until_all_have,
)
from tests.support.servers.running import running
from tests.support.servers.s3server import S3Server

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@pytest.fixture
def durable(s3_environment: None) -> Iterator[Any]:
    """A gateway of this test's own that keeps what it has acknowledged."""
    yield from running("rgw", "Rgw", "bluestore")


VICTIMS = [("rgw",), ("mon", "osd", "rgw"), *([("osd", "rgw"), ("osd",)] if FULL_RUN else [])]


def test_kill_9_of_the_server_in_the_middle_of_commits(durable: Any, tmp_path: Path) -> None:
    root = durable.root(durable.make_bucket(), "k", read_timeout_s=5)
    settings = Settings(cache_dir=str(tmp_path / "cache"), lease_s=0, op_deadline_s=60)
    store = chunkstore.open(root, settings=settings)
    writers = [Writer(store, f"s{number}") for number in range(3)]
    chance = random.Random(1)
    for victims in VICTIMS * (2 if FULL_RUN else 1):
        time.sleep(chance.uniform(0.3, 0.8))
        durable.kill(*victims)
        time.sleep(chance.uniform(0.0, 0.5))
        durable.restart()
        until_all_have(writers, 3)
    finish(writers)
    store.close()
    for cache in ("cache", "elsewhere"):
        with chunkstore.open(root, settings=Settings(cache_dir=str(tmp_path / cache), lease_s=0)) as heir:
            assert problems(heir.check("deep")) == []
            for writer in writers:
                writer.verify(heir)


def test_processes_that_fight(rgw: S3Server, tmp_path: Path) -> None:
    """Live owners, zombies (SIGSTOP, then SIGCONT after the take-over) and killed ones, as on file systems."""
    rounds = 4  # of seed 1: one, one and two of them
    fight = Fight(tmp_path, "slot", 1, root=rgw.root(rgw.make_bucket()), busy_s=0.3)
    try:
        fight.run(rounds)
    finally:
        fight.close()
    kinds = fight.kinds
    assert kinds["live"] and kinds["zombie"] and kinds["killed"], kinds
    verdict, wrong = fight.verify()
    assert wrong == []
    assert len(verdict.acknowledged) > rounds


def test_the_command_line(rgw: S3Server, tmp_path: Path) -> None:
    check_command_line(rgw.root(rgw.make_bucket(), "cli"), tmp_path)
