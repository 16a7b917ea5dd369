"""Checking a partition's segments: every batch, offsets over segments, leader epochs, and the indexes against the batches.

Promises: one damaged segment does not end it; memory is a window and the indexes of one segment. Leaves out: what is inside of batches, and
rows that an index could have: their interval is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from chunkstore.codec.kafka import indexes as codec
from chunkstore.codec.kafka.batches import Batch, LogSummary, ReadOptions, iter_batches
from chunkstore.codec.kafka.records import Transactions, scan_transactions
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, Damaged, InvalidArgument, Unsupported
from chunkstore.kafka.lineage import Piece
from chunkstore.kafka.sources import Finding, Segment, SegmentSource

__all__ = ["check_partition"]


def check_partition(source: SegmentSource, segments: Sequence[Segment], pieces: Sequence[Piece]) -> Iterator[Finding]:
    """What is wrong with the segments of one partition, and between the ``pieces`` that are read of them."""
    going, begin, expected = dict[int, int](), -1, -1
    used = {piece.segment.name for piece in pieces}
    for segment in (*(piece.segment for piece in pieces), *(each for each in segments if each.name not in used)):
        if segment.start_offset != expected:
            going, begin = {}, segment.start_offset
        check = _Check(source, segment, begin)
        expected = segment.end_offset + 1 if check.run(going) else -1
        yield from check.found
    for piece, after in pairwise(pieces):
        if after.start > piece.stop:
            text = f"offsets {piece.stop} to {after.start - 1} are in no segment"
            yield Finding("gap", after.segment.name, piece.segment.topic, piece.segment.partition, piece.stop, 0, text)


class _Check:
    """The check of one segment, of a run that begins at offset ``begin``."""

    def __init__(self, source: SegmentSource, segment: Segment, begin: int) -> None:
        self._source, self._segment, self._begin = source, segment, begin
        self.found: list[Finding] = []

    def run(self, going: dict[int, int]) -> bool:
        """Find all that is wrong but for more damage in the log after the first; returns whether all of its batches are right.

        ``going``: transactions that are open before it; changed to those that are open after it.
        """
        segment, summary = self._segment, LogSummary()
        try:
            indexes = {
                "offset": self._rows(codec.OffsetIndex, "offset"),
                "time": self._rows(codec.TimeIndex, "timestamp"),
            }
            with self._source.log(segment) as log:
                options = ReadOptions(
                    floor=segment.start_offset, dense=segment.dense, window_bytes=4 * MIB, summary=summary
                )
                ended = scan_transactions(self._compared(iter_batches(log, options), indexes), going)
            self._derived(ended)
            self._ends(summary)
            going.clear()
            going.update(ended.open)
            return True
        except (Damaged, Unsupported) as error:
            position = getattr(error, "position", summary.end_position)
            text = f"{error.message}; the rest of it is not checked"
            self._add("batch", text, summary.end_offset, position, getattr(error, "object", ""))
        except InvalidArgument as error:
            self._add("key", error.message)
        except ChunkNotFound as error:
            self._add("gone", "it was deleted while the check ran", object=error.chunk)
        return False

    def _add(self, kind: str, message: str, offset: int = -1, position: int = 0, object: str = "") -> None:
        segment = self._segment
        offset = segment.start_offset if offset < 0 else offset
        place = object or segment.name, segment.topic, segment.partition
        self.found.append(Finding(kind, *place, offset, position, message))

    @contextmanager
    def _finding(self, kind: str) -> Iterator[None]:
        try:
            yield
        except Damaged as error:
            self._add(kind, error.message, position=error.position, object=error.object)

    def _rows(self, kind: type[codec.Index], name: str) -> codec.Index:
        """An index; empty where it is damaged, and of an active segment, which may end with zeros."""
        with self._finding("index"):
            data = self._source.index(self._segment, name) if self._segment.state != "ACTIVE" else b""
            return kind(data or b"", self._segment.start_offset, object=f"{self._segment.name} {name}")
        return kind(b"", 0)

    def _compared(self, batches: Iterator[Batch], indexes: Mapping[str, codec.Index]) -> Iterator[Batch]:
        """The batches, compared with the rows of both indexes and with the segment's epochs on their way."""
        epochs, largest, at = self._segment.epochs, -1, dict.fromkeys(indexes, 0)
        for batch in batches:
            largest = max(largest, batch.max_timestamp)
            place = bisect_right(epochs, batch.base_offset, key=lambda entry: entry.start_offset) - 1
            if epochs and (place < 0 or epochs[place].epoch != batch.leader_epoch):
                text = f"a batch has leader epoch {batch.leader_epoch}, the segment's metadata {epochs[:9]}"
                self._add("epochs", text, batch.base_offset, batch.position)
                epochs = ()
            for kind, index in indexes.items():
                limit = batch.position if kind == "offset" else batch.last_offset
                while at[kind] < len(index) and (row := index[at[kind]])[1] <= limit:
                    text = f"the time index has {row[0]}, but the largest timestamp up to there is {largest}"
                    if kind == "offset":
                        text = f"the offset index points to byte {row[1]}, where no batch at or below the offset begins"
                    if row[0] != largest if kind == "time" else row[1] < limit or row[0] < batch.last_offset:
                        self._add("index", text, row[kind == "time"], at[kind] * index.row.size)
                        at[kind] = len(index)  # only the first one is reported
                    at[kind] += 1
            yield batch
        for kind, index in indexes.items():
            if at[kind] < len(index):
                self._add("index", f"the {kind} index has rows past the last batch", position=at[kind] * index.row.size)

    def _derived(self, ended: Transactions) -> None:
        """Transaction index, open transactions of the producer snapshot, and leader epochs."""
        index, segment = self._source.index, self._segment
        name = f"{segment.name} transaction"
        with self._finding("index"):
            data = index(segment, "transaction")
            entries = codec.read_transaction_index(data or b"", object=name)
            stored = [each[:3] for each in entries if each.last_offset <= segment.end_offset]  # an active one goes on
            if data is not None or index(segment, "offset") is not None:
                self._compare(name, "aborted", stored, [each[:3] for each in ended.aborted])
        name = f"{segment.name} producerSnapshot"
        with self._finding("index"):
            if data := index(segment, "producerSnapshot"):
                producers = (each[::7] for each in codec.read_producer_snapshot(data, object=name))
                self._compare(name, "open", [each for each in producers if each[1] >= 0], [*ended.open.items()])
        with self._finding("epochs"):
            self._source.leader_epochs(segment)

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
