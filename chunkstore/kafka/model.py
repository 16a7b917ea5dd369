"""What KIP-405 passes around: partitions, ids, metadata, updates, and the errors of its managers. The codec has the states.

Promises: a value that exists is a possible one; its constructor raises ``InvalidArgument`` otherwise. Offsets are inclusive at
both ends, as Kafka's are. Leaves out: fields of Kafka's unreleased versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import ClassVar, Final

from chunkstore.codec.kafka.batches import OFFSET_MAX
from chunkstore.codec.kafka.remote_metadata import PartitionDeleteState as RemotePartitionDeleteState
from chunkstore.codec.kafka.remote_metadata import SegmentState as RemoteLogSegmentState
from chunkstore.errors import ChunkstoreError, InvalidArgument
from chunkstore.records.names import utf8_bytes

__all__ = [
    "EPOCHS_MAX", "EPOCH_MAX", "OFFSET_MAX", "IllegalTransition", "LeaderFenced", "OffsetOutOfRange", "RemoteLogSegmentId",
    "RemoteLogSegmentMetadata", "RemoteLogSegmentMetadataUpdate", "RemoteLogSegmentState", "RemotePartitionDeleteMetadata",
    "RemotePartitionDeleteState", "RemoteResourceNotFoundException", "RemoteStorageException", "TopicIdPartition", "check_int",
    "require",
]  # fmt: skip

EPOCH_MAX: Final = (1 << 31) - 1
EPOCHS_MAX: Final = 2048
"""Leader epochs in one segment: each is a few rows of one commit."""
CUSTOM_BYTES_MAX: Final = 16_384
TOPIC_BYTES_MAX: Final = 249
_RANGES: Final = {
    **dict.fromkeys(("partition", "segment_size_in_bytes"), (EPOCH_MAX, 0)),
    **dict.fromkeys(("start_offset", "end_offset"), (OFFSET_MAX, 0)),
    **dict.fromkeys(("max_timestamp_ms", "event_timestamp_ms"), (OFFSET_MAX, -1)),
    "broker_id": (EPOCH_MAX, -1),
}
"""Whole numbers by the names of fields: the largest, the least."""


class RemoteStorageException(ChunkstoreError):
    """Base of what Kafka's managers raise."""


class RemoteResourceNotFoundException(RemoteStorageException):
    """The partition, the segment or its index is not here: never announced, not copied whole, or deleted."""

    fields: ClassVar[tuple[str, ...]] = ("resource",)

    def __init__(self, resource: str) -> None:
        super().__init__(f"{resource} is not here: it was never announced, was not copied to its end, or is deleted")
        self.resource = resource


class IllegalTransition(RemoteStorageException):
    """The state does not allow the event; nothing changed. Read the segment's state before another attempt."""

    fields: ClassVar[tuple[str, ...]] = ("subject", "current", "target")

    def __init__(self, subject: str, current: str, target: str) -> None:
        super().__init__(f"{subject} is {current}: it cannot become {target}")
        self.subject: str = subject
        self.current: str = current
        self.target: str = target


class LeaderFenced(RemoteStorageException):
    """The partition has a newer leader; nothing changed. Stop copying and deleting its segments."""

    fields: ClassVar[tuple[str, ...]] = ("partition", "given", "current")

    def __init__(self, partition: str, given: int, current: int) -> None:
        super().__init__(f"partition {partition}: token {given} is fenced, the present leader has {current}")
        self.partition: str = partition
        self.given: int = given
        self.current: int = current


