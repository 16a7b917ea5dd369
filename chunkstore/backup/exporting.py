"""Exports: what a container's metadata say at one point of history, in one file.

A pin is made *before* the rows are read and stays, so that every chunk the file names stays with it. ``verify`` believes neither the file
nor the root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeAlias, TypedDict, Unpack

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
from chunkstore.engine.parts import checked_settings, storage_of
from chunkstore.engine.reading import context_of
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    DeadlineExceeded,
    InvalidArgument,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.following import open_replica
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import CHUNK, SEGMENT
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.check import chunk_faults
from chunkstore.operations.inspect import info_of
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.records.arguments import check_flags, check_pin
from chunkstore.records.blocks import Borders
from chunkstore.records.invariants import Finding, of_bytes
from chunkstore.records.names import ContainerNames, check_segment_name
from chunkstore.records.segments import Pin, SegmentInfo
from chunkstore.registry import Root, require_known_place
from chunkstore.storage import ChunkStorage

__all__ = [
    "Claim",
    "ExportReport",
    "ExportVerification",
    "FileSink",
    "Pins",
    "ReadOptions",
    "Subject",
    "check_path",
    "export",
    "opened_to_read",
    "pinned",
    "read_export",
    "read_segments",
    "root_of",
    "verify",
    "write_rows_of",
]

_POLL_S: Final = 0.05
_STEP: Final = 1_000


class Pins(Protocol):
    """The maker of pins: an owner, or a client of one. As ``Store.pin`` and ``unpin``."""

    def pin(self, name: str, note: str = "", expires_s: float | None = None) -> Pin: ...
    def unpin(self, name: str) -> bool: ...


class ReadOptions(TypedDict, total=False):
    """What ``export`` and ``backup`` take as keywords: what pins the state that they read, and how a root is opened."""

    pin: bool
    pins: Pins | None
    container: str
    settings: Settings | None
    wait_s: float | None
    take_over: bool


@dataclass(frozen=True, kw_only=True)
class Claim:
    """``ReadOptions`` with their defaults."""

    pin: bool = True
    pins: Pins | None = None
    container: str = "default"
    settings: Settings | None = None
    wait_s: float | None = None
    take_over: bool = False


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


class ExportVerification(NamedTuple):
    """``chunks`` that an export names, and their findings; ``root``: where they were checked."""

    root: str
    container: str
    lsn: int
    chunks: int
    chunk_bytes: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def export(
    store: Subject,
    path: str | os.PathLike[str],
    segments: Sequence[str] = (),
    *,
    topic: str | None = None,
    pin_name: str | None = None,
    expires_s: float | None = None,
    **options: Unpack[ReadOptions],
) -> ExportReport:
    """Write what the metadata say now into a new file, under a pin that stays.

    ``store``: an owner; a client of one (``open_asker``), which asks it for the pin; a replica; or a root, whose ``container`` is opened
    with ``settings``: claimed for the pin, only read where none is made. ``wait_s``, ``take_over``: as of ``chunkstore.open``.
    ``segments``: their names, or prefixes that end with ``*``; ``topic``: the segments of its ledgers; neither: everything. A part is
    whole in itself: with a segment come its writers' last events, with a ledger what says what it is. ``pin_name``: else the file's own
    name after ``export-``; it goes with ``unpin``, or ``expires_s`` seconds later at the earliest. Without a pin the file is worth nothing
    as soon as a chunk that it names is removed and collected. ``pins``: the maker of the pin, for a replica, which cannot.

    Atomic: the file is there whole, durable and read back, with mode 0600, or not at all; then the pin is taken back, as far as that goes.
    Raises ``InvalidArgument`` (a file that is there, a folder that is not, a replica without ``pins``), ``Conflict`` (the pin's name is
    taken), ``SegmentNotFound``, ``LedgerNotFound``, ``Damaged`` (the metadata do not add up), ``StorageFull`` and ``StorageUnavailable``
    (of the file's disk, too), ``DeadlineExceeded``, and what pinning and reading raise. Retry: safe, once a pin that was left is gone.
    """
    chosen, claim = NameFilter(segments, topic), Claim(**options)
    check_pin("", expires_s)
    check_flags(pin=claim.pin)
    target = check_path(path)
    name = f"export-{os.path.basename(target)}" if pin_name is None else pin_name
    if claim.pin:
        check_segment_name(name, "pin_name")
    temporary = f"{target}.{runtime.token(8).hex()}.tmp"
    try:
        with (
            opened_to_read(store, claim) as (shown, maker),
            closing(FileSink(temporary)) as sink,
            pinned(shown, maker, name, f"export to {target[-200:]}", expires_s, stays=True) as made,
        ):
            header, selection, rows = write_rows_of(shown, sink, chosen, "" if made is None else made.name)
            _publish(temporary, target, header, rows)
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
        sink.size,
        made,
    )


def _publish(temporary: str, target: str, header: ExportHeader, rows: int) -> None:
    """Read a whole file back, and give it its name, durably. Raises ``StorageUnavailable`` and ``InvalidArgument``."""
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


def write_rows_of(
    store: ChunkedSegmentStorage | Replica, sink: FileSink, chosen: NameFilter, pin: str
) -> tuple[ExportHeader, Selection, int]:
    """Write a choice of the rows that ``store`` shows now; the header, what was selected, and the number of rows."""
    context = context_of(store)
    uuid = container_uuid(context.storage, context.names)

    def written(view: MetadataView) -> tuple[ExportHeader, Selection, int]:
        sink.begin()
        position, digest = view.head
        name, root = context.names.container, context.storage.url
        header = ExportHeader(uuid, name, root, position, digest, runtime.now_ms(), chosen.choice, pin)
        selection = Selection(view, chosen)
        return header, selection, write_export(sink, header, selection, sink.path)

    found = context.look(written)
    context.check()
    return found


@contextmanager
def opened_to_read(subject: Subject, claim: Claim) -> Iterator[tuple[ChunkedSegmentStorage | Replica, Pins | None]]:
    """What is read of ``subject``, and what makes its pin; of a root an owner where that is to make one, else a replica. Raises
    ``InvalidArgument``, and as opening these."""
    pin, pins, container, settings = claim.pin, claim.pins, claim.container, claim.settings
    if isinstance(subject, Asker):
        yield subject.replica, (pins or subject) if pin else None
    elif isinstance(subject, ChunkedSegmentStorage):
        yield subject, (pins or subject) if pin else None
    elif isinstance(subject, Replica):
        if pin and pins is None:
            text = "a replica makes no pins; give pins, or pin=False and prevent collection until the export is no longer needed"
            raise InvalidArgument(text, argument="pins")
        yield subject, pins if pin else None
    elif not isinstance(subject, str | os.PathLike):
        text = f"give an owner, a replica, or a root, not {type(subject).__name__}"
        raise InvalidArgument(text, argument="store")
    elif pin and pins is None:
        with open_store(
            subject,
            container=container,
            create=False,
            settings=settings,
            wait_s=claim.wait_s,
            take_over=claim.take_over,
        ) as owner:
            yield owner, owner
    else:
        with open_replica(subject, container=container, settings=settings) as replica:
            yield replica, pins if pin else None


@contextmanager
def pinned(
    store: ChunkedSegmentStorage | Replica,
    maker: Pins | None,
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
            # The first error matters more.
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
    """A new file, readable by its owner only, as an ``ExportSink``. Raises ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size: int = 0
        self._hash = blake2b(digest_size=32)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            self._file = os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
        except (OSError, ValueError) as error:
            raise _unusable("write", path, error) from error

    def begin(self) -> None:
        """Forget what was written."""
        with local_errors(self.path):
            self._file.seek(0)
            self._file.truncate()
        self.size, self._hash = 0, blake2b(digest_size=32)

    def write(self, frame: bytes) -> None:
        left = memoryview(frame)
        with local_errors(self.path):
            while left:
                left = left[self._file.write(left) or 0 :]
        self._hash.update(frame)
        self.size += len(frame)

    def finish(self) -> bytes:
        return self._hash.digest()

    def end(self, trailer: bytes) -> None:
        self.write(trailer)
        with local_errors(self.path):
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


def root_of(header: ExportHeader, root: Root | None) -> Root:
    """The root of an export's container: ``root``, or else the one in its header. Raises ``InvalidArgument`` (no known place)."""
    if root is not None:
        return root
    require_known_place(header.root)
    return header.root


def verify(
    path: str | os.PathLike[str],
    root: Root | None = None,
    *,
    deep: bool = False,
    settings: Settings | None = None,
    progress: Callable[[int], object] | None = None,
) -> ExportVerification:
    """Look whether every chunk that an export names is there and long enough; ``deep``: and has its CRC32C, where one is known.

    ``root``: the container's present root; else its former one. Changes nothing, claims nothing. ``progress`` gets bytes. Raises
    ``InvalidArgument`` (no file, no root, or another container's), ``ContainerNotFound``, ``Damaged`` (the file),
    ``Unsupported`` and what the storage raises. Retry: safe.
    """
    found = read_export(path)
    header = found.header
    chosen = checked_settings(settings)
    if root is None and header.root.startswith("memory:"):
        raise Unsupported("a root in memory ends with its process; name the container's root", feature="root")
    names = ContainerNames(header.name)
    findings, chunks, chunk_bytes = list[Finding](), 0, 0
    with (
        storage_of(root_of(header, root), chosen) as storage,
        closing(runtime.pool("chunkstore-verify", chosen.tuning.io_workers)) as pool,
    ):
        if container_uuid(storage, names) != header.container:
            text = f"the container {header.name!r} at {storage.url} is another one than that of the export"
            raise InvalidArgument(text, argument="root")
        left = found.of_kind(CHUNK)
        while rows := list(islice(left, _STEP)):
            answers = pool.run_all([partial(_chunk_findings, storage, names, row, deep=deep) for row in rows])
            for length, wrong in answers:
                chunks, chunk_bytes = chunks + 1, chunk_bytes + length
                findings += wrong
                if progress is not None:
                    progress(length)
    return ExportVerification(storage.url, header.name, header.position.lsn, chunks, chunk_bytes, tuple(findings))


def _chunk_findings(
    storage: ChunkStorage, names: ContainerNames, row: tuple[bytes, bytes], *, deep: bool
) -> tuple[int, list[Finding]]:
    record = decode_found_chunk(names, row[0][1:], row[1])
    address = names.address(row[0][1:], record)
    name = address.object
    known = deep and record.crc32c is not None and record.length
    borders = Borders((0, record.length), (0, record.crc32c or 0)) if known else None
    faults = chunk_faults(storage, address, 0, record.length, borders)
    number = of_bytes(address)
    return record.length, [Finding(number, "damage", "", name, name, item.position, item.message) for item in faults]
