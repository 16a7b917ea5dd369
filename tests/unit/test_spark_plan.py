"""Planning and reading for Spark without Spark: which bytes go to which task, and what a task makes of them."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from chunkstore.engine.reading import read_view
from chunkstore.errors import (
    ChunkNotFound,
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
)
from chunkstore.spark.plan import plan_read
from chunkstore.spark.runs import ROW_BYTES, ReadTask
from tests.support.data import pattern
from tests.support.spark_ground import MIB, Ground, filled, flip


def read_rows(tasks: Sequence[ReadTask]) -> list[tuple[str, int, bytes]]:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's batches are not tested")
    from chunkstore.spark.batches import read_task

    rows: list[tuple[str, int, bytes]] = []
    for task in tasks:
        arrived = pickle.loads(pickle.dumps(task))
        for batch in read_task(arrived, [("segment", True), ("offset", True), ("value", True)]):
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


def ends_verified(tasks: Sequence[ReadTask], lengths: Mapping[str, int]) -> Counter[str]:
    """How many tasks verify the end of each chunk."""
    return Counter(
        piece.chunk
        for task in tasks
        for run in task.runs
        for piece in run.pieces
        if piece.borders is not None and piece.stop == lengths[piece.chunk]
    )


@pytest.mark.parametrize("option", ["segmentsPattern", "topicsPattern"])
def test_a_pattern_without_a_match_is_refused(ground: Ground, option: str) -> None:
    ground.open().close()
    options = replace(ground.options(), segments_pattern="x.*")
    if option == "topicsPattern":
        options = replace(ground.options(), topics_pattern="x.*")
    with ground.replica() as replica, pytest.raises(InvalidArgument, match="matches none") as caught:
        plan_read(replica, options)
    assert caught.value.argument == option


@pytest.mark.parametrize("min_partitions", [1, 2, 3, 5, 8, 13, 100])
def test_as_many_partitions_as_asked_for_and_the_same_rows(ground: Ground, min_partitions: int) -> None:
    with ground.open() as store:
        filled(store, "a", 9 * MIB + 5, 5 * MIB)
        filled(store, "b", 3 * MIB, 3 * MIB)
        lengths = {chunk.name: chunk.length for name in "ab" for chunk in store.layout(name)}
    tasks = ground.plan("a", "b", min_partitions=min_partitions)
    assert len(tasks) == min_partitions
    rows = read_rows(tasks)
    if min_partitions <= 13:
        assert [row[:2] for row in rows] == [
            *(("a", offset) for offset in range(0, 9 * MIB + 5, MIB)),
            *(("b", offset) for offset in range(0, 3 * MIB, MIB)),
        ]
    check_bytes(rows, "a", 0, pattern(0, 9 * MIB + 5))
    assert ends_verified(tasks, lengths) == dict.fromkeys(lengths, 1)


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


def test_other_kinds_of_chunks_are_refused(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with ground.open() as store:
        filled(store, "a", 10, 10)
    with ground.replica() as replica:
        monkeypatch.setattr("chunkstore.metadata.codec._KINDS", (7,))  # all that this version knows
        with pytest.raises(Damaged, match="kind"):
            plan_read(replica, ground.options("a"))


def test_a_plan_shows_one_point_of_history(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with ground.open() as store, ground.replica() as replica:
        filled(store, "a", 10, 10)
        replica.refresh()

        def refreshed(container: Any, call: Any) -> Any:
            store.append("a", b"x")
            replica.refresh()
            return read_view(container, call)

        monkeypatch.setattr("chunkstore.spark.plan.read_view", refreshed)
        with pytest.raises(Conflict, match="planned from"):
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


# Planning ledgers
