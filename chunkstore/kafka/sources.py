"""Where a partition's segments are: in a tier's bucket (three objects each), or in a broker's log directory.

Promises: both kinds are listed and read alike, and nothing is changed; what is wrong with one segment is a finding, and the others are
read; memory is one window, and a row for each segment. Leaves out: which segments count (``lineage``), and what is in their batches.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from chunkstore.codec.kafka.batches import OFFSET_MAX, ReadOptions, iter_batches, validate
from chunkstore.codec.kafka.checkpoints import (
    LeaderEpoch,
    read_leader_epochs,
    read_offset_checkpoint,
    read_partition_metadata,
)
from chunkstore.codec.kafka.encryption import CHUNK_BYTES_MAX, ChunkDecoder, PrivateKey
from chunkstore.codec.kafka.indexes import OffsetIndex
from chunkstore.codec.kafka.manifest import MANIFEST_BYTES_MAX, Chunk, Manifest, read_manifest
from chunkstore.codec.kafka.names import (
    ObjectKey,
    parse_object_key,
    parse_partition_folder,
    parse_segment_file,
    segment_file,
    uuid_text,
)
from chunkstore.codec.kafka.remote_metadata import MetadataRecord, SegmentState
from chunkstore.codec.sources import DataSource, read_exactly
from chunkstore.config import KIB, MIB
from chunkstore.errors import AccessDenied, ChunkNotFound, Damaged, InvalidArgument, StorageUnavailable, Unsupported
from chunkstore_bindings.bucket.port import Bucket, ObjectInfo

__all__ = [
    "BucketSource",
    "Finding",
    "Listing",
    "LogDirectory",
    "Segment",
    "SegmentSource",
    "opened_file",
    "translated",
]

SMALL_FILE_BYTES_MAX: Final = 64 * MIB
"""Longest index, checkpoint or snapshot that is read."""
_RAFT_TOPIC: Final = "__cluster_metadata"
_SUFFIXES: Final = {"offset": "index", "timestamp": "timeindex", "transaction": "txnindex"}


States: TypeAlias = Mapping[bytes, MetadataRecord]
"""Metadata by segment id, as a metadata log says."""


class Segment(NamedTuple):
    """A segment of a partition; offsets are inclusive, and ``end_offset`` is one less than ``start_offset`` where it is empty.

    ``topic_id``, ``uuid``: as Kafka writes them, or empty where the source does not tell. ``state``: of the metadata log; of a log
    directory "ACTIVE" or "ROLLED"; None: not known. ``bytes``: of the log, without a part of a batch at its end. ``epochs``: its leader
    epochs; none of a log directory. ``name``: the object or file with the log. ``dense``: its offsets have no gaps.
    """

    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    uuid: str
    state: str | None
    bytes: int
    epochs: tuple[LeaderEpoch, ...]
    name: str
    dense: bool


class Finding(NamedTuple):
    """What is wrong with an object, at ``position`` in it; ``offset``: of the record or segment that it is about.

    ``kind``: "manifest", "length", "incomplete", "metadata", "epochs", "key", "batch", "offsets", "gap", "index" or "gone".
    """

    kind: str
    object: str
    topic: str
    partition: int
    offset: int
    position: int
    message: str


@dataclass(slots=True)
class Listing:
    """Segments by partition and start offset, what is wrong with others, notes, and the first offsets that consumers get, if not 0."""

    segments: list[Segment] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    log_starts: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def partitions(self) -> dict[tuple[str, int], list[Segment]]:
        """The segments of each topic and partition, which may be of several topic ids."""
        found: dict[tuple[str, int], list[Segment]] = {}
        for each in sorted(self.segments, key=lambda each: (each.topic, each.partition)):
            found.setdefault((each.topic, each.partition), []).append(each)
        return found


class SegmentSource(ABC):
    """Segments in one place, ``url``. Every call raises what the bucket, or the container, raises."""

    lineage: str
    """What chose the segments: "the metadata log", "the metadata manager", "leader epochs and higher ends", "the log directory"."""
    stated = False
    """Whether only segments in state COPY_SEGMENT_FINISHED count."""

    def __init__(self, url: str) -> None:
        self.url: str = url

    def close(self) -> None:  # noqa: B027  (a directory holds nothing)
        """Release it."""

    def finished(self, segments: list[Segment]) -> list[Segment]:
        """Those that count, as far as states say."""
        done = SegmentState.COPY_SEGMENT_FINISHED.name
        return [each for each in segments if each.state == done] if self.stated else segments

    @abstractmethod
    def listing(self, topic: str | None = None, partition: int | None = None) -> Listing:
        """What is there, of one ``topic`` or ``partition`` or of all."""

    @abstractmethod
    def log(self, segment: Segment) -> AbstractContextManager[DataSource]:
        """The segment's batches. Raises ``ChunkNotFound``, ``Damaged``, and ``InvalidArgument`` where no key fits."""

    @abstractmethod
    def index(self, segment: Segment, name: str) -> bytes | None:
        """One of ``IndexType``; the producer snapshot is that *after* the segment. None: there is none. Raises as ``log``."""

    def leader_epochs(self, segment: Segment) -> list[LeaderEpoch]:
        """The rows of its index "leaderEpoch"; none where it is missing. Raises ``Damaged``, too."""
        return read_leader_epochs(self.index(segment, "leaderEpoch") or b"0\n0\n", object=f"{segment.name} leaderEpoch")

    def position(self, segment: Segment, log: DataSource, offset: int) -> int:
        """Where a batch begins that is at or below ``offset``, as the index says, if that is right; else 0."""
        try:
            row = OffsetIndex(self.index(segment, "offset") or b"", segment.start_offset).floor(offset)
            if row is not None and 0 <= row[1] < log.length:
                batch = next(iter_batches(log, ReadOptions(row[1], segment.start_offset)), None)
                return row[1] if batch is not None and batch.base_offset <= offset else 0
        except (Damaged, Unsupported):
            pass  # the bytes at a wrong position may look like an old message set
        return 0


