"""A broker's log directory copied into a container, and put back.

Promises: ``tier`` changes nothing in the directory; it copies rolled segments below the high watermark and the first open transaction,
and none that the container has, of which no byte is read. Killed anywhere, the next run goes on, and nothing is doubled. ``whole`` copies
all of a stopped directory. ``restore`` puts a partition's folder there whole or not at all. Leaves out: deleting.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.codec.kafka import checkpoints
from chunkstore.codec.kafka.batches import ReadOptions, iter_batches
from chunkstore.codec.kafka.checkpoints import read_leader_epochs, write_checkpoint
from chunkstore.codec.kafka.indexes import TimeIndex
from chunkstore.codec.kafka.names import parse_segment_file, parse_uuid, segment_file, uuid_text
from chunkstore.codec.sources import DataSource, read_exactly
from chunkstore.config import MIB
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, Conflict, Damaged, InvalidArgument, Unsupported
from chunkstore.kafka import model
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.lineage import Piece, resolve
from chunkstore.kafka.metadata import RemoteLogMetadataManager
from chunkstore.kafka.model import OFFSET_MAX, RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from chunkstore.kafka.retention import filtered_epochs
from chunkstore.kafka.sources import INDEX_FILES, LogDirectory, Segment, translated
from chunkstore.kafka.storage import LogSegmentData, RemoteStorageManager
from chunkstore.kafka.transactions import first_open
from chunkstore.kafka.whole import Partitions, clean_stop, locked, other_files, read_partitions, store_cluster

__all__ = ["Planned", "Restored", "Tiered", "opened_segment", "plan", "restore", "tier"]

BROKER: Final = -1
"""The broker id of these copies: STARTED ones with it are gone on with."""
_STAGING: Final = ".chunkstore-restore"
_ASIDE: Final = ".chunkstore-old"
_PIECE_BYTES: Final = 8 * MIB
SEGMENT_FILES: Final = (*INDEX_FILES, "producerSnapshot")
_FINISHED: Final = model.RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_Span = tuple[int, int, int]
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

    @property
    def span(self) -> _Span:
        """What makes it the same as a stored one: two lineages of the same offsets end in different epochs."""
        return self.segment.start_offset, self.segment.end_offset, max(self.epochs)


def plan(segments: Iterable[Segment], epochs: Sequence[checkpoints.LeaderEpoch], stable: int) -> list[Planned]:
    """Which of a partition's segments may be copied: those with records that end below offset ``stable``. The first of ``epochs`` counts
    from offset 0 on: the checkpoint does not tell of what is below the log start."""
    planned, lineage = [], [(epoch, number and start) for number, (epoch, start) in enumerate(epochs)]
    for segment in segments if epochs else ():
        start, end = segment.start_offset, segment.end_offset
        if start <= end < stable:
            held = {epoch: begin for epoch, begin in filtered_epochs(lineage, start).items() if begin <= end}
            text = write_checkpoint([each for each in epochs if each.start_offset <= end or segment.state == "ACTIVE"])
            planned.append(Planned(segment, held, text))
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
            if source.bucket.head(segment.name).length != segment.bytes:
                raise ChunkNotFound(segment.name)  # compaction has put other files there
        yield described(identity, planned, log, files, broker_id)


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
    if whole and (topics, watch) != (None, None):
        raise InvalidArgument("a whole directory is all topics, in one pass", argument="whole")
    mark = clean_stop(log_dir) if whole else b""
    with closing(LogDirectory(log_dir)) as source:
        while True:
            each = _Pass(source, store, whole=whole)
            done = each.run(topics)
            if whole and (done.notes or done.held_back):
                text = "; ".join(done.notes) or "leader epochs or an active segment's batches cannot be read"
                raise Damaged(f"not copied completely: {text}", object=log_dir)
            if whole:
                listing = source.listing()
                store_cluster(store, log_dir, listing.segments, each.ids, mark)
                each.delete_replaced()
                done = done._replace(notes=tuple(listing.notes))
            if watch is None or not watch(done):
                return done


def named(topic: str, pattern: str | None) -> bool:
    inner = topic.startswith("__")
    return not inner if pattern is None else fnmatchcase(topic, pattern) and (not inner or pattern.startswith("__"))


class _Pass:
    """One pass over a log directory."""

    def __init__(self, source: LogDirectory, store: ChunkedSegmentStorage, *, whole: bool) -> None:
        self._source, self._whole = source, whole
        self._storage, self._metadata = RemoteStorageManager(store), RemoteLogMetadataManager(store)
        self._copied = self._bytes = self._present = self._held_back = 0
        self._tokens: dict[TopicIdPartition, int] = {}
        self._notes: dict[str, None] = {}
        self.ids: dict[str, list[str]] = {}
        self._replaced: list[RemoteLogSegmentMetadata] = []

    def run(self, topics: str | None) -> Tiered:
        highs = self._source.checkpoint("replication-offset-checkpoint")  # before the listing: it only grows
        listing = self._source.listing()
        self._note(*(f"{each.object}: {each.message}" for each in listing.findings))
        broken = {(each.topic, each.partition) for each in listing.findings}
        for place, several in groupby(listing.segments, key=lambda each: (each.topic, each.partition)):
            start = listing.log_starts.get(place, 0)  # the epochs of what is below are not known any more
            segments = [each for each in several if each.end_offset >= start or each.state == "ACTIVE"]
            wanted = segments and (self._whole or (named(place[0], topics) and segments[0].topic_id))
            if not wanted or place in broken:
                continue
            for planned in self._planned(segments, highs.get(place, 0)):
                self._copy(*planned)
        return Tiered(self._copied, self._bytes, self._present, self._held_back, tuple(self._notes))

    def _note(self, *lines: str) -> None:
        self._notes.update(dict.fromkeys(lines))

    def _planned(self, segments: list[Segment], high: int) -> Iterator[tuple[TopicIdPartition, Planned, bytes | None]]:
        """What is to be copied of a partition; and the id of a copy of it that died."""
        first = segments[0]
        partition = TopicIdPartition(parse_uuid(first.topic_id, object=first.name), first.topic, first.partition)
        try:
            epochs = read_leader_epochs(self._source.index(first, "leaderEpoch") or b"0\n0\n", object=f"{partition}")
            wanted = [each for each in segments if self._whole or each.state == "ROLLED"]
            planned = plan(wanted, epochs, OFFSET_MAX - 1 if self._whole else first_open(self._source, segments, high))
        except (ChunkNotFound, Damaged, Unsupported) as error:
            self._note(f"{partition} is not copied: {error.message}")
            return
        self._held_back += sum(each.start_offset <= each.end_offset for each in wanted) - len(planned)
        if not (high and epochs) and not self._whole:
            self._note(f"{partition} is not copied: its high watermark is 0 or not known, or its leader epochs are not")
        finished: dict[_Span, list[RemoteLogSegmentMetadata]] = {}
        died: dict[_Span, bytes] = {}
        with suppress(model.RemoteResourceNotFoundException):  # nothing of it was ever copied
            for item in self._metadata.list_remote_log_segments(partition):
                span = item.start_offset, item.end_offset, max(item.segment_leader_epochs)
                if item.state == _FINISHED:
                    finished.setdefault(span, []).append(item)
                elif item.state == model.RemoteLogSegmentState.COPY_SEGMENT_STARTED and item.broker_id == BROKER:
                    died[span] = item.remote_log_segment_id.id
                elif item.state == model.RemoteLogSegmentState.DELETE_SEGMENT_STARTED and self._whole:
                    self._replaced.append(item)
        for each in planned:
            stored = finished.get(each.span, [])
            same = next((item for item in stored if not self._whole or self._is_same(item, each.segment)), None)
            self._replaced += [item for item in stored if self._whole and item is not same]
            if same is None:
                yield partition, each, died.get(each.span)
            else:
                self._present += 1
                self._stored(same.remote_log_segment_id)

    def _is_same(self, item: RemoteLogSegmentMetadata, segment: Segment) -> bool:
        """Whether the stored log has the segment's bytes: compaction may keep its offsets, and even its length."""
        if item.segment_size_in_bytes != segment.bytes:
            return False
        try:
            with self._source.log(segment) as log, self._storage.fetch_log_segment(item, 0) as stored:
                pieces = [(at, min(_PIECE_BYTES, log.length - at)) for at in range(0, log.length, _PIECE_BYTES)]
                return all(read_exactly(log, at, size) == stored.read(size) for at, size in pieces)
        except model.RemoteResourceNotFoundException:
            return False

    def _stored(self, identity: RemoteLogSegmentId) -> None:
        self.ids.setdefault(str(identity.topic_id_partition), []).append(uuid_text(identity.id))

    def delete_replaced(self) -> None:
        """Delete what a whole directory had before; a reader must not find it, nor what compaction has removed from it."""
        for item in self._replaced:
            token = self._token(item.remote_log_segment_id.topic_id_partition)
            for state in (
                model.RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
                model.RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
            ):
                update = model.RemoteLogSegmentMetadataUpdate(
                    item.remote_log_segment_id, runtime.now_ms(), item.custom_metadata, state, BROKER
                )
                self._metadata.update_remote_log_segment_metadata(update, token=token).result()
                self._storage.delete_log_segment_data(item)

    def _copy(self, partition: TopicIdPartition, planned: Planned, identity: bytes | None) -> None:
        segment, known = planned.segment, RemoteLogSegmentId(partition, identity or runtime.token(16))
        try:
            with opened_segment(self._source, known, planned) as (item, data):
                if self._whole:
                    self._storage.delete_log_segment_data(item)  # what died may have other bytes
                copy_segment(self._storage, self._metadata, item, data, token=self._token(partition))
        except ChunkNotFound as error:
            self._note(f"{error.chunk} was deleted or replaced during the copy")
        except Damaged as error:
            self._note(f"{segment.name} is not copied: {error.message}")
        else:
            self._copied += 1
            self._bytes += segment.bytes
            self._stored(known)

    def _token(self, partition: TopicIdPartition) -> int | None:
        if partition not in self._tokens:
            self._tokens |= self._metadata.on_partition_leadership_changes([partition])
        return self._tokens[partition]


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
    with locked(log_dir):
        return _restore(store, log_dir, topics, keep_partition_metadata)


