"""A broker's log directory copied into a container, and put back.

Promises: ``tier`` changes nothing in the directory; it copies rolled segments below the high watermark and the first open transaction,
and none that the container has, of which no byte is read. Killed anywhere, the next run goes on, and nothing is doubled. ``whole`` copies
all of a stopped directory. ``restore`` puts a partition's folder there whole or not at all. Leaves out: retention.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.codec.kafka.batches import ReadOptions, iter_batches
from chunkstore.codec.kafka.checkpoints import LeaderEpoch, write_checkpoint, write_partition_metadata
from chunkstore.codec.kafka.indexes import TimeIndex
from chunkstore.codec.kafka.names import parse_uuid, segment_file, uuid_text
from chunkstore.codec.sources import DataSource
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, InvalidArgument, Unsupported
from chunkstore.kafka import folders, model
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.folders import clean_stop
from chunkstore.kafka.lineage import Piece, first_open, resolved
from chunkstore.kafka.metadata import RemoteLogMetadataManager
from chunkstore.kafka.model import OFFSET_MAX, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from chunkstore.kafka.retention import filtered_epochs
from chunkstore.kafka.sources import LogDirectory, Segment, index_file
from chunkstore.kafka.storage import LogSegmentData, RemoteStorageManager
from chunkstore.kafka.whole import Partitions, other_files, read_partitions, store_cluster

__all__ = ["Planned", "Restored", "Tiered", "opened_segment", "plan", "restore", "tier"]

BROKER: Final = -1
"""The broker id of these copies."""
SEGMENT_FILES: Final = ("offset", "timestamp", "transaction", "producerSnapshot")
"""Indexes of one segment alone."""
_STARTED, _FINISHED, _DELETING, _DELETED = model.RemoteLogSegmentState
Files = Mapping[str, bytes | None]
_Copy = tuple[RemoteLogSegmentMetadata, LogSegmentData]


class Tiered(NamedTuple):
    """What a pass did: segments copied, their bytes, segments that were there, rolled segments that may not be copied yet, and notes."""

    copied: int
    bytes: int
    present: int
    held_back: int
    notes: tuple[str, ...]


class Restored(NamedTuple):
    """What was put back; ``missing``: what a broker needs besides, or will not have."""

    partitions: int
    segments: int
    bytes: int
    missing: tuple[str, ...]


class Planned(NamedTuple):
    """A segment to copy, where in it each leader epoch begins, and the checkpoint up to its end."""

    segment: Segment
    epochs: Mapping[int, int]
    checkpoint: bytes


def plan(segments: Iterable[Segment], epochs: Sequence[LeaderEpoch], stable: int) -> list[Planned]:
    """Which of a partition's segments may be copied: those with records that end below offset ``stable``. The first of ``epochs`` counts
    from offset 0 on: the checkpoint does not tell of what is below the log start."""
    planned, lineage = [], [(epoch, number and start) for number, (epoch, start) in enumerate(epochs)]
    for segment in segments if epochs else ():
        start, end = segment.start_offset, segment.end_offset
        if start <= end < stable:
            held = {epoch: begin for epoch, begin in filtered_epochs(lineage, start).items() if begin <= end}
            known = [each for each in epochs if each.start_offset <= end or segment.state == "ACTIVE"]
            planned.append(Planned(segment, held, write_checkpoint(known)))
    return planned


@contextmanager
def opened_segment(
    source: LogDirectory, identity: RemoteLogSegmentId, planned: Planned, broker_id: int = BROKER
) -> Iterator[_Copy]:
    """What is stored of a segment. Raises ``ChunkNotFound`` (deleted or replaced meanwhile), ``Damaged``, and what ``source`` raises."""
    segment = planned.segment
    with source.log(segment) as log:
        files = {name: source.index(segment, name) for name in SEGMENT_FILES}
        if segment.state == "ROLLED":
            source.require_neighbour(segment, log)
            if source.size_of(segment) != segment.bytes:
                raise ChunkNotFound(segment.name)  # compaction has put other files there
        yield described(identity, planned, log, files, broker_id)


def described(identity: RemoteLogSegmentId, planned: Planned, log: DataSource, files: Files, broker_id: int = BROKER) -> _Copy:  # fmt: skip
    """What both managers take of a planned segment with the indexes ``files``. Raises ``Damaged`` of the time index."""
    segment = planned.segment
    times = TimeIndex(files["timestamp"] or b"", segment.start_offset, object=f"{segment.name} timeindex")
    metadata = RemoteLogSegmentMetadata(
        identity, segment.start_offset, segment.end_offset, times[len(times) - 1][0] if len(times) else -1, broker_id,
        runtime.now_ms(), log.length, planned.epochs, txn_idx_empty=not files["transaction"],
    )  # fmt: skip
    offsets, times_file, aborted, producers = (files[name] for name in SEGMENT_FILES)
    return metadata, LogSegmentData(log, offsets, times_file, producers, planned.checkpoint, aborted)


def copy_segment(
    storage: RemoteStorageManager,
    manager: RemoteLogMetadataManager,
    metadata: RemoteLogSegmentMetadata,
    data: LogSegmentData,
    *,
    token: int | None = None,
) -> None:
    """Copy a segment as a broker does: STARTED, its bytes, FINISHED. Raises what both managers raise. Retry: safe, with the same id."""
    manager.add_remote_log_segment_metadata(metadata, token=token).result()
    item = replace(metadata, custom_metadata=storage.copy_log_segment_data(metadata, data))
    move_segment(manager, item, _FINISHED, token, metadata.broker_id)


def delete_segment(
    storage: Any, manager: Any, item: RemoteLogSegmentMetadata, token: int | None, broker_id: int = BROKER
) -> None:
    """Delete a segment as a broker does: DELETE_SEGMENT_STARTED, its bytes, DELETE_SEGMENT_FINISHED. Raises what both managers raise, but
    for rows that are deleted meanwhile, such as with their partition. Retry: safe."""
    for state in (_DELETING, _DELETED):
        try:
            move_segment(manager, item, state, token, broker_id)
        except ChunkstoreError:
            if manager.remote_log_segment(item.remote_log_segment_id) is not None:
                raise
        if state == _DELETING:
            storage.delete_log_segment_data(item)


def move_segment(
    manager: Any, item: RemoteLogSegmentMetadata, state: model.RemoteLogSegmentState, token: int | None, broker_id: int
) -> None:
    """Move a segment to another state; it gets the item's custom metadata."""
    fields = item.remote_log_segment_id, runtime.now_ms(), item.custom_metadata, state, broker_id
    manager.update_remote_log_segment_metadata(model.RemoteLogSegmentMetadataUpdate(*fields), token=token).result()


