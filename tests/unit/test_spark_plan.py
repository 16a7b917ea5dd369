"""Planning and reading for Spark without Spark: which bytes go to which task, and what a task makes of them."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import chunkstore
from chunkstore import blocks
from chunkstore.config import Settings
from chunkstore.errors import (
    ChunkNotFound,
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
    SegmentTruncated,
    Unsupported,
)
from chunkstore.pulsar import Block, LedgerRange
from chunkstore.registry import open_storage
from chunkstore.spark.pieces import PieceReader
from chunkstore.spark.plan import plan_read
from chunkstore.spark.runs import ROW_BYTES, ReadTask, share
from chunkstore.storage import ChunkStorage
from tests.support.data import pattern
from tests.support.spark_ground import MIB, Ground, filled, flip


def read_rows(tasks: Sequence[ReadTask]) -> list[tuple[str, int, bytes]]:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's batches are not tested")
    from chunkstore.spark.batches import Column, read_task

    rows: list[tuple[str, int, bytes]] = []
    for task in tasks:
        arrived = pickle.loads(pickle.dumps(task))
        for batch in read_task(arrived, [Column("segment"), Column("offset"), Column("value")]):
            batch.validate(full=True)
            assert batch.nbytes < 2 * MIB
            rows += [(row["segment"], row["offset"], row["value"]) for row in batch.to_pylist()]
    return rows


def check_bytes(rows: Sequence[tuple[str, int, bytes]], segment: str, start: int, expected: bytes) -> None:
    """The rows of a segment are its bytes, in order, without holes."""
    position = start
    for name, offset, value in rows:
        if name == segment:
            assert offset == position
            assert 1 <= len(value) <= ROW_BYTES
            position += len(value)
    assert b"".join(value for name, _, value in rows if name == segment) == expected


def ends_verified(tasks: Sequence[ReadTask]) -> Counter[str]:
    """How many tasks verify the end of each chunk."""
    return Counter(
        piece.chunk
        for task in tasks
        for run in task.runs
        for piece in run.pieces
        if piece.borders is not None and piece.stop == piece.length
    )


# Sharing out


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("sizes", [[], [5], [1] * 20, [100, 1, 1, 1], [1, 1, 1, 100], [3, 9, 2, 7, 7, 1, 30, 2]])
def test_shares_are_neighbours_and_none_is_empty(sizes: list[int], parts: int) -> None:
    groups = share(sizes, parts)
    assert len(groups) == min(parts, len(sizes))
    assert [index for begin, end in groups for index in range(begin, end)] == list(range(len(sizes)))
    assert all(begin < end for begin, end in groups)


# Raw segments


@pytest.mark.parametrize("option", ["segmentsPattern", "topicsPattern"])
def test_a_pattern_without_a_match_is_refused(ground: Ground, option: str) -> None:
    ground.open().close()
    options = replace(ground.options(), segments_pattern="x.*")
    if option == "topicsPattern":
        options = replace(ground.options(), topics_pattern="x.*")
    with ground.replica() as replica, pytest.raises(InvalidArgument, match="matches none") as caught:
        plan_read(replica, options, lambda *_: [])
    assert caught.value.argument == option


def test_several_segments_come_in_the_order_asked_for(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "a", 5 * MIB + 123, 2 * MIB, seed=1)
        filled(store, "b", 1000, 100, seed=2)
        filled(store, "c", 1, MIB, seed=3)
    rows = read_rows(ground.plan("b", "c", "a"))
    assert list(dict.fromkeys(row[0] for row in rows)) == ["b", "c", "a"]
    check_bytes(rows, "a", 0, pattern(0, 5 * MIB + 123, 1))
    check_bytes(rows, "b", 0, pattern(0, 1000, 2))
    check_bytes(rows, "c", 0, pattern(0, 1, 3))
    assert len([row for row in rows if row[0] == "b"]) == 10, "a row never spans two chunks"
    assert [row[1] for row in rows if row[0] == "a"] == [0, MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB]


def test_small_chunks_share_batches_and_partitions(ground: Ground) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's batches are not tested")
    from chunkstore.spark.batches import Column, read_task

    with ground.open() as store:
        filled(store, "a", 3 * MIB, 10_000)
    [task] = ground.plan("a")
    batches = list(read_task(task, [Column("value", nullable=False), Column("offset")]))
    assert len(batches) == 4
    assert batches[0].schema.names == ["value", "offset"]
    assert not batches[0].schema.field("value").nullable
    assert all(batch.schema.equals(batches[0].schema) for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 315


@pytest.mark.parametrize("min_partitions", [1, 3, 40])
def test_a_truncated_segment_begins_at_its_start(ground: Ground, min_partitions: int) -> None:
    start = 2 * MIB + MIB // 2 + 7
    with ground.open() as store:
        filled(store, "a", 10 * MIB, 4 * MIB)
        store.truncate("a", start)
    tasks = ground.plan("a", min_partitions=min_partitions)
    rows = read_rows(tasks)
    check_bytes(rows, "a", start, pattern(start, 10 * MIB - start))
    expected = [start, *range(3 * MIB, 10 * MIB, MIB)]
    assert [row[1] for row in rows] == expected, "rows end at multiples of 1 MiB of their chunk"
    assert set(ends_verified(tasks).values()) == {1}
    assert len(ends_verified(tasks)) == 3


def test_concat_is_read_in_order(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "a", 3000, 1000, seed=1)
        filled(store, "b", 2500, 1000, seed=2)
        store.truncate("a", 1500)
        store.seal("b")
        store.concat("a", 3000, "b")
    rows = read_rows(ground.plan("a"))
    check_bytes(rows, "a", 1500, pattern(1500, 1500, 1) + pattern(0, 2500, 2))


@pytest.mark.parametrize("min_partitions", [1, 2, 3, 5, 8, 13, 100])
def test_as_many_partitions_as_asked_for_and_the_same_rows(ground: Ground, min_partitions: int) -> None:
    with ground.open() as store:
        filled(store, "a", 9 * MIB + 5, 5 * MIB)
        filled(store, "b", 3 * MIB, 3 * MIB)
    tasks = ground.plan("a", "b", min_partitions=min_partitions)
    assert len(tasks) == min(min_partitions, 13), "ten rows and three rows: more partitions than rows cannot be"
    rows = read_rows(tasks)
    assert [row[:2] for row in rows] == [
        *(("a", offset) for offset in range(0, 9 * MIB + 5, MIB)),
        *(("b", offset) for offset in range(0, 3 * MIB, MIB)),
    ]
    check_bytes(rows, "a", 0, pattern(0, 9 * MIB + 5))
    assert set(ends_verified(tasks).values()) == {1}
    assert len(ends_verified(tasks)) == 3


def test_columns_without_bytes_need_no_storage(ground: Ground) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's batches are not tested")
    from chunkstore.spark.batches import Column, read_task

    with ground.open() as store:
        filled(store, "a", 3 * MIB + 1, 2 * MIB)
        store.truncate("a", 5)
    [task] = ground.plan("a")

    def refuse(root: str, settings: Settings) -> ChunkStorage:
        raise AssertionError(root)

    [batch] = read_task(task, [Column("offset")], open_root=refuse)
    assert batch.column("offset").to_pylist() == [5, MIB, 2 * MIB, 3 * MIB]


def test_tasks_need_no_metadata(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with ground.open() as store:
        filled(store, "a", 1000, 100)
    tasks = ground.plan("a")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an executor opened metadata")

    monkeypatch.setattr("chunkstore.metadata.lmdb.LmdbMetadataCache.__init__", refuse)
    monkeypatch.setattr("chunkstore_journal.container.read_format", refuse)
    check_bytes(read_rows(tasks), "a", 0, pattern(0, 1000))


def test_a_missing_segment_is_named(ground: Ground) -> None:
    with ground.open() as store:
        store.create("a")
    with pytest.raises(SegmentNotFound) as caught:
        ground.plan("a", "b")
    assert caught.value.segment == "b"


def test_a_replica_that_moves_is_not_planned_from(ground: Ground) -> None:
    with ground.open() as store, ground.replica() as replica:
        filled(store, "a", 10, 10)

        def planner(_replica: object, _topic: str, _ledgers: object, _blocks: object) -> list[LedgerRange]:
            replica.refresh()
            return []

        with pytest.raises(Conflict):
            plan_read(replica, ground.options(topic="t"), planner)


def test_other_kinds_of_chunks_are_refused(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "a", 10, 10)
    with ground.replica() as replica:
        chunks = [chunk._replace(kind="cold") for chunk in replica.layout("a")]
        replica.layout = lambda segment: iter(chunks)  # type: ignore[method-assign]
        with pytest.raises(Unsupported, match="cold"):
            plan_read(replica, ground.options("a"))


# Damage


@pytest.mark.parametrize("min_partitions", [1, 4])
@pytest.mark.parametrize("at", [0, 3 * MIB, 4 * MIB - 1])
def test_a_flipped_bit_anywhere_is_found(ground: Ground, min_partitions: int, at: int) -> None:
    with ground.open() as store:
        filled(store, "a", 4 * MIB, 4 * MIB)
        [chunk] = store.layout("a")
    tasks = ground.plan("a", min_partitions=min_partitions)
    flip(ground.file(chunk.name), at)
    with pytest.raises(Damaged) as caught:
        read_rows(tasks)
    assert caught.value.object == chunk.name
    assert '"segment": "a"' in caught.value.__notes__[-1]
    assert len(tasks) == min_partitions


def test_damage_below_the_start_of_a_truncated_segment_is_found_in_its_block(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "a", 2 * MIB, 2 * MIB)
        store.truncate("a", MIB + 10)
        [chunk] = store.layout("a")
    tasks = ground.plan("a")
    flip(ground.file(chunk.name), MIB + 5)
    with pytest.raises(Damaged):
        read_rows(tasks)


def test_a_chunk_that_is_too_short_is_damaged_where_it_ends(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "a", 1000, 400)
        chunks = list(store.layout("a"))
    tasks = ground.plan("a")
    path = ground.file(chunks[1].name)
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(Damaged) as caught:
        read_rows(tasks)
    assert (caught.value.object, caught.value.position) == (chunks[1].name, 150)


def test_a_chunk_that_is_gone_says_when_it_was_planned(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "a", 1000, 400)
        chunks = list(store.layout("a"))
    tasks = ground.plan("a")
    ground.file(chunks[2].name).unlink()
    with pytest.raises(ChunkNotFound) as caught:
        read_rows(tasks)
    assert caught.value.chunk == chunks[2].name
    assert f"planned at lsn {tasks[0].lsn}" in caught.value.message
    assert "Load (or start the stream) again" in caught.value.message


def test_a_pin_keeps_the_past_for_a_read_that_takes_long(ground: Ground) -> None:
    ground.settings = replace(ground.settings, gc_grace_s=0)
    with ground.open() as store:
        filled(store, "a", 1000, 400)
        now = ground.plan("a")
        pin = store.pin("long read")
        store.truncate("a", 900)
        store.collect()
        with chunkstore.open_replica(ground.url, settings=ground.settings, at_lsn=pin.lsn) as replica:
            kept = plan_read(replica, ground.options("a"))
        assert read_rows(now) == read_rows(kept)
        store.unpin("long read")
        store.collect()
        for tasks in (now, kept):
            with pytest.raises(ChunkNotFound, match="pins add"):
                read_rows(tasks)


@pytest.mark.parametrize("old", [False, True])
def test_no_byte_of_a_damaged_block_is_given_out(ground: Ground, monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """Of a chunk without borders, which is one long block, the last 8 MiB are not."""
    with monkeypatch.context() as patch, ground.open() as store:
        if old:
            patch.setattr(blocks, "BLOCK_BYTES", 1 << 40)
        filled(store, "a", 20 * MIB, 20 * MIB)
        [chunk] = store.layout("a")
    flip(ground.file(chunk.name), 7 * MIB + 3)
    [task] = ground.plan("a")
    [run] = task.runs
    storage = open_storage(ground.url, ground.settings)
    got = 0
    with pytest.raises(Damaged):
        for span in PieceReader(storage, lsn=task.lsn).spans("a", run.pieces):
            got += len(span.data)
    storage.close()
    assert got == (12 if old else 7) * MIB


# Planning ledgers


def parts_planner(*parts: LedgerRange) -> Any:
    def plan(_replica: object, topic: str, ledgers: Sequence[int] | None, _blocks: object) -> list[LedgerRange]:
        assert topic == "t"
        return [part for part in parts if ledgers is None or part.ledger in ledgers]

    return plan


def ledger_tasks(ground: Ground, *parts: LedgerRange, min_partitions: int = 1) -> list[ReadTask]:
    with ground.replica() as replica:
        options = ground.options(topic="t", min_partitions=min_partitions)
        return plan_read(replica, options, parts_planner(*parts))


def test_blocks_outside_the_segment_are_damage(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "d", 1000, 300)
        store.truncate("d", 100)
    with pytest.raises(Damaged, match="1000 bytes"):
        ledger_tasks(ground, LedgerRange("t", 7, 0, 9, "d", (Block(0, 900, 1001),), True))
    with pytest.raises(SegmentTruncated):
        ledger_tasks(ground, LedgerRange("t", 7, 0, 9, "d", (Block(0, 0, 200),), True))
