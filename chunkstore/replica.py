"""``Replica``: follows the journal read-only. Never claims, never writes to the container (protocol 3.13).

Promises: what it shows is always a prefix of history; it may be one batch behind, or ahead of what its owner has answered.
``refresh`` catches up; ``wait`` does so by itself. Callers wait for that for ``op_deadline_s`` at most; behind a network the
catching up itself continues in the background, because it may take longer. In a forked child it is closed: the
threads and the locks are its parent's. Leaves out: changing anything.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from chunkstore import runtime
from chunkstore.arguments import check_namespace
from chunkstore.config import Settings
from chunkstore.errors import Closed, DeadlineExceeded
from chunkstore.metadata.port import Head, MetadataStore
from chunkstore.names import ContainerNames
from chunkstore.operations.read import ReadContext
from chunkstore.reading import JournalFindings, ReadableContainer, no_findings
from chunkstore.storage import ChunkStorage
from chunkstore.tables import TableReader
from chunkstore.upkeep.usage import Space, StoredSizes, no_sizes

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


class Replica(ReadableContainer):
    """A read-only follower; see the module. Made by ``chunkstore.open_replica``; a context manager that closes."""

    def __init__(
        self,
        *,
        storage: ChunkStorage,
        names: ContainerNames,
        settings: Settings,
        follower: JournalFollower,
        journal_findings: JournalFindings = no_findings,
        stored_sizes: StoredSizes = no_sizes,
        on_close: Iterable[Callable[[], None]] = (),
    ) -> None:
        self._names = names
        self._follower = follower
        self._pool = runtime.pool("chunkstore-replica", settings.io_workers)
        self._on_close = tuple(on_close)
        self._journal_findings = journal_findings
        self._space = Space(stored_sizes, None)
        self._closed = False
        self._inherited = False
        self._released = False
        self._lock = runtime.lock()
        """Held while catching up, and while releasing."""
        self._remote = storage.capabilities.remote
        self.settings = settings
        self._context = ReadContext(
            storage=storage,
            names=names,
            pool=self._pool,
            parallel_read_bytes_min=settings.parallel_read_bytes_min,
            verify=settings.verify == "blocks",
            op_deadline_s=settings.op_deadline_s,
            store=lambda: self._follower.store,
            check_open=self._check_open,
            check=self._check_open,
            check_beside=False,
            recheck=self._refresh,
            rebuild=lambda _damage: self._refresh(),
        )
        try:
            # Without a limit: no other caller waits, and there is nothing to show before.
            follower.catch_up()
        except BaseException:
            follower.close()
            self._pool.close()
            raise
        _replicas.add(self)

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
        return self._context.look(lambda view: view.head).position.epoch

    @property
    def lsn(self) -> int:
        """The point of history the replica shows."""
        return self._context.look(lambda view: view.head).position.lsn

    def refresh(self) -> int:
        """Apply everything committed by now; returns the lsn reached.

        Raises ``Damaged``, ``StorageUnavailable``, ``StorageFull`` (cache disk), ``Closed``, ``DeadlineExceeded`` (it goes on
        in the background, or in another thread). Retry: safe.
        """
        self._check_open()
        lsn = self._follow(self.settings.op_deadline_s)
        if lsn is None:
            raise DeadlineExceeded("following the journal", deadline_s=self.settings.op_deadline_s)
        return lsn

    def table(self, namespace: str) -> TableReader:
        """The reading half of a table. Raises ``InvalidArgument``."""
        return TableReader(self._context, check_namespace(namespace))

    def close(self) -> None:
        """Release everything. Raises nothing. Safe to repeat. Waits ``op_deadline_s`` at most for a thread that is catching up;
        one that hangs longer releases everything at its end."""
        self._closed = True
        if self._inherited or self._released:
            return
        held = runtime.interruptible_lock(self._lock)
        try:
            if held.wait(self.settings.op_deadline_s):
                self._release()
        finally:
            if held.got:
                held.lock.release()

    def _release(self) -> None:
        """With the lock held."""
        if self._released:
            return
        self._follower.close()
        self._pool.close()
        for callback in self._on_close:
            callback()
        # Last: an interrupted release is repeated.
        self._released = True

    def _check_open(self) -> None:
        if self._closed:
            name = f"the replica of container {self._names.container!r}"
            raise Closed(f"{name}, opened before this process was forked," if self._inherited else name)

    def _follow(self, most_s: float) -> int | None:
        """Catch up; the lsn reached, or None after ``most_s``, when it goes on in the background or in another thread."""
        if not self._remote:
            return self._catch_up(most_s)
        reached: list[int | None] = []
        failures: list[Exception] = []

        def elsewhere() -> None:
            try:
                reached.append(self._catch_up(most_s))
            except Exception as error:  # noqa: BLE001  (handed to the waiting thread)
                failures.append(error)

        task = runtime.spawn_if_possible(elsewhere, "chunkstore-follow")
        if task is None:
            # Perhaps it does not hang.
            return self._catch_up(most_s)
        task.join(most_s)
        if failures:
            raise failures[0]
        return reached[0] if reached else None

    def _catch_up(self, most_s: float) -> int | None:
        """In this thread, as long as it takes; None if another thread was at it for ``most_s``."""
        held = runtime.interruptible_lock(self._lock)
        try:
            if not held.wait(most_s):
                return None
            try:
                self._check_open()
                return self._follower.catch_up().position.lsn
            finally:
                if self._closed:
                    self._release()  # close may have stopped waiting
        finally:
            if held.got:
                held.lock.release()

    def _present_epoch(self) -> int:
        return self.epoch

    def _refresh(self, most_s: float | None = None) -> None:
        self._check_open()
        if most_s is None or most_s >= self.settings.op_deadline_s:
            self.refresh()
        else:
            self._follow(most_s)  # what is not finished by then is there for the next call


_replicas: weakref.WeakSet[Replica] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The thread that held the lock, and the one that caught up, are not here.
    for replica in _replicas:
        replica._closed = replica._inherited = True  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
