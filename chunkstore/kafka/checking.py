"""Checking a partition's segments: every batch, offsets over segments, leader epochs, and the indexes against the batches.

Promises: one damaged segment does not end it; memory is a window and the indexes of one segment. Leaves out: what is inside of batches, and
rows that an index could have: their interval is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from chunkstore.codec.kafka.batches import Batch, LogSummary, ReadOptions, iter_batches
from chunkstore.codec.kafka.checkpoints import read_leader_epochs
from chunkstore.codec.kafka.indexes import (
    BatchMark,
    OffsetIndex,
    ProducerStates,
    TimeIndex,
    read_producer_snapshot,
    read_transaction_index,
    rebuild_indexes,
)
from chunkstore.codec.kafka.records import control_record
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, Damaged, InvalidArgument, Unsupported
from chunkstore.kafka.lineage import Piece
from chunkstore.kafka.sources import Finding, Segment, SegmentSource

__all__ = ["check_partition"]

_Rows = Iterator[tuple[int, tuple[int, int]]]


def check_partition(source: SegmentSource, segments: Sequence[Segment], pieces: Sequence[Piece]) -> Iterator[Finding]:
    """What is wrong with the segments of one partition, and between the ``pieces`` that are read of them."""
    states, begin, expected = ProducerStates(), -1, -1
    used = {piece.segment.name for piece in pieces}
    for segment in (*(piece.segment for piece in pieces), *(each for each in segments if each.name not in used)):
        if segment.start_offset != expected:
            states, begin = ProducerStates(), segment.start_offset
        check = _Check(source, segment, states, begin)
        yield from check.findings()
        expected = segment.end_offset + 1 if check.whole else -1
    for piece, after in pairwise(pieces):
        if after.start > piece.stop:
            text = f"offsets {piece.stop} to {after.start - 1} are in no segment"
            yield Finding("gap", after.segment.name, piece.segment.topic, piece.segment.partition, piece.stop, 0, text)


def _mark(batch: Batch) -> BatchMark:
    control = control_record(batch)
    ends = control is not None and control.type in ("abort", "commit")
    sequence = batch.base_sequence
    return BatchMark(
        batch.base_offset, batch.last_offset, batch.position, batch.max_timestamp, batch.producer_id, batch.producer_epoch,
        (sequence + batch.last_offset_delta) & 0x7FFFFFFF if sequence >= 0 else -1, batch.transactional, batch.control,
        control is not None and control.type == "commit" if ends else None,
        control.coordinator_epoch or 0 if control is not None and ends else -1,
    )  # fmt: skip


class _Check:
    """The check of one segment; ``states``: producers before it, as of the segments from offset ``begin`` on."""

    def __init__(self, source: SegmentSource, segment: Segment, states: ProducerStates, begin: int) -> None:
        self._source, self._segment, self._states, self._begin = source, segment, states, begin
        self._found: list[Finding] = []
        self.whole = False
        """Whether all of its batches are right."""

    def findings(self) -> list[Finding]:
        """All that is wrong but for more damage in the log after the first."""
        segment, summary = self._segment, LogSummary()
        try:
            offsets, times = self._rows(OffsetIndex, "offset"), self._rows(TimeIndex, "timestamp")
            with self._source.log(segment) as log:
                options = ReadOptions(floor=segment.start_offset, dense=segment.dense, window_bytes=4 * MIB)
                marks = self._marks(iter_batches(log, options, summary), offsets, times)
                rebuilt = rebuild_indexes(marks, segment.start_offset, self._states, object=segment.name)
            self.whole = True
            self._derived(rebuilt.transactions)
            self._ends(summary)
        except (Damaged, Unsupported) as error:
            position = getattr(error, "position", summary.end_position)
            text = f"{error.message}; what follows in it is not checked"
            self._add("batch", text, summary.end_offset, position, getattr(error, "object", ""))
        except InvalidArgument as error:
            self._add("key", error.message)
        except ChunkNotFound as error:
            self._add("gone", "it was deleted while the check ran", object=error.chunk)
        return self._found

    def _add(self, kind: str, message: str, offset: int = -1, position: int = 0, object: str = "") -> None:
        segment = self._segment
        offset = segment.start_offset if offset < 0 else offset
        place = object or segment.name, segment.topic, segment.partition
        self._found.append(Finding(kind, *place, offset, position, message))

    @contextmanager
    def _finding(self, kind: str) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            self._add(kind, error.message, position=error.position, object=error.object)

    def _rows(self, kind: type[OffsetIndex | TimeIndex], name: str) -> _Rows:
        """Positions and rows of an index; none of an active segment's, which may end with zeros."""
        if self._segment.state == "ACTIVE":
            return iter(())
        with self._finding("index"):
            data = self._source.index(self._segment, name) or b""
            rows = kind(data, self._segment.start_offset, object=f"{self._segment.name} {name}")
            return ((number * kind.row.size, rows[number]) for number in range(len(rows)))
        return iter(())

    def _marks(self, batches: Iterator[Batch], offsets: _Rows, times: _Rows) -> Iterator[BatchMark]:
        """The marks of the batches, compared with the rows of both indexes and with the segment's epochs on their way."""
        epochs, largest = self._segment.epochs, -1
        row, time = next(offsets, None), next(times, None)
        for batch in batches:
            largest = max(largest, batch.max_timestamp)
            place = bisect_right(epochs, batch.base_offset, key=lambda entry: entry.start_offset) - 1
            if epochs and (place < 0 or epochs[place].epoch != batch.leader_epoch):
                text = f"a batch has leader epoch {batch.leader_epoch}, the segment's metadata {epochs[:9]}"
                self._add("epochs", text, batch.base_offset, batch.position)
                epochs = ()
            if row is not None and row[1][1] <= batch.position:
                if row[1][1] < batch.position or row[1][0] < batch.last_offset:
                    text = f"the offset index leads to byte {row[1][1]}, where no batch at or below the offset begins"
                    self._add("index", text, *row[1][:1], row[0])
                    offsets = iter(())
                row = next(offsets, None)
            while time is not None and time[1][1] <= batch.last_offset:
                if time[1][0] != largest:
                    text = f"the time index says {time[1][0]}; the largest timestamp up to there is {largest}"
                    self._add("index", text, time[1][1], time[0])
                    times = iter(())
                time = next(times, None)
            yield _mark(batch)
        for kind, left in (("offset", row), ("time", time)):
            if left is not None:
                self._add("index", f"the {kind} index has rows past the last batch", position=left[0])

    def _derived(self, rebuilt: bytes) -> None:
        """Transaction index, open transactions of the producer snapshot, and leader epochs."""
        index, segment = self._source.index, self._segment
        name = f"{segment.name} transaction"
        with self._finding("index"):
            data = index(segment, "transaction")
            pair = (read_transaction_index(each or b"", object=name) for each in (data, rebuilt))
            stored, made = ([each[:3] for each in rows if each.last_offset <= segment.end_offset] for rows in pair)
            if data is not None or index(segment, "offset") is not None:
                self._compare(name, "aborted", stored, made)
        name = f"{segment.name} producerSnapshot"
        with self._finding("index"):
            if data := index(segment, "producerSnapshot"):
                both = (read_producer_snapshot(data, object=name), self._states)
                going = [[each[::7] for each in rows if each.transaction_offset >= 0] for rows in both]
                self._compare(name, "open", *going)
        with self._finding("epochs"):
            if data := index(segment, "leaderEpoch"):
                read_leader_epochs(data, object=f"{segment.name} leaderEpoch")

    def _compare(self, name: str, what: str, stored: list[Any], made: list[Any]) -> None:
        """Transactions (producer, first offset, ...), but for producers with one that began before the segments that were read."""
        early = {row[0] for row in stored if row[1] < self._begin}
        rows, known = (sorted(row for row in each if row[0] not in early) for each in (stored, made))
        if rows != known and self._segment.dense:
            text = f"{what} transactions {rows[:9]}, its batches have {known[:9]} (producer, first offset)"
            self._add("index", text, object=name)

    def _ends(self, summary: LogSummary) -> None:
        end = self._segment.end_offset + 1
        if summary.epoch_drops:
            self._add("epochs", f"leader epochs go back {summary.epoch_drops} times")
        if self._segment.dense and summary.batches and summary.start_offset != self._segment.start_offset:
            self._add("offsets", f"its batches begin at offset {summary.start_offset}")
        if summary.end_offset != end and (self._segment.dense or summary.end_offset > end):
            text = f"its batches end at offset {summary.end_offset - 1}, the segment at {end - 1}"
            self._add("offsets", text, summary.end_offset, summary.end_position)