def _restore(
    store: ChunkedSegmentStorage | Replica, log_dir: str, topics: str | None, keep_partition_metadata: bool
) -> Restored:
    source = ContainerSource(store, log_dir)
    put_back(log_dir)
    whole = read_partitions(store) if topics is None and not keep_partition_metadata else None
    if whole is not None and os.listdir(log_dir) != [".lock"]:
        raise InvalidArgument(f"{log_dir} must be absent or empty, or topics be named", argument="log_dir")
    found: dict[str, list[Piece]] = {}
    listed = sorted(source.listing().segments, key=lambda each: (each.topic, each.partition))
    for place, several in groupby(listed, key=lambda each: (each.topic, each.partition)):
        segments = list(several)
        if whole is not None:
            topic_id, _, known = whole.get(f"{place[0]}-{place[1]}", ("", 0, ()))
            segments = [each for each in segments if each.topic_id == topic_id and each.uuid in known]
        elif not named(place[0], topics):
            continue
        if len(ids := {each.topic_id for each in segments}) > 1:
            raise Conflict(f"topic {place[0]}", expected="one topic id", found=sorted(ids), remedy="restore others")
        if pieces := resolve(source.finished(segments)):
            found[f"{place[0]}-{place[1]}"] = pieces
    kept = {folder: kept_metadata(os.path.join(log_dir, folder), keep_partition_metadata) for folder in found}
    size = sum(_put_folder(source, log_dir, folder, pieces, kept[folder]) for folder, pieces in found.items())
    for name, data in other_files(store, whole, found) if whole is not None else ():
        folder = os.path.dirname(os.path.join(log_dir, name))
        with translated(folder):
            os.makedirs(folder, exist_ok=True)
        write_file(log_dir, name, data)
        _sync(folder, log_dir)
    missing = tuple(_missing(log_dir, found, whole, keep_partition_metadata))
    return Restored(len(found if whole is None else whole), sum(map(len, found.values())), size, missing)


