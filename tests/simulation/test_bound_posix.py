"""The file system binding over a simulated kernel: what a power cut leaves of folders, and what short calls and failed syncs come to."""

from __future__ import annotations

from functools import partial

import pytest

from chunkstore.errors import StorageFull, StorageUnavailable
from chunkstore.storage import ChunkRange
from tests.simulator import Process, World
from tests.simulator.bound_posix import BoundPosixBackend
from tests.simulator.faults import Weather


def test_what_the_binding_has_acknowledged_survives_every_power_cut() -> None:
    for seed in range(40):
        with World(seed, "posix", bindings=True) as world:
            z = world.process("z")

            def body(z: Process = z) -> None:
                storage = z.storage
                assert storage.create_if_absent("c/new/deep/claim", b"mine")
                storage.put("c/new/hint", b"there")
                handle = storage.create("c/other/log")
                storage.write(handle, 0, b"0123456789" * 20)
                storage.sync(["c/other/log"])
                storage.compose("c/joined/chunk", [ChunkRange("c/other/log", 5, 150), ChunkRange("c/new/hint", 0, 5)])

            z.run(body)
            world.machine().power_cut()
            backend = world.backend
            assert backend.content("c/new/deep/claim") == b"mine"
            assert backend.content("c/new/hint") == b"there"
            assert backend.content("c/other/log") == b"0123456789" * 20
            assert backend.content("c/joined/chunk") == (b"0123456789" * 20)[5:155] + b"there"


@pytest.mark.parametrize("weather", [Weather(), Weather(short_write=0.3)], ids=["fine", "short"])
def test_a_power_cut_in_the_midst_of_composing_leaves_all_of_the_chunk_or_nothing(weather: Weather) -> None:
    parts = [b"one" * 40, b"two" * 40]
    found: set[bytes | None] = set()
    ended = 0
    for step in range(40):
        with World(step, "posix", bindings=True, weather=weather) as world:
            z = world.process("z")
            for number, part in enumerate(parts):
                z.run(partial(z.storage.create_if_absent, f"c/{number}", part))
            ranges = [ChunkRange(f"c/{number}", 3, 100) for number in range(2)]
            world.faults.active = True
            gate = z.gate(skip=step)
            job = z.start(partial(z.storage.compose, "c/new", ranges))
            world.run_until(lambda gate=gate, job=job: gate.call is not None or job.done)  # type: ignore[misc]
            world.machine().power_cut()
            found.add(world.backend.content("c/new"))
            assert [world.backend.content(f"c/{number}") for number in range(2)] == parts
            ended += gate.call is None
    assert found == {None, b"".join(part[3:103] for part in parts)}
    assert 0 < ended < 35  # the others were cut off


def test_short_reads_and_short_writes_are_gone_on_with() -> None:
    weather = Weather(short_write=0.5)
    done = 0
    for seed in range(30):
        with World(seed, "posix", bindings=True, weather=weather) as world:
            z = world.process("z")
            world.faults.active = True

            def body(z: Process = z) -> bytes:
                handle = z.storage.create("c/file")
                z.storage.write(handle, 0, b"0123456789" * 20)
                return z.storage.read(handle, 0, 1000)

            job = z.start(body)
            try:
                assert job.result() == b"0123456789" * 20
                done += 1
            except StorageFull:
                pass  # in the midst of it
    assert done > 10


def test_a_failed_sync_is_told_to_each_descriptor_once_and_lies_to_later_ones() -> None:
    with World(1, "posix", bindings=True) as world:
        assert isinstance(world.backend, BoundPosixBackend)
        z, other = world.process("z"), world.process("other")
        handle = z.run(partial(z.storage.create, "c/file"))
        z.run(partial(z.storage.sync, ["c/file"]))
        z.run(partial(z.storage.write, handle, 0, b"abc"))
        world.backend.kernel.file("/simulated/c/file").sync_fails()
        other.run(partial(other.storage.harden, "c/file"))
        for _ in range(2):
            assert isinstance(z.start(partial(z.storage.sync, ["c/file"])).failure(), StorageUnavailable)
        world.machine().power_cut()
        assert world.backend.content("c/file") != b"abc"
