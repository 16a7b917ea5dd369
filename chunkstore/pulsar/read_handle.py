"""``ReadHandle``: one ledger to be read, wherever its entries are, and ``StoredLedger``, the one over Pulsar's objects.

Promises: each entry once, ascending, whichever formats and objects hold it; any number of threads. Leaves out: which objects a
ledger has (``bucket``, ``planning``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.windows import BlockReader, iter_entries
from chunkstore.errors import Closed, InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LedgerPart", "ReadHandle", "StoredLedger"]


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

    @abstractmethod
    def read_batches(self, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
        """As ``iter_entries``, as Arrow record batches of about 1 MiB with the columns ledger, entry and payload. Needs pyarrow."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is held. Safe to repeat; reads raise ``Closed`` from then on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LedgerPart(NamedTuple):
    """Entries ``first`` to ``last`` (both included) of a ledger in one data object, of either format.

    ``reader`` knows the ledger by its id (``LedgerObjectReader(ledger=...)``).
    """

    reader: BlockReader
    first: int
    last: int


class StoredLedger(ReadHandle):
    """A ledger in data objects. ``parts`` may overlap: a ledger that is in both formats gives each entry once, from the part that
    comes first in ``parts``."""

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
        self._parts = parts
        self._is_open = True

    def iter_entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        chosen = self._chosen(first, last)
        return (entry for part in chosen for entry in iter_entries(part.reader, self.ledger, part.first, part.last))

    def read_batches(self, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
        from chunkstore.codec.pulsar.arrow import read_batches

        chosen = self._chosen(first, last)
        return (batch for part in chosen for batch in read_batches(part.reader, self.ledger, part.first, part.last))

    def close(self) -> None:
        self._is_open = False

    def _chosen(self, first: int, last: int | None) -> list[LedgerPart]:
        """Which entries are read from which part."""
        if not self._is_open:
            raise Closed(f"the handle of ledger {self.ledger}")
        stop = self.last_add_confirmed if last is None else last
        if first < 0 or stop < first or stop > self.last_add_confirmed:
            raise InvalidArgument(f"entries {first} to {stop}: not a range of ledger {self.ledger}", argument="first")
        return [part._replace(first=max(first, part.first), last=min(stop, part.last)) for part in self._parts]