class BucketSource(SegmentSource):
    """A tier in the layout of FORMAT_FILES.md, section 5. ``states`` None: there is no metadata log."""

    def __init__(self, bucket: Bucket, prefix: str, keys: Sequence[PrivateKey], states: States | None) -> None:
        super().__init__(bucket.url)
        self.bucket: Bucket = bucket
        self.prefix: str = prefix
        self.states: States | None = states
        self._keys = keys
        self.stated: bool = states is not None
        self.lineage = "leader epochs and higher ends" if states is None else "the metadata log"
        self._opened = lru_cache(2)(self._open)

    def close(self) -> None:
        self.bucket.close()

    def objects(self, topic: str | None = None) -> Iterator[tuple[ObjectInfo, ObjectKey | None]]:
        """All objects, by key, with what their keys say."""
        for item in self.bucket.list(self.prefix + (f"{topic}-" if topic else "")):
            yield item, parse_object_key(item.key, self.prefix)

    def listing(self, topic: str | None = None, partition: int | None = None) -> Listing:
        found, seen = Listing(), set[bytes]()
        parsed = ((item, key) for item, key in self.objects(topic) if key is not None)
        for stem, several in groupby(parsed, key=lambda pair: pair[0].key.rpartition(".")[0]):
            objects = {key.suffix: item for item, key in several}
            key = parse_object_key(f"{stem}.log", self.prefix)
            if key is None or "rsm-manifest" not in objects or topic not in (None, key.topic):
                continue
            seen.add(key.segment_id)
            if partition in (None, key.partition):
                self._add(found, key, stem, objects)
        found.segments.sort()
        self._compare(found, seen, topic, partition)
        return found

    def _compare(self, found: Listing, seen: set[bytes], topic: str | None, partition: int | None) -> None:
        """What the metadata log has and the bucket has not, and the other way round. Of topics without any object nothing is said."""
        states, topics = self.states or {}, {each.topic for each in found.segments}
        for segment_id, each in states.items():
            wanted = each.topic in topics and topic in (None, each.topic) and partition in (None, each.partition)
            if wanted and each.state == SegmentState.COPY_SEGMENT_FINISHED and segment_id not in seen:
                text = "the metadata log has the copy as finished, but its manifest is missing"
                place = uuid_text(segment_id), each.topic, each.partition, each.start_offset
                found.findings.append(Finding("missing", *place, 0, text))
        known = {(each.topic, each.partition) for each in states.values()}
        unknown = {(each.topic, each.partition) for each in found.segments} - known if self.stated else set()
        text = "the metadata log has no record of {}-{}: is every partition of it here?"
        found.notes += [text.format(*place) for place in sorted(unknown)]

    def _add(self, found: Listing, key: ObjectKey, stem: str, objects: Mapping[str, ObjectInfo]) -> None:
        def wrong(kind: str, object: str, position: int, message: str) -> None:
            text = message.removeprefix(f"{object} at byte {position}: ")  # the finding names both
            found.findings.append(Finding(kind, object, key.topic, key.partition, key.base_offset, position, text))

        name, known = f"{stem}.rsm-manifest", (self.states or {}).get(key.segment_id)
        try:
            manifest = self._manifest(name)
            record = known or manifest.segment
            if record is None or record.start_offset != key.base_offset:
                raise Damaged("it does not contain the end of this key's segment", object=name)
            said = manifest.segment  # its topic id is an old one where a bucket was attached elsewhere
            if said is not None and (said.partition, said.segment_id) != (key.partition, key.segment_id):
                raise Damaged(f"it is of partition {said.partition}, segment {uuid_text(said.segment_id)}", object=name)
        except Damaged as error:
            wrong("manifest", name, error.position, error.message)
            return
        except ChunkNotFound:
            wrong("gone", name, 0, "it was deleted during the read")
            return
        going = known is not None and known.state == SegmentState.DELETE_SEGMENT_STARTED
        for suffix in ("log", "indexes"):
            if suffix not in objects and not going:
                wrong("incomplete", f"{stem}.{suffix}", 0, "it is missing, but the manifest exists")
        if "log" not in objects:
            return
        length, stored = objects["log"].length, manifest.chunks.stored_bytes
        if length != stored:
            text = f"{length} bytes, but the manifest has {stored} in {len(manifest.chunks)} chunks"
            wrong("length", f"{stem}.log", min(length, stored), text)
        place = key.topic, uuid_text(key.topic_id), key.partition, key.base_offset, record.end_offset
        state, size = known and known.state.name, manifest.chunks.log_bytes
        more = uuid_text(key.segment_id), state, size, record.leader_epochs, f"{stem}.log"
        found.segments.append(Segment(*place, *more, dense=True))

    def log(self, segment: Segment) -> AbstractContextManager[DataSource]:
        manifest, decoder = self._opened(segment.name)
        read: Callable[[int, int], bytes] = partial(self.bucket.read, segment.name)
        if manifest.compression or manifest.data_key is not None:
            read = _Chunks(manifest, decoder, read).read
        elif manifest.chunks.stored_bytes != manifest.chunks.log_bytes:
            raise Damaged("chunks of plain bytes change their size", object=f"{segment.name[:-4]}.rsm-manifest")
        return nullcontext(DataSource(segment.name, manifest.chunks.log_bytes, read))

    def index(self, segment: Segment, name: str) -> bytes | None:
        manifest, decoder = self._opened(segment.name)
        key, place = f"{segment.name[:-4]}.indexes", manifest.indexes[name]
        if place is None:
            return None
        if place[1] > SMALL_FILE_BYTES_MAX:
            raise Damaged(f"{name}: {place[1]} bytes; at most {SMALL_FILE_BYTES_MAX} are read", object=key)
        return decoder.index(name, self.bucket.read(key, *place) if place[1] else b"")

    def _manifest(self, name: str) -> Manifest:
        return read_manifest(self.bucket.read(name, 0, MANIFEST_BYTES_MAX + 1), object=name)

    def _open(self, name: str) -> tuple[Manifest, ChunkDecoder]:
        """The manifest of the log ``name``, and what decodes its objects."""
        manifest = self._manifest(f"{name[:-4]}.rsm-manifest")
        size = manifest.chunks.chunk_bytes
        if (manifest.compression or manifest.data_key is not None) and not 1 * KIB <= size <= CHUNK_BYTES_MAX:
            text = f"{name}: chunks of {size} bytes; {KIB} to {CHUNK_BYTES_MAX} are read"
            raise Unsupported(text, feature="chunk size")
        return manifest, ChunkDecoder(manifest, self._keys, stem=name[:-4])


