"""The rows of the table ``kafka``: their keys and their bytes (FORMAT.md).

Promises: rows are versioned and checked before they are believed. Leaves out: which rows an event changes (``metadata``).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgpack

from chunkstore.errors import ChunkstoreError, Damaged
from chunkstore.kafka import model
from chunkstore.kafka.model import EPOCHS_MAX, OFFSET_MAX, RemoteLogSegmentMetadata, TopicIdPartition
from chunkstore.metadata.codec import unpack_row
from chunkstore.operations.tables import TableEntry

__all__ = [
    "EPOCH", "HIGHEST", "ID", "LOG_START", "MAPPED", "NAMESPACE", "NOT_DELETED", "PARTITION", "SUPERSEDED", "UNREFERENCED", "PartitionRow",
    "checked_key", "decode_offset", "decode_partition", "decode_segment", "encode_segment", "epoch_key", "number_key", "pack",
    "partition_key",
]  # fmt: skip

NAMESPACE: Final = "kafka"
# Below a partition's key; the partition's own row is the last one.
EPOCH, ID, LOG_START, PARTITION = b"e", b"i", b"l", b"p"
# Below an epoch's key.
HIGHEST, MAPPED, SUPERSEDED, UNREFERENCED = b"h", b"m", b"s", b"u"

MAJOR: Final = 1
MINOR: Final = 0
NOT_DELETED: Final = -1
_FIELDS_MAX: Final = 64


class PartitionRow(NamedTuple):
    """A partition: the mode of its rows, its present leader's token, how far its deletion is. ``version`` 0: not stored yet."""

    mode: int
    token: int = 0
    deletion: int = NOT_DELETED
    version: int = 0


def partition_key(partition: TopicIdPartition) -> bytes:
    """How all keys of a partition begin."""
    return b"%b\0%b%b" % (partition.topic.encode(), partition.topic_id, partition.partition.to_bytes(4, "big"))


def epoch_key(partition: TopicIdPartition, epoch: int, kind: bytes) -> bytes:
    """How the keys of the rows of one kind of a leader epoch begin."""
    return b"%be%b%b" % (partition_key(partition), epoch.to_bytes(4, "big"), kind)


def number_key(offset: int) -> bytes:
    """An offset in a key."""
    return offset.to_bytes(8, "big")


def checked_key(row: TableEntry, least: int) -> bytes:
    """A row's key, if it has so many bytes. Raises ``Damaged``."""
    if len(row.key) < least:
        raise _damage(row, "the key is cut")
    return row.key


def pack(*fields: object) -> bytes:
    """The value of a row."""
    value: bytes = msgpack.packb((MAJOR, MINOR, *fields))
    return value


def decode_partition(row: TableEntry) -> PartitionRow:
    """A partition's row. Raises ``Damaged``."""
    mode, token, deletion = _unpack(row, 3)
    if not (mode in (1, 2) and type(token) is int and token >= 0 and deletion in (-1, 0, 1, 2)):
        raise _damage(row, "mode, token or deletion is wrong")
    return PartitionRow(mode, token, deletion, row.version)


def decode_offset(row: TableEntry) -> int:
    """An epoch's highest offset, or where the log starts. Raises ``Damaged``."""
    (offset,) = _unpack(row, 1)
    if type(offset) is not int or not -1 <= offset <= OFFSET_MAX:
        raise _damage(row, f"{offset!r} is not an offset")
    return offset


def encode_segment(item: RemoteLogSegmentMetadata) -> bytes:
    """The value of a segment's rows."""
    epochs = [number for pair in item.segment_leader_epochs.items() for number in pair]
    return pack(
        item.remote_log_segment_id.id, item.start_offset, item.end_offset, item.max_timestamp_ms, item.broker_id,
        item.event_timestamp_ms, item.segment_size_in_bytes, epochs, item.custom_metadata, int(item.state), item.txn_idx_empty,
    )  # fmt: skip


def decode_segment(partition: TopicIdPartition, row: TableEntry, epoch: int | None = None) -> RemoteLogSegmentMetadata:
    """The segment of a row; ``epoch``: whose row it is. Raises ``Damaged`` naming the row."""
    identity, start, end, stamp, broker, event, size, flat, custom, state, empty = _unpack(row, 11)
    try:
        epochs = dict(zip(flat[::2], flat[1::2], strict=True))
        known, reached = model.RemoteLogSegmentId(partition, identity), model.RemoteLogSegmentState(state)
        place = known, start, end, stamp, broker, event, size
        segment = RemoteLogSegmentMetadata(*place, epochs, custom, reached, empty)
    except (ChunkstoreError, TypeError, ValueError, IndexError) as error:
        raise _damage(row, str(error)) from error
    if epoch is None:
        if row.key[-16:] != identity:
            raise _damage(row, "the id is not the key's")
        return segment
    begin = number_key(epochs.get(epoch, 0))
    if state != model.RemoteLogSegmentState.COPY_SEGMENT_FINISHED or begin not in (row.key[-8:], row.key[-24:-16]):
        raise _damage(row, f"not a finished segment of epoch {epoch}")
    return segment


def _unpack(row: TableEntry, count: int) -> tuple[Any, ...]:
    try:
        fields = unpack_row(row.value, 2 * EPOCHS_MAX)
    except ValueError as error:
        raise _damage(row, str(error)) from error
    if type(fields) is not tuple or not count + 2 <= len(fields) <= _FIELDS_MAX or fields[0] != MAJOR:
        raise _damage(row, f"not a row of major version {MAJOR}")
    return fields[2 : count + 2]


def _damage(row: TableEntry, message: str) -> Damaged:
    return Damaged(f"remote log metadata: {message}", object=f"table {NAMESPACE}, row {row.key!r}")
