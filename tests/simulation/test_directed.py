"""What a death, a power cut and a failed sync take in the simulator. (The named schedules use everything else of it.)"""

from __future__ import annotations

from functools import partial

import pytest

from chunkstore.config import Settings
from chunkstore.errors import StorageUnavailable
from tests.simulation.scene import ALL, Scene, worlds
from tests.simulator import Process, World
from tests.simulator.posix import PosixBackend

SETTINGS = Settings(journal_mode="append", op_deadline_s=5, lease_s=0, inline_bytes_max=0)


@worlds(*ALL)
def test_finally_of_a_dead_process_reaches_nothing(scene: Scene) -> None:
    world = scene.world
    z = world.process("z")
    seen: list[str] = []

    def body() -> None:
        try:
            z.storage.stat("c/FORMAT")
        finally:
            seen.append("finally")
            z.storage.put("c/after-death", b"x")
            seen.append("a ghost wrote")

    z.start(body)
    z.until(op="stat")
    z.crash()
    assert seen == ["finally"]
    assert world.backend.content("c/after-death") is None
    with pytest.raises(AssertionError, match="virtual time"):
        world.run_until(lambda: False, at_most_s=1.0)


def test_unsynced_names_and_bytes_are_lost_apart() -> None:
    outcomes: set[object] = set()
    for seed in range(40):
        with World(seed, "posix", settings=SETTINGS) as world:
            z = world.process("z")

            def body(z: Process = z) -> None:
                handle = z.storage.create("c/file")
                z.storage.write(handle, 0, b"0123456789" * 20)

            z.run(body)
            world.machine().power_cut()
            found = world.backend.content("c/file")
            outcomes.add(None if found is None else "zeros" if found and not found.strip(b"\0") else len(found))
    assert None in outcomes, "a name that was not synced must get lost sometimes"
    assert 0 in outcomes, "bytes that were not synced must get lost sometimes"
    assert 200 in outcomes, "they must survive sometimes"
    assert any(isinstance(item, int) and 0 < item < 200 for item in outcomes), "and be torn sometimes"


def test_a_failed_fsync_is_told_to_whose_bytes_it_lost_and_lies_to_others() -> None:
    """Found by seed 400000979: a replica's fsync failed and took the owner's bytes with it. The owner's descriptor was open then, so Linux
    tells it (the model did not); whoever opens the file later hears that all is well."""
    lost = 0
    for seed in range(20):
        with World(seed, "posix", settings=SETTINGS) as world:
            assert isinstance(world.backend, PosixBackend)
            z, other = world.process("z"), world.process("other")
            handle = z.run(partial(z.storage.create, "c/file"))
            z.run(partial(z.storage.sync, ["c/file"]))
            z.run(partial(z.storage.write, handle, 0, b"abc"))
            world.backend.entries["c/file"].sync_fails()
            other.run(partial(other.storage.harden, "c/file"))
            assert z.run(partial(z.storage.read, handle, 0, 9)) == b"abc"
            for _ in range(2):
                assert isinstance(z.start(partial(z.storage.sync, ["c/file"])).failure(), StorageUnavailable)
            world.machine().power_cut()
            lost += world.backend.content("c/file") != b"abc"
    assert lost == 20
