"""Planners that stay: positions are kept, and dense ledgers are known."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import chunkstore
from chunkstore.config import KIB, RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar import Block, LedgerReader, OffloadWriter, TopicPlanner, TopicPosition, plan

T = "persistent/tenant/ns/topic"
START = TopicPosition(0, 0)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[ChunkedSegmentStorage]:
    with chunkstore.open(f"memory://planning-{request.node.name}") as opened:
        yield opened


def writer_of(store: ChunkedSegmentStorage, **options: Any) -> OffloadWriter:
    return OffloadWriter(store, T, block_bytes=4 * KIB, rolling=RollingPolicy(chunk_size_bytes_max=3 * KIB), **options)


def add_block(writer: OffloadWriter, ledger: int, first: int, count: int = 3) -> None:
    for entry in range(first, first + count):
        writer.append(ledger, entry, b"%d.%d" % (ledger, entry))
    writer.flush()


def test_steps_from_position_to_position_hold_everything_once(store: ChunkedSegmentStorage) -> None:
    """By planners that stay, and that are made anew, while ledgers alternate, segments are completed, and chunks are merged."""
    staying, position = TopicPlanner(store, T), START
    found: dict[str, list[Block]] = {}
    writer = writer_of(store, segment_bytes_max=2 * KIB)
    for number in range(30):
        add_block(writer, number % 3, number * 10, 2 + number % 5)
        if number % 4 == 3:
            if number % 8 == 3:
                store.defrag()
            planner = staying if number % 3 else TopicPlanner(store, T)
            stop = pickle.loads(pickle.dumps(planner.end()))
            for part in planner.between(position, stop):
                found.setdefault(part.segment, []).extend(part.blocks)
            position = stop
    writer.close()
    stop = staying.end()
    for part in staying.between(position, stop):
        found.setdefault(part.segment, []).extend(part.blocks)
    expected: dict[str, list[Block]] = {}
    for part in plan(store, T):
        expected.setdefault(part.segment, []).extend(part.blocks)
    assert len(expected) > 2
    assert {name: sorted(row) for name, row in found.items()} == {name: sorted(row) for name, row in expected.items()}
    borders = list(TopicPlanner(store, T).borders(START, stop))
    assert borders == sorted(borders) and len(borders) == sum(map(len, expected.values()))
    one_by_one = [part for low, high in pairwise([START, *borders]) for part in staying.between(low, high)]
    assert sum(len(part.blocks) for part in one_by_one) == len(borders)
    for part in one_by_one:
        ids = [entry.entry for entry in LedgerReader(store).read(T, part.ledger, part.first_entry, part.last_entry)]
        assert ids and ids[0] == part.first_entry
    assert staying.between(stop, stop) == () == staying.between(stop, START)
    assert staying.begin() == START


def test_positions_of_others_are_refused(store: ChunkedSegmentStorage) -> None:
    planner = TopicPlanner(store, T)
    writer = writer_of(store)
    add_block(writer, 1, 0)
    end = planner.end()
    for complete in (False, True):
        if complete:
            writer.complete()
        for low, high in ((TopicPosition(0, 1), end), (START, TopicPosition(0, 1)), (START, TopicPosition(0, 1 << 40))):
            with pytest.raises(InvalidArgument, match="another topic or container"):
                planner.between(low, high)
            with pytest.raises(InvalidArgument):
                list(planner.borders(low, high))


def test_a_ledger_is_dense_when_its_count_says_so(store: ChunkedSegmentStorage) -> None:
    with writer_of(store) as writer:
        add_block(writer, 1, 5, 7)
        add_block(writer, 2, 0, 4)
        add_block(writer, 2, 9, 2)
        (open_part, _) = TopicPlanner(store, T).plan()
        assert open_part.entries == 0 and not open_part.is_dense
    one, two = TopicPlanner(store, T).plan()
    assert (one.first_entry, one.last_entry, one.entries, one.is_dense) == (5, 11, 7, True)
    assert (two.first_entry, two.last_entry, two.entries, two.is_dense) == (0, 10, 6, False)
    planner = TopicPlanner(store, T)
    assert [(part.entries, part.is_dense) for part in planner.between(START, planner.end())] == [(7, True), (6, False)]
    borders = list(planner.borders(START, planner.end()))
    assert [part.entries for part in planner.between(START, borders[1])] == [7, 0], "the second one goes on behind"
