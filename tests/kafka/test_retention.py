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
    Expiry,
    LogState,
    Retention,
    choose,
    filtered_epochs,
    find_copied_offset,
    find_log_start,
    within_lineage,
)
from chunkstore.kafka.sources import Segment
from chunkstore.kafka.tier import plan
from tests.kafka.support_metadata import DELETED, DELETING, FINISHED, STARTED, number_of, segment

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


def test_the_log_start_is_the_tiers_else_the_local_one() -> None:
    epochs = [(0, 0), (1, 250), (2, 550)]
    assert find_log_start(epochs, 700, {1: 500}.get) == 500
    assert find_log_start(epochs, 250, lambda _: None) == 250


def test_epochs_without_records_are_left_out() -> None:
    rows = {0: 0, 1: 0, 2: 0, 3: 30, 4: 40, 5: 60, 6: 60, 7: 70, 8: 70}
    assert filtered_epochs(rows.items()) == {2: 0, 3: 30, 4: 40, 6: 60, 8: 70}
    assert filtered_epochs(rows.items(), 45) == {4: 45, 6: 60, 8: 70}


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


@pytest.mark.parametrize("retention", [Retention(size_bytes=0), Retention(age_ms=0)])
@pytest.mark.parametrize(("second", "start"), [((100, 199), 200), ((0, 104), 105)])
def test_retention_of_nothing_deletes_all(retention: Retention, second: tuple[int, int], start: int) -> None:
    found = choose([item(1, 0, 99), item(2, *second)], LogState({0: 0}, 0, 500), retention, NOW)
    assert (sorted(map(number_of, found.deletions), key=str), found.log_start) == ([1, 2], start)


def test_dangling_copies_use_the_budget_first_and_deletions_are_tried_again() -> None:
    finished = [item(10 + at, 300 + 100 * at, 399 + 100 * at) for at in range(11)]
    held = [
        item(1, 0, 99, STARTED),
        item(2, 100, 149, DELETED),
        item(3, 150, 199, DELETING),
        item(4, 200, 299, STARTED),
    ]
    log, limit = LogState({0: 0}, 0, 5000), Retention(size_bytes=10 * 1024)
    first = choose([*held, *finished], log, limit, NOW)
    assert sorted(map(str, numbers(first.deletions))) == ["1", "3"]
    second = choose([item(4, 200, 299), *finished], log._replace(start=first.log_start), limit, NOW)
    assert (numbers(second.deletions), second.log_start) == ([4, 10], 400)


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
    limit = Retention(size_bytes=(50 - count) * 1024 + 512) if by_size else Retention(age_ms=10)
    found = choose(reversed(held), LogState(lineage, 0, 5001, 512), limit, NOW)
    assert (numbers(found.deletions), found.log_start) == ([*range(count)], count * 100)


def test_below_the_log_start_of_older_epochs_and_dead_copies_are_deleted_without_moving_it() -> None:
    held = [
        item(1, 0, 99, epochs={1: 0, 2: 50}), item(2, 100, 199, epochs={2: 100}), item(3, 100, 149, epochs={1: 100}),
        item(4, 300, 399, STARTED, epochs={3: 300}), item(5, 200, 299, epochs={2: 200}), item(6, 200, 259, epochs={4: 200}),
    ]  # fmt: skip
    log = LogState({2: 150, 3: 300, 5: 400}, 150, 500)
    assert choose(held, log, Retention(), NOW) == Expiry((held[0], held[2]), 150)
    assert choose(held, log, Retention(), NOW, fenced=True) == Expiry((held[3], held[0], held[2]), 150)


def test_a_segment_without_timestamps_is_as_old_as_its_copy() -> None:
    log = LogState({0: 0}, 0, 500)
    young, old = (item(1, 0, 99, stamp=-1, event_timestamp_ms=at) for at in (NOW - 9, NOW - 10))
    assert not choose([young], log, Retention(age_ms=10), NOW).deletions
    assert numbers(choose([old], log, Retention(age_ms=10), NOW).deletions) == [1]


@pytest.mark.parametrize("wrong", [{"retention_ms": -2}, {"retention_bytes": -2}, {"backoff_s": 0}, {"interval_s": 0}])
def test_limits_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        RemoteLogManagerConfig(**wrong)
