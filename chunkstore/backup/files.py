"""Bytes of exports (FORMAT.md next to this file): a header of their own, then rows in the frames of snapshots.

One pass and bounded memory, whatever a file claims; nothing is believed before its checksum, and ``verified`` says that the end was
reached and right. What an export names is checked before it is used as a name."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from chunkstore.backup.selection import CHOSEN_MAX, Choice
from chunkstore.engine.parts import EXPORT_VERSION, MAGIC, MARKER, fields_of, read_small
from chunkstore.errors import Damaged, InvalidArgument, OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.metadata.keys import CHUNK, SEGMENT, TABLE
from chunkstore.metadata.port import Position
from chunkstore.records.names import ContainerNames, check_container_name
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = [
    "DONE",
    "EXPORT_VERSION",
    "MAGIC",
    "MARKER",
    "NEWEST",
    "RUNNING",
    "Export",
    "ExportHeader",
    "ExportSink",
    "container_uuid",
    "delete_export",
    "keep_private",
    "linker",
    "local_errors",
    "open_export",
    "open_stored_export",
    "put_once",
    "read_small",
    "server_copier",
    "small_object",
    "stored_sink",
    "write_export",
]

RUNNING: Final = 17
DONE: Final = 18
NEWEST: Final = 19
"""Kinds of the small objects of a backup root."""
_KINDS: Final = frozenset((CHUNK[0], SEGMENT[0], TABLE[0]))
_TEXT_MAX: Final = 4096
_DIGEST_BYTES: Final = 32
_KIND_AT: Final = 5
"""Byte of a frame that says its kind."""

Pair = tuple[bytes, bytes]


class ExportHeader(NamedTuple):
    """What an export says of itself.

    ``container`` (16 bytes) has the name ``name`` under ``root``, a URL without credentials; the rows are those of ``position``, where
    the state digest of all its rows was ``digest``. ``time_ms``: when it was made, a label. ``pin``: the name of the pin that keeps its
    chunks; empty: there is none.
    """

    container: bytes
    name: str
    root: str
    position: Position
    digest: int
    time_ms: int
    choice: Choice
    pin: str


class ExportSink(Protocol):
    """Where frames go, the header first. ``finish``: BLAKE2b-256 of all so far; ``end``: the last one; all is durable then."""

    def write(self, frame: bytes) -> None: ...
    def finish(self) -> bytes: ...
    def end(self, trailer: bytes) -> None: ...


class Export:
    """One pass over an export. ``header`` is there at once; iterate for (key, value) pairs in key order. The end of the iteration is the
    verdict: ``verified`` is True only after all of it was found right. Errors: ``Damaged(object, position)``, and of reading."""

    def __init__(self, read: Callable[[str, int, int], bytes], name: str) -> None:
        from chunkstore_journal.snapshot_reader import FrameKind, FrameSource, RowsReader, Tally, part_name
        from chunkstore_journal.wire import FRAME_HEADER_BYTES

        source = FrameSource(partial(read, name), name)
        kind, value = source.frame(hashed_unless=None, magic=MAGIC)
        if kind is not FrameKind.HEADER:
            raise Damaged("an export must begin with its header", object=name)
        self.header: ExportHeader = _header(value, name, FRAME_HEADER_BYTES)

        def part(number: int) -> tuple[str, FrameSource]:
            return part_name(name, number), FrameSource(partial(read, part_name(name, number)), part_name(name, number))

        self._rows = RowsReader(source, name, part=part, digest=0, tally=Tally(_KINDS, digests=False))

    @property
    def verified(self) -> bool:
        return self._rows.verified

    @property
    def rows(self) -> int:
        """Rows seen so far."""
        return self._rows.rows

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._rows)

    def blocks(self) -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
        """The rows, some keys and their values at a time. The end is the verdict, too."""
        return self._rows.blocks()

    def of_kind(self, kind: bytes) -> Iterator[Pair]:
        """The rows of one kind. The end is the verdict, too."""
        for keys, values in self._rows.blocks():
            if keys[0][:1] <= kind <= keys[-1][:1]:
                for key, value in zip(keys, values, strict=True):
                    if key[:1] == kind:
                        yield key, value


def open_export(read: Callable[[int, int], bytes], name: str) -> Export:
    """An export in one file. ``read``: (offset, length), short only at its end. Raises ``Damaged``, and what ``read`` raises."""

    def of_file(object: str, offset: int, length: int) -> bytes:
        if object != name:
            raise Damaged("an export in parts is not one file; read it in its backup", object=name)
        return read(offset, length)

    return Export(of_file, name)


def open_stored_export(storage: ChunkStorage, name: str) -> Export:
    """An export that is stored in a storage. Raises ``Damaged``, ``ChunkNotFound``, and what the storage raises."""
    return Export(lambda part, offset, length: storage.read(ChunkHandle(part, False), offset, length), name)


def stored_sink(storage: ChunkStorage, name: str) -> ExportSink:
    """Writes an export into a storage, in parts where that cannot append. Raises what the storage raises."""
    from chunkstore_journal.snapshot import ObjectSink

    return ObjectSink(storage, name)


def delete_export(storage: ChunkStorage, name: str) -> None:
    """Delete an export, its object first, then its parts. What is not there is success. Raises what the storage raises."""
    from chunkstore_journal.snapshot import delete_snapshot

    delete_snapshot(storage, name)


def write_export(sink: ExportSink, header: ExportHeader, pairs: Iterable[Pair], name: str) -> int:
    """Write an export, ``name`` in errors; returns the number of rows. Durable on return.

    Raises ``InvalidArgument`` (a header that is too long), ``Damaged`` (keys out of order), what reading the pairs and the sink raises.
    """
    from chunkstore_journal.snapshot import write_rows
    from chunkstore_journal.snapshot_reader import Tally

    tally = Tally(_KINDS, digests=False)
    write_rows(sink, encode_header(header), pairs, tally, name=name, digest=0)
    return tally.rows


def encode_header(header: ExportHeader) -> bytes:
    """The header's frame."""
    from chunkstore_journal.snapshot_reader import FrameKind
    from chunkstore_journal.wire import encode_frame, pack

    container, name, root, position, digest, time_ms, choice, pin = header
    raw = digest.to_bytes(_DIGEST_BYTES, "big")
    body = (container, name, root[:_TEXT_MAX], tuple(position), raw, time_ms, (choice.topic, choice.names), pin)
    return encode_frame(MAGIC, EXPORT_VERSION, FrameKind.HEADER, pack(body))


