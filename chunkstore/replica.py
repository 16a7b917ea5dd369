"""``Replica``: follows the journal read-only. Never claims, never writes to the container (protocol 3.13).

Promises: what it shows is always a prefix of history; it may be one batch behind, or ahead of what its owner has answered.
``refresh`` catches up; ``wait`` does so by itself. Leaves out: changing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from chunkstore import runtime
from chunkstore.config import Settings
from chunkstore.errors import Closed
from chunkstore.metadata.port import Head, MetadataStore
from chunkstore.names import ContainerNames
from chunkstore.operations.read import ReadContext
from chunkstore.operations.table import check_namespace
from chunkstore.reading import JournalFindings, ReadingHalf, TableReader, no_findings
from chunkstore.storage import ChunkStorage

__all__ = ["JournalFollower", "Replica"]


class JournalFollower(Protocol):
    """What a replica needs of the journal."""

    @property
    def store(self) -> MetadataStore:
        """The materialised state."""

    def catch_up(self) -> Head:
        """Apply everything committed. Raises ``Damaged``, ``StorageUnavailable``, ``StorageFull``."""

    def close(self) -> None:
        """Release resources."""


class Replica(ReadingHalf):
    """A read-only follower; see the module. Made by ``chunkstore.open_replica``; a context manager that closes."""

    def __init__(
        self,
        *,
        storage: ChunkStorage,
        names: ContainerNames,
        settings: Settings,
        follower: JournalFollower,
        journal_findings: JournalFindings = no_findings,
        on_close: Iterable[Callable[[], None]] = (),
    ) -> None:
        self._names = names
        self._follower = follower
        self._pool = runtime.pool("chunkstore-replica", settings.io_workers)
        self._on_close = tuple(on_close)
        self._journal_findings = journal_findings
        self._closed = False
        self._lock = runtime.lock()
        self.settings = settings
        self._context = ReadContext(
            storage=storage,
            names=names,
            pool=self._pool,
            parallel_read_bytes_min=settings.parallel_read_bytes_min,
            op_deadline_s=settings.op_deadline_s,
            store=lambda: self._follower.store,
            check_open=self._check_open,
            check=self._check_open,
            check_beside=False,
            recheck=self._refresh,
        )
        self.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def container(self) -> str:
        """The container's name."""
        return self._names.container

    @property
    def epoch(self) -> int:
        """The epoch of the stream the replica has reached."""
        return self._follower.store.head().position.epoch

    @property
    def lsn(self) -> int:
        """The point of history the replica shows."""
        return self._follower.store.head().position.lsn

    def refresh(self) -> int:
        """Apply everything committed by now; returns the lsn reached. Raises ``Damaged``, ``StorageUnavailable``, ``Closed``."""
        self._check_open()
        with self._lock:
            return self._follower.catch_up().position.lsn

    def table(self, namespace: str) -> TableReader:
        """The reading half of a table."""
        return TableReader(self._context, check_namespace(namespace))

    def close(self) -> None:
        """Release everything. Safe to repeat."""
        if not self._closed:
            self._closed = True
            self._follower.close()
            self._pool.close()
            for callback in self._on_close:
                callback()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the replica of container {self._names.container!r}")

    def _present_epoch(self) -> int:
        return self.epoch

    def _refresh(self) -> None:
        self.refresh()
