"""Which segments of a partition are read: from the metadata log's records, or from leader epochs and ends. All pure.

Promises: each offset is read from one segment at most; where two have it, the newer leader epoch has it, then the higher end. Leaves out:
lineages that no segment here tells of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from chunkstore.codec.kafka.batches import OFFSET_MAX
from chunkstore.codec.kafka.remote_metadata import MetadataRecord, PartitionDeleteState, RecordKind, SegmentState
from chunkstore.errors import Conflict
from chunkstore.kafka.sources import Segment, SegmentSource

__all__ = ["Piece", "apply_records", "resolve", "resolved"]

_NEXT: Final = {0: (0, 1, 2), 1: (1, 2), 2: (2, 3), 3: (3,)}
"""States that may follow each one; a broker drops records that say otherwise."""


class Piece(NamedTuple):
    """The offsets from ``start`` to below ``stop``, which are read from ``segment``."""

    segment: Segment
    start: int
    stop: int


def apply_records(records: Iterable[MetadataRecord]) -> dict[bytes, MetadataRecord]:
    """The segments by id that these records leave, in the order of the metadata topic's partitions: deleted ones are gone."""
    found: dict[bytes, MetadataRecord] = {}
    for record in records:
        old = found.get(record.segment_id)
        if record.kind == RecordKind.PARTITION_DELETE:
            if record.state == PartitionDeleteState.DELETE_PARTITION_FINISHED:
                place = record.topic_id, record.partition
                found = {key: each for key, each in found.items() if (each.topic_id, each.partition) != place}
        elif record.kind == RecordKind.SEGMENT_METADATA:
            if old is None or old.state == SegmentState.COPY_SEGMENT_STARTED:
                found[record.segment_id] = record
        elif record.kind == RecordKind.SEGMENT_METADATA_UPDATE and old is not None and record.state in _NEXT[old.state]:
            found[record.segment_id] = old._replace(
                state=record.state, broker_id=record.broker_id, event_timestamp_ms=record.event_timestamp_ms,
                custom_metadata=record.custom_metadata,
            )  # fmt: skip
            if record.state == SegmentState.DELETE_SEGMENT_FINISHED:
                del found[record.segment_id]
    return found


def resolve(segments: Sequence[Segment]) -> list[Piece]:
    """The pieces of one partition, ascending.

    The log is followed down from the segment with the newest epoch; an older one gives what is below, up to where its own epochs are newer.
    """
    pieces: list[Piece] = []
    stop, epoch_max = OFFSET_MAX, OFFSET_MAX
    for segment in sorted(segments, key=_newness, reverse=True):
        newer = (start for epoch, start in segment.epochs if epoch > epoch_max)
        end = min([stop, segment.end_offset + 1, *newer])
        if segment.start_offset < end:
            pieces.append(Piece(segment, segment.start_offset, end))
            stop, epoch_max = segment.start_offset, segment.epochs[0].epoch if segment.epochs else epoch_max
    return pieces[::-1]


def resolved(source: SegmentSource, segments: list[Segment], remedy: str) -> list[Piece]:
    """The pieces of one partition's segments that count. Raises ``Conflict`` with ``remedy`` where they are of several topic ids."""
    finished = source.finished(segments)
    if len(ids := sorted({each.topic_id for each in finished})) > 1:
        raise Conflict(f"topic {finished[0].topic}", expected="one topic id", found=ids, remedy=remedy)
    return resolve(finished)


def _newness(segment: Segment) -> tuple[int, int, int, str]:
    epoch = segment.epochs[-1].epoch if segment.epochs else -1
    return epoch, segment.end_offset, -segment.start_offset, segment.uuid
