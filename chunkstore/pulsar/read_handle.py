"""``ReadHandle``: one ledger to be read, wherever its entries are, and ``StoredLedger``, the one over Pulsar's objects.

Promises: each entry once, ascending, whichever formats and objects hold it; any number of threads. Leaves out: which objects a
ledger has (``bucket``, ``planning``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Self, TypeVar

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.windows import Window, entries_of
from chunkstore.config import MIB
from chunkstore.errors import Closed, Damaged, InvalidArgument
from chunkstore.pulsar.cursors import RESTING, Cursor, LedgerPart, pieces_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LedgerPart", "ReadHandle", "SteppedLedger", "StoredLedger", "entry_bytes"]

T = TypeVar("T")
_STEP_ENTRIES: Final = 100
_STEP_BYTES: Final = 1 * MIB


class ReadHandle(ABC):
    """A ledger to be read. A context manager.

    Attributes: ``ledger``: its id; ``last_add_confirmed``: its last entry, -1 if it is empty; ``length``: bytes of all payloads (None:
    not known without reading them); ``closed``: nothing can be added to it any more.
    """

    ledger: int
    last_add_confirmed: int
    length: int | None
    closed: bool

    @abstractmethod
    def iter_entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first`` to ``last`` (both included; None: to the end), one object each; gaps are left out.

        Raises ``InvalidArgument`` (a negative id, not a range, beyond ``last_add_confirmed``), ``Closed``; while iterating ``Damaged``
        at the first byte that is wrong, and what reading raises. Retry: safe.
        """

    def read(self, first: int, last: int) -> list[Entry]:
        """The entries ``first`` to ``last``, both included. Raises as ``iter_entries``."""
        return list(self.iter_entries(first, last))

    def read_batches(self, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
        """As ``iter_entries``, as Arrow record batches of about 1 MiB with the columns ledger, entry and payload. Needs pyarrow."""
        import pyarrow as pa

        from chunkstore.codec.pulsar.arrow import SCHEMA

        entries = self.iter_entries(first, last)
        while rows := _some(entries, entry_bytes)[0]:
            columns = [pa.array(column) for column in zip(*rows, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def checked(self, first: int, last: int | None) -> int:
        """The last entry that is asked for; -1 of an empty ledger. Raises ``InvalidArgument``."""
        stop = self.last_add_confirmed if last is None else last
        is_empty = last is None and first == 0 and stop == -1
        if not is_empty and not 0 <= first <= stop <= self.last_add_confirmed:
            text = f"entries {first} to {stop}: ledger {self.ledger} has entries up to {self.last_add_confirmed}"
            raise InvalidArgument(text, argument="first")
        return stop

    @abstractmethod
    def close(self) -> None:
        """Give up what is held. Safe to repeat; reads raise ``Closed`` from then on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SteppedLedger(ReadHandle):
    """Another ledger, which is read in steps: of at most 100 entries, or what exceeds 1 MiB. A subclass says how a step is made."""

    def __init__(self, inner: ReadHandle) -> None:
        self.ledger: int = inner.ledger
        self.last_add_confirmed: int = inner.last_add_confirmed
        self.length: int | None = inner.length
        self.closed: bool = inner.closed
        self._inner = inner

    @abstractmethod
    def _step(self, call: Callable[[], tuple[list[T], int]]) -> list[T]:
        """What ``call`` gives, without its second value: the bytes that it read."""

    def read(self, first: int, last: int) -> list[Entry]:
        return self._step(partial(self._entries, first, last))

    def iter_entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        return self._steps(self._inner.iter_entries(first, last), entry_bytes)

    def read_batches(self, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
        return self._steps(self._inner.read_batches(first, last), lambda batch: batch.nbytes)

    def close(self) -> None:
        self._inner.close()

    def _entries(self, first: int, last: int) -> tuple[list[Entry], int]:
        entries = self._inner.read(first, last)
        return entries, sum(map(entry_bytes, entries))

    def _steps(self, items: Iterator[T], size_of: Callable[[T], int]) -> Iterator[T]:
        while found := self._step(partial(_some, items, size_of)):
            yield from found


def _some(items: Iterator[T], size_of: Callable[[T], int]) -> tuple[list[T], int]:
    """The next items, at most 100 or 1 MiB and what exceeds it, and their bytes."""
    found: list[T] = []
    size_bytes = 0
    for item in items:
        found.append(item)
        size_bytes += size_of(item)
        if len(found) == _STEP_ENTRIES or size_bytes >= _STEP_BYTES:
            break
    return found, size_bytes


def entry_bytes(entry: Entry) -> int:
    """The length of an entry's payload."""
    return len(entry.payload)


class StoredLedger(ReadHandle):
    """A ledger in data objects. ``parts`` may overlap: a ledger that is in both formats gives each entry once, from the part that
    comes first in ``parts``; what is a gap there stays one.

    Any number of threads may read at as many places. Where a call ended, the next one goes on: nothing is requested or scanned twice.
    Iterating raises ``Damaged``, too, where a part begins above its first entry, or lacks its last one.
    """

    def __init__(
        self,
        ledger: int,
        parts: Sequence[LedgerPart],
        *,
        last_add_confirmed: int,
        length: int | None = None,
        closed: bool = True,
    ) -> None:
        self.ledger = ledger
        self.last_add_confirmed = last_add_confirmed
        self.length = length
        self.closed = closed
        self._pieces = pieces_of(parts)
        self._is_open = True

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """The blocks that the entries are read from, ascending: first and last entry (gaps may be between), bytes. No request."""
        for piece in self._pieces:
            for span in piece.part.reader.spans(self.ledger, piece.first, piece.last):
                first, last = max(span.first_entry, piece.first), min(span.entry_limit - 1, piece.last)
                yield first, last, span.end - span.start

    def iter_entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        self._check_open()
        windows = self._windows(first, self.checked(first, last))
        return (entry for window in windows for entry in entries_of(window))

    def read_batches(self, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
        from chunkstore.codec.pulsar.arrow import batch_of

        self._check_open()
        return map(batch_of, self._windows(first, self.checked(first, last)))

    def close(self) -> None:
        self._is_open = False
        RESTING.drop(self._pieces)

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed(f"the handle of ledger {self.ledger}")

    def _windows(self, first: int, last: int) -> Iterator[Window]:
        begin = bisect_left(self._pieces, first, key=lambda piece: piece.last)
        for piece in islice(self._pieces, begin, None):
            if piece.first > last:
                return
            low, high = max(first, piece.first), min(last, piece.last)
            cursor = RESTING.take(piece, low) or Cursor(piece, self.ledger, low)
            seen = low - 1
            try:
                for window in cursor.windows(low, high):
                    self._check_open()
                    seen = window.last
                    yield window
                if seen != high == piece.part.last:
                    what = f"entry {high} of ledger {self.ledger} is missing here"
                    raise Damaged(what, object=piece.part.reader.source.name)
            except BaseException:  # an abandoned iterator, too
                cursor.close()
                raise
            if self._is_open and high < piece.last:
                RESTING.put(cursor)
