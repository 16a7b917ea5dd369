"""Kafka's rules of lineage, copying and retention, with the numbers of Kafka's own suites."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.errors import InvalidArgument
from chunkstore.kafka import RemoteLogManagerConfig
from chunkstore.kafka.model import RemoteLogSegmentMetadata
from chunkstore.kafka.retention import (
    LogState,
    choose,
    find_copied_offset,
    within_lineage,
)
from chunkstore.kafka.sources import Segment
from chunkstore.kafka.tier import plan
from tests.kafka.support_metadata import FINISHED, number_of, segment

LINEAGE = {0: 0, 1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}
CUT = {7: 51, 9: 100}
NOW = 1_000_000


@pytest.mark.parametrize(
    ("epochs", "highest", "found"),
    [
        ([(0, 0), (1, 500)], {}, (-1, -1)),
        ([(0, 0), (1, 500)], {0: 200}, (200, 0)),
        ([(0, 0), (1, 150), (2, 300)], {0: 200}, (149, 0)),
        ([(0, 0), (1, 150)], {1: 900, 0: 149}, (399, 1)),
    ],
)
def test_the_copied_offset(epochs: list[tuple[int, int]], highest: dict[int, int], found: tuple[int, int]) -> None:
    assert find_copied_offset(epochs, 400, highest.get) == found


@pytest.mark.parametrize(
    ("lineage", "end", "start", "last", "epochs", "within"),
    [
        (LINEAGE, 90, 15, 35, {1: 15, 2: 20, 3: 30}, True),
        (LINEAGE, 90, 15, 19, {1: 15}, True),
        (LINEAGE, 90, 0, 5, {0: 0}, True),
        (LINEAGE, 90, 70, 75, {7: 70}, True),
        (LINEAGE, 90, 15, 29, {1: 15, 2: 20}, True),
        (LINEAGE, 90, 55, 85, {5: 55, 6: 60, 7: 70}, False),
        (LINEAGE, 90, 15, 45, {1: 15, 2: 20, 4: 40}, False),
        (LINEAGE, 90, 15, 95, {1: 15, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}, False),
        (LINEAGE, 90, 15, 90, {1: 15, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}, False),
        (LINEAGE, 90, 5, 25, {1: 5, 2: 20}, False),
        (LINEAGE, 90, 15, 35, {1: 15, 2: 20}, False),
        (CUT, 210, 14, 150, {5: 14, 7: 15, 9: 100}, True),
        (CUT, 210, 2, 7, {2: 5, 3: 6}, False),
        (CUT, 210, 15, 250, {7: 15, 9: 100, 10: 200}, False),
        (CUT, 210, 75, 100, {8: 75}, False),
        (CUT, 210, 15, 150, {7: 15, 9: 101}, False),
        (CUT, 210, 99, 150, {9: 99}, False),
        ({}, 210, 99, 150, {9: 99}, False),
    ],
)
def test_the_lineage(lineage: Any, end: int, start: int, last: int, epochs: dict[int, int], within: bool) -> None:
    assert within_lineage(segment(1, start, last, epochs), end, lineage) is within


@pytest.mark.parametrize(("bases", "stable", "ends"), [([5, 10, 15], 20, [9, 14]), ([5, 10, 15, 20], 15, [9, 14])])
def test_rolled_segments_below_the_last_stable_offset_are_copied(
    bases: list[int], stable: int, ends: list[int]
) -> None:
    states = ["ROLLED"] * (len(bases) - 1) + ["ACTIVE"]
    spans = zip(bases, [*bases[1:], 30], states, strict=True)
    made = [Segment("t", "", 0, base, stop - 1, "", state, 1, (), "", dense=True) for base, stop, state in spans]
    assert [each.segment.end_offset for each in plan(made, [LeaderEpoch(0, 0)], stable)] == ends


def item(number: int, start: int, end: int, state: Any = FINISHED, **more: Any) -> RemoteLogSegmentMetadata:
    epochs = more.pop("epochs", {0: start})
    return segment(number, start, end, epochs, state=state, max_timestamp_ms=more.pop("stamp", NOW), **more)


def numbers(found: Iterable[RemoteLogSegmentMetadata]) -> list[int | None]:
    return [number_of(each) for each in found]


@pytest.mark.parametrize(
    "retention", [RemoteLogManagerConfig(retention_bytes=0), RemoteLogManagerConfig(retention_ms=0)]
)
@pytest.mark.parametrize(("second", "start"), [((100, 199), 200), ((0, 104), 105)])
def test_retention_of_nothing_deletes_all(
    retention: RemoteLogManagerConfig, second: tuple[int, int], start: int
) -> None:
    found = choose([item(1, 0, 99), item(2, *second)], LogState({0: 0}, 0, 500), retention, NOW)
    assert (sorted(map(number_of, found.deletions), key=str), found.log_start) == ([1, 2], start)


@pytest.mark.parametrize("by_size", [True, False])
@pytest.mark.parametrize("count", [0, 1, 23, 50])
def test_a_prefix_of_the_log_is_deleted(*, by_size: bool, count: int) -> None:
    lineage = {0: 0, 1: 20, 3: 50, 4: 100}
    held = []
    for at in range(50):
        start, end = at * 100, at * 100 + 99
        inner = {epoch: max(begin, start) for epoch, begin in lineage.items() if begin <= end}
        epochs = {epoch: begin for epoch, begin in inner.items() if epoch == max(inner) or not at}
        held.append(item(at, start, end, epochs=epochs, stamp=NOW - 10 if at < count else NOW))
    limit = (
        RemoteLogManagerConfig(retention_bytes=(50 - count) * 1024 + 512)
        if by_size
        else RemoteLogManagerConfig(retention_ms=10)
    )
    found = choose(reversed(held), LogState(lineage, 0, 5001, 512), limit, NOW)
    assert (numbers(found.deletions), found.log_start) == ([*range(count)], count * 100)


@pytest.mark.parametrize("wrong", [{"retention_ms": -2}, {"retention_bytes": -2}, {"backoff_s": 0}, {"interval_s": 0}])
def test_limits_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        RemoteLogManagerConfig(**wrong)
