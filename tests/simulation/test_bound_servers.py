"""The bindings of S3 and HDFS over simulated servers in bad weather: one creator, whole bodies, checked bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from chunkstore.errors import Damaged, StorageUnavailable
from tests.simulator import Process, World
from tests.simulator.faults import Weather
from tests.simulator.s3 import Object, S3Backend
from tests.simulator.world import StorageKind

SERVERS = pytest.mark.parametrize("kind", ["s3", "hdfs"])
WEATHER = {
    "s3": Weather(lost_reply=0.1, late_apply=0.05, unavailable=0.05, conflict=0.2, duplicate=0.1),
    "hdfs": Weather(lost_reply=0.03, late_apply=0.02, unavailable=0.02, duplicate=0.05),
}


def answer_of(call: Callable[[], bool]) -> bool | None:
    """None: unknown."""
    try:
        return call()
    except StorageUnavailable:
        return None


@SERVERS
def test_a_name_has_one_creator_whatever_gets_lost(kind: StorageKind) -> None:
    decided = 0
    for seed in range(12):
        with World(seed, kind, bindings=True, weather=WEATHER[kind]) as world:
            names = [f"c/x/{number}" for number in range(6)]
            first, second = world.process("first"), world.process("second", "elsewhere")
            world.faults.active = True

            def create(process: Process, names: list[str] = names) -> list[bool | None]:
                storage = process.storage
                # The second half of the names gets the same bytes from both: then only the token tells whose they are.
                bodies = [process.name.encode()] * 3 + [b"same"] * 3
                pairs = zip(names, bodies, strict=True)
                return [answer_of(partial(storage.create_if_absent, name, body)) for name, body in pairs]

            jobs = [process.start(partial(create, process)) for process in (first, second)]
            mine, theirs = (job.result() for job in jobs)
            world.faults.clear_up()
            world.advance(60)
            for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
                found = world.backend.content(names[number])
                assert not (one and other), f"seed {seed}: two created {names[number]}"
                assert (one, other) != (False, False), f"seed {seed}: nobody created {names[number]}"
                if one or other:
                    decided += 1
                    assert found == (b"same" if number >= 3 else b"first" if one else b"second")
    assert decided > 40


@SERVERS
def test_a_body_that_ends_early_is_read_again(kind: StorageKind) -> None:
    data = bytes(range(250)) * 4
    done = 0
    for seed in range(10):
        with World(seed, kind, bindings=True, weather=Weather(lost_reply=0.2)) as world:
            z = world.process("z")
            handle = z.run(partial(z.storage.create, "c/x", data))
            world.faults.active = True
            for offset in range(0, 1000, 250):
                job = z.start(partial(z.storage.read, handle, offset, 300)).run_to_end()
                assert job.value in (None, data[offset : offset + 300])
                done += job.value is not None
    assert done > 20


def test_bytes_that_rot_on_the_server_are_not_given_out() -> None:
    with World(1, "s3", bindings=True) as world:
        assert isinstance(world.backend, S3Backend)
        z = world.process("z")
        handle = z.run(partial(z.storage.create, "c/x", b"as it was written"))
        found = world.backend.get("c/x")
        world.backend.objects["c/x"] = Object(b"as it was Written", found.modified_ns, found.headers)
        assert isinstance(z.start(partial(z.storage.read, handle, 0, 100)).failure(), Damaged)


def test_pieces_of_two_versions_are_not_put_together() -> None:
    size, more = 17 << 20, 1 << 20
    with World(1, "s3", bindings=True) as world:
        z, other = world.process("z"), world.process("other")
        z.run(partial(z.storage.put, "c/x", b"o" * (size + more)))
        handle = z.run(partial(z.storage.open_read, "c/x"))
        buffer = bytearray(size)
        job = z.start(partial(z.storage.read_into, handle, 0, buffer))
        held = z.until(step="GET", skip=1)
        other.run(partial(other.storage.put, "c/x", b"n" * (size + more)))
        held.release()
        assert job.result() == size
        assert buffer in (b"o" * size, b"n" * size)