def _header(value: object, object: str, at: int) -> ExportHeader:
    from chunkstore_journal.snapshot_reader import decode_position
    from chunkstore_journal.wire import Fields, refuse

    fields = Fields(value, "the export's header", object, at)
    container, name, root = fields.raw(16), fields.text(_TEXT_MAX), fields.text(_TEXT_MAX)
    position = decode_position(fields, object, at)
    digest, time_ms = int.from_bytes(fields.raw(_DIGEST_BYTES), "big"), fields.whole()
    chosen = Fields(fields.array(), "what was chosen", object, at)
    topic, names = chosen.text(_TEXT_MAX), chosen.array()
    pin = fields.text(_TEXT_MAX)
    if len(names) > CHOSEN_MAX or not all(isinstance(item, str) for item in names):
        refuse("the chosen names are invalid, or too many", object, at)
    try:
        check_container_name(name)
    except InvalidArgument as error:
        raise Damaged(error.message, object=object, position=at) from error
    choice = Choice(tuple(str(item) for item in names), topic)
    return ExportHeader(container, name, root, position, digest, time_ms, choice, pin)


@contextmanager
def local_errors(path: str, what: str = "") -> Iterator[None]:
    """Errors of a local file or folder, in our words: ``StorageFull`` and ``StorageUnavailable``. ``what`` it is, else its path."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (StorageFull if full else StorageUnavailable)(
            f"{what or path} cannot be used: {error}", object=path
        ) from error


def container_uuid(storage: ChunkStorage, names: ContainerNames) -> bytes:
    """The uuid of a container. Raises ``ContainerNotFound``, ``Damaged``, ``Unsupported``, and what the storage raises."""
    from chunkstore_journal.container import read_format

    return read_format(storage, names).uuid


def linker(source: ChunkStorage, target: ChunkStorage) -> Callable[[list[tuple[str, str]]], list[bool]] | None:
    """What links chunks of ``source`` into ``target`` (name, new name; whether the new name was free), where both are of the kind that can.

    It raises ``Unsupported`` (they are on different file systems), ``ChunkNotFound``, ``StorageUnavailable``, ``StorageFull``.
    """
    from chunkstore_bindings.filesystem.linking import link_all

    ends = [_file_systems(storage) for storage in (source, target)]
    return partial(link_all, ends[0][0], ends[1][0]) if all(ends) else None


def server_copier(source: ChunkStorage, target: ChunkStorage) -> Callable[[str, str], None] | None:
    """A call that makes a server copy a chunk of ``source`` into ``target`` (name, new name), if both are on one that can.

    It raises ``Unsupported`` (the server does not), ``ChunkNotFound``, ``StorageUnavailable``, ``StorageFull``.
    """
    if not source.url.startswith("s3:") or not target.url.startswith("s3:"):
        return None  # the binding needs its extra
    from chunkstore_bindings.s3.storage import S3ChunkStorage
    from chunkstore_bindings.wrappers.wrapping import layers

    ends = [[layer for layer in layers(end) if isinstance(layer, S3ChunkStorage)] for end in (source, target)]
    if not all(ends) or not ends[1][0].can_copy_from(ends[0][0]):
        return None
    return partial(ends[1][0].copy_from, ends[0][0])


def keep_private(storage: ChunkStorage) -> None:
    """Of what is made there from now on, files and folders are their owner's alone, where it is a file system."""
    for found in _file_systems(storage):
        found.keep_private()


def _file_systems(storage: ChunkStorage) -> list[Any]:
    from chunkstore_bindings.filesystem import FilesystemChunkStorage
    from chunkstore_bindings.wrappers.wrapping import layers

    return [layer for layer in layers(storage) if isinstance(layer, FilesystemChunkStorage)]


# ---- small objects


def small_object(kind: int, fields: tuple[object, ...]) -> bytes:
    """The bytes of a small object: one frame."""
    from chunkstore_journal.wire import encode_frame, pack

    return encode_frame(MAGIC, EXPORT_VERSION, kind, pack(fields))


def put_once(storage: ChunkStorage, name: str, data: bytes, deadline_s: float) -> Any:
    """Create a small object, or find the other one that has the name: its fields; None where it holds ``data``.

    Raises ``OutcomeUnknown`` (it may still come to be there), ``StorageFull``, ``Unsupported``, ``Damaged``.
    """
    from chunkstore_journal.slots import Undecided, put_decided

    try:
        found = put_decided(storage, name, data, deadline_s=deadline_s)
    except Undecided as error:
        raise OutcomeUnknown(f"the existence of {name} is unknown: {error}", subject=name) from error
    return fields_of(found, name, data[_KIND_AT]) if found != data else None