class _Chunks:
    """Reads a log by its chunks, several in one request; what the next window begins with is kept."""

    def __init__(self, manifest: Manifest, decoder: ChunkDecoder, read: Callable[[int, int], bytes]) -> None:
        self._chunks, self._decoder, self._read = manifest.chunks, decoder, read
        self._held: dict[Chunk, bytes] = {}

    def read(self, offset: int, length: int) -> bytes:
        wanted = list(self._chunks.chunks(offset, min(offset + length, self._chunks.log_bytes)))
        self._held = {chunk: self._held[chunk] for chunk in wanted if chunk in self._held}
        missing = [chunk for chunk in wanted if chunk not in self._held]
        if missing:
            begin, end = missing[0].stored_position, missing[-1].stored_position + missing[-1].stored_bytes
            stored = self._read(begin, min(end - begin, 2 * self._chunks.chunk_bytes * len(missing)))  # more is damage
            for chunk in missing:
                at = chunk.stored_position - begin
                self._held[chunk] = self._decoder.chunk(chunk, stored[at : at + chunk.stored_bytes])
        at = offset - wanted[0].position if wanted else 0
        return b"".join(self._held[chunk] for chunk in wanted)[at : at + length]


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Errors of the file system, about the file ``name``, as ``ChunkNotFound``, ``AccessDenied`` or ``StorageUnavailable``."""
    try:
        yield
    except FileNotFoundError as error:
        raise ChunkNotFound(name) from error
    except OSError as error:
        kind = AccessDenied if isinstance(error, PermissionError) else StorageUnavailable
        raise kind(f"{name}: {error.strerror}", object=name) from error


@contextmanager
def opened_file(path: str, name: str) -> Iterator[DataSource]:
    """A file, which is no link; ``name``: for errors, which are those of ``translated``."""

    def read(offset: int, length: int) -> bytes:
        with translated(name):
            return os.pread(fd, length, offset)

    with translated(name):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield DataSource(name, os.fstat(fd).st_size, read)
    finally:
        os.close(fd)


def index_file(start: int, stop: int, name: str) -> str:
    """The file that one of ``IndexType`` has in a partition's folder, of the segment from ``start`` to below ``stop``."""
    if name == "leaderEpoch":
        return "leader-epoch-checkpoint"
    return segment_file(stop, "snapshot") if name == "producerSnapshot" else segment_file(start, _SUFFIXES[name])


