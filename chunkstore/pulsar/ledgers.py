"""Where ledgers are before they are offloaded: in memory, in a directory of files (in a container: ``container``).

Promises: a listing is one moment's; bytes of files are bounded and checked. Leaves out: ledgers in BookKeeper (implement
``LedgerSource``), writing ledgers.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.codec.pulsar.frames import ENTRY_BYTES_MAX, Entry
from chunkstore.errors import Closed, Damaged, InvalidArgument, StorageUnavailable
from chunkstore.pulsar.read_handle import ReadHandle

__all__ = [
    "DirectorySource",
    "LedgerSource",
    "MemorySource",
    "Position",
    "SourceLedger",
]

_SUFFIX = ".entries"
_PREFIX_BYTES = 4


class Position(NamedTuple):
    """A place in a topic: an entry of a ledger, whether or not it is there."""

    ledger: int
    entry: int


class SourceLedger(NamedTuple):
    """A ledger of a source: how many entries, bytes of their payloads, when it was closed (ms since 1970; None: it is open)."""

    ledger: int
    entries: int
    size_bytes: int
    closed_ms: int | None


class LedgerSource(ABC):
    """A topic's ledgers. Thread-safe. Raises ``ChunkstoreError`` only; retry: always safe."""

    @abstractmethod
    def ledgers(self) -> list[SourceLedger]:
        """All ledgers that are there, ascending."""

    @abstractmethod
    def open(self, ledger: int) -> ReadHandle:
        """The ledger, to be read. Raises ``InvalidArgument`` or ``LedgerNotFound`` where it is not there."""

    @abstractmethod
    def delete(self, ledger: int) -> None:
        """Delete the ledger for good; durable when it returns. Of one that is not there: nothing."""

    def cached(self, ledger: int, first: int, last: int) -> Sequence[Entry] | None:
        """The entries ``first`` to ``last``, both included, where all are at hand without storage; else None. Streaming asks for these
        before it reads the ledger."""
        return None


class _Payloads(ReadHandle):
    """A ledger without gaps. ``read(first, stop)`` gives the payloads of these entries, both included."""

    def __init__(self, found: SourceLedger, read: Callable[[int, int], Iterable[bytes]]) -> None:
        self.ledger = found.ledger
        self.last_add_confirmed = found.entries - 1
        self.length = found.size_bytes
        self.closed = found.closed_ms is not None
        self._read = read
        self._is_open = True

    def iter_entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        if not self._is_open:
            raise Closed(f"the handle of ledger {self.ledger}")
        payloads = self._read(first, self.checked(first, last))
        return (Entry(self.ledger, entry, data) for entry, data in enumerate(payloads, first))

    def close(self) -> None:
        self._is_open = False


class MemorySource(LedgerSource):
    """Ledgers in memory: ``entries`` are the payloads of each by its id, ``closed_ms`` is when each was closed (ms since 1970; None: it is
    open; left out: now). The caller may change both mappings between calls."""

    def __init__(
        self, entries: Mapping[int, Sequence[bytes]], closed_ms: Mapping[int, int | None] | None = None
    ) -> None:
        self.entries: dict[int, Sequence[bytes]] = dict(entries)
        self.closed_ms: dict[int, int | None] = {**dict.fromkeys(entries, runtime.now_ms()), **(closed_ms or {})}

    def ledgers(self) -> list[SourceLedger]:
        found = sorted(self.entries.items())
        return [SourceLedger(key, len(row), sum(map(len, row)), self.closed_ms.get(key)) for key, row in found]

    def open(self, ledger: int) -> ReadHandle:
        return _Payloads(_one(self.ledgers(), ledger), lambda first, stop: self.entries[ledger][first : stop + 1])

    def delete(self, ledger: int) -> None:
        self.entries.pop(ledger, None)


class DirectorySource(LedgerSource):
    """Closed ledgers in a directory: files ``LEDGER.entries``, 4 bytes of length (big-endian) before each entry. A ledger was closed when
    its file was last changed. Reading one that is cut off, or has a length over 128 MiB, raises ``Damaged``."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._counted: dict[tuple[str, int, int], tuple[int, int]] = {}
        """By name, length and time of change of a file: its entries, and bytes of payloads."""

    def ledgers(self) -> list[SourceLedger]:
        found = []
        try:
            for path in self._directory.iterdir():
                if path.suffix == _SUFFIX and path.stem.isascii() and path.stem.isdecimal():
                    info = path.stat()
                    key = (path.name, info.st_size, info.st_mtime_ns)
                    if key not in self._counted:
                        self._counted[key] = _count(path)
                    found.append(SourceLedger(int(path.stem), *self._counted[key], runtime.label_ms(info.st_mtime_ns)))
        except OSError as error:
            raise StorageUnavailable(f"{self._directory}: {error.strerror}", object=str(self._directory)) from error
        return sorted(found)

    def open(self, ledger: int) -> ReadHandle:
        def read(first: int, stop: int) -> Iterator[bytes]:
            return (data for _, data in islice(_scan(path, skip=first), first, stop + 1))

        path = self._directory / f"{ledger}{_SUFFIX}"
        return _Payloads(_one(self.ledgers(), ledger), read)

    def delete(self, ledger: int) -> None:
        try:
            (self._directory / f"{ledger}{_SUFFIX}").unlink(missing_ok=True)
        except OSError as error:
            raise StorageUnavailable(f"cannot delete ledger {ledger}: {error.strerror}") from error


def _count(path: Path) -> tuple[int, int]:
    """The entries of a file, and bytes of payloads. One that is damaged counts: reading it tells."""
    entries = size_bytes = 0
    try:
        for length, _ in _scan(path, want=False):
            entries += 1
            size_bytes += length
    except Damaged:
        entries += 1
    return entries, size_bytes


def _one(found: Iterable[SourceLedger], ledger: int) -> SourceLedger:
    for item in found:
        if item.ledger == ledger:
            return item
    raise InvalidArgument(f"this source has no ledger {ledger}", argument="ledger")


def _scan(path: Path, *, skip: int = 0, want: bool = True) -> Iterator[tuple[int, bytes]]:
    """The length and the payload of each entry of a file; of the first ``skip``, or without ``want``, the payload is empty."""
    try:
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size
            for entry in count():
                position = file.tell()
                prefix = file.read(_PREFIX_BYTES)
                if not prefix:
                    return
                length = int.from_bytes(prefix, "big")
                if len(prefix) < _PREFIX_BYTES or length > min(ENTRY_BYTES_MAX, left - position - _PREFIX_BYTES):
                    raise Damaged(f"entry {entry} of {length} bytes is cut off", object=str(path), position=position)
                if want and entry >= skip:
                    yield length, file.read(length)
                else:
                    file.seek(length, os.SEEK_CUR)
                    yield length, b""
    except OSError as error:
        raise StorageUnavailable(f"{path}: {error.strerror}", object=str(path)) from error
