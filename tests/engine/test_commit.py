"""``store.commit``: several changes in one record, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chunkstore.changes import (
    Append,
    Attach,
    Change,
    Concat,
    Create,
    Delete,
    EndSession,
    Seal,
    TableDelete,
    TablePut,
    Truncate,
    Unseal,
    UpdateAttributes,
)
from chunkstore.changes.sessions import SessionChunk
from chunkstore.config import RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Conflict,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
)
from tests.support.data import pattern, problems, refused
from tests.support.worlds import World

SMALL = RollingPolicy(chunk_size_bytes_max=4)


def everything(store: ChunkedSegmentStorage) -> object:
    """All that can be seen, but labels."""
    segments = [
        (
            info.name, info.id, info.start_offset, info.length, info.sealed, info.attributes, info.chunk_count,
            store.read(info.name, info.start_offset, 1 << 20),
        )
        for info in store.segments()
    ]  # fmt: skip
    return segments, [*store.table("t").scan()]


def prepare(store: ChunkedSegmentStorage) -> None:
    for name in ("a", "b", "sealed"):
        store.create(name, rolling=SMALL)
        store.append(name, pattern(0, 10))
    store.create("empty")
    store.seal("sealed")
    store.truncate("b", 3)
    store.table("t").put(b"k", b"v")


def test_mixed_changes(world: World) -> None:
    store = world.open()
    world.still(store)
    prepare(store)
    entry = store.table("t").get(b"k")
    assert entry is not None
    lsn = store._container.current.journal.head.lsn
    results = store.commit(
        [
            Create("new", SMALL, {"made": "here"}),
            Append("new", pattern(0, 6), 0),
            Append("new", bytearray(pattern(6, 3)), 6),
            Append("a", memoryview(pattern(10, 7))),
            Seal("new"),
            Concat("a", "new", 17),
            Concat("empty", "sealed"),
            Append("empty", b"tail", 10),
            Truncate("b", 10),
            Append("b", b"x", 10),
            UpdateAttributes("b", {"n": 1}, {"n": None}),
            TablePut("t", b"k", b"new", entry.version),
            TablePut("t", b"k2", b"v2", 0),
            Create("gone"),
            Append("gone", b"12345"),
            Delete("gone"),
            Create("gone", attributes={"again": 1}),
        ]
    )
    assert results == [None, 0, 6, 10, None, None, None, 10, None, 10, *[None] * 4, 0, None, None]
    assert store._container.current.journal.head.lsn == lsn + 1
    expected = {
        "a": pattern(0, 17) + pattern(0, 9),
        "b": b"x",
        "empty": pattern(0, 10) + b"tail",
        "gone": b"",
    }
    for _ in range(2):
        assert {info.name: store.read(info.name, info.start_offset, 99) for info in store.segments()} == expected
        assert store.info("b").attributes == {"n": 1} and store.info("gone").attributes == {"again": 1}
        rows = [*store.table("t").scan()]
        assert [(row.key, row.value) for row in rows] == [(b"k", b"new"), (b"k2", b"v2")]
        assert rows[0].version == rows[1].version == lsn + 1
        assert problems(store.check("deep")) == []
        world.forget_cache()
        store.close()
        store = world.open()


REFUSED: list[tuple[type[ChunkstoreError], Change]] = [
    (SegmentExists, Create("a")),
    (SegmentNotFound, Append("missing", b"x")),
    (SegmentSealed, Append("sealed", b"x")),
    (BadOffset, Append("a", b"x", 9)),
    (SegmentNotFound, Seal("missing")),
    (SegmentNotSealed, Unseal("b")),
    (BadOffset, Truncate("b", 11)),
    (SegmentNotFound, Truncate("missing", 0)),
    (SegmentNotSealed, Concat("a", "b")),
    (SegmentTruncated, Concat("a", "truncated")),
    (BadOffset, Concat("a", "sealed", 9)),
    (SegmentSealed, Concat("sealed", "truncated")),
    (BadOffset, Concat("a", "sealed", 11)),
    (SegmentNotFound, Concat("missing", "sealed")),
    (SegmentNotFound, Concat("a", "missing")),
    (InvalidArgument, Concat("a", "a")),
    (SegmentNotFound, Delete("missing")),
    (Conflict, UpdateAttributes("a", {"n": 1}, {"n": 5})),
    (Conflict, TablePut("t", b"k", b"x", 0)),
    (Conflict, TableDelete("t", b"k", 999)),
    (Conflict, EndSession(12345)),
    (Conflict, Attach("a", 12345, (SessionChunk(bytes.fromhex("8000000000003039") + bytes(20), 1, 0),))),
]


@pytest.mark.parametrize("position", ["first", "last"])
def test_one_failing_change_changes_nothing(world: World, position: str) -> None:
    store = world.open()
    world.still(store)
    prepare(store)
    store.create("truncated")
    store.append("truncated", b"123")
    store.truncate("truncated", 1)
    store.seal("truncated")
    before = everything(store)
    lsn = store._container.current.journal.head.lsn
    fine: list[Change] = [
        Append("a", pattern(10, 9)),
        Create("new", SMALL),
        Append("new", b"0123456789"),
        Truncate("b", 9),
        TablePut("t", b"k9", b"v9"),
        TableDelete("t", b"k8"),
        UpdateAttributes("b", {"x": 1}),
    ]
    for error, change in REFUSED:
        changes: Sequence[Change] = [change, *fine] if position == "first" else [*fine, change]
        refused(error, lambda: store.commit(changes))  # noqa: B023
        assert everything(store) == before, change
    assert store._container.current.journal.head.lsn == lsn
    assert problems(store.check("deep")) == []
    # What a refused commit planned must not stay in the pending state either.
    assert store.append("a", pattern(10, 3)) == 10
    assert store.commit(fine[1:]) == [None, 0, *[None] * 4]
    assert store.read("a", 0, 99) == pattern(0, 13)
    world.forget_cache()
    store.close()
    store = world.open()
    assert store.read("new", 0, 99) == b"0123456789"
    assert problems(store.check("deep")) == []


def test_the_same_table_row_twice(world: World) -> None:
    store = world.open()
    store.commit(
        [TablePut("t", b"k", b"1"), TablePut("t", b"k", b"2"), TablePut("t", b"l", b"1"), TableDelete("t", b"l")]
    )
    assert [(row.key, row.value) for row in store.table("t").scan()] == [(b"k", b"2")]
    refused(
        InvalidArgument,
        lambda: store.commit([TablePut("t", b"k", b"3"), TablePut("t", b"k", b"4", 0)]),
        lambda: store.commit([TablePut("t", b"m", b"3", 0), TablePut("t", b"m", b"4")]),
        lambda: store.commit([TablePut("t", b"m", b"3", 0), TableDelete("t", b"m")]),
        # Deleting what is not there changes nothing, and is mentioned all the same.
        lambda: store.commit([TableDelete("t", b"m"), TablePut("t", b"m", b"4", 0)]),
    )
    assert [(row.key, row.value) for row in store.table("t").scan()] == [(b"k", b"2")]


def test_limits(world: World) -> None:
    store = world.open()
    refused(
        InvalidArgument,
        lambda: store.commit([TablePut("t", b"k", b"v")] * 10_001),
        lambda: store.commit("changes"),  # type: ignore[arg-type]
        lambda: store.commit({Seal("a")}),  # type: ignore[arg-type]
        lambda: store.commit(iter(())),  # type: ignore[arg-type]
        lambda: store.commit([("append", "a", b"x")]),  # type: ignore[list-item]
    )
    store.commit([Create(f"{number:04}") for number in range(2_000)])
    store.commit([Delete(f"{number:04}") for number in range(2_000)])
    assert [*store.segments()] == []
    assert problems(store.check("deep")) == []


def test_a_commit_too_long_for_a_record_is_refused_and_harms_nobody(world: World) -> None:
    store = world.open()
    store.create("a")
    epoch = store.epoch
    value = b"\xff" * ((1 << 20) - 64)
    with pytest.raises(InvalidArgument):
        store.commit([Append("a", b"x"), *(TablePut("t", b"%d" % number, value) for number in range(17))])
    assert store.append("a", b"y") == 0
    assert store.read("a", 0, 9) == b"y" and store.epoch == epoch
    assert [*store.table("t").scan()] == []
    store.commit([TablePut("t", b"%d" % number, value) for number in range(12)])
    assert len([*store.table("t").scan()]) == 12
    assert problems(store.check("deep")) == []
