"""The early text's metadata manager: what is created is found, of two lineages the newest epoch's, a failed copy's entry goes."""

from __future__ import annotations

from chunkstore.errors import Closed, InvalidArgument
from chunkstore.kafka import RemoteLogMetadataManager as Final
from chunkstore.kafka.early import (
    RemoteLogMetadataManager,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicPartition,
)
from chunkstore.kafka.model import TopicIdPartition
from tests.kafka.support_metadata import Store
from tests.support.data import refused

ORDERS = TopicPartition("orders", 0)


def identity(number: int, partition: TopicPartition = ORDERS) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(partition, number.to_bytes(16, "big"))


def entry(
    number: int, start: int, end: int, epoch: int, *, created: bool, context: bytes = b""
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(identity(number), start, end, epoch, created, context)


def put(manager: RemoteLogMetadataManager, *entries: RemoteLogSegmentMetadata) -> None:
    for item in entries:
        manager.put_remote_log_segment_data(item.remote_log_segment_id, item)


def test_an_entry_is_found_once_it_is_created(store: Store) -> None:
    manager = RemoteLogMetadataManager(store)
    manager.configure({"broker.id": 1})
    assert manager.get_remote_log_segment_id(ORDERS, 5) is None
    assert (manager.earliest_log_offset(ORDERS), manager.list_remote_segments(ORDERS)) == (None, [])
    begun = entry(1, 0, 9, 3, created=False)
    put(manager, begun, begun)
    assert manager.get_remote_log_segment_id(ORDERS, 5) is None
    assert manager.earliest_log_offset(ORDERS) is None
    assert manager.list_remote_segments(ORDERS) == [manager.get_remote_log_segment_metadata(identity(1))] == [begun]
    done = entry(1, 0, 9, 3, created=True, context=b"where")
    put(manager, done, done)
    assert manager.get_remote_log_segment_id(ORDERS, 9) == identity(1)
    assert manager.get_remote_log_segment_id(ORDERS, 10) is None
    assert manager.get_remote_log_segment_metadata(identity(1)) == done
    assert manager.earliest_log_offset(ORDERS) == 0
    refused(
        InvalidArgument,
        lambda: put(manager, begun),
        lambda: put(manager, entry(1, 0, 8, 3, created=True)),
        lambda: manager.put_remote_log_segment_data(identity(2), done),
        lambda: manager.configure({"topic.ids": 1}),
    )
    put(manager, entry(2, 10, 19, 3, created=True))  # nothing was announced before
    assert manager.get_remote_log_segment_id(ORDERS, 12) == identity(2)


def test_both_faces_show_the_same_rows(store: Store) -> None:
    """A leader that lost its partition finishes its copy: nothing fences the early face."""
    manager, topic_id = RemoteLogMetadataManager(store), b"topic id, 16 B.."
    manager.configure({"topic.ids": {"orders": topic_id}})
    put(manager, entry(1, 0, 9, 1, created=False))
    final = Final(store)
    final.on_partition_leadership_changes([partition := TopicIdPartition(topic_id, "orders", 0)])
    put(manager, entry(1, 0, 9, 1, created=True))
    found = final.remote_log_segment_metadata(partition, 1, 5)
    assert found is not None
    assert found.remote_log_segment_id.id == identity(1).id
    manager.close()
    manager.close()
    refused(Closed, lambda: manager.earliest_log_offset(ORDERS), lambda: put(manager, entry(2, 0, 9, 1, created=True)))