def tier(
    log_dir: str,
    store: ChunkedSegmentStorage,
    topics: str | None = None,
    *,
    watch: Callable[[Tiered], bool] | None = None,
    whole: bool = False,
) -> Tiered:
    """Copy the rolled segments of a broker's log directory, which may be in use, into the container; returns what the last pass did.

    ``topics``: a pattern of names as of a shell; None: all. Topics that begin with "__" are copied only where it begins so, too.
    ``watch``: called after each pass; passes go on while it returns True. ``whole``: of a stopped directory all topics, active segments up
    to their last whole batch, and what its broker needs to start; replaces what an earlier such run has put there.

    A segment is durable and readable when its copy ends. What is wrong with one partition is noted, and the others are copied; a whole
    directory is then ``Damaged``, and the earlier one stays. Raises ``InvalidArgument`` (no such directory; with ``whole``: it was not
    stopped cleanly, or another option is given), and what the directory and the store raise. Retry: safe.
    """
    if not os.path.isdir(log_dir):
        raise InvalidArgument(f"{log_dir} is not a directory; name a broker's log.dirs", argument="log_dir")
    if whole:
        if (topics, watch) != (None, None):
            raise InvalidArgument("a whole directory is all topics, in one pass", argument="whole")
        return _tier_whole(log_dir, store)
    while True:
        each = _Pass(LogDirectory(log_dir), store)
        done = each.run(topics)
        each.delete_replaced()
        if watch is None or not watch(done):
            return done


