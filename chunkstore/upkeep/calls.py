"""The methods of an owned container that are about its upkeep, kept apart from those that change segments.

Promises: as ``chunkstore.engine``; nothing here changes a byte of a segment that can be read. Leaves out: who calls them, and when.
"""

from __future__ import annotations

from chunkstore.journal import SnapshotReport
from chunkstore.operations.collect import CollectReport, collect
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.maintenance import Maintenance
from chunkstore.upkeep.usage import Space

__all__ = ["UpkeepCalls"]


class UpkeepCalls:
    """Of ``ChunkedSegmentStorage``, which sets ``_container``, ``_maintenance`` and ``_space``."""

    _container: OwnedContainer
    _maintenance: Maintenance
    _space: Space

    def snapshot(self) -> SnapshotReport:
        """Write, validate and publish a snapshot now. Of a large state a worker process writes it: that may take up to an hour,
        whatever ``op_deadline_s`` says, which bounds the wait for another snapshot and for the commit of the note.

        Raises ``Closed``, ``NotOwner``, ``DeadlineExceeded`` (another one is under way), ``OutcomeUnknown`` (of the note),
        ``StorageFull``, ``StorageUnavailable``, ``Damaged`` (read-back). Retry: safe, names are unique.
        """
        self._container.check_owner()
        return self._maintenance.snapshots.take()

    def collect(self, *, dry_run: bool = False) -> CollectReport:
        """One synchronous collection: garbage chunks past their grace, then journal records and snapshots that are not needed.

        Not atomic: chunks go in steps of at most 5,000, and what a step has done stays done when a later one fails. Raises
        ``Closed``, ``NotOwner``, ``DeadlineExceeded`` (another one is under way, too), ``OutcomeUnknown`` (of a step),
        ``StorageFull``, ``StorageUnavailable``, ``Damaged``. Retry: safe, it goes on where it was.
        """
        self._container.check_owner()
        try:
            return collect(self._container, dry_run=dry_run)
        finally:
            if not dry_run:
                self._space.forget()
