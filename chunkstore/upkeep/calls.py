"""The methods of an owned container that are about its upkeep, kept apart from those that change segments.

Promises: as ``chunkstore.engine``; nothing here changes a byte of a segment that can be read. Leaves out: who calls them, and when.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from chunkstore import runtime
from chunkstore.arguments import check_pin
from chunkstore.journal import SnapshotReport
from chunkstore.names import check_segment_name
from chunkstore.operations.collect import CollectReport, collect
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.maintenance import Maintenance
from chunkstore.operations.pins import pin, unpin
from chunkstore.records import Pin, PinRecord

__all__ = ["UpkeepCalls"]


class UpkeepCalls:
    """Of ``ChunkedSegmentStorage``, which sets ``_container`` and ``_maintenance``."""

    _container: OwnedContainer
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
        """One synchronous collection: pins that have expired, garbage chunks past their grace that no pin keeps, then journal records and
        snapshots that are not needed.

        Not atomic: chunks go in steps of at most 5,000, and what a step has done stays done when a later one fails. Raises
        ``Closed``, ``NotOwner``, ``DeadlineExceeded`` (another one is under way, too), ``OutcomeUnknown`` (of a step),
        ``StorageFull``, ``StorageUnavailable``, ``Damaged``. Retry: safe, it goes on where it was.
        """
        self._container.check_owner()
        return collect(self._container, dry_run=dry_run)

    def pin(
        self,
        name: str,
        note: str = "",
        expires_s: float | None = None,
        *,
        offsets: Mapping[str, int] | None = None,
    ) -> Pin:
        """Keep what the metadata say now restorable, and with it every chunk that is live now, until ``unpin(name)``.

        ``name``: 1 to 255 bytes of UTF-8, the caller's own. ``expires_s``: it lasts at least so many seconds, counted anew by each owner
        and each roll; a collection ends it. ``offsets``: by segment, what no retention shall pass; ``truncate`` and ``delete`` are
        not hindered. A pin is not moved: to go forward, make another one, then remove this.

        Atomic, durable. Raises ``InvalidArgument``, ``Conflict`` (another pin has the name, or there are too many), ``SegmentNotFound``,
        ``SegmentTruncated`` and ``BadOffset`` (of ``offsets``), ``Closed``, ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``,
        ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``. Retry: safe by the same process; the same call returns the pin that
        stands, whose ``lsn`` and ``created_at`` say since when.
        """
        check_segment_name(name, "name")
        checked = check_pin(note, expires_s, offsets)
        who = runtime.identity()
        lasts_ms = 0 if expires_s is None else math.ceil(expires_s * 1000)
        return pin(self._container, name, PinRecord(0, 0, lasts_ms, f"{who.host}:{who.pid}", note, checked))

    def unpin(self, name: str) -> bool:
        """Give up a pin; whether there was one. What only it kept goes with the next collection.

        Atomic, durable. Raises ``InvalidArgument``, ``Closed``, ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``,
        ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``. Retry: safe (it answers False if it had happened), unless somebody
        makes a new pin of this name meanwhile.
        """
        check_segment_name(name, "name")
        return unpin(self._container, name)