class OffsetOutOfRange(RemoteStorageException):
    """The offset is neither in the log nor in its tier: go on at ``start_offset``, or wait for ``end_offset`` to go past it."""

    fields: ClassVar[tuple[str, ...]] = ("partition", "offset", "start_offset", "end_offset")

    def __init__(self, partition: str, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(f"partition {partition} has offsets {start_offset} to below {end_offset}, not {offset}")
        self.partition: str = partition
        self.offset: int = offset
        self.start_offset: int = start_offset
        self.end_offset: int = end_offset


def require(holds: bool, argument: str, what: str) -> None:
    """Raise ``InvalidArgument`` of ``argument`` unless it holds."""
    if not holds:
        raise InvalidArgument(f"{argument} must be {what}", argument=argument)


def check_int(value: object, argument: str, most: int, least: int = 0) -> None:
    """Raise ``InvalidArgument`` unless ``value`` is a whole number from ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{argument} must be a whole number from {least} to {most}", argument=argument)


class _Checked:
    """What all types below share: each field is checked by its name."""

    __slots__: tuple[str, ...] = ()
    _states: ClassVar[type[IntEnum]] = RemoteLogSegmentState

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if name in _RANGES:
                check_int(value, name, *_RANGES[name])
            elif name in ("topic_id", "id"):
                require(type(value) is bytes and len(value) == 16, name, "16 bytes")
            elif name == "state":
                require(isinstance(value, self._states), name, "a state of its kind")
            elif name == "topic":
                named = isinstance(value, str) and 1 <= utf8_bytes(value) <= TOPIC_BYTES_MAX and "\0" not in value
                require(named, name, f"1 to {TOPIC_BYTES_MAX} bytes without NUL")
            elif name == "custom_metadata" and value is not None:
                few = type(value) is bytes and len(value) <= CUSTOM_BYTES_MAX
                require(few, name, f"None or at most {CUSTOM_BYTES_MAX} bytes")
            elif name in ("topic_id_partition", "remote_log_segment_id"):
                kind = TopicIdPartition if name == "topic_id_partition" else RemoteLogSegmentId
                require(isinstance(value, kind), name, f"a {kind.__name__}")


@dataclass(frozen=True, slots=True)
class TopicIdPartition(_Checked):
    """A partition: the topic's id (16 bytes), its name, the partition's number."""

    topic_id: bytes
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId(_Checked):
    """One attempt to copy a segment: its partition, and 16 bytes that no other attempt has."""

    topic_id_partition: TopicIdPartition
    id: bytes

    def __str__(self) -> str:
        return f"segment {self.id.hex()} of {self.topic_id_partition}"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate(_Checked):
    """What changes of a segment. It replaces all four: without custom metadata, the stored ones are erased."""

    remote_log_segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    broker_id: int


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata(_Checked):
    """A step of a partition's deletion."""

    _states = RemotePartitionDeleteState

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata(_Checked):
    """A segment: offsets ``start_offset`` to ``end_offset``, both included. ``segment_leader_epochs``: where in it each epoch begins."""

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_in_bytes: int
    segment_leader_epochs: Mapping[int, int] = field(hash=False)
    custom_metadata: bytes | None = None
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    txn_idx_empty: bool = False

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        require(self.end_offset >= self.start_offset, "end_offset", "at or above start_offset")
        require(type(self.txn_idx_empty) is bool, "txn_idx_empty", "True or False")
        epochs = self.segment_leader_epochs
        few = isinstance(epochs, Mapping) and 1 <= len(epochs) <= EPOCHS_MAX
        require(few, "segment_leader_epochs", f"a mapping of 1 to {EPOCHS_MAX} epochs to offsets")
        for epoch, offset in epochs.items():
            check_int(epoch, "segment_leader_epochs", EPOCH_MAX)
            check_int(offset, "segment_leader_epochs", self.end_offset, self.start_offset)
        object.__setattr__(self, "segment_leader_epochs", dict(sorted(epochs.items())))

    def epoch_start(self, epoch: int) -> int:
        """The first offset of ``epoch`` in this segment. Raises ``KeyError`` for an epoch that it does not have."""
        return self.segment_leader_epochs[epoch]

    def epoch_end(self, epoch: int) -> int:
        """The last offset of ``epoch`` in this segment; below its first one if it has no record here."""
        later = next((offset for other, offset in self.segment_leader_epochs.items() if other > epoch), None)
        return self.end_offset if later is None else later - 1

    def with_update(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """The segment as it is after ``update``."""
        names = ("event_timestamp_ms", "custom_metadata", "state", "broker_id")
        return replace(self, **{name: getattr(update, name) for name in names})
