"""``put``, ``cat``, ``tail`` and ``get``: bytes into a segment and out of it, in bounded memory.

A killed ``put`` continues with ``--resume``, which first compares the stored bytes with the file. A ``put`` that is refused claims nothing,
as far as a look beforehand can tell, and leaves no segment (with ``--ask`` an empty one, if the owner refuses the first bytes). ``get``
makes FILE when all bytes are durable on the local disk; a killed one leaves ``.FILE.*.part``."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Annotated, BinaryIO, ClassVar

import chunkstore
from chunkstore import runtime
from chunkstore.changes import Append, Create, Seal, TablePut
from chunkstore.cli import access, options
from chunkstore.cli.options import argument, flag, option, size_option
from chunkstore.cli.output import Meter, human_bytes, meter
from chunkstore.cli.streams import VerbFailed, opened_input, write_all
from chunkstore.config import LIMITS, MIB, RollingPolicy
from chunkstore.engine.reading import ReadableContainer
from chunkstore.errors import (
    ChunkstoreError,
    ContainerNotFound,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    SegmentSealed,
)
from chunkstore.records.layout import check_chunk_count
from chunkstore.records.names import check_segment_name
from chunkstore.runtime import Future

__all__ = ["ContentDiffers", "FileUnwritable", "cat", "get", "put", "tail"]

PIECE_BYTES = 8 * MIB
"""One append of ``put`` and one read of ``cat``: large enough for full speed, small enough to forget about memory."""
_TABLE = "chunkstore.put"
"""A row for each segment that ``put --ask`` has created or sealed: by it that happens once."""


class FileUnwritable(VerbFailed):
    """``get``: the local file could not be written; none was made."""

    fields = ("file",)


class ContentDiffers(ChunkstoreError):
    """``put --resume``: what is stored is not the file's beginning; nothing was appended."""

    fields: ClassVar[tuple[str, ...]] = ("segment", "file", "offset")

    def __init__(self, segment: str, *, file: str, offset: int) -> None:
        super().__init__(
            f"segment {segment!r} is not the beginning of {file}: they differ at offset {offset}; "
            "name the right file, or use --append"
        )
        self.segment = segment
        self.file = file
        self.offset = offset


class FileUnreadable(VerbFailed):
    """The local file could not be read; what was appended before stays."""

    fields = ("file",)


