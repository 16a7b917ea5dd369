"""A broker's log directory copied into a container, and put back.

Promises: ``tier`` changes nothing in the directory; it copies rolled segments below the high watermark and the first open transaction,
and none that the container has, of which no byte is read. Killed anywhere, the next run goes on, and nothing is doubled. ``restore``
puts a partition's folder there whole or not at all. Leaves out: deleting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import pairwise
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.codec.kafka.batches import ReadOptions, iter_batches
from chunkstore.codec.kafka.checkpoints import LeaderEpoch, write_checkpoint, write_partition_metadata
from chunkstore.codec.kafka.indexes import TimeIndex
from chunkstore.codec.kafka.names import parse_uuid, segment_file
from chunkstore.codec.sources import DataSource
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, Damaged, InvalidArgument, Unsupported
from chunkstore.kafka import folders, model
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.lineage import Piece, first_open, resolved
from chunkstore.kafka.metadata import RemoteLogMetadataManager
from chunkstore.kafka.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from chunkstore.kafka.retention import filtered_epochs
from chunkstore.kafka.sources import INDEX_FILES, LogDirectory, Segment
from chunkstore.kafka.storage import LogSegmentData, RemoteStorageManager

__all__ = ["Planned", "Restored", "Tiered", "opened_segment", "plan", "restore", "tier"]

BROKER: Final = -1
"""The broker id of these copies."""
SEGMENT_FILES: Final = (*INDEX_FILES, "producerSnapshot")
_FINISHED: Final = model.RemoteLogSegmentState.COPY_SEGMENT_FINISHED
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
            planned.append(
                Planned(segment, held, write_checkpoint([each for each in epochs if each.start_offset <= end]))
            )
    return planned


@contextmanager
def opened_segment(
    source: LogDirectory, identity: RemoteLogSegmentId, planned: Planned, broker_id: int = BROKER
) -> Iterator[_Copy]:
    """What is stored of a rolled segment. Raises ``ChunkNotFound`` (deleted or replaced meanwhile), ``Damaged``, and what ``source``
    raises."""
    segment = planned.segment
    with source.log(segment) as log:
        files = {name: source.index(segment, name) for name in SEGMENT_FILES}
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
    custom = storage.copy_log_segment_data(metadata, data)
    identity = metadata.remote_log_segment_id
    update = model.RemoteLogSegmentMetadataUpdate(identity, runtime.now_ms(), custom, _FINISHED, metadata.broker_id)
    manager.update_remote_log_segment_metadata(update, token=token).result()


def tier(
    log_dir: str,
    store: ChunkedSegmentStorage,
    topics: str | None = None,
    *,
    watch: Callable[[Tiered], bool] | None = None,
) -> Tiered:
    """Copy the rolled segments of a broker's log directory, which may be in use, into the container; returns what the last pass did.

    ``topics``: a pattern of names as of a shell; None: all. Topics that begin with "__" are copied only where it begins so, too.
    ``watch``: called after each pass; passes go on while it returns True.

    A segment is durable and readable when its copy ends. What is wrong with one partition is noted, and the others are copied. Raises
    ``InvalidArgument`` (no such directory), ``IllegalTransition`` (a segment is being deleted), and what the directory and the store
    raise. Retry: safe.
    """
    if not os.path.isdir(log_dir):
        raise InvalidArgument(f"{log_dir} is not a directory; name a broker's log.dirs", argument="log_dir")
    with closing(LogDirectory(log_dir)) as source:
        while True:
            done = _Pass(source, store).run(topics)
            if watch is None or not watch(done):
                return done


def named(topic: str, pattern: str | None) -> bool:
    inner = topic.startswith("__")
    return not inner if pattern is None else fnmatchcase(topic, pattern) and (not inner or pattern.startswith("__"))


class _Pass:
    """One pass over a log directory."""

    def __init__(self, source: LogDirectory, store: ChunkedSegmentStorage) -> None:
        self._source = source
        self._storage, self._metadata = RemoteStorageManager(store), RemoteLogMetadataManager(store)
        self._copied = self._bytes = self._present = self._held_back = 0
        self._notes: dict[str, None] = {}

    def run(self, topics: str | None) -> Tiered:
        highs = self._source.checkpoint("replication-offset-checkpoint")  # before the listing: it only grows
        listing = self._source.listing()
        self._note(*(f"{each.object}: {each.message}" for each in listing.findings))
        broken = {(each.topic, each.partition) for each in listing.findings}
        for place, several in listing.partitions().items():
            start = listing.log_starts.get(place, 0)  # the epochs of what is below are not known any more
            segments = [each for each in several if each.end_offset >= start or each.state == "ACTIVE"]
            if segments and segments[0].topic_id and named(place[0], topics) and place not in broken:
                self._tier(segments, highs.get(place, 0))
        return Tiered(self._copied, self._bytes, self._present, self._held_back, tuple(self._notes))

    def _note(self, *lines: str) -> None:
        self._notes.update(dict.fromkeys(lines))

    def _tier(self, segments: list[Segment], high: int) -> None:
        """Copy what may be copied of a partition, and is not there."""
        first, token = segments[0], None
        partition = TopicIdPartition(parse_uuid(first.topic_id, object=first.name), first.topic, first.partition)
        rolled = [each for each in segments if each.state == "ROLLED"]
        try:
            epochs = self._source.leader_epochs(first)
            planned = plan(rolled, epochs, first_open(self._source, segments, high))
        except (ChunkNotFound, Damaged, Unsupported) as error:
            self._note(f"{partition} is not copied: {error.message}")
            return
        self._held_back += sum(each.start_offset <= each.end_offset for each in rolled) - len(planned)
        if not (high and epochs):
            self._note(f"{partition} is not copied: its high watermark is 0 or not known, or its leader epochs are not")
        for each in planned:
            identity = RemoteLogSegmentId(partition, made_id(each.segment, max(each.epochs)))
            stored = self._metadata.remote_log_segment(identity)
            if stored is not None and stored.state == _FINISHED:
                self._present += 1
                continue
            if token is None:
                token = self._metadata.on_partition_leadership_changes([partition])[partition]
            self._copy(identity, each, token)

    def _copy(self, identity: RemoteLogSegmentId, planned: Planned, token: int) -> None:
        segment = planned.segment
        try:
            with opened_segment(self._source, identity, planned) as (item, data):
                copy_segment(self._storage, self._metadata, item, data, token=token)
        except ChunkNotFound as error:
            self._note(f"{error.chunk} was deleted or replaced during the copy")
        except Damaged as error:
            self._note(f"{segment.name} is not copied: {error.message}")
        else:
            self._copied += 1
            self._bytes += segment.bytes


def made_id(segment: Segment, epoch: int) -> bytes:
    """The id of a copy of a log directory's segment, so that another run finds it: two lineages of the same offsets end in different
    epochs."""
    return sha256(repr((segment[:5], epoch)).encode()).digest()[:16]


def restore(
    store: ChunkedSegmentStorage | Replica, log_dir: str, topics: str | None = None, *, keep_partition_metadata: bool = False
) -> Restored:  # fmt: skip
    """Put partitions back as folders of a log directory, whose broker is stopped: logs, indexes, snapshots, leader epochs.

    ``topics``: as of ``tier``. ``keep_partition_metadata``: the folders are those of topics that a fresh cluster has created, without a
    record; all but their ``partition.metadata`` is replaced, so that its broker serves them.

    A folder is there whole, its bytes on disk, or not at all. ``.lock`` is held meanwhile. Raises ``InvalidArgument`` (a broker or another
    restore holds it; a folder has files in it, and nothing was written), ``Conflict`` (two topics of one name), ``AccessDenied``,
    ``StorageUnavailable``, and what reading the store raises. Retry: safe; name what is not there yet.
    """
    with folders.locked(log_dir):
        source = ContainerSource(store, log_dir)
        folders.put_back(log_dir)
        found: dict[str, list[Piece]] = {}
        for place, segments in source.listing().partitions().items():
            if named(place[0], topics) and (pieces := resolved(source, segments, "restore others")):
                found[f"{place[0]}-{place[1]}"] = pieces
        kept = {each: folders.kept_metadata(os.path.join(log_dir, each), keep_partition_metadata) for each in found}
        size = sum(_put_folder(source, log_dir, folder, pieces, kept[folder]) for folder, pieces in found.items())
        missing = tuple(_missing(log_dir, found, keep_partition_metadata))
        return Restored(len(found), sum(map(len, found.values())), size, missing)


def _missing(log_dir: str, found: Mapping[str, list[Piece]], keep: bool) -> Iterator[str]:
    for name in ("meta.properties", "__cluster_metadata-0"):
        if not os.path.exists(os.path.join(log_dir, name)):
            yield f"{name}: a broker does not start without it; format the directory with kafka-storage"
    if not keep:
        yield "topics of these ids in the cluster: create topics, stop, and restore with --keep-partition-metadata"
    for folder, pieces in found.items():
        for before, after in pairwise(pieces):
            if before.stop < after.start:
                yield f"{folder}: offsets {before.stop} to {after.start - 1}"
        yield f"{folder}: offsets from {pieces[-1].stop} on"


def _put_folder(source: ContainerSource, log_dir: str, folder: str, pieces: list[Piece], kept: bytes | None) -> int:
    """Write a partition's folder; returns the bytes of its logs."""
    staging, size = folders.staged(log_dir), 0
    for segment, start, stop in pieces:
        whole = stop == segment.end_offset + 1
        with source.log(segment) as log:
            data = log if whole else cut_log(log, segment, stop)
            size += folders.write_file(staging, segment_file(start, "log"), data)
        names = {segment_file(start, suffix): name for name, suffix in INDEX_FILES.items()}
        names[segment_file(stop, "snapshot")] = "producerSnapshot"
        for file, name in names.items() if whole else ():  # a broker rebuilds what is missing
            if (index := source.index(segment, name)) is not None:
                folders.write_file(staging, file, index)
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
