"""A tier that lost its cluster, copied into a container from which a fresh cluster's brokers serve it.

Promises: each offset is attached from the segment that readers get it from, under the topic's new id. A run that was killed goes on, and
what is there is passed over. Nothing is written where one partition is refused. Gaps are noted, and so are transactions without an end,
which are aborted. Leaves out: active segments, offsets of consumers, and running brokers.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import zip_longest
from typing import Final, NamedTuple

from chunkstore.codec.kafka import indexes
from chunkstore.codec.kafka.checkpoints import LeaderEpoch, TopicOffset, write_checkpoint
from chunkstore.codec.kafka.names import parse_uuid, segment_file
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.kafka import folders, model
from chunkstore.kafka import tier as copies
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.lineage import Piece, resolve, runs, transactions_of
from chunkstore.kafka.metadata import RemoteLogMetadataManager
from chunkstore.kafka.sources import LogDirectory, SegmentSource, translated
from chunkstore.kafka.storage import RemoteStorageManager

__all__ = ["Attached", "attach"]

_OTHER: Final = "attach to another container"
_ONCE: Final = "the cluster went on: its folders stay as they are"
_FINISHED: Final = model.RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class Attached(NamedTuple):
    """What was done: segments copied, their bytes, segments that were there, partition folders written, and notes."""

    copied: int
    bytes: int
    present: int
    folders: int
    notes: tuple[str, ...]


class _Partition(NamedTuple):
    """A partition under its new id. ``start``: the first offset that consumers get. ``going``: by the ends of runs without a gap, first
    offsets of open transactions by producer."""

    partition: model.TopicIdPartition
    start: int
    pieces: list[Piece]
    lineage: list[LeaderEpoch]
    going: Mapping[int, Mapping[int, int]]
    kept: bytes

    def identity(self, piece: Piece) -> model.RemoteLogSegmentId:
        """The segment's own id, so that another run finds it; a log directory has none."""
        segment = piece.segment
        made = sha256(repr(segment[:5]).encode()).digest()[:16]  # topic, id, partition, offsets
        own = parse_uuid(segment.uuid, object=segment.name) if segment.uuid else made
        return model.RemoteLogSegmentId(self.partition, own)


def attach(
    tier: KafkaBucket,
    store: ChunkedSegmentStorage,
    topics: str | None = None,
    *,
    topic_ids: Mapping[str, str] | None = None,
    log_dir: str | None = None,
) -> Attached:
    """Copy a tier, a container or a log directory into ``store``, for the plug-in of a fresh cluster's brokers.

    ``topics``: a pattern, as of ``tier.tier``. ``topic_ids``: ids of the fresh cluster by those in the tier; other topics are passed over.
    ``log_dir``, instead: the log directory of a stopped broker of that cluster, whose topics exist without a record. The partitions in it
    are attached under their ids, and what Kafka needs is put into each folder, on disk, whole or not at all.

    A segment is durable and readable when its copy ends. Raises ``InvalidArgument`` (nothing to attach; the broker did not stop cleanly; a
    folder with records, or at a leader epoch below the tier's last one), ``Conflict`` (two ids of one topic; the container has other
    segments of these offsets, or, with ``log_dir``, newer ones), ``Damaged``, and what the tier, the directory and the store raise. Retry:
    safe.
    """
    if (topic_ids is None) == (log_dir is None):
        raise InvalidArgument("name a log directory of the fresh cluster, or its topic ids", argument="log_dir")
    if log_dir is not None:
        folders.clean_stop(log_dir)
        folders.put_back(log_dir)
    notes: dict[str, None] = {}
    found = [*_partitions(tier.source, topics, topic_ids or {}, log_dir, notes)]
    if not found:
        raise InvalidArgument("; ".join(["there is nothing to attach", *notes]), argument="topics")
    manager = RemoteLogMetadataManager(store, "kafka-exact")
    finished = {identity for each in found for identity in _finished(manager, each, log_dir is not None)}
    manager.on_partition_leadership_changes([each.partition for each in found])
    for each in found:
        if each.start > each.pieces[0].start:
            manager.record_log_start(each.partition, each.start).result()
    missing = [(each, piece) for each in found for piece in each.pieces if each.identity(piece) not in finished]
    size = sum(_copy(tier.source, store, *each) for each in missing)
    if log_dir is not None:
        for each in found:
            _put_folder(log_dir, each)
        _put_log_starts(log_dir, found)
    return Attached(len(missing), size, len(finished), 0 if log_dir is None else len(found), tuple(notes))


