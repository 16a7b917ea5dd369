"""The manifest of a segment in a bucket: how its log was cut into chunks, and where its indexes are in the object ``.indexes``.

Promises: an offset of the log leads to its chunk without a list of chunks where all have one size; everything in the JSON is checked and
bounded before memory is taken for it. Leaves out: reading objects, undoing encryption (``encryption``), and writing manifests.
"""

from __future__ import annotations

import json
import re
from array import array
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import zstandard

from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.codec.kafka.names import parse_uuid
from chunkstore.codec.kafka.remote_metadata import MetadataRecord, RecordKind, SegmentState, fault_of
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = ["MANIFEST_BYTES_MAX", "Chunk", "ChunkIndex", "IndexType", "Manifest", "read_manifest", "unpack_zstd"]

MANIFEST_BYTES_MAX: Final = 4 * MIB
"""Longest manifest that is read: 2 GiB in chunks of 4 KiB need 2 MiB."""
_SIZES_BYTES_MAX: Final = MIB
_T = TypeVar("_T")


class IndexType(StrEnum):
    """The five kinds of indexes, in the order in which ``RemoteStorageManager`` stores them."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"


class Chunk(NamedTuple):
    """A piece of the log, and where it is stored in the object ``.log``."""

    position: int
    size_bytes: int
    stored_position: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """The chunks of a log of ``log_bytes``, all of ``chunk_bytes`` but the last; ``starts`` is where they begin as stored."""

    chunk_bytes: int
    log_bytes: int
    starts: Sequence[int]
    stored_bytes: int

    def __len__(self) -> int:
        return len(self.starts)

    def chunks(self, start: int, stop: int) -> Iterator[Chunk]:
        """The chunks that hold bytes ``start`` to below ``stop`` of the log, in order. ``InvalidArgument`` outside of the log."""
        if not 0 <= start <= stop <= self.log_bytes:
            raise InvalidArgument(f"bytes {start} to {stop} of a log of {self.log_bytes}", argument="stop")
        for number in range(start // self.chunk_bytes, -(-stop // self.chunk_bytes) if stop > start else 0):
            position, stored = number * self.chunk_bytes, self.starts[number]
            end = self.starts[number + 1] if number + 1 < len(self) else self.stored_bytes
            yield Chunk(position, min(self.chunk_bytes, self.log_bytes - position), stored, end - stored)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest says.

    ``indexes``: position and stored bytes of each index in ``.indexes``, by ``IndexType``; ``None`` where the segment has none.
    ``data_key``: the wrapped key; ``None``: nothing is encrypted. ``segment``: its metadata from before the copy had finished, or ``None``.
    """

    chunks: ChunkIndex
    indexes: Mapping[str, tuple[int, int] | None]
    compression: bool
    data_key: str | None
    aad: bytes
    segment: MetadataRecord | None


class _Tree:
    """An object of the JSON, with the document for errors."""

    def __init__(self, fields: Mapping[str, Any], data: bytes, object: str) -> None:
        self.fields, self._data, self._object = fields, data, object

    def fail(self, name: str, message: str) -> NoReturn:
        raise Damaged(f"{name}: {message}", object=self._object, position=self._at(name))

    def _at(self, name: str) -> int:
        return max(0, self._data.find(f'"{name}"'.encode()))

    def get(self, name: str, kind: type[_T], least: int = 0, bits: int = 63) -> _T:
        value = self.fields.get(name)
        if type(value) is not kind or (isinstance(value, int) and not least <= value < 1 << bits):
            self.fail(name, f"{str(value)[:60]!r} is not what is expected ({kind.__name__})")
        return value

    def inner(self, name: str) -> _Tree:
        return _Tree(self.get(name, dict), self._data, self._object)

    def optional(self, name: str) -> _Tree | None:
        return None if self.fields.get(name) is None else self.inner(name)

    def raw(self, name: str) -> bytes:
        try:
            return b64decode(self.get(name, str), validate=True)
        except ValueError as error:
            self.fail(name, f"no base64: {error}")

    def uuid(self, name: str) -> bytes:
        return parse_uuid(self.get(name, str), object=self._object, position=self._at(name))


def unpack_zstd(data: bytes, size_bytes_max: int) -> bytes:
    """One whole zstd frame, unpacked. ``ValueError`` if it is none, or longer."""
    try:
        if (claimed := zstandard.frame_content_size(data)) > size_bytes_max:
            raise ValueError(f"{claimed} bytes, at most {size_bytes_max} are unpacked")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes_max, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"no zstd frame of {size_bytes_max} bytes: {error}") from error