def _tier_whole(log_dir: str, store: ChunkedSegmentStorage) -> Tiered:
    mark, source = clean_stop(log_dir), LogDirectory(log_dir)
    each = _Pass(source, store, whole=True)
    done = each.run(None)
    if done.notes or done.held_back:
        text = "; ".join(done.notes) or "leader epochs or an active segment's batches cannot be read"
        raise Damaged(f"not copied completely: {text}", object=log_dir)
    listing = source.listing()
    store_cluster(store, log_dir, listing.segments, each.ids, mark)
    each.delete_replaced()
    return done._replace(notes=tuple(listing.notes))


def named(topic: str, pattern: str | None) -> bool:
    inner = topic.startswith("__")
    return not inner if pattern is None else fnmatchcase(topic, pattern) and (not inner or pattern.startswith("__"))


class _Pass:
    """One pass over a log directory. ``ids``: of the segments that the container has, by partition."""

    def __init__(self, source: LogDirectory, store: ChunkedSegmentStorage, *, whole: bool = False) -> None:
        self._source, self._whole = source, whole
        self._storage, self._metadata = RemoteStorageManager(store), RemoteLogMetadataManager(store)
        self._copied = self._bytes = self._present = self._held_back = 0
        self._tokens: dict[TopicIdPartition, int] = {}
        self._notes: dict[str, None] = {}
        self._replaced: list[RemoteLogSegmentMetadata] = []
        self.ids: dict[str, list[str]] = {}

    def run(self, topics: str | None) -> Tiered:
        highs = self._source.checkpoint("replication-offset-checkpoint")  # before the listing: it only grows
        listing = self._source.listing()
        self._note(*(f"{each.object}: {each.message}" for each in listing.findings))
        broken = {(each.topic, each.partition) for each in listing.findings}
        for place, several in listing.partitions().items():
            start = listing.log_starts.get(place, 0)  # the epochs of what is below are not known any more
            segments = [each for each in several if each.end_offset >= start or each.state == "ACTIVE"]
            wanted = segments and (self._whole or (named(place[0], topics) and segments[0].topic_id))
            if wanted and place not in broken:
                self._tier(segments, highs.get(place, 0))
        return Tiered(self._copied, self._bytes, self._present, self._held_back, tuple(self._notes))

    def _note(self, *lines: str) -> None:
        self._notes.update(dict.fromkeys(lines))

    def _tier(self, segments: list[Segment], high: int) -> None:
        """Copy what may be copied of a partition, and is not there."""
        first = segments[0]
        partition = TopicIdPartition(parse_uuid(first.topic_id, object=first.name), first.topic, first.partition)
        wanted = [each for each in segments if self._whole or each.state == "ROLLED"]
        try:
            epochs = self._source.leader_epochs(first)
            stable = OFFSET_MAX - 1 if self._whole else first_open(self._source, segments, high)
            planned = plan(wanted, epochs, stable)
        except (ChunkNotFound, Damaged, Unsupported) as error:
            self._note(f"{partition} is not copied: {error.message}")
            return
        self._held_back += sum(each.start_offset <= each.end_offset for each in wanted) - len(planned)
        if not (high and epochs) and not self._whole:
            self._note(f"{partition} is not copied: its high watermark is 0 or not known, or its leader epochs are not")
        finished = self._finished(partition)
        for each in planned:
            # Two lineages of the same offsets end in different epochs.
            stored = finished.get((each.segment.start_offset, each.segment.end_offset, max(each.epochs)), [])
            same = next((item for item in stored if not self._whole or self._is_same(item, each.segment)), None)
            self._replaced += [item for item in stored if self._whole and item is not same]
            if same is None:
                self._copy(RemoteLogSegmentId(partition, runtime.token(16)), each)
            else:
                self._present += 1
                self._stored(same.remote_log_segment_id)

    def _finished(self, partition: TopicIdPartition) -> dict[tuple[int, int, int], list[RemoteLogSegmentMetadata]]:
        """What the tier has of a partition, by offsets and last epoch; what died of earlier runs is to be deleted."""
        found: dict[tuple[int, int, int], list[RemoteLogSegmentMetadata]] = {}
        with suppress(model.RemoteResourceNotFoundException):  # nothing of it was ever copied
            for item in self._metadata.list_remote_log_segments(partition):
                if item.state == _FINISHED:
                    span = item.start_offset, item.end_offset, max(item.segment_leader_epochs)
                    found.setdefault(span, []).append(item)
                elif item.broker_id == BROKER:
                    self._replaced.append(item)
        return found

    def _is_same(self, item: RemoteLogSegmentMetadata, segment: Segment) -> bool:
        """Whether the stored log has the segment's bytes: compaction may keep its offsets, and even its length."""
        if item.segment_size_in_bytes != segment.bytes:
            return False
        try:
            with self._source.log(segment) as log, self._storage.fetch_log_segment(item, 0) as stored:
                return all(stored.read(len(piece)) == piece for piece in folders.pieces_of(log))
        except model.RemoteResourceNotFoundException:
            return False

    def _stored(self, identity: RemoteLogSegmentId) -> None:
        self.ids.setdefault(str(identity.topic_id_partition), []).append(uuid_text(identity.id))

    def delete_replaced(self) -> None:
        """Delete what died of earlier runs, and what a whole directory had before: a reader must not find what compaction has removed."""
        for item in self._replaced:
            token = self._token(item.remote_log_segment_id.topic_id_partition)
            delete_segment(self._storage, self._metadata, item, token)

    def _token(self, partition: TopicIdPartition) -> int:
        if partition not in self._tokens:
            self._tokens |= self._metadata.on_partition_leadership_changes([partition])
        return self._tokens[partition]

    def _copy(self, identity: RemoteLogSegmentId, planned: Planned) -> None:
        segment = planned.segment
        try:
            with opened_segment(self._source, identity, planned) as (item, data):
                token = self._token(identity.topic_id_partition)
                copy_segment(self._storage, self._metadata, item, data, token=token)
        except ChunkNotFound as error:
            self._note(f"{error.chunk} was deleted or replaced during the copy")
        except Damaged as error:
            self._note(f"{segment.name} is not copied: {error.message}")
        else:
            self._copied += 1
            self._bytes += segment.bytes
            self._stored(identity)


