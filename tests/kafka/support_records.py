"""A record of each kind of the metadata topic, with a value in every field, and its bytes."""

from __future__ import annotations

from typing import Final

from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.codec.kafka.remote_metadata import MetadataRecord, PartitionDeleteState, RecordKind, SegmentState

__all__ = ["DELETION", "SEGMENT", "SNAPSHOT", "STORED", "UPDATE"]

SEGMENT = MetadataRecord(
    RecordKind.SEGMENT_METADATA, SegmentState.COPY_SEGMENT_STARTED, 3, 99, "t", bytes(range(16)), 7, b"segment-segment-", 10, 20, 98,
    (LeaderEpoch(1, 10), LeaderEpoch(4, 15)), 4096, b"x",
)  # fmt: skip
UPDATE = MetadataRecord(RecordKind.SEGMENT_METADATA_UPDATE, SegmentState.DELETE_SEGMENT_STARTED, *SEGMENT[2:8])
DELETION = MetadataRecord(RecordKind.PARTITION_DELETE, PartitionDeleteState.DELETE_PARTITION_FINISHED, *SEGMENT[2:7])
SNAPSHOT = SEGMENT._replace(kind=RecordKind.SEGMENT_METADATA_SNAPSHOT, topic="", topic_id=bytes(16), partition=-1)

_PLACE = f"02 74 {SEGMENT.topic_id.hex()} 00000007 00"
_ID = SEGMENT.segment_id.hex()
_FIELDS = f"{10:016x} {20:016x} {3:08x} {98:016x} {99:016x}  03 {1:08x} {10:016x} 00 {4:08x} {15:016x} 00  {4096:08x} 02 78 00"
STORED: Final[dict[MetadataRecord, bytes]] = {
    record: bytes.fromhex(f"01 0{record.kind.value} 00 {fields} 00")
    for record, fields in {
        SEGMENT: f"{_PLACE} {_ID} 00 {_FIELDS}",
        UPDATE: f"{_PLACE} {_ID} 00 {3:08x} {99:016x} 00 02",
        DELETION: f"{_PLACE} {3:08x} {99:016x} 02",
        SNAPSHOT: f"{_ID} {_FIELDS}",
    }.items()
}
"""Version 0, without a tag."""
