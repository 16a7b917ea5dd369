"""``tail`` and ``get``: the end of a segment, and a segment as a file.

Promises: both read in bounded memory, and verify every block. ``get`` makes FILE when all bytes are durable on the local
disk; killed before, it leaves a file ``.FILE.*.part``. Without ``--force`` it replaces nothing.
Leaves out: a download that goes on where an earlier one ended.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Annotated, ClassVar

import typer

from chunkstore import runtime
from chunkstore.cli import access, options
from chunkstore.cli.output import human_bytes, meter
from chunkstore.cli.transfer import copy_out
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, InvalidArgument
from chunkstore.reading import ReadableContainer

__all__ = ["FileUnwritable", "get", "tail"]


class FileUnwritable(ChunkstoreError):
    """``get``: the local file could not be written; none was made."""

    fields: ClassVar[tuple[str, ...]] = ("file",)

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"cannot write {file}: {reason}; nothing was made, choose another FILE or make room")
        self.file = file


def tail(
    root: options.Root,
    segment: options.Segment,
    *,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", metavar="LINES", help="So many lines; default: 10.", min=0)
    ] = None,
    size: Annotated[
        int | None, typer.Option("--bytes", parser=options.size, metavar="SIZE", help="So many bytes.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more bytes until the segment is sealed.")] = False,
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
            copy_out(store, segment, sys.stdout.buffer, (start, stop), progress, follow=follow)


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
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to make.")],
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
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
                    copy_out(store, segment, out, (info.start_offset, info.length), progress, follow=False)
                    os.fsync(out.fileno())
                _publish(part, file, folder, force=force)
            except OSError as error:
                raise FileUnwritable(file, error.strerror or str(error)) from error
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