class LogDirectory(SegmentSource):
    """A broker's log directory, which may be in use. A segment that is open stays whole, though the broker deletes it."""

    lineage = "the log directory"

    def __init__(self, path: str) -> None:
        self._root = os.path.realpath(path)
        super().__init__("file://" + quote(os.fsencode(self._root)))

    @staticmethod
    def is_at(path: str) -> bool:
        """Whether this folder has ``meta.properties`` or the folder of a partition."""
        with suppress(OSError), os.scandir(path) as entries:
            return any(parse_partition_folder(each.name) or each.name == "meta.properties" for each in entries)
        return False

    def listing(self, topic: str | None = None, partition: int | None = None) -> Listing:
        found = Listing()
        compacted = self.checkpoint("cleaner-offset-checkpoint")
        found.log_starts = self.checkpoint("log-start-offset-checkpoint")
        for entry in self._scan(""):
            place = parse_partition_folder(entry.name)
            if place is None:
                if entry.name.endswith(("-stray", "-future", "-delete")):
                    found.notes.append(f"{entry.name}: no partition's folder any more, or not yet: it is left out")
            elif place[0] != _RAFT_TOPIC and topic in (None, place[0]) and partition in (None, place[1]):
                if entry.is_symlink():
                    text = "a symbolic link: it is not read"
                    found.findings.append(Finding("metadata", entry.name, *place, 0, 0, text))
                elif entry.is_dir():
                    self._add(found, entry.name, place, dense=place not in compacted)
        found.segments.sort()
        return found

    def _add(self, found: Listing, folder: str, place: tuple[str, int], *, dense: bool) -> None:
        topic_id, metadata = "", f"{folder}/partition.metadata"
        logs: dict[int, os.DirEntry[str]] = {}
        for entry in self._scan(folder):
            file = parse_segment_file(entry.name)
            if file is not None and file[1] == "log":
                logs[file[0]] = entry
        try:
            data = self._small(metadata)  # old brokers have none
            topic_id = "" if data is None else uuid_text(read_partition_metadata(data, object=metadata))
        except Damaged as error:
            found.findings.append(Finding("metadata", metadata, *place, 0, error.position, error.message))
        for (base, entry), after in zip(
            logs.items(), [*[*logs][1:], OFFSET_MAX], strict=False
        ):  # a new one has no log yet
            name = f"{folder}/{entry.name}"
            if not entry.is_file(follow_symlinks=False):
                found.findings.append(Finding("metadata", name, *place, base, 0, "no regular file: it is not read"))
                continue
            try:
                with translated(name):
                    size = entry.stat(follow_symlinks=False).st_size
                segment = Segment(place[0], topic_id, place[1], base, after - 1, "", "ROLLED", size, (), name, dense)
                found.segments.append(segment if after < OFFSET_MAX else self._active(segment, found))
            except ChunkNotFound:
                found.notes.append(f"{name} was deleted during the read")

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        """What is in a folder, by name; nothing, if it was deleted during the read."""
        with suppress(ChunkNotFound), translated(folder), os.scandir(os.path.join(self._root, folder)) as entries:
            return sorted(entries, key=lambda each: each.name)
        return []

    def _active(self, segment: Segment, found: Listing) -> Segment:
        """The segment up to where its batches end now."""
        segment = segment._replace(state="ACTIVE")
        try:
            with self.log(segment) as log:
                position = self.position(segment, log, OFFSET_MAX)
                options = ReadOptions(position, segment.start_offset, OFFSET_MAX, unfinished=True)
                summary = validate(log, options)
        except (Damaged, Unsupported, InvalidArgument) as error:
            found.notes.append(error.message)
            return segment
        if summary.tail is not None and not summary.tail.zeros:
            text = f"the last {summary.tail.length_bytes} bytes are not a whole batch and were not read"
            found.notes.append(f"{segment.name}: {text}")
        return segment._replace(end_offset=summary.end_offset - 1, bytes=summary.end_position)

    @contextmanager
    def log(self, segment: Segment) -> Iterator[DataSource]:
        with opened_file(os.path.join(self._root, segment.name), segment.name) as file:
            if file.length < segment.bytes:
                raise ChunkNotFound(segment.name)  # compaction has put another file there
            yield file._replace(length=segment.bytes)

    def index(self, segment: Segment, name: str) -> bytes | None:
        file = index_file(segment.start_offset, segment.end_offset + 1, name)
        return self._small(f"{segment.name.partition('/')[0]}/{file}")

    def require_neighbour(self, segment: Segment, log: DataSource) -> None:
        """Raise ``ChunkNotFound`` if a rolled segment ends early, and a broker renames what comes next: a listing may have missed it.

        Compaction may also have emptied its end: the folder then has the same two logs, and none that takes its place.
        """
        begin, end = segment.start_offset, segment.end_offset + 1
        reached = -1
        with suppress(Damaged, Unsupported):
            reached = validate(log, ReadOptions(self.position(segment, log, end), begin, OFFSET_MAX)).end_offset
        if reached != end:
            names = [each.name for each in self._scan(segment.name.partition("/")[0])]
            logs = [each for each in names if each[20:] in (".log", ".log.swap", ".log.cleaned")]
            near = [each for each in logs if segment_file(begin, "log") <= each[:24] <= segment_file(end, "log")]
            if near != [segment_file(each, "log") for each in (begin, end)]:
                raise ChunkNotFound(segment.name)

    def checkpoint(self, name: str) -> dict[tuple[str, int], int]:
        """The rows of an offset checkpoint; none where it is missing."""
        rows = read_offset_checkpoint(self._small(name) or b"0\n0\n", object=name)
        return {(row.topic, row.partition): row.offset for row in rows}

    def size_of(self, segment: Segment) -> int:
        """The bytes that its log has now. Raises ``ChunkNotFound``."""
        with translated(segment.name):
            return os.stat(os.path.join(self._root, segment.name), follow_symlinks=False).st_size

    def _small(self, key: str) -> bytes | None:
        """A file that is no log; None: it is missing."""
        with suppress(ChunkNotFound), opened_file(os.path.join(self._root, key), key) as file:
            if file.length > SMALL_FILE_BYTES_MAX:
                raise Damaged(f"{file.length} bytes; at most {SMALL_FILE_BYTES_MAX} are read", object=key)
            return bytes(read_exactly(file, 0, file.length))
        return None