def restore(
    store: ChunkedSegmentStorage | Replica, log_dir: str, topics: str | None = None, *, keep_partition_metadata: bool = False
) -> Restored:  # fmt: skip
    """Put partitions back as folders of a log directory, whose broker is stopped: logs, indexes, snapshots, leader epochs. Where a whole
    directory was copied, and neither option is given, all of it is put back as it was then, and its broker can start.

    ``topics``: as of ``tier``. ``keep_partition_metadata``: the folders are those of topics that a fresh cluster has created, without a
    record; all but their ``partition.metadata`` is replaced, so that its broker serves them.

    A folder is there whole, its bytes on disk, or not at all. ``.lock`` is held meanwhile. Raises ``InvalidArgument`` (a broker or another
    restore holds it; a folder, or all of ``log_dir``, has files in it, and nothing was written), ``Conflict`` (two topics of one name),
    ``AccessDenied``, ``StorageUnavailable``, and what reading the store raises. Retry: safe; name what is not there yet, or empty a whole
    directory.
    """
    with folders.locked(log_dir):
        source = ContainerSource(store, log_dir)
        folders.put_back(log_dir)
        whole = read_partitions(store) if topics is None and not keep_partition_metadata else None
        if whole is not None and os.listdir(log_dir) != [".lock"]:
            raise InvalidArgument(f"{log_dir} must be absent or empty, or topics be named", argument="log_dir")
        found: dict[str, list[Piece]] = {}
        for place, segments in source.listing().partitions().items():
            folder = f"{place[0]}-{place[1]}"
            if whole is not None:
                topic_id, _, known = whole.get(folder, ("", 0, ()))
                segments = [each for each in segments if each.topic_id == topic_id and each.uuid in known]
            elif not named(place[0], topics):
                continue
            if pieces := resolved(source, segments, "restore others"):
                found[folder] = pieces
        kept = {each: folders.kept_metadata(os.path.join(log_dir, each), keep_partition_metadata) for each in found}
        size = sum(_put_folder(source, log_dir, folder, pieces, kept[folder]) for folder, pieces in found.items())
        for name, data in other_files(store, whole, found) if whole is not None else ():
            folders.put_file(log_dir, name, data)
        missing = _missing(log_dir, found, keep_partition_metadata) if whole is None else _lost(found, whole)
        return Restored(len(whole or found), sum(map(len, found.values())), size, tuple(missing))


