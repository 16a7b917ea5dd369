"""A log directory whose partitions go on in a tier: what is where, the log as a whole, and reading it.

Promises: an offset that is in both is read locally; a segment of another lineage is never read; a few indexes of the tier are kept.
Leaves out: leadership, copying and deleting (``tasks``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from chunkstore.codec.kafka.batches import LogSummary, ReadOptions, iter_batches
from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.codec.kafka.names import uuid_text
from chunkstore.codec.kafka.records import Isolation, Record, Transactions, iter_records
from chunkstore.codec.sources import DataSource
from chunkstore.errors import ChunkNotFound, Damaged, Unsupported
from chunkstore.kafka import model
from chunkstore.kafka.container import identity_of, segment_of
from chunkstore.kafka.lineage import Piece, first_open, open_after, transactions_of
from chunkstore.kafka.model import RemoteLogSegmentMetadata, RemoteResourceNotFoundException, TopicIdPartition
from chunkstore.kafka.retention import Expiry, filtered_epochs, within_lineage
from chunkstore.kafka.sources import LogDirectory, Segment

__all__ = ["Fetched", "Log", "Reason", "TieredDirectory", "explain_tier"]

_STARTED, _FINISHED, _DELETING, _DELETED = model.RemoteLogSegmentState
_Item = RemoteLogSegmentMetadata
_INDEXES: Final = 64
"""Indexes of the tier that are kept: those of the last segments that were read."""


class Fetched(NamedTuple):
    """Records, where to go on, whether they came from the tier, and the bytes of their batches. Markers, and what is aborted, have
    offsets and no record."""

    records: tuple[Record, ...]
    next_offset: int
    remote: bool = False
    batch_bytes: int = 0


class Reason(NamedTuple):
    """A segment, its state, and why it is not copied, may not be deleted, or is kept."""

    segment: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Log:
    """A partition. ``segments``: local ones; ``epochs``: of the tier, too; ``start``: its first offset, ``local_start``: that of
    the local log; ``end``: the offset after its last; ``high``: the high watermark."""

    partition: TopicIdPartition
    segments: list[Segment]
    epochs: list[LeaderEpoch]
    start: int
    local_start: int
    end: int
    high: int


class TieredDirectory(LogDirectory):
    """A log directory, with the metadata and the storage of its tier: managers, or their reading halves. A segment with a uuid is the
    tier's. Raises what these raise."""

    def __init__(self, path: str, metadata: Any, storage: Any) -> None:
        super().__init__(path)
        self._metadata, self._storage = metadata, storage
        self._cached = lru_cache(_INDEXES)(self._index)

    @contextmanager
    def log(self, segment: Segment) -> Iterator[DataSource]:
        if not segment.uuid:
            with super().log(segment) as log:
                yield log
            return
        item = self._item(segment)

        def read(offset: int, length: int) -> bytes:
            with self._storage.fetch_log_segment(item, offset, offset + length - 1) as stream:
                return bytes(stream.read(length))

        yield DataSource(segment.name, segment.bytes, read)

    def index(self, segment: Segment, name: str) -> bytes | None:
        return self._cached(segment, name) if segment.uuid else super().index(segment, name)

    def _index(self, segment: Segment, name: str) -> bytes | None:
        try:
            with self._storage.fetch_index(self._item(segment), name) as stream:
                return bytes(stream.read())
        except RemoteResourceNotFoundException:
            return None

    def view(self, partition: TopicIdPartition) -> Log:
        """The partition as it is now. Raises ``RemoteResourceNotFoundException`` where the directory has no such topic id."""
        highs = self.checkpoint("replication-offset-checkpoint")  # before the listing: it only grows
        found, place = self.listing(partition.topic, partition.partition), (partition.topic, partition.partition)
        if not found.segments or found.segments[0].topic_id not in ("", uuid_text(partition.topic_id)):
            raise RemoteResourceNotFoundException(f"partition {partition} in {self.url}")
        first = found.segments[0]
        epochs = self._uncut(partition, self.leader_epochs(first))
        local = max(first.start_offset, found.log_starts.get(place, 0))
        lowest = (self._metadata.lowest_offset_for_epoch(partition, row.epoch) for row in epochs)
        tiered = next((offset for offset in lowest if offset is not None), local)
        start = max(self._metadata.log_start(partition), min(local, tiered))
        segments = [each for each in found.segments if each.end_offset >= local or each.state == "ACTIVE"]
        return Log(partition, segments, epochs, start, local, segments[-1].end_offset + 1, highs.get(place, 0))

    def _uncut(self, partition: TopicIdPartition, epochs: list[LeaderEpoch]) -> list[LeaderEpoch]:
        """A broker that knows of no tier cuts its epochs at the start of the local log: those before it, of its own lineage alone, are
        in the checkpoint of the segment that goes on there in the first epoch."""
        while epochs and (at := epochs[0].start_offset):
            epoch = epochs[0].epoch
            for offset in (at - 1, at):
                with suppress(RemoteResourceNotFoundException):  # nothing of the partition was ever copied
                    found = self._metadata.remote_log_segment_metadata(partition, epoch, offset)
                    if found is None:
                        continue
                    rows = [row for row in self.leader_epochs(segment_of(found, None)) if row.epoch <= epoch]
                    if rows and rows[0].start_offset < at and rows[-1].start_offset <= found.epoch_start(epoch):
                        epochs = [*rows, *epochs[1:]]
                        break
            else:
                break
        return epochs

    def pieces(self, log: Log, offset: int, end: int, *, local: bool = True) -> Iterator[Piece]:
        """What has the offsets from ``offset`` to below ``end``, up to the first that is missing. ``local`` False: of the tier alone."""
        while offset < end:
            held = (each for each in log.segments if each.start_offset <= offset <= each.end_offset)
            segment = next(held, None) if local and offset >= log.local_start else None
            if segment is not None:
                stop = segment.end_offset + 1
            else:
                at = bisect_right(log.epochs, offset, key=lambda row: row.start_offset)
                found, epoch = None, log.epochs[at - 1].epoch if at else 0
                with suppress(RemoteResourceNotFoundException):  # nothing of the partition was ever copied
                    found = self._metadata.remote_log_segment_metadata(log.partition, epoch, offset)
                if found is None or not at:
                    return
                segment = segment_of(found, found.state.name)
                stop = min([found.epoch_end(epoch) + 1, *(row.start_offset for row in log.epochs[at : at + 1])])
            yield Piece(segment, offset, min(stop, end))
            offset = stop

    def tiered_to(self, log: Log, offset: int, end: int) -> int:
        """The first offset from ``offset`` on that the tier does not have, at most ``end``."""
        for piece in self.pieces(log, offset, end, local=False):
            offset = piece.stop
        return offset

    def has(self, log: Log, segment: Segment) -> bool:
        """Whether the tier has all offsets of a rolled segment."""
        return self.tiered_to(log, segment.start_offset, segment.end_offset + 1) > segment.end_offset

    def copied_to(self, log: Log) -> int:
        """The first offset of the local log that the tier does not have."""
        return self.tiered_to(log, max(log.local_start, log.start), log.end)

    def read(self, log: Log, offset: int, max_bytes: int, isolation: Isolation, *, for_follower: bool = False) -> Fetched:  # fmt: skip
        """Records from ``offset`` on of one segment: of whole batches of at most ``max_bytes``, at least one. See ``RemoteLogManager``."""
        start = log.local_start if for_follower else log.start
        end = log.end if for_follower else max(log.high, log.local_start)
        place, at = (log.partition.topic, log.partition.partition), offset
        for piece in self.pieces(log, offset, end) if start <= offset else ():
            segment, at = piece.segment, piece.stop
            with self.log(segment) as data:
                options = ReadOptions(self.position(segment, data, offset), segment.start_offset, offset, piece.stop)
                first = next(iter_batches(data, options), None)
                if first is None:
                    continue  # compaction left nothing here
                known = self._transactions(log, piece.start, end) if isolation == "read_committed" else None
                few = data._replace(length=min(data.length, first.position + max(max_bytes, first.length + 12)))
                seen, cut = LogSummary(), few.length < data.length
                begin = first.position, first.base_offset, offset, piece.stop
                options = ReadOptions(*begin, unfinished=cut, summary=seen)
                records = tuple(iter_records(few, *place, isolation=isolation, transactions=known, options=options))
            stop = max(offset, seen.end_offset) if cut or seen.beyond >= 0 else piece.stop
            return Fetched(records, stop, bool(segment.uuid), seen.end_position - first.position)
        if not start <= offset <= end or (at == offset < end):
            raise model.OffsetOutOfRange(str(log.partition), offset, start, end)
        return Fetched((), at)

    def explain(self, log: Log, items: Iterable[_Item], chosen: Expiry, blocked: str) -> Iterator[Reason]:
        """Reasons, of local segments and of the tier's ``items``. ``chosen``: what retention deletes; ``blocked``: why none is copied."""
        copied, stable = self.copied_to(log), log.high
        try:
            stable = first_open(self, log.segments, log.high)
        except (ChunkNotFound, Damaged, Unsupported) as error:
            blocked = error.message
        for each in log.segments:
            end = each.end_offset
            whole = each.state == "ROLLED" and self.has(log, each)
            yield Reason(each.name, each.state or "", next(text for holds, text in (
                (each.state == "ACTIVE", "not copied before it is rolled (segment.ms, segment.bytes)"),
                (whole and end < copied, "copied: it may be deleted"),
                (whole, f"copied, but not to be deleted: offset {copied} before it is not in the tier"),
                (not log.high, "not copied: the high watermark is 0 or not known (replication-offset-checkpoint)"),
                (not log.epochs, "not copied: leader epochs are missing (leader-epoch-checkpoint)"),
                (end >= log.high, f"not copied: it ends at offset {end}, the high watermark is {log.high}"),
                (end >= stable, f"not copied: the transaction that begins at offset {stable} is open"),
                (True, f"not copied: {blocked}" if blocked else "not copied yet: the leader's next pass copies it"),
            ) if holds))  # fmt: skip
        deleted = {item.remote_log_segment_id for item in chosen.deletions}
        lineage = filtered_epochs(log.epochs, log.start)
        yield from explain_tier(items, deleted, lambda item: within_lineage(item, log.end, lineage))

    def _transactions(self, log: Log, start: int, end: int) -> Transactions:
        """How the transactions of the piece at ``start`` ended: of it, and of as many after it as what is open after it needs."""
        pieces: list[Piece] = []
        for piece in self.pieces(log, start, end):
            pieces.append(piece)
            going = open_after(self, piece)
            if going is not None and all(first >= pieces[0].stop for first in going.values()):
                break
        return transactions_of(self, pieces)[0]

    def _item(self, segment: Segment) -> RemoteLogSegmentMetadata:
        if (item := self._metadata.remote_log_segment(known := identity_of(segment))) is None:
            raise RemoteResourceNotFoundException(str(known))
        return cast("RemoteLogSegmentMetadata", item)


def explain_tier(
    items: Iterable[_Item], deleted: Collection[model.RemoteLogSegmentId] = (), within: Callable[[_Item], bool] = lambda _: True
) -> Iterator[Reason]:  # fmt: skip
    """Reasons of the tier's segments: ``deleted`` ones are deleted by the next pass, and not ``within`` are those of other lineages."""
    for item in sorted(items, key=lambda item: item.start_offset):
        yield Reason(segment_of(item, None).name, item.state.name, next(text for holds, text in (
            (item.state == _DELETING, "its deletion failed or continues; each pass of the leader tries again"),
            (item.remote_log_segment_id in deleted, "not kept by retention, or left by a dead copy: the next pass deletes it"),
            (item.state == _STARTED, "its copy continues or was abandoned; it is not read"),
            (not within(item), "kept, and not read: of another lineage, until its epochs are older than all of the log's"),
            (True, "kept: within the leader's retention"),
        ) if holds))  # fmt: skip
