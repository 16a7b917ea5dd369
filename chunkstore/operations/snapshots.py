"""When a snapshot of the metadata is due, and taking one (protocol 3.11, A8).

Promises: one at a time, next to commits; the note is committed after the snapshot was read back, and LATEST points to it after
that. What is due is taken in a task of its own, since it may take an hour; after a failure ever longer pauses are made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from chunkstore import runtime
from chunkstore.errors import CacheDamaged, Damaged
from chunkstore.journal import RecordKind, SnapshotReport
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch

__all__ = ["Snapshots"]

_SMALL_STATE_BYTES: Final = 1 << 20
_TIMED_SNAPSHOT_S: Final = 300.0
_BYTES_PER_SLOT: Final = 15_000
"""A hundredth of a state's rows at about 150 bytes each: more slots than that since the last snapshot are worth a new one."""
_BYTES_PER_ENTRY: Final = 75
"""Of a snapshot, for each of the store's rows and index entries: what a state's size is taken for before it was written."""
_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 600.0
"""After a failure, doubling from the one to the other, before a snapshot that is due is tried again."""


class Snapshots:
    """The snapshots of one container. ``journal_bytes``: those committed since it was opened."""

    def __init__(self, container: OwnedContainer, journal_bytes: Callable[[], int]) -> None:
        self._container = container
        self._journal_bytes = journal_bytes
        self._lock = runtime.lock()
        self._taken_s = runtime.monotonic_s()
        self._size_bytes = 0
        self.written_bytes: int = 0
        """Of all snapshots that were taken since this store was opened."""
        self._lsn_at_last = container.current.queue.head.lsn
        self._digest_at_last = container.current.store.head().digest
        self._bytes_at_last = 0
        self._wanted = self._replayed_much()
        self.failure: str = ""
        """Why the last one failed; empty after one that succeeded."""
        self._pause_s = _PAUSE_S_MIN
        self._not_before_s = self._taken_s
        self._task: runtime.Task | None = None

    def take_due(self) -> None:
        """Begin one in the background if it is due, none is under way, and the last failure is long enough ago."""
        under_way = self._lock.locked() or (self._task is not None and self._task.is_alive())
        if under_way or runtime.monotonic_s() < self._not_before_s or not self.due():
            return
        try:
            self._task = runtime.spawn(self._take_in_background, "chunkstore-snapshot")
        except Exception as error:
            self._failed(error)
            raise

    def _take_in_background(self) -> None:
        # No caller waits for it; ``failure`` says why it failed.
        with suppress(Exception):
            self.take()

    def join(self, wait_s: float) -> None:
        """Wait for the one in the background, no longer than that."""
        if self._task is not None:
            self._task.join(wait_s)

    def _failed(self, error: BaseException) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        self._not_before_s = runtime.monotonic_s() + self._pause_s
        self._pause_s = min(_PAUSE_S_MAX, self._pause_s * 2)

    def take(self) -> SnapshotReport:
        """Write, validate, note and publish a snapshot of the present state. One at a time; may run next to commits.

        Raises ``DeadlineExceeded`` when another one does not end in time, and what storage and commits raise.
        """
        return self._container.alone(self._lock, "snapshot", self._take)

    def _take(self) -> SnapshotReport:
        try:
            return self._write_and_publish()
        except Exception as error:
            self._failed(error)
            raise

    def _write_and_publish(self) -> SnapshotReport:
        container = self._container
        size_bytes = self._journal_bytes()
        report = self._write()
        container.note(RecordKind.SNAPSHOT_NOTE, report.note)
        container.service.publish_latest(report, epoch=container.current.epoch)
        # Its own note follows it, and is no reason for another one.
        self._lsn_at_last = report.position.lsn + 1
        self._digest_at_last = report.digest
        self._bytes_at_last = size_bytes
        self._size_bytes = report.size_bytes
        self.written_bytes += report.size_bytes
        self._taken_s = runtime.monotonic_s()
        self._wanted = False
        self.failure = ""
        self._pause_s = _PAUSE_S_MIN
        container.observer.snapshot_taken(report)
        return report

    @property
    def expected_bytes(self) -> int:
        """What one takes, about."""
        return self._size_bytes or self._container.current.store.entry_count() * _BYTES_PER_ENTRY

    def due(self) -> bool:
        """Protocol A8: by slots, whatever is in them; after changes by journal bytes, and by time while the state is small."""
        current, settings = self._container.current, self._container.settings
        if self._wanted:
            return True
        size_bytes = self.expected_bytes
        if current.journal.mode == "slot" and current.queue.head.lsn - self._lsn_at_last >= max(
            settings.tuning.snapshot_slots_min, size_bytes // _BYTES_PER_SLOT
        ):
            return True
        if current.store.head().digest == self._digest_at_last:
            return False
        if self._journal_bytes() - self._bytes_at_last > max(settings.tuning.snapshot_bytes_min, size_bytes // 2):
            return True
        return size_bytes < _SMALL_STATE_BYTES and runtime.monotonic_s() - self._taken_s > _TIMED_SNAPSHOT_S

    def _replayed_much(self) -> bool:
        """Whether the take-over replayed more than a tenth of what triggers a snapshot (protocol A8)."""
        current, settings = self._container.current, self._container.settings
        if current.journal.mode == "slot":
            return current.report.replayed_records > settings.tuning.snapshot_slots_min / 10
        return current.report.replayed_bytes > settings.tuning.snapshot_bytes_min / 10

    def _write(self) -> SnapshotReport:
        container = self._container
        while True:
            store = container.current.store
            try:
                return self._write_from(container.current)
            except CacheDamaged as damage:
                container.rebuild(damage)
            except Damaged:
                # What does not add up in the end may be the cache's.
                try:
                    store.audit()
                except CacheDamaged as damage:
                    container.rebuild(damage)
                else:
                    raise

    def _write_from(self, current: OwnedEpoch) -> SnapshotReport:
        return self._container.service.write_snapshot(current.store, epoch=current.epoch)