def _missing(log_dir: str, found: Mapping[str, list[Piece]], keep: bool) -> Iterator[str]:
    for name in ("meta.properties", "__cluster_metadata-0"):
        if not os.path.exists(os.path.join(log_dir, name)):
            yield f"{name}: a broker does not start without it; format the directory with kafka-storage"
    if not keep:
        yield "topics of these ids in the cluster: create topics, stop, and restore with --keep-partition-metadata"
    for folder, pieces in found.items():
        yield from _gaps(folder, pieces)
        yield f"{folder}: offsets from {pieces[-1].stop} on"


def _lost(found: Mapping[str, list[Piece]], whole: Partitions) -> Iterator[str]:
    for folder, (_, end, ids) in whole.items():
        pieces = found.get(folder, [])
        if lost := set(ids) - {piece.segment.uuid for piece in pieces}:
            yield f"{folder}: {len(lost)} of {len(ids)} segments, which are not stored any more"
        yield from _gaps(folder, pieces)
        if pieces and pieces[-1].stop < end:
            yield f"{folder}: offsets from {pieces[-1].stop} on"


def _gaps(folder: str, pieces: list[Piece]) -> Iterator[str]:
    for before, after in pairwise(pieces):
        if before.stop < after.start:
            yield f"{folder}: offsets {before.stop} to {after.start - 1}"


def _put_folder(source: ContainerSource, log_dir: str, folder: str, pieces: list[Piece], kept: bytes | None) -> int:
    """Write a partition's folder; returns the bytes of its logs."""
    staging, size = folders.staged(log_dir), 0
    for segment, start, stop in pieces:
        whole = stop == segment.end_offset + 1
        with source.log(segment) as log:
            data = log if whole else cut_log(log, segment, stop)
            size += folders.write_file(staging, segment_file(start, "log"), data)
        for name in SEGMENT_FILES if whole else ():  # a broker rebuilds what is missing
            if (index := source.index(segment, name)) is not None:
                folders.write_file(staging, index_file(start, stop, name), index)
    last = pieces[-1].segment
    epochs = source.index(last, "leaderEpoch") or write_checkpoint(last.epochs)
    folders.write_file(staging, "leader-epoch-checkpoint", epochs)
    topic_id = parse_uuid(last.topic_id, object=last.name)
    metadata = write_partition_metadata(topic_id) if kept is None else kept
    folders.write_file(staging, "partition.metadata", metadata)
    folders.put_in_place(log_dir, folder, replaced=kept is not None)
    return size


def cut_log(log: DataSource, segment: Segment, stop: int) -> DataSource:
    """The log up to its first batch at or past ``stop``: a newer epoch has what follows."""
    batches = iter_batches(log, ReadOptions(floor=segment.start_offset))
    end = next((batch.position for batch in batches if batch.base_offset >= stop), log.length)
    return log._replace(length=end)
