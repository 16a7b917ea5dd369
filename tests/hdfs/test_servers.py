"""A store on a real Hadoop whose servers die, fill up, fall silent or are slow; and processes that fight over one container."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests

import chunkstore
from chunkstore import changes
from chunkstore.assembly import open_store_on
from chunkstore.config import RollingPolicy, Settings
from chunkstore.errors import OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.storage import ChunkHandle, ConcatArgument
from chunkstore_bindings.hdfs import HdfsChunkStorage, open_hdfs
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from tests.faults.ground import FULL_RUN
from tests.faults.test_two_owners import Duel
from tests.support.alone import alone
from tests.support.data import fails_in_time, pattern
from tests.support.hdfs_wire import HdfsWire
from tests.support.real_servers import (
    Writer,
    check_command_line,
    check_demonstration,
    check_small_appends,
    finish,
    until_all_have,
)
from tests.support.servers.hdfs import HdfsCluster

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


def settings(tmp_path: Path, **changes: Any) -> Settings:
    chosen: dict[str, Any] = {
        "cache_dir": str(tmp_path / "cache"),
        "op_deadline_s": 60.0,
        "lmdb_map_bytes": 1 << 26,
        "default_rolling": RollingPolicy(chunk_size_bytes_max=2_000),
        **changes,
    }
    return Settings(**chosen)


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


def test_a_data_node_without_room_is_full(hdfs: HdfsCluster) -> None:
    storage = HdfsChunkStorage(hdfs.root(), deadline_s=60)
    storage.create("a", b"there")
    hdfs.kill("datanode")
    # All but a mebibyte, which no block fits in.
    hdfs.configuration["dfs.datanode.du.reserved"] = shutil.disk_usage(hdfs.folder).total - (1 << 20)
    hdfs.restart("datanode", takes_files=False)
    try:
        with pytest.raises(StorageFull):
            storage.create_if_absent("b", b"x")
        assert storage.read(ChunkHandle("a", False), 0, 10) == b"there"
    finally:
        hdfs.kill("datanode")
        hdfs.configuration["dfs.datanode.du.reserved"] = 0
        hdfs.restart("datanode")
    assert storage.create_if_absent("b", b"x")
    storage.close()


def test_who_may_not_write(hdfs: HdfsCluster) -> None:
    with pytest.raises(StorageUnavailable, match="user=NAME"):
        chunkstore.open(hdfs.root() + "?user=nobody-special")


def test_joining_in_the_name_node_alone(hdfs: HdfsCluster) -> None:
    storage = HdfsChunkStorage(hdfs.root() + "?concat=consume", deadline_s=60)
    parts = [pattern(0, size, size) for size in (100, 1, 5_000)]
    for number, part in enumerate(parts):
        storage.create(f"f/{number}", part)
    arguments = [ConcatArgument(f"f/{number}", len(part)) for number, part in enumerate(parts)]
    assert storage.concat(arguments) == 5_101
    assert storage.read(ChunkHandle("f/0", False), 0, 10_000) == b"".join(parts)
    assert [item.name for item in storage.list().items] == ["f/0"]
    storage.close()


# The network


@pytest.fixture
def wire(hdfs: HdfsCluster) -> Any:
    with HdfsWire(hdfs.port, hdfs.datanode_port) as wire:
        yield wire


def test_silence_ends_at_the_deadline(hdfs: HdfsCluster, wire: HdfsWire) -> None:
    patient = wire.storage("/silence", Settings(op_deadline_s=60))
    storage = wire.storage("/silence", Settings(op_deadline_s=1.5))
    handle = patient.create("a", b"0123")
    for proxy in (wire.namenode, wire.datanode):
        proxy.set(black_hole=True)
        calls = lambda: storage.create_if_absent("c", b"x"), lambda: storage.read(handle, 0, 4)
        fails_in_time(StorageUnavailable, *calls, at_once=True)
        proxy.heal()
        proxy.reset_connections()
    assert patient.read(handle, 0, 4) == b"0123"
    assert patient.create_if_absent("c", b"x") in (True, False)
    storage.close()
    patient.close()


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


def test_a_slow_link_is_only_slow(hdfs: HdfsCluster, wire: HdfsWire) -> None:
    storage = wire.storage("/slow", Settings(op_deadline_s=60))
    data = pattern(0, 200_000)
    for proxy in (wire.namenode, wire.datanode):
        proxy.set(latency_s=0.02, rate_bytes_s=200_000)
    handle = storage.create("a", data)
    assert storage.read(handle, 0, 1 << 20) == data
    storage.close()


@pytest.mark.parametrize(("op", "at_datanode"), [("RENAME", False), ("CREATE", True)])
def test_real_replies_lost(hdfs: HdfsCluster, wire: HdfsWire, op: str, at_datanode: bool) -> None:
    storage = wire.storage(f"/lost-{op}", Settings(op_deadline_s=60))
    rule = wire.lose_reply(op, at_datanode=at_datanode)
    if op == "RENAME":
        assert storage.create_if_absent("b", b"mine") is True
    else:
        with pytest.raises(StorageUnavailable):
            storage.create_if_absent("b", b"mine")
    assert rule.fired == 1
    assert storage.create_if_absent("b", b"mine") is (op == "CREATE")
    storage.close()


# Costs


def test_a_group_commit_costs_one_record_and_its_data(hdfs: HdfsCluster, tmp_path: Path) -> None:
    inner = open_hdfs(hdfs.root(), Settings())
    storage = MeteredChunkStorage(inner)
    store = open_store_on(storage, settings=settings(tmp_path, lease_s=0.0, inline_bytes_max=0))
    names = [f"s{number}" for number in range(6)]
    for name in names:
        store.create(name)
        store.append(name, b"first")
    alone(store)
    with storage.counting() as cost:
        store.commit([changes.Append(name, b"second") for name in names])
    # D + 1 and one look at our own claim; nothing is listed and nothing is read.
    assert cost.requests == {"create": 6, "create_if_absent": 1, "identity": 1}
    store.close()
    storage.close()


def test_what_each_call_costs_in_requests(hdfs: HdfsCluster) -> None:
    storage = open_hdfs(hdfs.root(), Settings())
    sent: list[str] = []
    send = storage._rest.session.send

    def counted(request: requests.PreparedRequest, **more: Any) -> requests.Response:
        sent.append(dict(parse_qsl(urlsplit(str(request.url)).query))["op"])
        return send(request, **more)

    storage._rest.session.send = counted  # type: ignore[method-assign]

    def cost(call: Callable[[], object]) -> list[str]:
        sent.clear()
        call()
        return list(sent)

    storage.create("d/first", b"x")
    handle = ChunkHandle("d/a", True)
    create = ["CREATE", "CREATE", "GETFILESTATUS", "RENAME"]
    assert cost(lambda: storage.create_if_absent("d/a", b"x")) == create
    assert cost(lambda: storage.create_if_absent("d/a", b"x")) == [*create, "DELETE"]
    assert cost(lambda: storage.put("d/hint", b"x")) == create
    assert cost(lambda: storage.create("d/e/a", b"x")) == [*create, "MKDIRS", "RENAME"]
    # The first name of a container: its folder is made, held and looked at, and that of its temporaries is made and looked through.
    held = ["GETFILESTATUS", "MKDIRS", "GETFILESTATUS", "GETFILESTATUS", "MKDIRS", "LISTSTATUS_BATCH"]
    assert cost(lambda: storage.create("new/a", b"x")) == [*held, *create]
    assert cost(lambda: storage.read(handle, 0, 1)) == ["OPEN", "OPEN"]
    assert cost(lambda: storage.read(handle, 0, 2)) == ["OPEN", "OPEN", "GETFILESTATUS"]
    assert cost(lambda: storage.exists("d/a")) == ["GETFILESTATUS"]
    assert cost(lambda: storage.sync(["d/a"])) == []
    assert cost(lambda: storage.harden("d/a")) == ["GET_BLOCK_LOCATIONS"]
    assert cost(lambda: storage.list("d/e/")) == ["LISTSTATUS_BATCH"]
    assert cost(lambda: storage.delete("d/a")) == ["GETFILESTATUS", "DELETE"]
    storage.close()


# Processes


def test_two_processes_and_zombies(
    hdfs: HdfsCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("CHUNKSTORE_SEED", "0")) or random.randrange(1 << 30)
    print(f"CHUNKSTORE_SEED={seed}")
    rounds = 60 if FULL_RUN else 3
    duel = Duel(tmp_path, "slot", seed, root=hdfs.root(), busy_s=1.0)
    try:
        kinds = duel.run(rounds)
    finally:
        duel.close()
    verdict = duel.verify()
    assert len(verdict.acknowledged) > rounds
    record_property("rounds", rounds)
    print(f"{kinds}, {len(verdict.acknowledged)} acknowledged, {len(verdict.unknown)} unknown")


def test_small_appends(hdfs: HdfsCluster, tmp_path: Path) -> None:
    check_small_appends(hdfs.root(), tmp_path)


def test_the_command_line(hdfs: HdfsCluster, tmp_path: Path) -> None:
    check_command_line(hdfs.root(), tmp_path)


if FULL_RUN:
    # On disk and on S3 it plays in every run.
    def test_the_demonstration(hdfs: HdfsCluster, tmp_path: Path) -> None:
        check_demonstration(hdfs.root(), tmp_path)
