"""Appends whose bytes travel in the journal's record: every verb over extents, in both journal modes (protocol 3.7)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chunkstore.changes import Append, Concat, Create, Seal, TablePut
from chunkstore.config import KIB, LIMITS, MIB
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    BadOffset,
    InvalidArgument,
    SegmentSealed,
    SegmentTruncated,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.journal import Batch, JournalBroken
from chunkstore.operations.pending import PendingOp
from tests.support.data import pattern, problems, run_threads
from tests.support.worlds import World

LIMIT = 100


@pytest.fixture
def store(world: World) -> ChunkedSegmentStorage:
    """What of it goes into records stays there."""
    return inline(world)


def inline(world: World, **more: Any) -> ChunkedSegmentStorage:
    return world.open(**{"inline_bytes_max": LIMIT, "spill_s": 3600.0, "gc_grace_s": 0.0, **more})


def kinds(store: ChunkedSegmentStorage, name: str) -> list[tuple[str, int]]:
    return [(chunk.kind, chunk.length) for chunk in store.layout(name)]


def mixed(store: ChunkedSegmentStorage, name: str) -> bytes:
    """A segment of chunk, extent, extent, chunk, extent; its bytes."""
    store.create(name)
    sizes = (LIMIT + 1, 7, LIMIT, 4 * LIMIT + 1, 3)
    offset = 0
    for size in sizes:
        store.append(name, pattern(offset, size))
        offset += size
    assert [kind for kind, _ in kinds(store, name)] == ["object", "inline", "inline", "object", "inline"]
    return pattern(0, offset)


def reopened(world: World, store: ChunkedSegmentStorage, killed: bool) -> ChunkedSegmentStorage:
    """The next owner, on another machine. Behind a kill in APPEND mode the last record lives on in its OPEN."""
    if killed:
        world.crash(store)
    else:
        store.close()
    world.forget_cache()
    return inline(world)


def test_what_is_above_the_limit_goes_to_a_chunk(world: World, store: ChunkedSegmentStorage) -> None:
    store.create("a")
    sizes = (LIMIT + 1, LIMIT, 4 * LIMIT + 1)
    for size in sizes:
        store.append("a", bytes(size))
    assert kinds(store, "a") == [("object", LIMIT + 1), ("inline", LIMIT), ("object", 4 * LIMIT + 1)]
    assert len(world.chunks()) == 2, "an extent has no object of its own"


@pytest.mark.parametrize("commits", [False, True], ids=["append", "commit"])
def test_behind_extents_the_limit_is_higher_where_storages_append(
    world: World, store: ChunkedSegmentStorage, commits: bool
) -> None:
    """Or small and large appends by turns would leave a chunk for each large one: none can grow behind bytes that are not in it."""

    def append(size: int) -> None:
        if commits:
            store.commit([Append("a", bytes(size))])
        else:
            store.append("a", bytes(size))

    appends = world.appends
    store.create("a")
    for _ in range(10):
        append(10)
        append(4 * LIMIT)
    assert [kind for kind, _ in kinds(store, "a")] == (["inline"] * 20 if appends else ["inline", "object"] * 10)
    store.spill(["a"])
    if appends:
        assert kinds(store, "a") == [("object", 10 * (4 * LIMIT + 10))]
        append(LIMIT + 1)
        assert kinds(store, "a")[-1] == ("object", LIMIT + 1), "behind a chunk it is what it was"


def test_every_range_of_a_mixed_segment_reads_the_same(world: World, store: ChunkedSegmentStorage) -> None:
    data = mixed(store, "a")
    borders = [0, 1, LIMIT, LIMIT + 1, LIMIT + 8, 2 * LIMIT + 8, 3 * LIMIT, len(data) - 4, len(data) - 3, len(data)]
    for source in ("memory", "journal"):
        for start in borders:
            for stop in borders:
                if start < stop:
                    assert store.read("a", start, stop - start) == data[start:stop], (source, start, stop)
        assert problems(store.check("deep")) == []
        store = reopened(world, store, True)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_the_next_owner_goes_on_behind_extents(world: World, store: ChunkedSegmentStorage, killed: bool) -> None:
    data = mixed(store, "a")
    again = reopened(world, store, killed)
    replica = world.replica()
    replica.refresh()
    assert again.read("a", 0, 999) == data == replica.read("a", 0, 999)
    again.append("a", b"more")
    replica.refresh()
    assert again.read("a", 0, 999) == data + b"more" == replica.read("a", 0, 999)
    third = reopened(world, again, not killed)
    assert third.read("a", 0, 999) == data + b"more"
    assert problems(third.check("deep")) == []


def test_numbers_offsets_and_conditions_are_those_of_any_append(world: World, store: ChunkedSegmentStorage) -> None:
    store.create("a")
    assert store.append("a", b"one", writer_id=b"w", event_number=1) == 0
    assert store.append("a", b"two", writer_id=b"w", event_number=2) == 3
    assert store.append("a", b"two", writer_id=b"w", event_number=2) == 3, "answered again"
    with pytest.raises(BadOffset):
        store.append("a", b"x", expected_offset=5)
    assert store.append("a", b"x", expected_offset=6) == 6
    store.write("a", 7, b"y")
    with pytest.raises(BadOffset):
        store.write("a", 7, b"y")
    again = reopened(world, store, True)
    assert again.last_event_number("a", b"w") == 2
    assert again.append("a", b"two", writer_id=b"w", event_number=2) == 3
    assert again.read("a", 0, 99) == b"onetwoxy"


def test_what_is_committed_with_them_is_there_with_them(world: World, store: ChunkedSegmentStorage) -> None:
    store.create("a")
    store.append("a", b"in a record, ")
    store.commit([Append("a", b"with a row"), TablePut("t", b"k", b"v")])
    store.update_attributes("a", {"n": 1})
    again = reopened(world, store, True)
    row = again.table("t").get(b"k")
    assert (again.read("a", 0, 99), row and row.value) == (b"in a record, with a row", b"v")
    assert again.info("a").attributes == {"n": 1}


def together(store: ChunkedSegmentStorage, count: int, work: Callable[[int], object]) -> list[int]:
    """Call ``work(0)``, and ``work(1)`` to ``work(count)`` while its record is under way. The bytes of extents in each record."""
    started, waiting, entered, sizes = threading.Event(), threading.Event(), itertools.count(), list[int]()
    queue = store._container.current.queue
    build, enter = queue._environment.build, queue.enter

    def slow(batch: Sequence[PendingOp], lsn: int) -> Batch:
        started.set()
        assert waiting.wait(60)
        built = build(batch, lsn)
        sizes.append(len(built.blob))
        return built

    def counted(op: PendingOp) -> None:
        enter(op)
        if next(entered) == count:
            waiting.set()

    def call(number: int) -> None:
        assert number == 0 or started.wait(60)
        work(number)

    queue._environment = queue._environment._replace(build=slow)
    queue.enter = counted  # type: ignore[method-assign]
    run_threads(count + 1, call)
    return sizes


def test_a_batch_of_one_segment_is_one_extent(world: World, store: ChunkedSegmentStorage) -> None:
    store.create("a")
    assert together(store, 8, lambda number: store.append("a", b"%d" % number * 10)) == [10, 80]
    assert kinds(store, "a") == [("inline", 10), ("inline", 80)]
    data = store.read("a", 0, 999)
    assert sorted(data[at : at + 10] for at in range(0, 90, 10)) == [b"%d" % number * 10 for number in range(9)]
    assert problems(store.check("deep")) == []


def test_batches_stay_in_their_limit(world: World) -> None:
    """More than 4 MiB that wait together are several records."""
    store, size = inline(world, inline_bytes_max=64 * KIB), 64 * KIB
    for name in ("a", "b", "c"):
        store.create(name)
    sizes = together(store, 80, lambda number: store.append("abc"[number % 3], bytes([number]) * size))
    assert sum(sizes) == 81 * size and max(sizes) <= LIMITS.batch_bytes_max and len(sizes) >= 3
    found = b"".join(store.read(name, at, 1) for name in ("a", "b", "c") for at in range(0, 27 * size, size))
    assert sorted(found) == list(range(81))
    assert problems(store.check("deep")) == []


def test_a_cut_in_the_middle_of_an_extent(world: World, store: ChunkedSegmentStorage) -> None:
    data = mixed(store, "a")
    for start in (LIMIT + 4, LIMIT + 8 + 50, len(data) - 1):
        store.truncate("a", start)
        assert store.read("a", start, 999) == data[start:]
        with pytest.raises(SegmentTruncated):
            store.read("a", start - 1, 1)
        store.collect()
        assert problems(store.check("deep")) == []
    again = reopened(world, store, True)
    assert again.read("a", len(data) - 1, 99) == data[-1:]
    again.truncate("a", len(data))
    again.append("a", b"and on")
    assert again.read("a", len(data), 99) == b"and on"


@pytest.mark.parametrize("spilled", [False, True])
def test_concat_of_segments_with_extents(world: World, store: ChunkedSegmentStorage, spilled: bool) -> None:
    data = mixed(store, "target")
    store.create("source")
    for piece in (b"ab", bytes(LIMIT + 2), b"cd"):
        store.append("source", piece)
    store.commit([Seal("source")])  # a seal in a commit leaves them for later
    store.concat("target", len(data), "source")
    data += b"ab" + bytes(LIMIT + 2) + b"cd"
    store.append("target", b"ef")
    assert store.read("target", 0, 9999) == data + b"ef"
    if spilled:
        store._spiller.spill_all("target")
        assert {kind for kind, _ in kinds(store, "target")} == {"object"}
    again = reopened(world, store, True)
    assert again.read("target", 0, 9999) == data + b"ef"
    assert problems(again.check("deep")) == []


def test_what_is_appended_behind_a_concat_of_the_same_commit_is_an_extent_of_its_own(
    world: World, store: ChunkedSegmentStorage
) -> None:
    """Added to the source's extent, it was taken for bytes of the target's one by who keeps a record's bytes in memory."""
    replica = world.replica()
    for name in ("a", "b"):
        store.create(name)
    store.commit([Append("b", b"xxxx"), Append("a", b"wwww"), Seal("b"), Concat("a", "b"), Append("a", b"yy")])
    store.table("rows").put(b"k", b"the last record counts when one stands behind it")
    expected = b"wwwwxxxxyy"
    replica.refresh()
    for shown in (store, replica):
        assert [shown.read("a", offset, 2) for offset in range(len(expected))] == [
            expected[offset : offset + 2] for offset in range(len(expected))
        ]
    store.spill()
    assert store.read("a", 0, 99) == expected
    assert problems(store.check("deep")) == []