def _partitions(
    source: SegmentSource, topics: str | None, ids: Mapping[str, str], log_dir: str | None, notes: dict[str, None]
) -> Iterator[_Partition]:
    listing, fresh = source.listing(), None if log_dir is None else _fresh(log_dir)
    notes.update(dict.fromkeys([*listing.notes, *(f"{each.object}: {each.message}" for each in listing.findings)]))
    known: dict[str, set[str]] = {}
    for place, several in listing.partitions().items():
        if not copies.named(place[0], topics):
            continue
        name, start = f"{place[0]}-{place[1]}", listing.log_starts.get(place, 0)
        rolled = [each for each in source.finished(several) if each.state != "ACTIVE" and each.end_offset >= start]
        segments = [each for each in rolled if fresh is not None or each.topic_id in ids]
        old = known.setdefault(place[0], set())
        old.update(each.topic_id for each in segments)
        if len(old) > 1:
            raise Conflict(
                f"topic {place[0]}", expected="one topic id", found=sorted(old), remedy="choose one by its id"
            )
        new = "".join(ids[each] for each in old) if fresh is None else fresh.get(place, ("", 0))[0]
        pieces = resolve(segments)
        if not (new and pieces):
            notes[f"{name} is not attached: no finished segment, or no id in the fresh cluster"] = None
            continue
        partition = model.TopicIdPartition(parse_uuid(new, object=f"the id of {name}"), *place)
        going: dict[int, Mapping[int, int]] = {}
        for run, after in zip_longest(found := runs(pieces), found[1:]):
            stop = run[-1].stop
            going[stop] = transactions_of(source, run)[0].open
            for producer, first in going[stop].items():
                notes[f"{name}: the transaction of producer {producer} at offset {first} has no end: aborted"] = None
            notes[f"{name}: offsets from {stop} {f'to {after[0].start - 1}' if after else 'on'} are not here"] = None
        lineage = _lineage(source, pieces)
        kept = b"" if fresh is None else _kept(os.path.join(str(log_dir), name), fresh[place][1], lineage[-1].epoch)
        yield _Partition(partition, max(start, pieces[0].start), pieces, lineage, going, kept)


def _fresh(log_dir: str) -> dict[tuple[str, int], tuple[str, int]]:
    """The topic id and the last leader epoch of each partition in a log directory."""
    found = {}
    directory = LogDirectory(log_dir)
    for each in directory.listing().segments:
        epochs = directory.leader_epochs(each)
        found[each.topic, each.partition] = each.topic_id, epochs[-1].epoch if epochs else -1
    return found


def _kept(folder: str, epoch: int, last: int) -> bytes:
    """Its ``partition.metadata``. Raises ``InvalidArgument``: it has records, or a leader would drop epochs, those not below its own."""
    if epoch < last:
        text = f"{folder} is at leader epoch {epoch}, the tier at {last}: consumers would lose records of later epochs"
        text += f"; start and stop the broker {(last - epoch + 1) // 2} times: each adds 2; nothing was written"
        raise InvalidArgument(text, argument="log_dir")
    return folders.kept_metadata(folder, True) or b""


def _lineage(source: SegmentSource, pieces: list[Piece]) -> list[LeaderEpoch]:
    found: list[LeaderEpoch] = []
    for segment, _, stop in pieces:
        epochs = segment.epochs or source.leader_epochs(segment) or [LeaderEpoch(0, 0)]
        found += [each for each in epochs if each.start_offset < stop and (not found or each.epoch > found[-1].epoch)]
    return found