class _Source:
    """A file, or standard input, read from its beginning to its end in pieces of at most ``PIECE_BYTES``."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name = name
        self._file = file
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        status = os.fstat(file.fileno()) if name != "-" else None
        self.size_bytes = status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def read(self, size_bytes: int = PIECE_BYTES) -> memoryview:
        """The next ``size_bytes``, fewer only at the end. The view is valid until the next call."""
        wanted = min(size_bytes, PIECE_BYTES)
        have = 0
        while have < wanted:
            try:
                got = self._file.readinto(self._buffer[have:wanted])  # type: ignore[attr-defined]
            except OSError as error:
                raise FileUnreadable(self.name, f"cannot read {self.name}: {error.strerror or error}") from error
            if not got:
                break
            have += got
        return self._buffer[:have]


@dataclass(frozen=True, slots=True, kw_only=True)
class Storing(access.Asking):
    """The options of ``put``."""

    append: Annotated[bool, flag("Append to a segment, which must exist.")] = False
    resume: Annotated[
        bool, flag("Compare the stored bytes with the beginning of the file, then continue after them.")
    ] = False
    seal: Annotated[bool, flag("Seal the segment when everything is stored.")] = False
    chunk_size: Annotated[int | None, size_option("A new segment's chunks grow to this size.")] = None


def put(
    root: options.Root,
    segment: options.Segment,
    file: Annotated[str, argument("FILE", "File to store; - is standard input.")],
    *,
    here: Storing,
) -> None:
    """Store a file as a segment, durably.

    An existing segment is refused unless --append or --resume is given. Container and segment are created if they do not exist, but not
    with --append.
    """
    if here.append and here.resume:
        raise InvalidArgument("--append and --resume exclude each other", argument="--resume")
    check_segment_name(segment)
    rolling = RollingPolicy(chunk_size_bytes_max=here.chunk_size) if here.chunk_size is not None else None
    with ExitStack() as stack:
        source = _Source(file, stack.enter_context(opened_input(file, buffering=0)))
        progress = stack.enter_context(meter(f"put {segment}", source.size_bytes, as_json=here.as_json))
        if rolling is not None and source.size_bytes is not None:
            check_chunk_count(min(source.size_bytes, PIECE_BYTES), rolling.chunk_size_bytes_max)
        copy = _Copy(segment, source, here.append, here.resume, rolling, progress)
        try:
            with here.replica(root) as seen:
                copy.look(seen)
        except ContainerNotFound:
            if here.append:
                raise
        with here.owner_or_asker(root, create=not here.append) as store:
            if isinstance(store, chunkstore.Asker):
                result = copy.ask(store, seal=here.seal)
            else:
                result = copy.run(store)
                if here.seal and not store.info(segment).sealed:
                    store.seal(segment)
    here.show(result, result)


@dataclass(slots=True)
class _Copy:
    """Appends all of ``source`` after what the mode allows to be there already; see ``put``."""

    segment: str
    source: _Source
    append: bool
    resume: bool
    rolling: RollingPolicy | None
    progress: Meter
    compared: int = 0
    """Where ``source`` is: its bytes below are those of the segment."""

    def look(self, store: ReadableContainer) -> None:
        """Refuse what is there and not allowed to be; with ``resume``, compare it.

        Raises ``SegmentExists``, ``SegmentSealed``, ``ContentDiffers``, and what reading raises.
        """
        try:
            info = store.info(self.segment)
        except SegmentNotFound:
            if self.append:
                raise
            return
        if self.resume:
            self._compare(store)
        elif not self.append:
            text = f"segment {self.segment!r} exists already; use --append or --resume, or another name"
            raise SegmentExists(self.segment, text)
        elif info.sealed:
            raise SegmentSealed(self.segment)

    def run(self, store: chunkstore.ChunkedSegmentStorage) -> dict[str, object]:
        """Append, as the owner. What was seen may have gone on since."""
        self.look(store)
        begin = offset = self.compared
        if store.exists(self.segment):
            begin = offset = store.info(self.segment).length
        else:
            # In one commit with the first bytes: where these are refused, no segment is left that takes none.
            piece = self.source.read()
            store.commit([Create(self.segment, self.rolling), Append(self.segment, piece, offset)])
            offset += len(piece)
            self.progress(len(piece))
        ways = deque[tuple[Future[int], int]]()
        with store.writer(self.segment, flush_bytes=PIECE_BYTES, expected_offset=offset) as writer:
            while piece := self.source.read():
                ways.append((writer.append(piece), len(piece)))
                offset += len(piece)
                while ways and ways[0][0].done():
                    self._arrived(*ways.popleft())
            for way in ways:
                self._arrived(*way)
        return self._done(begin, offset, store.epoch)

    def ask(self, asker: chunkstore.Asker, *, seal: bool) -> dict[str, object]:
        """As ``run``, through the owner. Raises ``BadOffset`` where others append in between."""
        replica, token = asker.replica, runtime.token(16)
        replica.refresh()
        self.look(replica)
        offset = None if self.append else self.compared
        if not replica.exists(self.segment):
            self._commit(asker, Create(self.segment, self.rolling), token)
        number = length = 0
        while piece := self.source.read(LIMITS.ask_append_bytes_max):
            number += 1
            at = asker.append(self.segment, piece, writer_id=token, event_number=number, expected_offset=offset)
            offset, length = at + len(piece), length + len(piece)
            self.progress(len(piece))
        replica.refresh()
        if seal and not replica.info(self.segment).sealed:
            self._commit(asker, Seal(self.segment), token)
        end = replica.info(self.segment).length if offset is None else offset
        return self._done(end - length, end, replica.epoch)

    def _done(self, begin: int, end: int, epoch: int) -> dict[str, object]:
        """The bytes ``[begin, end)`` were appended under ``epoch``."""
        return {"segment": self.segment, "offset": begin, "length": end - begin, "epoch": epoch}

    def _commit(self, asker: chunkstore.Asker, change: Create | Seal, token: bytes) -> None:
        key = self.segment.encode()
        row = asker.replica.table(_TABLE).get(key)
        value = token + type(change).__name__.encode()
        asker.commit((change,), TablePut(_TABLE, key, value, row.version if row is not None else 0))

    def _arrived(self, future: Future[int], length: int) -> None:
        """Wait until a piece is durable. Raises why it is not."""
        future.result()
        self.progress(length)

    def _compare(self, store: ReadableContainer) -> None:
        """Read ``source`` up to the segment's length, comparing it with every byte that is still stored."""
        segment, source = self.segment, self.source
        info = store.info(segment)
        stored = memoryview(bytearray(PIECE_BYTES))
        while self.compared < info.length:
            # Bytes below the start offset were truncated away: the file's are passed over.
            offset = self.compared
            limit = info.start_offset if offset < info.start_offset else info.length
            piece = source.read(limit - offset)
            if not piece:
                raise ContentDiffers(segment, file=source.name, offset=offset)
            if offset >= info.start_offset:
                got = store.read_into(segment, offset, stored[: len(piece)])
                if stored[:got] != piece:
                    differ = offset + _first_difference(stored[:got], piece)
                    raise ContentDiffers(segment, file=source.name, offset=differ)
            self.compared += len(piece)
            self.progress(len(piece))


