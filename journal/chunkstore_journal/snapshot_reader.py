"""Reading snapshots, and the rows of exports: frames, blocks and the verdict at the end (protocol 3.11).

Promises: bounded memory (a window and one block), and nothing is believed before its checksum: blocks have CRCs; row count, state digest
and the hash of all bytes are compared at the end, which a consumer of the pairs must reach (``verified``) before using them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from enum import IntEnum
from functools import partial
from hashlib import blake2b
from operator import lt
from typing import NamedTuple

from chunkstore.checksum import DIGEST_MODULUS, rows_digest
from chunkstore.config import LIMITS, MIB
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.metadata.keys import EXTENT, INLINE, ROW_KINDS, RUN
from chunkstore.metadata.port import Position
from chunkstore.records.names import check_object_name
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_journal.payloads import KEY_BYTES_MAX, SnapshotLink
from chunkstore_journal.wire import (
    FRAME_HEADER_BYTES,
    HASH_BYTES,
    Fields,
    check_frame,
    decode_frame_header,
    refuse,
    unpack,
)

__all__ = [
    "DIGEST_BYTES",
    "FILE_HASH_BYTES",
    "MAGIC",
    "SNAPSHOT_VERSION",
    "FrameKind",
    "FrameSource",
    "RowsReader",
    "SnapshotHeader",
    "SnapshotReader",
    "Tally",
    "decode_position",
    "part_name",
    "read_snapshot_header",
    "verify_snapshot",
]

MAGIC = b"CKSS"
SNAPSHOT_VERSION = 1
_HEADER_WINDOW_BYTES = 4096
"""No header is longer."""
FILE_HASH_BYTES = 32
DIGEST_BYTES = 32
_WINDOW_BYTES_MIN, _WINDOW_BYTES_MAX = 1 * MIB, 4 * MIB
"""Windows double: little is read in vain of what is short, and what is long takes few round trips."""
_KINDS = ROW_KINDS | {INLINE[0], RUN[0], EXTENT[0]}


class FrameKind(IntEnum):
    """Kinds of frames in a snapshot. Zero is never valid."""

    HEADER = 1
    PARTS = 2
    BLOCK = 3
    TRAILER = 4


class SnapshotHeader(NamedTuple):
    """What a snapshot says of itself. ``epoch`` wrote it; ``position`` is where it is; ``time_ms`` is a label."""

    container: bytes
    epoch: int
    position: Position
    digest: int
    time_ms: int

    def link(self, name: str) -> SnapshotLink:
        """The link to this snapshot, stored as ``name``, for notes, OPEN and LATEST."""
        lsn, identity, epoch, index, end = self.position
        return SnapshotLink(name, lsn, identity, self.digest, epoch, index, end)


def part_name(name: str, number: int) -> str:
    """The object that holds part ``number`` of snapshot ``name``."""
    return f"{name}.p{number:04d}"


class Tally:
    """Counts and sums what passes; the same code for the writer and the reader. ``kinds``: of the keys that may come; without
    ``digests`` nothing is summed, and ``digest`` stays 0."""

    __slots__ = ("_kinds", "digest", "index_entries", "last_key", "rows", "sums")

    def __init__(self, kinds: AbstractSet[int] = _KINDS, *, digests: bool = True) -> None:
        self._kinds = kinds
        self.sums = digests
        self.rows = 0
        self.index_entries = 0
        self.digest = 0
        self.last_key = b""

    def add(self, keys: tuple[bytes, ...], values: tuple[bytes, ...], object: str, position: int) -> None:
        """Count one block. Raises ``Damaged`` for keys out of order or of unknown kind, and rows beyond the limits."""
        if keys[0] <= self.last_key or not all(map(lt, keys, keys[1:])):
            refuse("keys are not in ascending order", object, position)
        if max(map(len, keys)) > KEY_BYTES_MAX or max(map(len, values)) > LIMITS.row_bytes_max:
            refuse("a row is longer than any row may be", object, position)
        kinds = {key[0] for key in keys}
        if not kinds <= self._kinds:
            refuse(f"keys of unknown kinds {sorted(kinds - self._kinds)}; a newer program wrote them", object, position)
        self.last_key = keys[-1]
        if not kinds <= ROW_KINDS:
            self.index_entries += len(keys)
            pairs = [(key, value) for key, value in zip(keys, values, strict=True) if key[0] in ROW_KINDS]
            keys, values = tuple(key for key, _ in pairs), tuple(value for _, value in pairs)
            self.index_entries -= len(keys)
        self.rows += len(keys)
        if self.sums:
            self.digest = (self.digest + rows_digest(keys, values)) % DIGEST_MODULUS


def decode_position(fields: Fields, object: str, position: int) -> Position:
    """The next of ``fields``, an array that says where in history something is. Raises ``Damaged``."""
    place = Fields(fields.array(), "its position in history", object, position)
    return Position(place.whole(), place.raw(HASH_BYTES), place.whole(), place.whole(), place.whole())


class FrameSource:
    """Frames of one object, read in windows by ``read`` (offset, length; short only at the end). ``hash`` is of what has passed."""

    def __init__(self, read: Callable[[int, int], bytes], name: str, window_bytes: int = _WINDOW_BYTES_MIN) -> None:
        self._read = read
        self._name = name
        self._data = b""
        self._at = 0
        self._next_read = 0
        self._window_bytes = window_bytes
        self.hash = blake2b(digest_size=FILE_HASH_BYTES)

    @property
    def position(self) -> int:
        """Byte offset of the next frame."""
        return self._next_read - len(self._data) + self._at

    def _peek(self, length: int) -> bytes:
        """Up to ``length`` bytes from the present position, without moving; short only at the object's end."""
        missing = length - (len(self._data) - self._at)
        if missing > 0:
            self._data, self._at = self._data[self._at :], 0  # before the next window is there: not both in memory
            more = self._read(self._next_read, max(missing, self._window_bytes))
            self._window_bytes = min(2 * self._window_bytes, _WINDOW_BYTES_MAX)
            self._next_read += len(more)
            self._data += more
        return self._data[self._at : self._at + length]

    def at_end(self) -> bool:
        return not self._peek(1)

    def frame(self, *, hashed_unless: FrameKind | None, magic: bytes = MAGIC) -> tuple[FrameKind, object]:
        """The next frame's kind and value; its bytes go into ``hash`` unless it is of kind ``hashed_unless``. Raises ``Damaged``."""
        position = self.position
        raw = self._peek(FRAME_HEADER_BYTES)
        header = decode_frame_header(raw, magic, LIMITS.snapshot_block_bytes_max, object=self._name, position=position)
        raw = self._peek(FRAME_HEADER_BYTES + header.body_bytes)
        body = raw[FRAME_HEADER_BYTES:]
        check_frame(raw, body, version=SNAPSHOT_VERSION, object=self._name, position=position)
        self._at += len(raw)
        if header.kind != hashed_unless:
            self.hash.update(raw)
        try:
            kind = FrameKind(header.kind)
        except ValueError:
            refuse(f"frame kind {header.kind} is unknown; upgrade this program", self._name, position)
        return kind, unpack(body, self._name, position + FRAME_HEADER_BYTES)