def test_sealing_spills(world: World, store: ChunkedSegmentStorage) -> None:
    data = mixed(store, "a")
    store.seal("a")
    assert {kind for kind, _ in kinds(store, "a")} == {"object"}
    with pytest.raises(SegmentSealed):
        store.append("a", b"x")
    store.unseal("a")
    store.append("a", b"x")
    assert store.read("a", 0, 999) == data + b"x"
    assert problems(store.check("deep")) == []


def test_a_pin_keeps_what_extents_held(world: World, store: ChunkedSegmentStorage) -> None:
    """Removed, spilled and collected since: the moment of the pin can be read, from the journal."""
    data = mixed(store, "a")
    mixed(store, "b")
    pin = store.pin("kept")
    store.delete("b")
    store._spiller.spill_all("a")
    store.snapshot()
    again = reopened(world, store, True)
    again.snapshot()
    again.collect()
    again.collect()
    past = world.replica(at_lsn=pin.lsn)
    assert past.read("a", 0, 999) == data == past.read("b", 0, 999)
    assert problems(again.check("deep")) == []


def test_the_quota_counts_them(world: World) -> None:
    store = inline(world, quota_bytes=250)
    store.create("a")
    for _ in range(2):
        store.append("a", bytes(LIMIT))
    before = world.objects("default/j/"), store._container.current.journal.head.lsn
    with pytest.raises(StorageFull, match="quota_bytes=250"):
        store.append("a", bytes(51))
    assert (world.objects("default/j/"), store._container.current.journal.head.lsn) == before, "before anything counts"
    store.append("a", bytes(48))
    with pytest.raises(StorageFull):
        store.append("a", b"abc")
    assert store.usage().safe_mode
    store._spiller.spill_all("a")  # finds the space that the quota keeps
    assert {kind for kind, _ in kinds(store, "a")} == {"object"}
    assert (store.info("a").length, problems(store.check("deep"))) == (248, [])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"inline_bytes_max": 64 * KIB + 1}, "inline_bytes_max must be None or a whole number from 0 to 65536"),
        ({"inline_bytes_max": -1}, "inline_bytes_max"),
        ({"inline_bytes_max": 1.0}, "inline_bytes_max"),
        ({"inline_bytes_max": True}, "inline_bytes_max"),
        ({"spill_bytes": 0}, "spill_bytes must be None or a whole number from 1 to"),
        ({"spill_bytes": 1 << 40}, "spill_bytes"),
        ({"spill_s": -0.1}, "spill_s must be None or a number from 0 to"),
        ({"spill_s": "1"}, "spill_s"),
        ({"inline_rows_max": 0}, "inline_rows_max must be a number from 1 to"),
        ({"tail_cache_bytes": -1}, "tail_cache_bytes must be a number from 0 to"),
    ],
)
def test_settings_out_of_range_are_refused_when_they_are_built(world: World, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        world.settings(**wrong)
    assert caught.value.argument == next(iter(wrong))


def test_what_a_take_over_could_not_hold_is_refused(world: World) -> None:
    """An OPEN holds the last record, and besides a row for each of its extents."""
    store = inline(world, inline_bytes_max=None)
    names = [f"s{number}" for number in range(LIMITS.batch_ops_max)]
    for begin in range(0, len(names), 1000):
        store.commit([Create(name, attributes={"a": "x" * 770}) for name in names[begin : begin + 1000]])
    store.commit([Append(name, b"first") for name in names])
    with pytest.raises(InvalidArgument, match="split the operation"):
        store.commit([Append(name, bytes(413)) for name in names])
    store.commit([Append(name, bytes(250)) for name in names])
    world.crash(store)
    world.forget_cache()
    again = inline(world)
    assert {again.info(name).length for name in names} == {5 + 250}
    assert again.read(names[7], 0, 999) == b"first" + bytes(250)


def test_limits_fit_into_a_record(world: World) -> None:
    assert 64 * KIB < LIMITS.batch_bytes_max == 4 * MIB < LIMITS.record_bytes_max - MIB


def test_small_appends_of_a_commit_are_one_extent_of_each_segment(world: World) -> None:
    store = inline(world)
    for name in ("a", "b", "c"):
        store.create(name)
    store.append("b", b"before")
    offsets = store.commit(
        [*(Append("a", pattern(5 * i, 5)) for i in range(8)), Append("b", b"!"), Append("c", bytes(LIMIT + 1))]
    )
    assert offsets == [*range(0, 40, 5), 6, 0]
    assert kinds(store, "a") == [("inline", 40)]
    assert kinds(store, "b") == [("inline", 6), ("inline", 1)]
    assert kinds(store, "c") == [("object", LIMIT + 1)]
    assert store.read("a", 0, 40) == pattern(0, 40)
    store.append("a", b"more")
    assert kinds(store, "a") == [("inline", 40), ("inline", 4)], "what is in a record does not grow"
    store = reopened(world, store, killed=True)
    assert store.read("a", 0, 44) == pattern(0, 40) + b"more"
    assert store.read("b", 0, 7) == b"before!"
    assert problems(store.check("deep")) == []


def test_bytes_of_a_record_that_failed_are_nobodys_to_read(world: World) -> None:
    """Not from memory either: other bytes stand at that offset by then."""
    with world.open(inline_bytes_max=None, spill_s=3600.0) as store:
        store.create("log")
        store.append("log", b"before;")
        journal = store._container.current.journal

        def broken(_batch: object) -> None:
            raise JournalBroken(StorageUnavailable("planted", object="log"), happened=False)

        journal.append = broken  # type: ignore[assignment, method-assign]
        with pytest.raises(StorageUnavailable):
            store.append("log", b"what failed;")
        assert store.read("log", 0, 100) == b"before;"
        assert store.append("log", b"kept;") == 7
        assert store.read("log", 0, 100) == b"before;kept;"
        assert store.read("log", 7, 3) == b"kep"