def read_manifest(data: bytes, *, object: str = "rsm-manifest") -> Manifest:
    """What the manifest ``data`` says. ``Damaged`` names ``object`` and where in it the first wrong field is."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise Damaged(f"{len(data)} bytes; at most {MANIFEST_BYTES_MAX} are read", object=object)
    try:
        tree = _Tree({"manifest": json.loads(data.decode())}, data, object).inner("manifest")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"no JSON: {error}", object=object, position=getattr(error, "pos", 0)) from error
    if tree.get("version", str) != "1":
        tree.fail("version", "1 expected")
    chunks = _chunk_index(tree.inner("chunkIndex"))
    encryption = tree.optional("encryption")
    places = tree.inner("segmentIndexes")
    if missing := [name for name in IndexType if name not in places.fields]:
        places.fail(missing[0], "it is missing; a segment without that index has null there")
    indexes = [(name, places.optional(name)) for name in IndexType]
    segment = tree.optional("remoteLogSegmentMetadata")
    return Manifest(
        chunks,
        {name: (at.get("position", int), at.get("size", int, 0, 31)) if at else None for name, at in indexes},
        tree.get("compression", bool),
        encryption.get("dataKey", str) if encryption else None,
        encryption.raw("aad") if encryption else b"",
        _segment(segment, chunks.log_bytes) if segment else None,
    )


def _chunk_index(tree: _Tree) -> ChunkIndex:
    size, total = tree.get("originalChunkSize", int, 1, 31), tree.get("originalFileSize", int, 1, 31)
    count = -(-total // size)
    kind = tree.get("type", str)
    if kind == "fixed":
        each, last = tree.get("transformedChunkSize", int, 1, 31), tree.get("finalTransformedChunkSize", int, 1, 31)
        return ChunkIndex(size, total, range(0, each * count, each), each * (count - 1) + last)
    if kind != "variable":
        tree.fail("type", f"{kind[:40]!r} is unknown")
    try:
        sizes = _sizes(unpack_zstd(tree.raw("transformedChunks"), min(_SIZES_BYTES_MAX, 13 + 4 * count)), count)
    except ValueError as error:
        tree.fail("transformedChunks", str(error))
    starts = array("q", accumulate(sizes, initial=0))
    end = starts.pop()
    return ChunkIndex(size, total, starts, end)


def _sizes(raw: bytes, count: int) -> array[int]:
    """The stored sizes of ``count`` chunks: all but the last as differences from their least, in as few bytes as they need."""
    width = raw[8] if count > 1 and len(raw) > 8 else 0
    length = 8 if count == 1 else 13 + (count - 1) * width
    if len(raw) != length or int.from_bytes(raw[:4], "big") != count or (count > 1 and not 1 <= width <= 4):
        raise ValueError(f"{len(raw)} bytes are not a list of the sizes of {count} chunks")
    base = int.from_bytes(raw[4:8], "big")
    sizes = array("q", (base + int.from_bytes(raw[at : at + width], "big") for at in range(9, length - 4, width or 1)))
    sizes.append(int.from_bytes(raw[-4:], "big"))
    if not 0 < min(sizes) <= max(sizes) < 1 << 31:
        raise ValueError("a chunk has 1 byte to below 2 GiB")
    return sizes


def _segment(tree: _Tree, size_bytes: int) -> MetadataRecord:
    """Kafka's metadata of the segment, which the uploader adds for people: from before the copy had finished."""
    ids = tree.inner("remoteLogSegmentId")
    partition = ids.inner("topicIdPartition")
    place, epochs = partition.inner("topicPartition"), tree.inner("segmentLeaderEpochs")
    starts = ((key, epochs.get(key, int)) for key in epochs.fields)
    record = MetadataRecord(
        RecordKind.SEGMENT_METADATA, SegmentState.COPY_SEGMENT_STARTED, tree.get("brokerId", int), tree.get("eventTimestampMs", int),
        place.get("topic", str), partition.uuid("topicId"), place.get("partition", int, 0, 31), ids.uuid("id"),
        tree.get("startOffset", int), tree.get("endOffset", int), tree.get("maxTimestampMs", int, -1),
        tuple(sorted(LeaderEpoch(int(key) if re.fullmatch("[0-9]{1,10}", key) else -1, start) for key, start in starts)), size_bytes,
    )  # fmt: skip
    if fault := fault_of(record):
        ids.fail("remoteLogSegmentMetadata", fault)
    return record
