"""Reading what lies in the journal's records: from memory, and many extents to a read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from chunkstore.changes import Append
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import StorageUnavailable
from chunkstore.metadata.port import Commit
from chunkstore.storage import ChunkStorage
from tests.support.data import pattern
from tests.support.forwarding import Forwarding, T
from tests.support.worlds import World

INLINE: dict[str, Any] = {"inline_bytes_max": None, "spill_bytes": 1 << 30, "spill_s": 3600.0, "free_bytes_min": 0}


class Reads(Forwarding):
    """Keeps the names of what is read, and fails what ``fails`` says."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.names: list[str] = []
        self.fails: Callable[[str, tuple[str, ...]], bool] = lambda _operation, _names: False

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        if self.fails(operation, tuple(names)):
            raise StorageUnavailable("planted", object=names[0])
        if operation == "read":
            self.names += names
        return call()


def opened(world: World, **settings: Any) -> tuple[ChunkedSegmentStorage, Reads]:
    made: list[Reads] = []

    def wrap(inner: ChunkStorage) -> ChunkStorage:
        made.append(Reads(inner))
        return made[-1]

    store = world.open(wrap=wrap, **{**INLINE, **settings})
    world.still(store)
    return store, made[-1]


def fill(store: ChunkedSegmentStorage, name: str, count: int, size: int = 10) -> bytes:
    """Append ``count`` records of some ``size`` bytes behind what is there; all that was appended to it."""
    begin = store.info(name).length
    for number in range(count):
        store.append(name, pattern(begin + number * size, size))
    return pattern(0, begin + count * size)


@pytest.mark.parametrize("tail_cache_bytes", [0, 3_000, 1 << 20])
def test_any_range_after_anything(world: World, tail_cache_bytes: int) -> None:
    """Extents of several epochs, chunks between them, concats, truncations, spills, segments made again."""
    chance = random.Random(tail_cache_bytes)
    store, _ = opened(world, tail_cache_bytes=tail_cache_bytes, inline_bytes_max=40, rolling=200)
    expected: dict[str, tuple[int, bytes]] = {}
    for step in range(120):
        name = chance.choice("abc")
        start, data = expected.get(name, (0, b""))
        what = chance.choice(["append"] * 8 + ["chunk", "truncate", "concat", "delete", "spill", "open", "elsewhere"])
        if name not in expected:
            store.create(name)
            expected[name] = 0, b""
        elif what in ("append", "chunk"):
            more = chance.randbytes(chance.randrange(1, 41) if what == "append" else 60)
            store.append(name, more)
            expected[name] = start, data + more
        elif what == "truncate":
            at = chance.randrange(start, len(data) + 1)
            store.truncate(name, at)
            expected[name] = at, data
        elif what == "delete":
            store.delete(name)
            del expected[name]
        elif what == "concat":
            other = next((key for key, (begin, _) in expected.items() if key != name and not begin), None)
            if other is not None:
                store.seal(other)
                store.concat(name, len(data), other)
                expected[name] = start, data + expected.pop(other)[1]
        elif what == "spill":
            store._spiller.spill_all(name)
        else:
            store.close()
            if what == "elsewhere":
                world.forget_cache()
            store, _ = opened(world, tail_cache_bytes=tail_cache_bytes, inline_bytes_max=40, rolling=200)
        for key, (begin, content) in expected.items():
            low = chance.randrange(begin, len(content) + 1)
            length = chance.randrange(len(content) + 2)
            assert store.read(key, low, length) == content[low : low + length], (step, what)
            buffer = bytearray(length)
            assert store.read_into(key, low, buffer) == len(content[low : low + length])
            assert buffer.startswith(content[low : low + length])
    replica = world.replica()
    for key, (begin, content) in expected.items():
        assert store.read(key, begin, 1 << 20) == content[begin:] == replica.read(key, begin, 1 << 20)
    assert store.check("deep") == []


def test_memory_holds_nothing_of_an_append_before_it_is_committed(world: World) -> None:
    """The first write of its record fails, and the next epoch decides what became of it."""
    store, reads = opened(world)
    store.create("a")
    data = fill(store, "a", 3)
    identity = store.info("a").id
    held: list[object] = []

    def fails(operation: str, names: tuple[str, ...]) -> bool:
        if held or operation not in ("write", "create_if_absent") or "/j/" not in names[0]:
            return False
        held.append(store._container.tail.find(identity, 30, 1))
        return True

    reads.fails = fails
    with suppress(StorageUnavailable):
        store.append("a", b"once")
    assert held == [None]
    store.append("a", pattern(30, 10))
    (there,) = {world.replica(tail_cache_bytes=0).read("a", 0, 99), store.read("a", 0, 99)}
    assert there.startswith(data) and there.endswith(pattern(30, 10)) and there[30:-10] in (b"", b"once")


def follower(world: World, **settings: Any) -> tuple[Replica, Reads]:
    made: list[Reads] = []

    def wrap(inner: ChunkStorage) -> ChunkStorage:
        made.append(Reads(inner))
        return made[-1]

    return world.replica(wrap=wrap, **{**INLINE, **settings}), made[-1]


@pytest.mark.parametrize("by_line", [True, False])
def test_a_replica_keeps_nothing_that_its_row_does_not_confirm(world: World, by_line: bool) -> None:
    store, _ = opened(world)
    store.create("a")
    replica, _ = follower(world)
    tail = replica._context.tail
    assert tail is not None
    identity = store.info("a").id
    if by_line:
        store.append("a", b"0123456789")
    else:
        store.commit([Append("a", b"0123456789")])
    keep = replica._follower._keep  # type: ignore[attr-defined]
    seen: list[tuple[Commit, bytes]] = []
    replica._follower._keep = lambda commit, payload: seen.append((commit, payload))  # type: ignore[attr-defined]
    replica.refresh()
    ((commit, payload),) = [item for item in seen if item[0].ops or item[0].lines]
    unconfirmed = commit._replace(rows=())
    if commit.lines is not None:
        (line,) = commit.lines.lines
        unconfirmed = commit._replace(lines=commit.lines._replace(lines=[line._replace(crc32c=line.crc32c ^ 1)]))
    assert tail.find(identity, 0, 10) is None
    keep(commit, payload.replace(b"0123", b"0124"))
    assert tail.find(identity, 0, 10) is None
    keep(unconfirmed, payload)
    assert tail.find(identity, 0, 10) is None
    keep(commit, payload)
    assert tail.find(identity, 0, 10) == [b"0123456789"]
