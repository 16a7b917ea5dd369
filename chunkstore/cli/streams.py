"""Standard output and standard error while a command runs, and the file, or standard input, that a verb reads.

A failed write to standard output raises ``OutputFailed`` (a reader that left: ``BrokenPipeError``), whatever writes; a failed write to
standard error raises nothing. After a failure the stream leads nowhere, so that Python's own flush at exit cannot fail. Streams that
were closed before the start count as failed."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, ClassVar, TextIO, cast

from chunkstore.errors import ChunkstoreError, InvalidArgument

__all__ = ["OutputFailed", "VerbFailed", "opened_input", "watched_streams", "write_all"]


class VerbFailed(ChunkstoreError):
    """An error that only the command line has, with one field."""

    fields: ClassVar[tuple[str, ...]] = ("name",)

    def __init__(self, value: str | int, message: str) -> None:
        super().__init__(message)
        setattr(self, self.fields[0], value)


class OutputFailed(VerbFailed):
    """The result could not be written to standard output; what the verb changed stays changed."""

    fields = ("errno",)


@contextmanager
def opened_input(name: str, buffering: int = -1) -> Iterator[BinaryIO]:
    """A file to read, or standard input (``-``). Raises ``InvalidArgument``: it cannot be opened."""
    if name == "-":
        # None, where the parent process had closed it.
        if (standard := cast("TextIO | None", sys.stdin)) is None:
            raise InvalidArgument("standard input is closed: name a file, or open it", argument="FILE")
        yield standard.buffer
        return
    try:
        file = open(name, "rb", buffering=buffering)  # noqa: SIM115  (closed below; only the opening is misuse)
    except OSError as error:
        raise InvalidArgument(f"cannot open {name}: {error.strerror}", argument="FILE") from error
    with file:
        yield file


def write_all(out: BinaryIO, data: bytes | memoryview) -> None:
    """Write everything: an unbuffered stdout (``python -u``) may take less than it is given."""
    view = memoryview(data)
    while view:
        view = view[out.write(view) :]


@contextmanager
def watched_streams() -> Iterator[None]:
    """Watch ``sys.stdout`` and ``sys.stderr`` for the length of a block."""
    output, errors = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere, open(os.devnull, "w", encoding="utf-8") as also_nowhere:
        sys.stdout = cast(TextIO, _Output(output or nowhere, closed=output is None))
        sys.stderr = cast(TextIO, _Errors(errors or also_nowhere))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = output, errors


class _Watched:
    """A stream, its failures handled; everything else is the stream's own."""

    def __init__(self, stream: Any, *, closed: bool = False) -> None:
        self._stream = stream
        self._closed = closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> _Watched:
        """The bytes below the text."""
        return type(self)(self._stream.buffer, closed=self._closed)

    def write(self, data: Any) -> Any:
        """As the stream's."""
        if self._closed and data:
            return self._failed(OSError(errno.EBADF, "it is closed"), len(data))
        try:
            return self._stream.write(data)
        except OSError as error:
            # An empty write loses nothing: it is how ``typer`` finds out what kind of stream this is.
            return self._failed(error, len(data)) if data else 0

    def flush(self) -> None:
        """As the stream's."""
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error, 0)

    def _failed(self, error: OSError, size: int) -> int:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, self._stream.fileno())
            finally:
                os.close(nowhere)
        return self._tell(error, size)

    def _tell(self, error: OSError, size: int) -> int:
        raise NotImplementedError


class _Output(_Watched):
    def _tell(self, error: OSError, size: int) -> int:
        if isinstance(error, BrokenPipeError):
            raise error
        text = f"cannot write to standard output: {error.strerror or error}"
        raise OutputFailed(error.errno or 0, text) from error


class _Errors(_Watched):
    def _tell(self, error: OSError, size: int) -> int:
        return size
