"""Reading across chunks, into buffers of every shape, in parallel, and beside changes."""

from __future__ import annotations

import array
import random

from chunkstore.config import MIB
from chunkstore.errors import InvalidArgument
from tests.support.data import pattern, refused, run_threads
from tests.support.worlds import World


def test_buffers(world: World) -> None:
    store = world.open(rolling=7)
    store.create("a")
    store.append("a", pattern(0, 64))
    plain = bytearray(64)
    assert store.read_into("a", 0, plain) == 64 and plain == pattern(0, 64)
    part = bytearray(64)
    assert store.read_into("a", 5, memoryview(part)[10:30]) == 20
    assert part == bytes(10) + pattern(5, 20) + bytes(34)
    numbers = array.array("I", [0] * 5)
    assert store.read_into("a", 3, memoryview(numbers)) == 20 and numbers.tobytes() == pattern(3, 20)
    doubles = array.array("d", [0.0] * 8)
    assert store.read_into("a", 0, memoryview(doubles)) == 64 and doubles.tobytes() == pattern(0, 64)
    table = memoryview(bytearray(24)).cast("B", (4, 6))
    assert store.read_into("a", 1, table) == 24 and table.tobytes() == pattern(1, 24)
    assert store.read_into("a", 0, memoryview(array.array("d"))) == 0
    short = bytearray(b"." * 10)
    assert store.read_into("a", 60, short) == 4 and short == pattern(60, 4) + b"......"
    refused(
        InvalidArgument,
        lambda: store.read_into("a", 0, memoryview(b"readonly")),
        lambda: store.read_into("a", 0, b"bytes"),  # type: ignore[arg-type]
        lambda: store.read_into("a", 0, memoryview(bytearray(20))[::2]),
        lambda: store.read_into("a", 0, numbers),  # type: ignore[arg-type]
        lambda: store.read_into("a", 0, 20),  # type: ignore[arg-type]
        lambda: store.read("a", 0, 1.0),  # type: ignore[arg-type]
        lambda: store.read("a", True, 1),
    )


def test_a_wild_length_costs_nothing(world: World) -> None:
    store = world.open()
    store.create("a")
    store.append("a", b"data")
    assert store.read("a", 0, 1 << 62) == b"data"
    assert store.read("a", 4, 1 << 62) == b""


def test_large_reads_in_parallel(world: World) -> None:
    store = world.open(rolling=5 * MIB, parallel_read_bytes_min=8 * MIB)
    store.create("a")
    size = 18 * MIB
    data = random.Random(1).randbytes(size)
    store.append("a", data[: 11 * MIB])
    store.append("a", data[11 * MIB :])
    for offset, length in ((0, size), (1, 8 * MIB), (3 * MIB + 5, 12 * MIB), (size - 8 * MIB, 9 * MIB)):
        assert store.read("a", offset, length) == data[offset : offset + length]
    buffer = bytearray(size)

    def work(thread: int) -> None:
        view = memoryview(buffer)[thread * size // 2 : (thread + 1) * size // 2]
        assert store.read_into("a", thread * size // 2, view) == len(view)

    run_threads(2, work)
    assert buffer == data
    assert store.check("deep") == []
