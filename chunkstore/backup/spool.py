"""Plain data put aside on the local disk, in the order in which it comes: what an import knows of chunks, and rows whose turn is later.

Promises: memory for a page or two, however much is put aside; the file has no name, so nothing is left of it whatever happens. Not durable,
and nobody else's: what is read is what was put. Leaves out: records (a ``NamedTuple`` costs more than what it holds; put plain tuples).
"""

from __future__ import annotations

import errno
import marshal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Final, Generic, TypeVar

from chunkstore.errors import StorageFull, StorageUnavailable

__all__ = ["Spool"]

T = TypeVar("T")
_PAGE: Final = 2_048
_LENGTH_BYTES: Final = 8


class Spool(Generic[T]):
    """Items of numbers, text, bytes, None and tuples of these. Not thread-safe. Raises ``StorageFull`` and ``StorageUnavailable`` of the
    local disk."""

    def __init__(self) -> None:
        self._page: list[T] = []
        with _translated():
            self._file = tempfile.TemporaryFile(prefix="chunkstore-import-")  # noqa: SIM115  (closed by ``close``)

    def add(self, items: list[T]) -> None:
        """Put more behind what is there."""
        self._page += items
        if len(self._page) >= _PAGE:
            self._write()

    def _write(self) -> None:
        data = marshal.dumps(self._page)
        with _translated():
            self._file.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
            self._file.write(data)
        self._page = []

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.pages())

    def pages(self) -> Iterator[list[T]]:
        """Everything from the beginning. Nothing is added meanwhile, and there is one reader at a time."""
        with _translated():
            self._file.seek(0)
        while True:
            with _translated():
                size = int.from_bytes(self._file.read(_LENGTH_BYTES), "big")
                data = self._file.read(size)
            if not data:
                break
            yield marshal.loads(data)  # noqa: S302  (a file without a name, which only we have open)
        yield self._page

    def close(self) -> None:
        """Give the space back. Safe to repeat."""
        self._file.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"the folder for temporary files, {tempfile.gettempdir()}, cannot be used: {error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(text) from error
        raise StorageUnavailable(text) from error
