"""Politeness, and making and refusing containers (protocol A13, A15, 2.2)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from chunkstore import runtime
from chunkstore.config import Settings
from chunkstore.errors import ContainerBusy, ContainerNotFound, Damaged, Unsupported
from chunkstore.journal import LeaseInfo, Ownership
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_journal.container import check_writable, create_container, list_containers, read_format
from chunkstore_journal.lease import wait_politely
from chunkstore_journal.objects import encode_format, encode_lease
from tests.journal.world import Process, World

NAMES = ContainerNames("orders")


def lease(world: World, counter: int, *, host: str = "elsewhere", pid: int = 1, released: bool = False) -> None:
    world.storage.put(world.names.lease, encode_lease(LeaseInfo(1, counter, host, pid, "boot", released)))


def polite(process: Process, patience_s: float = 0.0) -> Ownership:
    seen = wait_politely(process.wire, process.world.names, process.settings, patience_s)
    return process.service.take_over(own=None, lease=seen)


def test_a_silent_owner_is_followed_after_the_wait(memory_world: World) -> None:
    world = memory_world
    world.process().open()
    lease(world, 1)
    unknown = Settings(journal_mode=world.mode, lease_s=0)
    ownership = polite(world.process(settings=unknown), 0.05)
    assert ownership.journal.epoch == 2


@pytest.mark.parametrize("alive", [True, False])
def test_an_idle_owner_is_watched_for_more_than_two_leases(
    memory_world: World, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    """It moves its lease only."""
    world = memory_world
    world.process().open()
    lease(world, 1)
    slept: list[float] = []
    now_s = runtime.monotonic_s()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if alive and sum(slept) > 5.4:  # its period of 5 s, a little late
            lease(world, 2)

    monkeypatch.setattr(runtime, "monotonic_s", lambda: now_s + sum(slept))
    monkeypatch.setattr(runtime, "sleep_s", sleep)
    claimant = world.process(settings=Settings(journal_mode=world.mode, lease_s=5))
    if alive:
        with pytest.raises(ContainerBusy):
            polite(claimant)
        return
    assert polite(claimant).journal.epoch == 2
    assert 10.9 < sum(slept) < 11.1


@pytest.mark.parametrize("sign", ["lease", "commit"])
def test_a_live_owner_is_not_pushed_aside(memory_world: World, sign: str) -> None:
    world = memory_world
    owner = world.process().open()
    lease(world, 1)
    claimant = world.process()
    looks = 0

    def live(operation: str, name: str) -> None:
        nonlocal looks
        if operation == "read" and name == world.names.lease:
            looks += 1
            if looks == 2:
                if sign == "lease":
                    lease(world, 2)
                else:
                    owner.put("alive")

    claimant.wire.before = live
    with pytest.raises(ContainerBusy) as raised:
        polite(claimant)
    assert (raised.value.container, raised.value.host, raised.value.pid) == ("orders", "elsewhere", 1)
    owner.put("still mine")
    assert claimant.service.take_over(own=None).journal.epoch == 2


def test_no_wait_for_the_released_the_dead_and_the_unreadable(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("chunkstore_journal.lease.paced_s")  # no pause comes without it
    world = memory_world
    owner = world.process().open()
    owner.service.renew_lease(1, released=False)
    found = world.process().service.read_lease()
    assert found is not None
    assert (found.epoch, found.pid, found.released) == (1, os.getpid(), False)
    owner.service.renew_lease(1, released=True)
    assert polite(world.process()).journal.epoch == 2
    # A pid that cannot exist on this host, in this boot.
    world.storage.put(world.names.lease, encode_lease(found._replace(pid=(1 << 22) + 1)))
    assert polite(world.process()).journal.epoch == 3
    world.storage.put(world.names.lease, b"garbage")
    assert polite(world.process()).journal.epoch == 4


@pytest.mark.parametrize(
    "boot_id", ["another-boot/4026531836", "{boot}/1", ""], ids=["machine", "namespace", "unknown"]
)
def test_a_process_number_of_another_boot_or_pid_namespace_proves_nothing(memory_world: World, boot_id: str) -> None:
    """Two machines and two containers may have one host name: the lease is watched."""
    world = memory_world
    owner = world.process().open()
    owner.service.renew_lease(1, released=False)
    found = world.process().service.read_lease()
    assert found is not None
    gone = found._replace(pid=(1 << 22) + 1, boot_id=boot_id.format(boot=found.boot_id.partition("/")[0]))
    world.storage.put(world.names.lease, encode_lease(gone))
    claimant = world.process()

    def live(operation: str, name: str) -> None:
        if name == world.names.lease:
            owner.put("alive")

    claimant.wire.before = live
    with pytest.raises(ContainerBusy):
        polite(claimant)


def test_a_container_is_made_once(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path, medium="ext4")
    with pytest.raises(ContainerNotFound):
        read_format(storage, NAMES)
    probed: list[str] = []

    def probe(_where: ChunkStorage, prefix: str) -> Mapping[str, int]:
        probed.append(prefix)
        return {"winners": 1}

    made = create_container(storage, NAMES, Settings(), probe=probe)
    assert made.mode == "append"
    assert made.probe == {"winners": 1}
    assert probed == ["orders/tmp/"]
    assert create_container(storage, NAMES, Settings(journal_mode="slot")) == made
    assert read_format(storage, NAMES) == made


def test_journal_modes(tmp_path: Path) -> None:
    nfs = FilesystemChunkStorage(tmp_path, medium="nfs4")
    assert create_container(nfs, ContainerNames("a"), Settings()).mode == "slot"
    aloud = create_container(nfs, ContainerNames("b"), Settings(journal_mode="append"))
    assert aloud.mode == "append"
    with pytest.raises(Unsupported, match="nfs4"):
        check_writable(nfs, aloud, Settings())
    check_writable(nfs, aloud, Settings(journal_mode="append"))
    slots = MemoryChunkStorage(f"memory://{tmp_path.name}", append=False)
    assert create_container(slots, ContainerNames("c"), Settings()).mode == "slot"
    with pytest.raises(Unsupported):
        create_container(slots, ContainerNames("d"), Settings(journal_mode="append"))


def test_a_damaged_or_foreign_format(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path, medium="ext4")
    made = create_container(storage, NAMES, Settings())
    storage.put("other/FORMAT", encode_format(made))
    with pytest.raises(Damaged):
        read_format(storage, ContainerNames("other"))
    for version, remedy in ((99, "version 99; .* Upgrade it"), (1, "version 1; .* make a new container")):
        storage.put(NAMES.format, encode_format(made._replace(version=version)))
        with pytest.raises(Unsupported, match=remedy):
            read_format(storage, NAMES)
    storage.put(NAMES.format, b"x")
    with pytest.raises(Damaged):
        read_format(storage, NAMES)


def test_listing_containers(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path, medium="ext4")
    for name in ("a", "a-b", "b", "c"):
        create_container(storage, ContainerNames(name), Settings())
    storage.create_if_absent("b0/stray", b"x")
    storage.create_if_absent("loose", b"x")
    for i in range(5):
        storage.create_if_absent(f"a/z/{i}", b"x")
    assert sorted(list_containers(storage)) == ["a", "a-b", "b", "c"]
