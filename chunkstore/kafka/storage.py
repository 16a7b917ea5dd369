"""Kafka's ``RemoteStorageManager`` (KIP-405, final form): the bytes of remote log segments as segments of a container.

Promises: a copy is one commit at its end (log and indexes sealed, its row put): no half of one is ever read, and the container alone
says what is stored. A copy that died is replaced by the next one of the same id. Works alone, next to any metadata manager. Memory:
one piece. Leaves out: states of segments (``metadata``), and what is inside of a log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from io import BufferedReader, RawIOBase
from struct import Struct
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias, cast

from chunkstore import runtime
from chunkstore.changes import Create, Delete, Seal, TableDelete, TablePut
from chunkstore.codec.kafka.manifest import IndexType
from chunkstore.codec.kafka.names import uuid_text
from chunkstore.codec.sources import DataSource, read_exactly
from chunkstore.config import MIB
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, InvalidArgument, SegmentExists, SegmentNotFound
from chunkstore.kafka import model, rows
from chunkstore.kafka.model import (
    OFFSET_MAX,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFoundException,
    TopicIdPartition,
    check_int,
    require,
)
from chunkstore.kafka.sources import opened_file
from chunkstore.operations.tables import TableEntry
from chunkstore.records.arguments import SegmentHandle

__all__ = [
    "STORED", "UNDER_WAY", "CopyUnderWay", "IndexType", "LogSegmentData", "RemoteDataNotFoundException", "RemoteStorageManager",
    "RemoteStorageReader", "log_name",
]  # fmt: skip

STORED: Final = b"\0s"
"""How the keys of rows of what is stored begin: no partition's key begins so."""
UNDER_WAY: Final = b"\0u"
_SIZES: Final = Struct(">5q")
_PIECE_BYTES: Final = 8 * MIB
_WINDOW_BYTES: Final = 1 * MIB

File: TypeAlias = str | os.PathLike[str] | bytes | DataSource
"""A file: its path, its bytes, or an opened one."""


class LogSegmentData(NamedTuple):
    """The files of a log segment. ``leader_epoch_index``: the checkpoint's text up to the segment's end. None: there is no such file."""

    log_segment: File
    offset_index: File | None
    time_index: File | None
    producer_snapshot_index: File | None
    leader_epoch_index: File | None
    transaction_index: File | None = None


class CopyUnderWay(NamedTuple):
    """A copy that goes on, or died: ``bytes`` are stored of it, and it began ``age_s`` seconds ago."""

    remote_log_segment_id: model.RemoteLogSegmentId
    start_offset: int
    end_offset: int
    bytes: int
    age_s: float


class RemoteDataNotFoundException(RemoteResourceNotFoundException):
    """The segment, or its index, is not stored here; many segments have no transaction index."""


def log_name(partition: TopicIdPartition, start_offset: int, identity: bytes) -> str:
    """The segment of the container that holds a log; its indexes are in the one with "-indexes" after it."""
    return f"kafka/{uuid_text(partition.topic_id)}/{partition.partition}/{start_offset:020d}-{uuid_text(identity)}"


def _names(item: RemoteLogSegmentMetadata) -> tuple[str, str]:
    identity = item.remote_log_segment_id
    name = log_name(identity.topic_id_partition, item.start_offset, identity.id)
    return name, f"{name}-indexes"


def _key(kind: bytes, item: RemoteLogSegmentMetadata) -> bytes:
    identity = item.remote_log_segment_id
    place = rows.partition_key(identity.topic_id_partition)
    return kind + place + rows.number_key(item.start_offset) + identity.id


def _partition_of(key: bytes) -> TopicIdPartition:
    topic, _, rest = key[2:].partition(b"\0")
    try:
        return TopicIdPartition(rest[:16], topic.decode(), int.from_bytes(rest[16:20], "big"))
    except (InvalidArgument, ValueError) as error:
        raise Damaged("the key names no partition", object=f"table {rows.NAMESPACE}, row {key!r}") from error