def _first_difference(left: memoryview, right: memoryview) -> int:
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def cat(
    root: options.Root,
    segment: options.Segment,
    *,
    offset: Annotated[int | None, size_option("First byte; default: the start.")] = None,
    length: Annotated[int | None, size_option("Largest number of bytes; default: all.")] = None,
    follow: Annotated[bool, flag("Wait for more bytes until the segment is sealed.")] = False,
    here: access.Past,
) -> None:
    """Write a segment's bytes to standard output, up to the first block that is damaged. With --json only errors are JSON."""
    for name, value in (("--offset", offset), ("--length", length)):
        if value is not None and value < 0:
            raise InvalidArgument(f"{name} must not be negative", argument=name)
    if follow and (here.at_lsn is not None or here.at_time is not None):
        raise InvalidArgument(
            "--follow waits for new bytes, and a past state gets none; leave out one of the two", argument="--follow"
        )
    with here.replica(root) as store:
        info = store.info(segment)
        start = info.start_offset if offset is None else offset
        stop = None if length is None else start + length
        shown_bytes = max(0, (info.length if stop is None else min(stop, info.length)) - start)
        with meter(f"cat {segment}", shown_bytes, as_json=here.as_json or sys.stdout.isatty()) as progress:
            _copy_out(store, segment, sys.stdout.buffer, (start, stop), progress, follow=follow)


def _copy_out(
    store: ReadableContainer,
    segment: str,
    out: BinaryIO,
    span: tuple[int, int | None],
    progress: Meter,
    *,
    follow: bool,
) -> None:
    """Write the bytes ``[start, stop)`` of a segment to ``out``, in pieces and flushed."""
    start, stop = span
    pieces = store.reader(segment, start=start, stop=stop, prefetch_bytes=0, follow=follow, piece_bytes=PIECE_BYTES)
    with pieces as reader:
        for data in reader:
            write_all(out, data)
            if follow:
                out.flush()
            progress(len(data))
        out.flush()


def tail(
    root: options.Root,
    segment: options.Segment,
    *,
    lines: Annotated[int | None, option("LINES", "So many lines; default: 10.", "--lines", "-n", min=0)] = None,
    size: Annotated[int | None, size_option("So many bytes.", "--bytes")] = None,
    follow: Annotated[bool, flag("Wait for more bytes until the segment is sealed.")] = False,
    here: access.Reading,
) -> None:
    """Write the end of a segment to standard output: its last lines, or bytes. With --json only errors are JSON."""
    if lines is not None and size is not None:
        raise InvalidArgument("give lines (-n) or --bytes, not both", argument="--bytes")
    with here.replica(root) as store:
        info = store.info(segment)
        if size is None:
            start = _start_of_lines(store, segment, info.start_offset, info.length, 10 if lines is None else lines)
        else:
            start = max(info.start_offset, info.length - size)
        stop = None if follow else info.length
        with meter(f"tail {segment}", info.length - start, as_json=here.as_json or sys.stdout.isatty()) as progress:
            _copy_out(store, segment, sys.stdout.buffer, (start, stop), progress, follow=follow)


def _start_of_lines(store: ReadableContainer, segment: str, low: int, high: int, lines: int) -> int:
    """Where the last ``lines`` lines of bytes ``[low, high)`` begin. Reads backwards, a piece at a time."""
    if not lines:
        return high
    stop = high
    while stop > low:
        start = max(low, stop - MIB)
        piece = store.read(segment, start, stop - start)
        # The line end of the last line begins no other line.
        at = len(piece) - 1 if stop == high else len(piece)
        while (at := piece.rfind(b"\n", 0, at)) >= 0:
            lines -= 1
            if not lines:
                return start + at + 1
        stop = start
    return low


def get(
    root: options.Root,
    segment: options.Segment,
    file: Annotated[str, argument("FILE", "The file to make.")],
    *,
    force: Annotated[bool, flag("Replace FILE if it exists.")] = False,
    here: access.Reading,
) -> None:
    """Download a segment into a new file, all of it or nothing. Bytes that were truncated away are left out."""
    folder, name = os.path.split(os.path.abspath(file))
    if file == "-" or os.path.isdir(file):
        raise InvalidArgument(f"{file!r} is no file name; for standard output use 'cat'", argument="FILE")
    if not force and os.path.lexists(file):
        raise InvalidArgument(f"{file} exists already; --force replaces it", argument="FILE")
    part = os.path.join(folder, f".{name}.{runtime.token(6).hex()}.part")
    with here.replica(root) as store:
        info = store.info(segment)
        length = info.length - info.start_offset
        with meter(f"get {segment}", length, as_json=here.as_json) as progress:
            try:
                with open(part, "xb") as out:
                    _copy_out(store, segment, out, (info.start_offset, info.length), progress, follow=False)
                    os.fsync(out.fileno())
                _publish(part, file, folder, force=force)
            except OSError as error:
                text = f"cannot write {file}: {error.strerror or error}; nothing was made, choose another FILE or make room"
                raise FileUnwritable(file, text) from error
            finally:
                with suppress(OSError):
                    os.unlink(part)
    facts = {"segment": segment, "file": file, "offset": info.start_offset, "length": length}
    here.show(facts, {**facts, "length": f"{length} ({human_bytes(length)})"})


def _publish(part: str, file: str, folder: str, *, force: bool) -> None:
    """Give the finished file its name, durably. Raises ``InvalidArgument`` where a file appeared in the meantime, and ``OSError``."""
    try:
        if force:
            os.replace(part, file)
        else:
            os.link(part, file)
    except FileExistsError as error:
        raise InvalidArgument(f"{file} exists already; --force replaces it", argument="FILE") from error
    except OSError as error:
        if force or error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.rename(part, file)  # a file system without links
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
