"""Tables: rows with versions, scans, conditional changes, and many threads."""

from __future__ import annotations

import random

from chunkstore.errors import Conflict, InvalidArgument
from tests.support.data import refused, run_threads
from tests.support.worlds import World


def test_put_get_delete(world: World) -> None:
    store = world.open()
    table = store.table("t")
    assert table.get(b"k") is None
    table.put(b"k", b"one")
    first = table.get(b"k")
    assert first is not None and (first.key, first.value) == (b"k", b"one") and first.version > 0
    table.put(b"k", b"two")
    second = table.get(b"k")
    assert second is not None and second.value == b"two" and second.version > first.version
    table.delete(b"k")
    table.delete(b"k")
    assert table.get(b"k") is None
    table.put(b"k", b"")
    again = table.get(b"k")
    assert again is not None and again.value == b"" and again.version > second.version
    assert store.table("other").get(b"k") is None
    world.forget_cache()
    store.close()
    assert world.open().table("t").get(b"k") == again


def test_expected_versions(world: World) -> None:
    store = world.open()
    table = store.table("t")
    table.put(b"k", b"one", expected_version=0)
    entry = table.get(b"k")
    assert entry is not None
    version = entry.version
    refused(
        Conflict,
        lambda: table.put(b"k", b"two", expected_version=0),
        lambda: table.put(b"k", b"two", expected_version=version + 1),
        lambda: table.delete(b"k", expected_version=0),
        lambda: table.put(b"absent", b"x", expected_version=version),
        lambda: table.delete(b"absent", expected_version=1),
    )
    assert table.get(b"k") == entry
    table.delete(b"absent", expected_version=0)
    table.put(b"k", b"two", expected_version=entry.version)
    entry = table.get(b"k")
    assert entry is not None and entry.value == b"two"
    table.delete(b"k", expected_version=entry.version)
    assert table.get(b"k") is None
    try:
        table.put(b"k", b"x", expected_version=7)
    except Conflict as error:
        assert (error.expected, error.found) == (7, 0)


def test_scan(world: World) -> None:
    store = world.open()
    chance = random.Random(3)
    expected: dict[bytes, bytes] = {}
    for _ in range(150):
        key = bytes(chance.choice(b"\x00ab\xfe\xff") for _ in range(chance.randrange(1, 5)))
        expected[key] = chance.randbytes(5)
        store.table("t").put(key, expected[key])
    # Neighbours in the key space that must never show up.
    for other in ("s", "u", "t\x00", "tt", "!"[:0] + "T"):
        store.table(other).put(b"a", b"stranger")
        store.table(other).put(b"\xff\xff", b"stranger")
    table = store.table("t")
    for prefix in (b"", b"a", b"\x00", b"\xff", b"\xff\xff", b"\xfe\xff", b"ab", b"b\x00"):
        rows = [(entry.key, entry.value) for entry in table.scan(prefix)]
        assert rows == sorted((key, value) for key, value in expected.items() if key.startswith(prefix))
        for after in (b"", b"a", b"\xff", b"\x00\x00", b"b\xff\xff"):
            found = [entry.key for entry in table.scan(prefix, after=after)]
            assert found == sorted(key for key in expected if key.startswith(prefix) and key > after)
    # One view while iterating.
    rows_now = table.scan()
    first = next(rows_now)
    for key in list(expected):
        table.delete(key)
    assert [first.key, *(entry.key for entry in rows_now)] == sorted(expected)
    assert [*table.scan()] == []


def test_limits(world: World) -> None:
    store = world.open()
    longest = store.table("n" * 64)
    value = b"\xff" * ((1 << 20) - 64)
    longest.put(b"\xff" * 400, value)
    entry = longest.get(b"\xff" * 400)
    assert entry is not None and entry.value == value
    refused(
        InvalidArgument,
        lambda: store.table(""),
        lambda: store.table("n" * 65),
        lambda: store.table("ü" * 33),
        lambda: store.table("!writers"),
        lambda: longest.put(b"", b"x"),
        lambda: longest.put(b"x" * 401, b"x"),
        lambda: longest.put(b"k", value + b"x"),
        lambda: longest.put("k", b"x"),  # type: ignore[arg-type]
        lambda: longest.put(b"k", "x"),  # type: ignore[arg-type]
        lambda: longest.put(b"k", bytearray(b"x")),  # type: ignore[arg-type]
    )
    world.forget_cache()
    store.close()
    assert world.open().table("n" * 64).get(b"\xff" * 400) == entry


def test_conditional_increments_lose_nothing(world: World) -> None:
    store = world.open()
    rounds = 12

    def work(thread: int) -> None:
        table = store.table("t")
        for number in range(rounds):
            key = b"counter-%d" % (number % 2)
            while True:
                entry = table.get(key)
                value = 0 if entry is None else int(entry.value)
                try:
                    table.put(key, b"%d" % (value + 1), expected_version=0 if entry is None else entry.version)
                    break
                except Conflict:
                    continue

    run_threads(8, work)
    counters = [store.table("t").get(key) for key in (b"counter-0", b"counter-1")]
    assert [entry and int(entry.value) for entry in counters] == [4 * rounds, 4 * rounds]
