"""What a repair found, and did (protocol 3.15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from chunkstore.invariants import Finding

__all__ = ["RepairReport", "SegmentOutcome", "Unread"]


class SegmentOutcome(NamedTuple):
    """What a repair makes of one segment: ranges ``[start, stop)`` of acknowledged bytes behind the last good record.

    ``reason`` says why the lost ones are; ``deleted``: the segment was deleted behind the last good record, and is again.
    """

    segment: str
    segment_id: int
    kept: tuple[tuple[int, int], ...]
    lost: tuple[tuple[int, int], ...]
    reason: str
    deleted: bool


class Unread(NamedTuple):
    """A place behind the last good record that cannot be read; what it said is unknown."""

    object: str
    position: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair found, and did. With ``dry_run`` it would do the same, and ``epoch`` is 0.

    ``sound``: history goes on to its end; nothing was to be done. ``continued``: an earlier repair had been interrupted behind its OPEN.
    ``damage`` at ``object`` and ``position``: why history does not go on behind ``last_lsn``, the last good record, of ``last_epoch``.
    ``behind``: records behind it that can be read; ``unreadable``: places there that cannot. ``segments``: what of their bytes is
    kept and lost; ``not_applied``: changes of tables and sessions in records whose bytes are lost; ``pins``: given up there, and again.
    ``findings``: damage behind the repair, such as chunks that are gone: a merge behind the cut stood for them, a rotten orphan now;
    where history is sound, records that are missing behind it, says the lease, with the way on.
    """

    container: str
    sound: bool
    continued: bool = False
    dry_run: bool
    damage: str = ""
    object: str = ""
    position: int = 0
    last_lsn: int
    last_epoch: int
    epoch: int = 0
    behind: int = 0
    unreadable: tuple[Unread, ...] = ()
    segments: tuple[SegmentOutcome, ...] = ()
    not_applied: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
