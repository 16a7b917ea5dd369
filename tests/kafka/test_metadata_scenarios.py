"""What Kafka's own suites ask of a metadata manager: scenarios by their numbers. 34 is in test_metadata_records.py.

There is no metadata topic: 33 (its consumer) does not apply, nor what 11 and 28 to 31 say of a topic that is missing or not yet read.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import pytest

import chunkstore
from chunkstore.errors import Closed, InvalidArgument
from chunkstore.kafka import RemoteLogMetadataManager, RemoteLogMetadataReader
from chunkstore.kafka.model import (
    IllegalTransition,
    LeaderFenced,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    RemoteResourceNotFoundException,
    TopicIdPartition,
)
from tests.kafka.support_metadata import (
    DELETED,
    DELETING,
    FINISHED,
    PARTITION,
    STARTED,
    Leader,
    Store,
    find,
    listed,
    number_of,
    segment,
    update,
)
from tests.support.data import refused

Mode = Literal["strict", "kafka-exact"]
MARKED, BEGUN, GONE = RemotePartitionDeleteState


@pytest.fixture(params=["strict", "kafka-exact"])
def leader(request: pytest.FixtureRequest, store: Store) -> Leader:
    return Leader(RemoteLogMetadataManager(store, request.param))


@pytest.fixture
def strict(store: Store) -> Leader:
    return Leader(RemoteLogMetadataManager(store))


@pytest.fixture
def exact(store: Store) -> Leader:
    return Leader(RemoteLogMetadataManager(store, "kafka-exact"))


def deletion(state: RemotePartitionDeleteState) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(PARTITION, state, 1, 1)


def test_1_to_5_a_segment_lives_and_goes(leader: Leader) -> None:
    manager = leader.manager
    first = segment(0, 0, 100, {0: 0, 1: 20, 2: 80})
    leader.add(first)
    assert find(manager, 1, 40) is None
    assert [manager.highest_offset_for_epoch(PARTITION, epoch) for epoch in range(3)] == [None] * 3
    assert listed(manager, 0) == listed(manager) == [0]
    leader.move(first, FINISHED)
    leader.finish(
        segment(1, 101, 200, {2: 101}), segment(2, 201, 300, {2: 201, 3: 240}), segment(3, 250, 400, {3: 250, 4: 370})
    )
    probes = {
        (1, 40): 0,
        (2, 110): 1,
        (3, 240): 2,
        (3, 250): 3,
        (4, 375): 3,
        (1, 110): None,
        (4, 401): None,
        (5, 301): None,
    }
    assert {probe: find(manager, *probe) for probe in probes} == probes
    leader.move(first, DELETING)
    assert find(manager, 0, 10) is None
    assert listed(manager, 0) == [0]
    leader.move(first, DELETED)
    assert find(manager, 0, 10) is None
    assert listed(manager, 0) == []
    assert listed(manager) == [1, 2, 3]
    highest = [manager.highest_offset_for_epoch(PARTITION, epoch) for epoch in range(6)]
    assert highest == [19, 79, 239, 369, 400, None]


def test_9_a_partition_is_deleted(leader: Leader) -> None:
    manager = leader.manager
    other = Leader(manager, TopicIdPartition(PARTITION.topic_id, PARTITION.topic, 4))
    stays = segment(1, 0, 10, {0: 0}, partition=other.partition)
    other.finish(stays)
    leader.finish(segment(1, 0, 100, {0: 0, 1: 20, 2: 50, 3: 80}))
    for state in (MARKED, BEGUN):
        manager.put_remote_partition_delete_metadata(deletion(state), token=leader.token).result()
        assert find(manager, 1, 30) == 1
    manager.put_remote_partition_delete_metadata(deletion(GONE), token=leader.token).result()
    refused(
        RemoteResourceNotFoundException,
        lambda: find(manager, 1, 30),
        lambda: listed(manager),
        lambda: listed(manager, 1),
        lambda: manager.highest_offset_for_epoch(PARTITION, 1),
        lambda: leader.add(segment(2, 0, 9, {0: 0})),
        lambda: manager.put_remote_partition_delete_metadata(deletion(MARKED)).result(),
    )
    assert number_of(manager.remote_log_segment_metadata(other.partition, 0, 5)) == 1
    again = Leader(manager)
    assert listed(manager) == []
    assert leader.token is None or (again.token is not None and again.token > leader.token)


def test_10_arguments(leader: Leader) -> None:
    manager = leader.manager
    item = segment(1, 0, 10, {0: 0})
    states = [item.with_update(update(item, state)) for state in (FINISHED, DELETING, DELETED)]
    refused(
        InvalidArgument,
        lambda: manager.add_remote_log_segment_metadata(None),  # type: ignore[arg-type]
        lambda: manager.update_remote_log_segment_metadata(None),  # type: ignore[arg-type]
        lambda: manager.put_remote_partition_delete_metadata(None),  # type: ignore[arg-type]
        *(partial(manager.add_remote_log_segment_metadata, state) for state in states),
        lambda: segment(1, -1, 10, {0: 0}),
        lambda: segment(1, 10, 9, {0: 0}),
        lambda: segment(1, 0, 10, {}),
        lambda: segment(1, 0, 10, {-1: 0}),
        lambda: segment(1, 0, 10, {0: 0, 1: 11}),
        lambda: segment(1, 5, 10, {0: 4}),
        lambda: segment(1, 0, 10, {0: 0}, custom_metadata=bytes(1 << 20)),
        lambda: TopicIdPartition(b"short", "t", 0),
        lambda: TopicIdPartition(bytes(16), "a\0b", 0),
        lambda: manager.remote_log_segment_metadata(PARTITION, -1, 0),
        lambda: manager.remote_log_segment_metadata(PARTITION, 0, 1 << 63),
        lambda: manager.list_remote_log_segments("orders"),  # type: ignore[arg-type]
        lambda: RemoteLogMetadataManager(manager._store, "loose"),  # type: ignore[arg-type]
    )


def test_11_an_update_of_what_is_unknown(leader: Leader) -> None:
    calls = [partial(leader.move, segment(1, 0, 9, {0: 0}), state) for state in (FINISHED, DELETING, DELETED)]
    refused(RemoteResourceNotFoundException, *calls)


def test_12_and_13_illegal_transitions_are_dropped_as_in_kafka(exact: Leader) -> None:
    item = segment(1, 10, 100, {5: 10})
    exact.add(item)
    for event, state in (
        (DELETED, STARTED),
        (FINISHED, FINISHED),
        (FINISHED, FINISHED),
        (DELETED, FINISHED),
        (STARTED, FINISHED),
        (DELETING, DELETING),
        (FINISHED, DELETING),
        (STARTED, DELETING),
    ):
        exact.move(item, event)
        stored = exact.manager.remote_log_segment(item.remote_log_segment_id)
        assert stored is not None
        assert stored.state == state
        exact.add(item) if state != STARTED else None
    exact.move(item, DELETED)
    assert listed(exact.manager, 5) == []
    exact.add(item)  # anew
    refused(InvalidArgument, lambda: exact.move(item, STARTED))


def test_12_and_13_illegal_transitions_raise_in_mode_strict(strict: Leader) -> None:
    item = segment(1, 10, 100, {5: 10})
    strict.add(item)
    refused(InvalidArgument, lambda: strict.move(item, STARTED))
    refused(IllegalTransition, lambda: strict.move(item, DELETED))
    strict.move(item, FINISHED, FINISHED)
    refused(IllegalTransition, lambda: strict.move(item, DELETED), lambda: strict.add(item))
    assert find(strict.manager, 5, 50) == 1
    strict.move(item, DELETING, DELETING)
    refused(IllegalTransition, lambda: strict.move(item, FINISHED), lambda: strict.add(item))
    put = partial(strict.manager.put_remote_partition_delete_metadata, token=strict.token)
    refused(IllegalTransition, lambda: put(deletion(BEGUN)).result(), lambda: put(deletion(GONE)).result())
    put(deletion(MARKED)).result()
    put(deletion(MARKED)).result()
    refused(IllegalTransition, lambda: put(deletion(GONE)).result())


@pytest.mark.parametrize(
    ("ranges", "found", "highest"),
    [
        pytest.param([(10, 100), (101, 200)], {90: 0, 150: 1}, 200, id="17"),
        pytest.param([(10, 100), (5, 150)], {11: 1, 7: 1, 150: 1}, 150, id="18"),
        pytest.param([(10, 100), (5, 150), (148, 155), (4, 200)], {4: 3, 50: 3, 150: 3, 200: 3}, 200, id="19"),
        pytest.param([(10, 100), (10, 100)], {10: 1, 100: 1}, 100, id="20"),
        pytest.param([(10, 100), (10, 150)], {11: 1, 111: 1}, 150, id="21"),
    ],
)
def test_17_to_23_overlaps(leader: Leader, ranges: list[tuple[int, int]], found: dict[int, int], highest: int) -> None:
    items = [segment(number, *ends, {0: ends[0]}) for number, ends in enumerate(ranges)]
    leader.finish(*items)
    assert {offset: find(leader.manager, 0, offset) for offset in found} == found
    assert leader.manager.highest_offset_for_epoch(PARTITION, 0) == highest
    for item in items:
        leader.move(item, DELETING)
    assert [find(leader.manager, 0, offset) for offset in found] == [None] * len(found)
    assert len(listed(leader.manager, 0)) == len(items)
    for item in items:
        leader.move(item, DELETED)
    assert listed(leader.manager, 0) == listed(leader.manager) == []
    assert leader.manager.highest_offset_for_epoch(PARTITION, 0) == highest


def test_24_a_late_smaller_segment_hides_a_larger_one_as_in_kafka(exact: Leader) -> None:
    exact.finish(segment(1, 10, 150, {0: 10}), segment(2, 10, 100, {0: 10}))
    assert find(exact.manager, 0, 120) is None
    assert (listed(exact.manager, 0), listed(exact.manager)) == ([2], [1, 2])
    assert exact.manager.highest_offset_for_epoch(PARTITION, 0) == 150


def test_24_a_late_smaller_segment_hides_nothing_in_mode_strict(strict: Leader) -> None:
    larger = segment(1, 10, 150, {0: 10})
    strict.finish(larger, segment(2, 10, 100, {0: 10}), segment(3, 20, 90, {0: 20}))
    assert [find(strict.manager, 0, offset) for offset in (10, 50, 120)] == [1, 1, 1]
    assert listed(strict.manager, 0) == [1, 2, 3]
    strict.move(larger, DELETING)
    assert [find(strict.manager, 0, offset) for offset in (10, 50, 100, 120)] == [2, 2, 2, None]


def test_28_a_partition_that_is_not_assigned(store: Store) -> None:
    manager = RemoteLogMetadataManager(store)
    item = segment(1, 0, 9, {0: 0})
    refused(
        RemoteResourceNotFoundException,
        lambda: manager.add_remote_log_segment_metadata(item, token=1).result(),
        lambda: listed(manager),
        lambda: find(manager, 0, 1),
    )
    assert not manager.is_ready(PARTITION)
    manager.on_partition_leadership_changes([], [PARTITION])
    assert manager.is_ready(PARTITION)
    assert listed(manager) == []
    manager.on_stop_partitions([PARTITION])
    assert not manager.is_ready(PARTITION)


def test_29_a_follower_sees_what_the_leader_does(store: Store, leader: Leader) -> None:
    mode: Mode = "strict" if leader.token is not None else "kafka-exact"
    follower = RemoteLogMetadataManager(store, mode)
    leader.finish(segment(1, 0, 9, {0: 0}))
    assert follower.on_partition_leadership_changes([], [PARTITION]) == {}
    leader.finish(segment(2, 10, 19, {0: 10}))
    assert follower.is_ready(PARTITION)
    assert (listed(follower, 0), listed(follower), find(follower, 0, 15)) == ([1, 2], [1, 2], 2)
    follower.add_remote_log_segment_metadata(segment(3, 20, 29, {0: 20}), token=leader.token).result()
    assert listed(leader.manager, 0) == [1, 2, 3]


def test_32_another_instance_and_a_replica_see_everything(root: str) -> None:
    with chunkstore.open(root) as store:
        leader = Leader(RemoteLogMetadataManager(store))
        leader.finish(segment(1, 0, 9, {0: 0}))
        leader.manager.close()
        leader.manager.close()
        refused(Closed, lambda: find(leader.manager, 0, 1), lambda: leader.add(segment(2, 0, 9, {0: 0})))
    with chunkstore.open(root) as store, chunkstore.open_replica(root) as replica:
        manager = RemoteLogMetadataManager(store)
        assert find(manager, 0, 1) == 1
        reader = RemoteLogMetadataReader(replica)
        assert (find(reader, 0, 1), listed(reader, 0), listed(reader)) == (1, [1], [1])
        successor = Leader(manager)
        successor.finish(segment(2, 10, 19, {1: 10}))
        replica.refresh()
        assert find(reader, 1, 12) == 2


def test_a_zombie_leader_is_fenced(strict: Leader) -> None:
    begun, finished = segment(1, 0, 9, {0: 0}), segment(2, 10, 19, {0: 10})
    strict.finish(finished)
    strict.add(begun)
    present = Leader(strict.manager)
    refused(
        LeaderFenced,
        lambda: strict.move(begun, FINISHED),
        lambda: strict.move(finished, DELETING),
        lambda: strict.add(segment(3, 0, 9, {0: 0})),
    )
    assert find(strict.manager, 0, 15) == 2
    assert listed(strict.manager) == [1, 2]
    refused(InvalidArgument, lambda: strict.manager.add_remote_log_segment_metadata(begun).result())
    present.move(begun, FINISHED)
    assert find(strict.manager, 0, 5) == 1


def test_rows_are_kept_in_one_mode(store: Store, strict: Leader) -> None:
    manager = RemoteLogMetadataManager(store, "kafka-exact")
    refused(
        InvalidArgument,
        lambda: manager.on_partition_leadership_changes([PARTITION]),
        lambda: manager.add_remote_log_segment_metadata(segment(1, 0, 9, {0: 0})).result(),
    )
    assert strict.manager.token(PARTITION) == 1