class RemoteStorageReader:
    """The reading half, at an owner or a replica. Thread-safe. Retry: safe.

    All calls raise ``InvalidArgument``, ``RemoteDataNotFoundException``, and what ``table``, ``info`` and ``read`` of the store raise,
    within its deadlines; so do the streams that they return.
    """

    def __init__(self, store: ChunkedSegmentStorage | Replica) -> None:
        self._reads = store
        self._table = store.table(rows.NAMESPACE)

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None) -> BinaryIO:
        """The bytes of the log from position ``start`` to ``end``, both included; None, or past the last byte: to the last byte.

        ``InvalidArgument`` also where ``start`` is past the end of the log.
        """
        check_int(start, "start", OFFSET_MAX)
        check_int(OFFSET_MAX if end is None else end, "end", OFFSET_MAX, start)
        self._stored(metadata)
        return self._stream(metadata, 0, start, OFFSET_MAX if end is None else end + 1)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType | str) -> BinaryIO:
        """One of its indexes. ``RemoteDataNotFoundException`` also where the segment has none of this kind."""
        require(kind in tuple(IndexType), "kind", f"one of {', '.join(IndexType)}")
        sizes = _SIZES.unpack(self._stored(metadata).custom_metadata or b"")
        number = tuple(IndexType).index(IndexType(kind))
        if sizes[number] < 0:
            raise RemoteDataNotFoundException(f"index {kind} of {metadata.remote_log_segment_id}")
        begin = sum(size for size in sizes[:number] if size > 0)
        return self._stream(metadata, 1, begin, begin + sizes[number])

    def stored_segments(self, topic: str | None = None) -> Iterator[RemoteLogSegmentMetadata]:
        """What is stored, by topic, partition and start offset: with its true size, the lengths of its indexes as custom metadata, and the
        state COPY_SEGMENT_FINISHED, whatever a metadata manager says of it. Iterating raises ``Damaged``, too."""
        prefix = STORED if topic is None else b"%b%b\0" % (STORED, topic.encode())
        for row in self._table.scan(prefix):
            found = rows.decode_segment(_partition_of(row.key), row)
            if len(found.custom_metadata or b"") != _SIZES.size:
                raise Damaged("no lengths of five indexes", object=f"table {rows.NAMESPACE}, row {row.key!r}")
            yield found

    def _stream(self, metadata: RemoteLogSegmentMetadata, which: int, start: int, stop: int) -> BinaryIO:
        name = _names(metadata)[which]
        try:
            handle, length = self._reads.open_read(name), self._reads.info(name).length
        except SegmentNotFound as error:
            raise RemoteDataNotFoundException(str(metadata.remote_log_segment_id)) from error
        require(start <= length, "start", f"at most {length}, the length of the log")
        stream = _Stream(self._reads, handle, start, min(stop, length))
        return cast("BinaryIO", BufferedReader(stream, _WINDOW_BYTES))

    def _stored(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        found = self._row(STORED, metadata)
        if found is None:
            raise RemoteDataNotFoundException(str(metadata.remote_log_segment_id))
        return found

    def _row(self, kind: bytes, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        require(isinstance(metadata, RemoteLogSegmentMetadata), "metadata", "a RemoteLogSegmentMetadata")
        row = self._table.get(_key(kind, metadata))
        return None if row is None else rows.decode_segment(metadata.remote_log_segment_id.topic_id_partition, row)


class RemoteStorageManager(RemoteStorageReader):
    """See the module's text. Changes also raise what ``append`` and ``commit`` of the store raise."""

    def __init__(self, store: ChunkedSegmentStorage) -> None:
        super().__init__(store)
        self._store = store

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, log_segment_data: LogSegmentData) -> bytes | None:  # fmt: skip
        """Copy a segment; durable when it returns. Returns 40 bytes of custom metadata: the lengths of its indexes.

        What is stored under this id stays, and is not copied again. Also raises ``ChunkNotFound``, ``AccessDenied`` and
        ``StorageUnavailable`` of a file, and ``Conflict``: what is stored has another end or length, or another copy of this id, or its
        deletion, has begun. Retry: safe, with the same id or another one; after another error nothing of the segment is readable or
        stored, but where the storage is away or the owner has died: then ``delete_log_segment_data`` frees what is stored of it.
        """
        stored = self._row(STORED, metadata)
        require(isinstance(log_segment_data, LogSegmentData), "log_segment_data", "a LogSegmentData")
        if stored is not None:
            with _opened(log_segment_data.log_segment) as log:
                found, wanted = (stored.end_offset, stored.segment_size_in_bytes), (metadata.end_offset, log.length)
            if found != wanted:
                text = "of another end or length: delete it, or copy under another id"
                raise Conflict(f"{metadata.remote_log_segment_id} is stored", expected=wanted, found=found, remedy=text)
            return stored.custom_metadata
        try:
            return self._copy(metadata, log_segment_data)
        except (SegmentExists, SegmentNotFound) as error:
            other = "another copy, or its deletion"
            raise Conflict(f"the copy of {metadata.remote_log_segment_id}", expected="no other", found=other) from error

    copy_log_segment = copy_log_segment_data

    def _copy(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        with ExitStack() as opened:
            log = opened.enter_context(_opened(data.log_segment))
            indexes = [None if file is None else opened.enter_context(_opened(file)) for file in data[1:]]
            begun, *handles = self._begin(metadata)
            sizes = _SIZES.pack(*(-1 if index is None else index.length for index in indexes))
            state = model.RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            whole = replace(metadata, segment_size_in_bytes=log.length, custom_metadata=sizes, state=state)
            try:
                self._append(handles[0], [log])
                self._append(handles[1], [index for index in indexes if index is not None])
                self._store.commit([
                    *(Seal(name) for name in _names(metadata)),
                    TableDelete(rows.NAMESPACE, begun.key, begun.version),
                    TablePut(rows.NAMESPACE, _key(STORED, metadata), rows.encode_segment(whole), 0),
                ])  # fmt: skip
            except Exception:
                with suppress(ChunkstoreError):
                    self._delete(metadata, begun)
                raise
        return sizes

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete what is stored of a segment, also of a copy that goes on, which then fails. Nothing: no change. Durable. Retry: safe."""
        require(isinstance(metadata, RemoteLogSegmentMetadata), "metadata", "a RemoteLogSegmentMetadata")
        while found := [row for kind in (STORED, UNDER_WAY) if (row := self._table.get(_key(kind, metadata)))]:
            with suppress(Conflict, SegmentNotFound):
                self._delete(metadata, *found)

    def delete_copies_under_way(self) -> None:
        """Delete all copies under way: for an owner that has begun none, so that all of them died. Durable. Retry: safe."""
        for row in list(self._table.scan(UNDER_WAY)):
            with suppress(Conflict, SegmentNotFound):
                self._delete(rows.decode_segment(_partition_of(row.key), row), row)

    def copies_under_way(self) -> list[CopyUnderWay]:
        """Copies that have begun and not ended, by topic, partition and offset. Dead ones are listed until copied again or deleted."""
        found, now_ms = [], runtime.now_ms()
        for row in self._table.scan(UNDER_WAY):
            item = rows.decode_segment(_partition_of(row.key), row)
            with suppress(SegmentNotFound):  # it has ended since
                size = sum(self._store.info(name).length for name in _names(item))
                place = item.remote_log_segment_id, item.start_offset, item.end_offset
                found.append(CopyUnderWay(*place, size, max(0, now_ms - item.event_timestamp_ms) / 1000))
        return found

    def _delete(self, item: RemoteLogSegmentMetadata, *found: TableEntry) -> None:
        gone = (Delete(name) for name in _names(item) if self._store.exists(name))
        self._store.commit([*(TableDelete(rows.NAMESPACE, row.key, row.version) for row in found), *gone])

    def _begin(self, metadata: RemoteLogSegmentMetadata) -> tuple[TableEntry, SegmentHandle, SegmentHandle]:
        """Replace what is under way of this id: its row, and handles of both segments."""
        token, key, (log, indexes) = runtime.token(16), _key(UNDER_WAY, metadata), _names(metadata)
        started = model.RemoteLogSegmentState.COPY_SEGMENT_STARTED
        begun = replace(metadata, event_timestamp_ms=runtime.now_ms(), custom_metadata=token, state=started)
        value = rows.encode_segment(begun)
        old = self._table.get(key)
        gone = () if old is None else (Delete(name) for name in (log, indexes) if self._store.exists(name))
        put = TablePut(rows.NAMESPACE, key, value, 0 if old is None else old.version)
        self._store.commit([*gone, Create(log), Create(indexes), put])
        handles = self._store.open_write(log), self._store.open_write(indexes)
        row = self._table.get(key)
        if row is None or row.value != value:
            raise Conflict(f"the copy of {begun.remote_log_segment_id}", expected=token, found="another copy of it")
        return row, *handles

    def _append(self, handle: SegmentHandle, files: Sequence[DataSource]) -> None:
        """All bytes of ``files``, in as few appends as pieces of them fit."""
        buffers: list[bytes] = []
        position = 0
        for file in files:
            for at in range(0, file.length, _PIECE_BYTES):
                buffers.append(bytes(read_exactly(file, at, min(_PIECE_BYTES, file.length - at))))
                if (size := sum(map(len, buffers))) >= _PIECE_BYTES:
                    self._store.append_many(handle, buffers, expected_offset=position)
                    buffers, position = [], position + size
        if buffers:
            self._store.append_many(handle, buffers, expected_offset=position)


@contextmanager
def _opened(file: File) -> Iterator[DataSource]:
    if isinstance(file, DataSource):
        yield file
    elif isinstance(file, bytes):
        yield DataSource("bytes", len(file), lambda at, size: file[at : at + size])
    else:
        with opened_file(os.path.realpath(file), os.fspath(file)) as opened:
            yield opened


class _Stream(RawIOBase):
    """The bytes of a segment from ``start`` to below ``stop``."""

    def __init__(self, store: ChunkedSegmentStorage | Replica, segment: SegmentHandle, start: int, stop: int) -> None:
        self._store, self._segment, self._at, self._stop = store, segment, start, stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: self._stop - self._at]
        try:
            count = self._store.read_into(self._segment, self._at, view) if view else 0
        except SegmentNotFound as error:
            raise RemoteDataNotFoundException(self._segment.name) from error
        self._at += count
        return count