def kept_metadata(folder: str, keep: bool) -> bytes | None:
    """The ``partition.metadata`` that stays. Raises ``InvalidArgument`` if the folder has files that would be lost."""
    with translated(folder):
        names = os.listdir(folder) if os.path.isdir(folder) else []
        logs = [name for name in names if name.endswith(".log") and os.path.getsize(os.path.join(folder, name))]
        known = ("leader-epoch-checkpoint", "partition.metadata")
        foreign = [name for name in names if not (keep and (parse_segment_file(name) or name in known))]
        if (keep and "partition.metadata" not in names) or logs or foreign:
            text = "a topic's that a fresh cluster created, without a record" if keep else "absent or empty"
            text += f", without {foreign[0]}" if foreign else ""
            raise InvalidArgument(f"{folder} must be {text}; nothing was restored", argument="log_dir")
        if not keep:
            return None
        with open(os.path.join(folder, "partition.metadata"), "rb") as file:
            return file.read(4096)


def _missing(log_dir: str, found: Mapping[str, list[Piece]], whole: Partitions | None, keep: bool) -> Iterator[str]:
    for name in ("meta.properties", "__cluster_metadata-0") if whole is None else ():
        if not os.path.exists(os.path.join(log_dir, name)):
            yield f"{name}: a broker does not start without it; format the directory with kafka-storage"
    if not keep and whole is None:
        yield "topics of these ids in the cluster: create topics, stop, and restore with --keep-partition-metadata"
    for folder, (_, _, ids) in ({} if whole is None else whole).items():
        if lost := set(ids) - {piece.segment.uuid for piece in found.get(folder, ())}:
            yield f"{folder}: {len(lost)} of {len(ids)} segments, which are not stored any more"
    for folder, pieces in found.items():
        for before, after in pairwise(pieces):
            if before.stop < after.start:
                yield f"{folder}: offsets {before.stop} to {after.start - 1}"
        if whole is None or pieces[-1].stop < whole[folder][1]:
            yield f"{folder}: offsets from {pieces[-1].stop} on"


