"""Snapshots: the whole state at one point of history, in one self-certifying object (protocol 3.11, A8).

Promises: a snapshot is written from one consistent view, in key order, and read back in full before it is named anywhere; what fails that
is deleted again. Names are unique, nothing is ever overwritten. A snapshot of more than ``part_bytes`` is split: parts ``<name>.p0000``
and so on hold blocks; the object itself, written last, holds the header, the list of parts, the last blocks and the trailer.
Leaves out: whether the snapshot is on history, when to write one, which to keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple, Protocol

from chunkstore import runtime
from chunkstore.checksum import record_hash
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged
from chunkstore.journal import SnapshotReport
from chunkstore.metadata.port import Head, MetadataStore, MetadataView, Position
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage, iter_listing
from chunkstore_journal.payloads import SnapshotLink
from chunkstore_journal.snapshot_reader import (
    DIGEST_BYTES,
    FILE_HASH_BYTES,
    MAGIC,
    SNAPSHOT_VERSION,
    FrameKind,
    SnapshotHeader,
    SnapshotReader,
    Tally,
    part_name,
    verify_snapshot,
)
from chunkstore_journal.wire import encode_frame, pack

__all__ = [
    "ObjectSink",
    "StoredSnapshot",
    "delete_snapshot",
    "list_snapshots",
    "load_snapshot",
    "main_name",
    "write_base",
    "write_rows",
    "write_snapshot",
]

PART_BYTES = 16 * MIB
_NO_HEADER = b"\0"
"""Stands for a header that is not known yet."""
_BLOCK_BYTES = 1 * MIB
"""A block is closed when its rows reach this; with the longest row on top it stays below the readers' limit."""
_SCAN_START, _SCAN_STOP = b"\x01", b"\xff"


class StoredSnapshot(NamedTuple):
    """A snapshot of writer ``epoch`` as LIST shows it: ``size`` and ``objects`` with its parts. ``has_main``: the object that makes it
    a snapshot is there, of time ``modified_ms``; else parts wait for a sweep."""

    name: str
    lsn: int
    epoch: int
    size: int = 0
    objects: int = 0
    has_main: bool = False
    modified_ms: int | None = None


def main_name(name: str) -> str:
    """The snapshot that an object under ``snap/`` belongs to: parts lose their suffix, everything else stays."""
    front, dot, suffix = name.rpartition(".p")
    return front if dot and suffix.isdecimal() and front.endswith(".sn") else name


class RowsSink(Protocol):
    """Where frames go, the header first. ``finish``: the hash of all frames so far; ``end``: the last one; then everything is durable."""

    def write(self, frame: bytes) -> None: ...
    def finish(self) -> bytes: ...
    def end(self, trailer: bytes) -> None: ...


class ObjectSink:
    """Gathers frames into part objects of ``part_bytes``; header, list of parts and the rest go into the main object, at last."""

    def __init__(self, storage: ChunkStorage, name: str, part_bytes: int = PART_BYTES) -> None:
        self._storage = storage
        self._name = name
        self._part_bytes = part_bytes
        self.header = b""
        """The first frame; one that is only known at last is put here then, in the place of any first one."""
        self._parts: list[tuple[int, bytes]] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self.size = 0

    def write(self, frame: bytes) -> None:
        if not self.header:
            self.header = frame
            return
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        if self._pending_bytes >= self._part_bytes:
            data = b"".join(self._pending)
            self._create(part_name(self._name, len(self._parts)), data)
            self._parts.append((len(data), blake2b(data, digest_size=FILE_HASH_BYTES).digest()))
            self.size += len(data)
            self._pending.clear()
            self._pending_bytes = 0

    def finish(self) -> bytes:
        if self._parts:
            self._pending.insert(0, _frame(FrameKind.PARTS, tuple(self._parts)))
        self._pending.insert(0, self.header)
        state = blake2b(digest_size=FILE_HASH_BYTES)
        for piece in self._pending:
            state.update(piece)
        return state.digest()

    def end(self, trailer: bytes) -> None:
        data = b"".join((*self._pending, trailer))
        self._create(self._name, data)
        self.size += len(data)

    def _create(self, name: str, data: bytes) -> None:
        self._storage.create(name, data)
        if self._storage.capabilities.append:
            self._storage.sync([name])  # elsewhere it is durable already