def _finished(manager: RemoteLogMetadataManager, each: _Partition, last: bool) -> Iterator[model.RemoteLogSegmentId]:
    """What the container has of it. Raises ``Conflict``: it has other segments of these offsets, or, with ``last``, newer ones."""
    ends = {each.identity(piece): piece.stop - 1 for piece in each.pieces}
    with suppress(model.RemoteResourceNotFoundException):
        for item in manager.list_remote_log_segments(each.partition):
            identity = item.remote_log_segment_id
            if item.state == _FINISHED and (last or item.start_offset < each.pieces[-1].stop):
                if item.start_offset >= each.pieces[-1].stop:
                    raise Conflict(str(each.partition), expected="no newer segment", found=str(identity), remedy=_ONCE)
                if ends.get(identity) != item.end_offset:
                    raise Conflict(str(each.partition), expected="no other segment", found=str(identity), remedy=_OTHER)
                yield identity


def _copy(source: SegmentSource, store: ChunkedSegmentStorage, each: _Partition, piece: Piece) -> int:
    """Copy the piece's part of its segment, for a broker reads a segment to its end; returns its bytes."""
    part = piece.segment._replace(state="ROLLED", end_offset=piece.stop - 1)
    storage, manager = RemoteStorageManager(store), RemoteLogMetadataManager(store, "kafka-exact")
    [planned] = copies.plan([part], each.lineage, model.OFFSET_MAX)
    with source.log(piece.segment) as log:
        files = {name: source.index(piece.segment, name) for name in copies.SEGMENT_FILES}
        aborted = indexes.read_transaction_index(files["transaction"] or b"", object=part.name)
        if piece.stop <= piece.segment.end_offset:
            log, offsets = copies.cut_log(log, part, piece.stop), files["offset"] or b""
            rows = indexes.OffsetIndex(offsets, piece.start, object=part.name)
            below = bisect_left(range(len(rows)), piece.stop, key=lambda number: rows[number][0])
            files["offset"], files["producerSnapshot"] = offsets[: below * rows.row.size], None
            aborted = [entry for entry in aborted if entry.last_offset < piece.stop]
        if piece.stop in each.going:
            aborted += _ended(each.going[piece.stop], piece.stop)
            # A fresh cluster numbers its producers anew, and would refuse those that this snapshot knows.
            files["producerSnapshot"] = indexes.write_producer_snapshot(())
        files["transaction"] = indexes.write_transaction_index(aborted) or None
        if (begun := manager.remote_log_segment(each.identity(piece))) is not None:
            storage.delete_log_segment_data(begun)  # a killed run may have cut the segment at another offset
        copies.copy_segment(storage, manager, *copies.described(each.identity(piece), planned, log, files))
    return log.length


def _ended(going: Mapping[int, int], stop: int) -> Iterator[indexes.AbortedTransaction]:
    """Open transactions as if they were aborted from offset ``stop`` on."""
    firsts = [*going.values()]
    for number, (producer, first) in enumerate(going.items()):
        at = stop + number
        yield indexes.AbortedTransaction(producer, first, at, min(firsts[number + 1 :], default=at + 1))


def _put_folder(log_dir: str, each: _Partition) -> None:
    """An empty log where the tier ends, so that all below is read from the tier, and its lineage."""
    staging = folders.staged(log_dir)
    folders.write_file(staging, segment_file(each.pieces[-1].stop, "log"), b"")
    folders.write_file(staging, "leader-epoch-checkpoint", write_checkpoint(each.lineage))
    folders.write_file(staging, "partition.metadata", each.kept)
    folders.put_in_place(log_dir, str(each.partition), replaced=True)


def _put_log_starts(log_dir: str, found: list[_Partition]) -> None:
    name = "log-start-offset-checkpoint"
    starts = LogDirectory(log_dir).checkpoint(name)
    starts |= {(each.partition.topic, each.partition.partition): each.start for each in found}
    staging, rows = folders.staged(log_dir), [TopicOffset(*place, start) for place, start in starts.items()]
    folders.write_file(staging, name, write_checkpoint(rows))
    with translated(log_dir):
        os.replace(os.path.join(staging, name), os.path.join(log_dir, name))
        os.rmdir(staging)
