"""Exports: what a container's metadata say at one point of history, in one file.

A pin is made *before* the rows are read and stays, so that every chunk the file names stays with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.assembly import open_store
from chunkstore.backup.files import (
    Export,
    ExportHeader,
    ExportSink,
    container_uuid,
    local_errors,
    open_export,
    write_export,
)
from chunkstore.backup.selection import NameFilter, Selection
from chunkstore.config import Settings
from chunkstore.engine.owner import Asker
from chunkstore.engine.reading import context_of
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, DeadlineExceeded, InvalidArgument, StorageUnavailable
from chunkstore.following import open_replica
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import SEGMENT
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.inspect import info_of
from chunkstore.records.arguments import check_flags, check_pin
from chunkstore.records.names import check_segment_name
from chunkstore.records.segments import Pin, SegmentInfo
from chunkstore.registry import Root

__all__ = [
    "ExportReport",
    "FileSink",
    "Subject",
    "check_path",
    "export",
    "opened_to_read",
    "pinned",
    "read_export",
    "read_segments",
    "write_rows_of",
]

_POLL_S: Final = 0.05

Subject: TypeAlias = ChunkedSegmentStorage | Asker | Replica | Root
"""What is exported or backed up: an owner, a client of one, a replica, or a root."""


class ExportReport(NamedTuple):
    """What an export holds: ``rows`` of metadata, ``chunk_bytes`` in the chunks that it names. ``pin`` None: none was made."""

    path: str
    lsn: int
    segments: int
    chunks: int
    chunk_bytes: int
    rows: int
    file_bytes: int
    pin: Pin | None


def export(
    store: Subject,
    path: str | os.PathLike[str],
    segments: Sequence[str] = (),
    *,
    pin: bool = True,
    expires_s: float | None = None,
    container: str = "default",
    settings: Settings | None = None,
) -> ExportReport:
    """Write what the metadata say now into a new file, under a pin that stays.

    ``store``: an owner; a client of one (``open_asker``), which asks it for the pin; a replica, which makes no pin; or a root, whose
    ``container`` is opened with ``settings``: claimed for the pin, only read where none is made.
    ``segments``: their names, or prefixes that end with ``*``; none: everything. A part is whole in itself: with a segment come its
    writers' last events, with a whole ledger what says what it is. The pin is named ``export-`` and the file's own name; it goes with
    ``unpin``, or ``expires_s`` seconds later at the earliest. Without a pin the file is worth nothing as soon as a chunk that it names is
    removed and collected.

    Atomic: the file is there whole, durable and read back, with mode 0600, or not at all; then the pin is taken back, as far as that goes.
    Raises ``InvalidArgument`` (a file that is there, a folder that is not, a replica that is to pin), ``Conflict`` (the pin's name is
    taken), ``SegmentNotFound``, ``Damaged`` (the metadata do not add up), ``StorageFull`` and ``StorageUnavailable`` (of the file's disk,
    too), ``DeadlineExceeded``, and what pinning and reading raise. Retry: safe, once a pin that was left is gone.
    """
    chosen = NameFilter(segments)
    check_pin("", expires_s)
    check_flags(pin=pin)
    target = check_path(path)
    name = f"export-{os.path.basename(target)}"
    if pin:
        check_segment_name(name, "path")
    temporary = f"{target}.{runtime.token(8).hex()}.tmp"

    def write(header: ExportHeader, rows: Selection) -> int:
        with closing(FileSink(temporary)) as sink:
            return write_export(sink, header, rows, target)

    try:
        with (
            opened_to_read(store, pin=pin, container=container, settings=settings) as (shown, maker),
            pinned(shown, maker, name, f"export to {target[-200:]}", expires_s, stays=True) as made,
        ):
            header, selection, rows = write_rows_of(shown, chosen, "" if made is None else made.name, write)
            size_bytes = _publish(temporary, target, header, rows)
    finally:
        with suppress(OSError):
            os.unlink(temporary)
    return ExportReport(
        target,
        header.position.lsn,
        selection.segments,
        selection.chunks,
        selection.chunk_bytes,
        rows,
        size_bytes,
        made,
    )


def _publish(temporary: str, target: str, header: ExportHeader, rows: int) -> int:
    """Read a whole file back, and give it its name, durably; its size. Raises ``StorageUnavailable`` and ``InvalidArgument``."""
    reread = read_export(temporary)
    if sum(1 for _ in reread) != rows or reread.header != header:
        raise StorageUnavailable("the export that was read back is not the one written", object=target)
    with local_errors(target):
        if os.path.lexists(target):
            raise _exists(target)
        os.rename(temporary, target)
        folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return os.path.getsize(target)


def write_rows_of(
    store: ChunkedSegmentStorage | Replica,
    chosen: NameFilter,
    pin: str,
    write: Callable[[ExportHeader, Selection], int],
) -> tuple[ExportHeader, Selection, int]:
    """Have ``write`` write a choice of the rows that ``store`` shows now, from the beginning if the cache is rebuilt meanwhile; the header,
    what was selected, and the number of rows that it returned."""
    context = context_of(store)
    uuid = container_uuid(context.storage, context.names)

    def written(view: MetadataView) -> tuple[ExportHeader, Selection, int]:
        position, digest = view.head
        name, root = context.names.container, context.storage.url
        header = ExportHeader(uuid, name, root, position, digest, runtime.now_ms(), chosen.names, pin)
        selection = Selection(view, chosen)
        return header, selection, write(header, selection)

    found = context.look(written)
    context.check()
    return found


@contextmanager
def opened_to_read(
    subject: Subject, *, pin: bool, container: str, settings: Settings | None
) -> Iterator[tuple[ChunkedSegmentStorage | Replica, ChunkedSegmentStorage | Asker | None]]:
    """What is read of ``subject``, and what makes its pin; of a root an owner where one is made, else a replica. Raises
    ``InvalidArgument``, and as opening these."""
    if isinstance(subject, ChunkedSegmentStorage):
        yield subject, subject if pin else None
    elif isinstance(subject, Asker):
        yield subject.replica, subject if pin else None
    elif isinstance(subject, Replica):
        if pin:
            text = "a replica makes no pins; give an owner or its client, or pin=False and prevent collection meanwhile"
            raise InvalidArgument(text, argument="pin")
        yield subject, None
    elif not isinstance(subject, str | os.PathLike):
        text = f"give an owner, a replica, or a root, not {type(subject).__name__}"
        raise InvalidArgument(text, argument="store")
    elif pin:
        with open_store(subject, container=container, create=False, settings=settings) as owner:
            yield owner, owner
    else:
        with open_replica(subject, container=container, settings=settings) as replica:
            yield replica, None


@contextmanager
def pinned(
    store: ChunkedSegmentStorage | Replica,
    maker: ChunkedSegmentStorage | Asker | None,
    name: str,
    note: str,
    expires_s: float | None,
    *,
    stays: bool,
) -> Iterator[Pin | None]:
    """A pin, once ``store`` shows what it pins; it ends with the block, unless it ``stays`` after success. Without a ``maker`` only catch
    up. Raises what pinning raises, and ``DeadlineExceeded``."""
    # The token: a pin of this name is ours, or it is refused.
    made = None if maker is None else maker.pin(name, f"{note} ({runtime.token(4).hex()})", expires_s)
    ends = True
    try:
        if isinstance(store, Replica):
            _follow(store, 0 if made is None else made.lsn)
        yield made
        ends = not stays
    finally:
        if maker is not None and ends:
            with suppress(ChunkstoreError):
                maker.unpin(name)


def _follow(replica: Replica, lsn: int) -> None:
    deadline_s = replica.settings.op_deadline_s
    until_s = runtime.monotonic_s() + deadline_s
    while replica.refresh() < lsn:
        if runtime.monotonic_s() >= until_s:
            raise DeadlineExceeded("following the journal to the pin", deadline_s=deadline_s)
        runtime.sleep_s(_POLL_S)


# ---- files


class FileSink(ExportSink):
    """A file that is written anew, readable by its owner only. Raises ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._hash = blake2b(digest_size=32)
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC
        try:
            self._file = os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
        except (OSError, ValueError) as error:
            raise _unusable("write", path, error) from error

    def write(self, frame: bytes) -> None:
        left = memoryview(frame)
        with local_errors(self._path):
            while left:
                left = left[self._file.write(left) or 0 :]
        self._hash.update(frame)

    def finish(self) -> bytes:
        return self._hash.digest()

    def end(self, trailer: bytes) -> None:
        self.write(trailer)
        with local_errors(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _unusable(verb: str, path: str, error: OSError | ValueError) -> InvalidArgument:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return InvalidArgument(f"cannot {verb} {path}: {reason}", argument="path")


def check_path(path: str | os.PathLike[str]) -> str:
    """The path of a new export, absolute. Raises ``InvalidArgument``: it exists already, or is not a file's name."""
    text = os.fspath(path)
    if not isinstance(text, str) or not os.path.basename(text) or "\0" in text:
        raise InvalidArgument(f"path must name a file, not {path!r}", argument="path")
    if os.path.lexists(text):
        raise _exists(text)
    return os.path.abspath(text)


def _exists(path: str) -> InvalidArgument:
    return InvalidArgument(f"{path} exists already; an export replaces nothing, choose another name", argument="path")


# ---- reading


def read_export(path: str | os.PathLike[str]) -> Export:
    """An export to be read in one pass; ``header`` is there at once.

    Raises ``InvalidArgument`` (it cannot be opened), ``Damaged`` (no export, one of a newer version, damage: also while iterating),
    ``StorageUnavailable``.
    """
    text = os.fspath(path)
    try:
        with open(text, "rb"):
            pass
    except (OSError, ValueError) as error:
        raise _unusable("read", text, error) from error

    def read(offset: int, length: int) -> bytes:
        # Opened for each window of a megabyte: an export needs no close.
        with local_errors(text), open(text, "rb") as file:
            file.seek(offset)
            return file.read(length)

    return open_export(read, text)


def read_segments(found: Export) -> Iterator[SegmentInfo]:
    """The segments of an export. Its end is the verdict over the file. Raises ``Damaged``."""
    for key, raw in found.of_kind(SEGMENT):
        yield info_of(decode_segment(key[1:].decode("utf-8", "replace"), raw))
