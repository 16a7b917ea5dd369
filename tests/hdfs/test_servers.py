"""A store on a real Hadoop whose servers die, fill up, fall silent or are slow; and processes that fight over one container."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import RollingPolicy, Settings
from chunkstore.errors import OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.storage import ChunkHandle
from tests.chaos.harness import Fight
from tests.faults.ground import FULL_RUN
from tests.support.data import fails_in_time, pattern
from tests.support.hdfs_wire import HdfsWire
from tests.support.real_servers import (
    Writer,
    check_command_line,
    finish,
    until_all_have,
)
from tests.support.servers.hdfs import HdfsCluster
from tests.support.settings import tuned

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


def settings(tmp_path: Path, **changes: Any) -> Settings:
    chosen: dict[str, Any] = {
        "cache_dir": str(tmp_path / "cache"),
        "op_deadline_s": 60.0,
        "lmdb_map_bytes": 1 << 26,
        "default_rolling": RollingPolicy(chunk_size_bytes_max=2_000),
        **changes,
    }
    return tuned(**chosen)


def test_kill_9_of_both_servers_in_the_middle_of_commits(hdfs: HdfsCluster, tmp_path: Path) -> None:
    root = hdfs.root()
    with chunkstore.open(root, settings=settings(tmp_path)) as store:
        writers = [Writer(store, f"w{number}") for number in range(4)]
        for _ in range(3 if FULL_RUN else 1):
            until_all_have(writers, 6)
            hdfs.kill()
            hdfs.restart()
        until_all_have(writers, 3)
        finish(writers)
        for writer in writers:
            writer.verify(store)
    with chunkstore.open(root, settings=settings(tmp_path / "elsewhere")) as store:
        for writer in writers:
            writer.verify(store)
        assert store.check("deep") == []


def test_a_data_node_that_is_dead(hdfs: HdfsCluster, tmp_path: Path) -> None:
    root = hdfs.root()
    with chunkstore.open(
        root, settings=settings(tmp_path, retry_s_max=1.0, op_deadline_s=600.0, inline_bytes_max=0)
    ) as store:
        store.create("a")
        store.append("a", b"before")
        hdfs.kill("datanode")
        try:
            calls = lambda: store.append("a", b"lost"), lambda: store.read("a", 0, 10)
            fails_in_time((StorageUnavailable, OutcomeUnknown), *calls)
            assert store.info("a").length == 6
        finally:
            hdfs.restart("datanode")
        deadline = time.monotonic() + 300
        while True:
            try:
                offset = store.append("a", b" after", expected_offset=6)
                break
            except (StorageUnavailable, OutcomeUnknown):
                assert time.monotonic() < deadline
        assert offset == 6
        assert store.read("a", 0, 100) == b"before after"


def test_a_quota_and_its_end(hdfs: HdfsCluster, tmp_path: Path) -> None:
    root = hdfs.root("quota") + "?block_size_bytes=1048576"
    with chunkstore.open(root, settings=settings(tmp_path)) as store:
        store.create("a")
        store.append("a", b"before")
        hdfs.set_quota("/quota", size_bytes=1 << 20)
        with pytest.raises(StorageFull):
            store.append("a", pattern(0, 3_000))
        hdfs.set_quota("/quota")
        assert store.append("a", b" after") == 6
        assert store.read("a", 0, 100) == b"before after"
        hdfs.set_quota("/quota", names=1)
        with pytest.raises(StorageFull):
            store.create("b")
        hdfs.set_quota("/quota")
        store.create("b")
        assert store.check("deep") == []


# The network


@pytest.fixture
def wire(hdfs: HdfsCluster) -> Any:
    with HdfsWire(hdfs.port, hdfs.datanode_port) as wire:
        yield wire


def test_a_client_that_dies_in_a_body_leaves_no_chunk(hdfs: HdfsCluster, wire: HdfsWire) -> None:
    """The real data node closes the temporary as a shorter file; the name never appears, and later attempts succeed."""
    storage = wire.storage("/torn", Settings(op_deadline_s=60))
    data = pattern(0, 1 << 20)
    wire.datanode.set(cut_after_bytes=300_000)
    with pytest.raises(StorageUnavailable):
        storage.create_if_absent("a", data)
    wire.datanode.heal()
    assert not storage.exists("a")
    assert storage.create_if_absent("a", data)
    assert storage.read(ChunkHandle("a", False), 0, 2 << 20) == data
    storage.close()


# Costs


# Processes


def test_two_processes_and_zombies(
    hdfs: HdfsCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("CHUNKSTORE_SEED", "0")) or random.randrange(1 << 30)
    print(f"CHUNKSTORE_SEED={seed}")
    rounds = 3
    fight = Fight(tmp_path, "slot", seed, root=hdfs.root(), busy_s=1.0)
    try:
        fight.run(rounds)
    finally:
        fight.close()
    verdict, wrong = fight.verify()
    assert wrong == []
    assert len(verdict.acknowledged) > rounds
    record_property("rounds", rounds)
    print(f"{fight.kinds}, {len(verdict.acknowledged)} acknowledged, {verdict.unknown} unknown")


def test_the_command_line(hdfs: HdfsCluster, tmp_path: Path) -> None:
    check_command_line(hdfs.root(), tmp_path)