def _frame(kind: FrameKind, body: object) -> bytes:
    return encode_frame(MAGIC, SNAPSHOT_VERSION, kind, pack(body))


def _blocks(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[list[bytes]]:
    """The pairs as flat lists [key, value, key, value, ...] of about ``_BLOCK_BYTES``."""
    flat: list[bytes] = []
    size = 0
    for pair in pairs:
        flat += pair
        size += len(pair[0]) + len(pair[1])
        if size >= _BLOCK_BYTES:
            yield flat
            flat = []
            size = 0
    if flat:
        yield flat


def write_rows(
    sink: RowsSink, header: bytes, pairs: Iterable[tuple[bytes, bytes]], tally: Tally, *, name: str, digest: int
) -> None:
    """Write a header's frame, ``pairs`` in blocks, and the trailer. ``tally``: a fresh one; ``digest``: what it must sum up to.

    Raises ``Damaged`` (other digest, keys out of order; then there is no trailer), and what reading the pairs and writing raises.
    """
    sink.write(header)
    blocks = _write_blocks(sink, pairs, tally, name)
    if tally.digest != digest:
        raise Damaged(
            "the metadata rows do not have the state digest of their head; delete the cache and open again", object=name
        )
    _write_trailer(sink, blocks, tally, digest)


def _write_blocks(sink: RowsSink, pairs: Iterable[tuple[bytes, bytes]], tally: Tally, name: str) -> int:
    """Write the pairs in blocks, and count them; how many blocks there are."""
    blocks = 0
    for flat in _blocks(pairs):
        if blocks:
            runtime.sleep_s(0)  # commits need the interpreter, too
        tally.add(tuple(flat[::2]), tuple(flat[1::2]), name, 0)
        sink.write(_frame(FrameKind.BLOCK, (blocks, flat)))
        blocks += 1
    return blocks


def _write_trailer(sink: RowsSink, blocks: int, tally: Tally, digest: int) -> None:
    raw = digest.to_bytes(DIGEST_BYTES, "big")
    sink.end(_frame(FrameKind.TRAILER, (blocks, tally.rows, tally.index_entries, raw, sink.finish())))


def write_snapshot(
    storage: ChunkStorage,
    names: ContainerNames,
    *,
    container: bytes,
    view: MetadataView,
    epoch: int,
    part_bytes: int = PART_BYTES,
) -> SnapshotReport:
    """Write everything ``view`` shows into a new snapshot, make it durable, read it all back, and report it.

    ``container`` is the 16-byte uuid, ``epoch`` the writer's. Memory: about twice ``part_bytes``. Atomicity: until it returns the name is
    not known elsewhere; after any error the objects are deleted as far as that is possible. Retry: safe (a new name each time).

    Raises: ``Damaged`` (the view's rows do not have its digest, or what was read back differs), and what the storage raises.
    """
    position, digest = view.head
    name = names.snapshot(position.lsn, epoch, runtime.token(8).hex())
    header = SnapshotHeader(container, epoch, position, digest, runtime.now_ms())
    with _deleted_on_failure(storage, name):
        sink, tally = ObjectSink(storage, name, part_bytes), Tally()
        rows = view.scan(_SCAN_START, _SCAN_STOP)
        write_rows(sink, _header_frame(header), rows, tally, name=name, digest=digest)
        _require_read_back(storage, name, header, tally)
    return SnapshotReport(name, position, digest, tally.rows, sink.size)


def write_base(
    storage: ChunkStorage,
    names: ContainerNames,
    *,
    container: bytes,
    epoch: int,
    token: bytes,
    pages: Iterable[list[tuple[bytes, bytes]]],
    part_bytes: int = PART_BYTES,
) -> SnapshotLink:
    """Write rows and index entries, which come in ascending key order, in pages, as the state that a container begins with (protocol 3.11);
    durable, and read back. ``epoch`` and ``token``: of the claim whose OPEN is to carry it; of no one else's history can it be a part.

    What the rows sum up to is known at last, so the header is made after them. Raises and leaves what ``write_snapshot`` does, and what
    reading the pages raises. Retry: safe (a new name each time).
    """
    name = names.snapshot(0, epoch, runtime.token(8).hex())
    sink, tally = ObjectSink(storage, name, part_bytes), Tally()
    with _deleted_on_failure(storage, name):
        sink.header = _NO_HEADER
        blocks = _write_blocks(sink, chain.from_iterable(pages), tally, name)
        position = Position(0, record_hash(token + tally.digest.to_bytes(DIGEST_BYTES, "big")), 0, 0, 0)
        header = SnapshotHeader(container, epoch, position, tally.digest, runtime.now_ms())
        sink.header = _header_frame(header)
        _write_trailer(sink, blocks, tally, tally.digest)
        # The very rows that went into it were summed up a moment ago: the hash of its bytes says that they are those.
        _require_read_back(storage, name, header, tally, digests=False)
    return header.link(name)


def _header_frame(header: SnapshotHeader) -> bytes:
    container, epoch, position, digest, time_ms = header
    fields = (container, epoch, tuple(position), digest.to_bytes(DIGEST_BYTES, "big"), time_ms)
    return _frame(FrameKind.HEADER, fields)


def _require_read_back(
    storage: ChunkStorage, name: str, header: SnapshotHeader, tally: Tally, *, digests: bool = True
) -> None:
    reader = verify_snapshot(storage, name, container=header.container, digests=digests)
    counts = reader.rows, reader.index_entries
    if reader.header != header or counts != (tally.rows, tally.index_entries):
        raise Damaged("the snapshot read back is not the one written", object=name)


@contextmanager
def _deleted_on_failure(storage: ChunkStorage, name: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        with suppress(ChunkstoreError):  # the collector sweeps what stays
            delete_snapshot(storage, name)
        raise


def delete_snapshot(storage: ChunkStorage, name: str) -> int:
    """Delete a snapshot, the main object first: without it, nothing of it can be used. Returns the bytes deleted. Retry: safe."""
    size = 0
    for info in list(iter_listing(storage, name)):
        if main_name(info.name) != name:
            continue
        try:
            storage.delete(info.name)
        except ChunkNotFound:
            continue
        size += info.length
    return size


def list_snapshots(storage: ChunkStorage, names: ContainerNames) -> list[StoredSnapshot]:
    """The snapshots that a LIST shows, oldest first. No record names them, and they may be incomplete. Raises what ``list`` raises."""
    found: dict[str, StoredSnapshot] = {}
    for info in iter_listing(storage, names.snapshot_prefix()):
        name = main_name(info.name)
        parsed = names.parse_snapshot(name)
        if parsed is None:
            continue
        entry = found.get(name) or StoredSnapshot(name, *parsed)
        entry = entry._replace(size=entry.size + info.length, objects=entry.objects + 1)
        if info.name == name:
            entry = entry._replace(has_main=True, modified_ms=info.modified_ms)
        found[name] = entry
    return sorted(found.values(), key=lambda entry: (entry.lsn, entry.name))


def load_snapshot(
    storage: ChunkStorage,
    name: str,
    store: MetadataStore,
    *,
    container: bytes,
    expected: SnapshotLink | None = None,
) -> Head:
    """Load a snapshot into an empty store and, only if everything was found right, set the store's head and return it.

    ``expected`` is what a note, an OPEN or LATEST says of it; any difference is damage. The head's owner epoch is 0: the
    take-over sets it. Atomicity: none; after an error the store must be discarded. Retry: safe with a new store.

    Raises: ``Damaged``, ``ChunkNotFound`` (collected meanwhile), and what the storage and the store raise.
    """
    reader = SnapshotReader(storage, name, container=container)
    header = reader.header
    if expected is not None and header.link(expected.name) != expected:
        raise Damaged("the snapshot is not at its link's position", object=name)
    store.load(reader)
    if not reader.verified:
        raise Damaged("the snapshot was not read to its end", object=name)
    head = Head(header.position, header.digest)
    store.finish_load(head)
    return head