def _put_folder(source: ContainerSource, log_dir: str, folder: str, pieces: list[Piece], kept: bytes | None) -> int:
    """Write a partition's folder; returns the bytes of its logs."""
    staging, size = staged(log_dir), 0
    for segment, start, stop in pieces:
        whole = stop == segment.end_offset + 1
        with source.log(segment) as log:
            size += write_file(staging, segment_file(start, "log"), log if whole else cut_log(log, segment, stop))
        names = {segment_file(start, suffix): name for name, suffix in INDEX_FILES.items()}
        names[segment_file(stop, "snapshot")] = "producerSnapshot"
        for file, name in names.items() if whole else ():  # a broker rebuilds what is missing
            if (data := source.index(segment, name)) is not None:
                write_file(staging, file, data)
    last = pieces[-1].segment
    write_file(staging, "leader-epoch-checkpoint", source.index(last, "leaderEpoch") or write_checkpoint(last.epochs))
    topic_id = parse_uuid(last.topic_id, object=last.name)
    write_file(staging, "partition.metadata", checkpoints.write_partition_metadata(topic_id) if kept is None else kept)
    put_in_place(log_dir, folder, replaced=kept is not None)
    return size


def staged(log_dir: str) -> str:
    """An empty folder on the same file system, for ``put_in_place``."""
    staging = os.path.join(log_dir, _STAGING)
    with translated(staging):
        shutil.rmtree(staging, ignore_errors=True)
        os.makedirs(staging)
    return staging


def put_in_place(log_dir: str, folder: str, *, replaced: bool) -> None:
    """Make the staged folder a partition's, on disk; ``replaced``: the folder of the empty partition that is there is deleted."""
    aside, target = os.path.join(log_dir, _ASIDE), os.path.join(log_dir, folder)
    with translated(target):
        if replaced:
            os.mkdir(aside)
            os.rename(target, os.path.join(aside, folder))
        os.rename(os.path.join(log_dir, _STAGING), target)  # fails where files are in it
    _sync(target, log_dir)
    put_back(log_dir)


def put_back(log_dir: str) -> None:
    """After a ``put_in_place`` that ended, or was killed: the folder that it put aside is deleted, or is there again."""
    aside = os.path.join(log_dir, _ASIDE)
    with translated(aside):
        for folder in os.listdir(aside) if os.path.isdir(aside) else ():
            target = os.path.join(log_dir, folder)
            if os.path.exists(target):
                shutil.rmtree(os.path.join(aside, folder))
            else:
                os.rename(os.path.join(aside, folder), target)
        if os.path.isdir(aside):
            os.rmdir(aside)


def _sync(*folders: str) -> None:
    for path in folders:
        with translated(path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)


def cut_log(log: DataSource, segment: Segment, stop: int) -> DataSource:
    """The log up to its first batch at or past ``stop``: a newer epoch has what follows."""
    batches = iter_batches(log, ReadOptions(floor=segment.start_offset))
    end = next((batch.position for batch in batches if batch.base_offset >= stop), log.length)
    return log._replace(length=end)


def write_file(folder: str, name: str, data: DataSource | bytes) -> int:
    """Write a new file, and have it on disk; returns its bytes."""
    path = os.path.join(folder, name)
    with translated(path), open(path, "xb") as file:
        if isinstance(data, bytes):
            file.write(data)
        else:
            pieces = range(0, data.length, _PIECE_BYTES)
            file.writelines(read_exactly(data, at, min(_PIECE_BYTES, data.length - at)) for at in pieces)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()
