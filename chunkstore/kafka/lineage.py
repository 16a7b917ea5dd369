"""Which segments of a partition are read, from the metadata log's records or from leader epochs and ends; and how transactions ended.

Promises: each offset is read from one segment at most; where two have it, the newer leader epoch has it, then the higher end. A
transaction whose end is in no segment is never shown as committed: it is withheld, and named. Leaves out: lineages that no segment here
tells of, and transactions whose records are all outside of the pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chunkstore.codec.kafka.batches import OFFSET_MAX, Batch, ReadOptions, iter_batches
from chunkstore.codec.kafka.indexes import AbortedTransaction, read_producer_snapshot, read_transaction_index
from chunkstore.codec.kafka.records import Transactions, scan_transactions
from chunkstore.codec.kafka.remote_metadata import (
    NEXT_STATES,
    MetadataRecord,
    PartitionDeleteState,
    RecordKind,
    SegmentState,
)
from chunkstore.errors import Conflict, Damaged
from chunkstore.kafka.sources import Segment, SegmentSource

__all__ = ["Piece", "apply_records", "first_open", "open_after", "resolve", "resolved", "runs", "transactions_of"]


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
        elif (
            record.kind == RecordKind.SEGMENT_METADATA_UPDATE
            and old is not None
            and record.state in NEXT_STATES[old.state]
        ):
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


def runs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of a partition, those without a gap between them together."""
    found: list[list[Piece]] = []
    for piece in pieces:
        if found and found[-1][-1].stop == piece.start:
            found[-1].append(piece)
        else:
            found.append([piece])
    return found


def transactions_of(source: SegmentSource, pieces: Sequence[Piece]) -> tuple[Transactions, list[str]]:
    """How the transactions with records in ``pieces`` ended, and what is withheld. Raises what ``source`` raises, ``Damaged``."""
    aborted: list[AbortedTransaction] = []
    notes: list[str] = []
    going: dict[int, int] = {}
    for run in runs(pieces):
        found, going = _run(source, run)
        aborted += found
        last = run[-1]
        for producer, first in going.items():
            whose = "all" if last is pieces[-1] else "its"
            text = f"a transaction of producer {producer} has no end here: {whose} records from offset {first} on are left out"
            notes.append(f"{last.segment.topic}-{last.segment.partition}: {text}")
            if last is not pieces[-1]:
                aborted.append(AbortedTransaction(producer, first, last.stop - 1))
    return Transactions(tuple(aborted), min(going.values(), default=None), going), notes


def first_open(source: SegmentSource, segments: Sequence[Segment], high: int) -> int:
    """Where the first transaction begins that has no end below offset ``high``, or ``high``; of a partition's segments, ascending.

    Batches are read from the last producer snapshot at or below ``high`` on, and only where it has open transactions. Raises as above.
    """
    below = (each for each in segments if each.start_offset < high)
    pieces = [Piece(each, each.start_offset, min(each.end_offset + 1, high)) for each in below]
    at = last = sum(each.end_offset < high for each in segments if each.state == "ROLLED")
    going = None
    while at and (going := open_after(source, pieces[at - 1])) is None:
        at -= 1
    if at == last and not going:
        return high
    return min([high, *scan_transactions(_batches(source, pieces[at:]), going).open.values()])


def _run(source: SegmentSource, run: Sequence[Piece]) -> tuple[list[AbortedTransaction], dict[int, int]]:
    """The aborted transactions of pieces without a gap, and those without an end: the first offsets by producer."""
    scan, going = len(run), None
    while scan and (going := open_after(source, run[scan - 1])) is None:
        scan -= 1
    known = [_aborted(source, piece) for piece in run[:scan]]
    if None in known:  # its batches tell, and those before it, where the transactions began
        known, scan, going = [], 0, None
    found = scan_transactions(_batches(source, run[scan:]), going)
    return [*(entry for entries in known for entry in entries or ()), *found.aborted], dict(found.open)


def open_after(source: SegmentSource, piece: Piece) -> dict[int, int] | None:
    """Open transactions after a piece, first offsets by producer, as a snapshot says; None: there is none, or it is damaged."""
    try:
        data = source.index(piece.segment, "producerSnapshot")
        if not data or piece.stop <= piece.segment.end_offset:
            return None
        entries = read_producer_snapshot(data, object=piece.segment.name)
    except Damaged:
        return None
    return {entry.producer_id: entry.transaction_offset for entry in entries if entry.transaction_offset >= 0}


def _aborted(source: SegmentSource, piece: Piece) -> list[AbortedTransaction] | None:
    """Aborted transactions with their marker in a piece; None: its indexes are missing or damaged."""
    try:
        data = source.index(piece.segment, "transaction")
        if data is None and source.index(piece.segment, "offset") is None:
            return None
        entries = read_transaction_index(data or b"", object=piece.segment.name)
    except Damaged:
        return None
    last = piece.stop - 1  # what ``attach`` aborted ends after the segment
    held = [entry for entry in entries if piece.stop > piece.segment.end_offset or entry.last_offset <= last]
    return [entry._replace(last_offset=min(entry.last_offset, last)) for entry in held]


def _batches(source: SegmentSource, pieces: Sequence[Piece]) -> Iterator[Batch]:
    for piece in pieces:
        with source.log(piece.segment) as log:
            yield from iter_batches(log, ReadOptions(floor=piece.segment.start_offset, end_offset=piece.stop))
