"""The methods of an owned container that are about its upkeep, kept apart from those that change segments.

Promises: as ``chunkstore.engine``; nothing here changes a byte of a segment that can be read. Leaves out: who calls them, and when.
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.journal import SnapshotReport
from chunkstore.operations.collect import CollectReport, collect
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.maintenance import Maintenance
from chunkstore.operations.read import ReadContext
from chunkstore.upkeep.sweep import SweepReport, check_age, sweep

__all__ = ["UpkeepCalls"]


class UpkeepCalls:
    """Of ``ChunkedSegmentStorage``, which sets what is declared here."""

    _container: OwnedContainer
    _context: ReadContext
    _sweep_unfinished: Callable[[], int]
    _maintenance: Maintenance

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
        return collect(self._container, dry_run=dry_run)

    def sweep(self, *, delete: bool = False, keep_in: str | None = None, age_s_min: float = 86_400.0) -> SweepReport:
        """Look for chunks that nothing refers to, left by crashes, and with ``delete`` delete those that nobody can refer to any more.

        Only chunks of epochs, and of sessions that began, strictly below the present epoch are orphans. ``age_s_min``: by the storage's
        clock; a margin, not what makes it safe. Where the storage does not tell an age they stay, unless it is 0. ``keep_in``: a folder of
        the container, such as "lost", into which a chunk is copied before it is deleted, one in memory at a time.

        Reads every row and lists every chunk. Not atomic: what was deleted stays deleted when it fails. Raises ``InvalidArgument``, and as
        ``collect``; ``Damaged`` also where the metadata are damaged, or a repair was interrupted: then nothing was deleted. Retry: safe.
        """
        age_s = check_age(age_s_min)
        self._container.check_owner()
        return sweep(
            self._container, self._context, self._sweep_unfinished, delete=delete, keep_in=keep_in, age_s_min=age_s
        )