class RowsReader:
    """One pass over rows and the trailer that vouches for them, which follow the header in ``source``.

    ``part``: opens a part by its number; ``digest``: what the rows must sum up to. Iterate for (key, value) pairs in key order. The end of
    the iteration is the verdict: ``verified`` is True only after counts, digest and hash were found right.
    Errors: ``Damaged(object, position)``; ``ChunkNotFound`` when a collector was faster; what reading raises.
    """

    def __init__(
        self,
        source: FrameSource,
        name: str,
        *,
        part: Callable[[int], tuple[str, FrameSource]],
        digest: int,
        tally: Tally,
    ) -> None:
        self._source = source
        self._name = name
        self._part = part
        self._digest = digest
        self._tally = tally
        self._block_count = 0
        self.verified = False

    @property
    def rows(self) -> int:
        """Rows seen so far."""
        return self._tally.rows

    @property
    def index_entries(self) -> int:
        """Offset index entries seen so far."""
        return self._tally.index_entries

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for keys, values in self.blocks():
            yield from zip(keys, values, strict=True)

    def blocks(self) -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
        """The pairs, a block of keys and its values at a time."""
        source = self._source
        first = True
        while True:
            position = source.position
            kind, value = source.frame(hashed_unless=FrameKind.TRAILER)
            if kind is FrameKind.BLOCK:
                yield self._block(value, self._name, position)
            elif kind is FrameKind.PARTS and first:
                yield from self._parts(value, position)
            elif kind is FrameKind.TRAILER:
                self._finish(value, position)
                return
            else:
                refuse(f"a {kind.name} frame does not belong here", self._name, position)
            first = False

    def _block(self, value: object, object: str, position: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        fields = Fields(value, "a block", object, position)
        if fields.whole() != self._block_count:
            refuse(f"this is not block {self._block_count}", object, position)
        flat = fields.array()
        if not flat or len(flat) % 2 or set(map(type, flat)) != {bytes} or not all(flat[::2]):
            refuse("a block does not hold pairs of keys and values", object, position)
        keys: tuple[bytes, ...] = flat[::2]  # type: ignore[assignment]
        values: tuple[bytes, ...] = flat[1::2]  # type: ignore[assignment]
        self._tally.add(keys, values, object, position)
        self._block_count += 1
        return keys, values

    def _parts(self, value: object, position: int) -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
        if type(value) is not tuple:
            refuse("the list of parts is not an array", self._name, position)
        for number, item in enumerate(value):
            fields = Fields(item, f"part {number} of the list", self._name, position)
            size, expected = fields.whole(), fields.raw(FILE_HASH_BYTES)
            name, source = self._part(number)
            while source.position < size:
                at = source.position
                kind, body = source.frame(hashed_unless=None)
                if kind is not FrameKind.BLOCK:
                    refuse(f"a {kind.name} frame does not belong into a part", name, at)
                yield self._block(body, name, at)
            if source.position != size or source.hash.digest() != expected:
                refuse("the part is not the listed one", name, source.position)

    def _finish(self, value: object, position: int) -> None:
        fields = Fields(value, "the trailer", self._name, position)
        blocks, rows, index_entries = fields.whole(), fields.whole(), fields.whole()
        digest, file_hash = int.from_bytes(fields.raw(DIGEST_BYTES), "big"), fields.raw(FILE_HASH_BYTES)
        tally = self._tally
        if (blocks, rows, index_entries) != (self._block_count, tally.rows, tally.index_entries):
            refuse(
                f"{rows} rows and {index_entries} index entries are announced, others were read", self._name, position
            )
        if digest != self._digest or (tally.sums and tally.digest != digest):
            refuse("the rows do not have the digest that is named", self._name, position)
        if self._source.hash.digest() != file_hash:
            refuse("the hash of its bytes is wrong", self._name, position)
        if not self._source.at_end():
            refuse("bytes follow the trailer", self._name, self._source.position)
        self.verified = True


class SnapshotReader(RowsReader):
    """One pass over a snapshot. ``header`` is there at once; the rest as ``RowsReader``. Without ``digests`` the rows are not summed up."""

    def __init__(self, storage: ChunkStorage, name: str, *, container: bytes, digests: bool = True) -> None:
        def part(number: int) -> tuple[str, FrameSource]:
            return part_name(name, number), _source(storage, part_name(name, number))

        source = _source(storage, name)
        self.header = _read_header(source, name, container)
        super().__init__(source, name, part=part, digest=self.header.digest, tally=Tally(digests=digests))


def _source(storage: ChunkStorage, name: str, window_bytes: int = _WINDOW_BYTES_MIN) -> FrameSource:
    try:
        check_object_name(name)
    except InvalidArgument as error:
        # A hint or a record said so: that is wrong, not its reader.
        raise Damaged("a snapshot has an impossible object name", object=repr(name)) from error
    return FrameSource(partial(storage.read, ChunkHandle(name, False)), name, window_bytes)


def _read_header(source: FrameSource, name: str, container: bytes) -> SnapshotHeader:
    kind, value = source.frame(hashed_unless=None)
    if kind is not FrameKind.HEADER:
        refuse("a snapshot must begin with its header", name, 0)
    fields = Fields(value, "the snapshot's header", name, FRAME_HEADER_BYTES)
    found, epoch = fields.raw(16), fields.whole()
    if found != container:
        refuse("the snapshot belongs to another container", name, 0)
    where = decode_position(fields, name, FRAME_HEADER_BYTES)
    return SnapshotHeader(found, epoch, where, int.from_bytes(fields.raw(DIGEST_BYTES), "big"), fields.whole())


def read_snapshot_header(storage: ChunkStorage, name: str, *, container: bytes) -> SnapshotHeader:
    """Read a snapshot's header only. Raises ``Damaged``, ``ChunkNotFound``, and what the storage raises."""
    return _read_header(_source(storage, name, _HEADER_WINDOW_BYTES), name, container)


def verify_snapshot(storage: ChunkStorage, name: str, *, container: bytes, digests: bool = True) -> SnapshotReader:
    """Read a snapshot to its end, so that all of it is known to be right. Raises as ``SnapshotReader`` says."""
    reader = SnapshotReader(storage, name, container=container, digests=digests)
    for _ in reader.blocks():
        pass
    return reader
