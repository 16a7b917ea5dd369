"""Collecting journal objects and snapshots that recovery cannot need any more (protocol 3.14.5, 3.14.6, A10).

Promises: only streams below our own epoch are touched: our OPEN has sealed them. FORMAT, claims, slot 0 and the SEAL that ends a stream
are never deleted: they are the fence. At least one validated snapshot stays, the newest one at or below the lowest pin that is on history
(3.14.7), and every record after the oldest one that is kept. Deleting twice, or later as a zombie, harms nothing: pins that a collection
did not see are after its head, and so after what it keeps. Leaves out: chunks and their garbage rows (the engine's upkeep).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from chunkstore import runtime
from chunkstore.config import Settings
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.metadata.port import Head
from chunkstore.storage import ChunkInfo, iter_listing
from chunkstore_journal.history import Opened, Streams
from chunkstore_journal.payloads import SnapshotLink
from chunkstore_journal.snapshot import StoredSnapshot, delete_snapshot, list_snapshots
from chunkstore_journal.snapshot_reader import verify_snapshot

__all__ = ["Collector"]

_NOTHING_HELD: Final = (1 << 64, 0)


@dataclass(slots=True)
class _Stream:
    """What LIST shows of a stream besides slot 0."""

    epoch: int
    slots: list[tuple[int, ChunkInfo]] = field(default_factory=list)
    log: ChunkInfo | None = None

    @property
    def has_records(self) -> bool:
        """Whether there is more than a SEAL."""
        return len(self.slots) > 1 or self.log is not None


class Collector:
    """Collects for one ownership. ``own`` is our OPEN."""

    def __init__(self, streams: Streams, settings: Settings, own: Opened) -> None:
        self._streams = streams
        self._storage = streams.storage
        self._names = streams.names
        self._settings = settings
        self._own = own
        self._validated: set[str] = set()
        self._oldest_inline_record = _NOTHING_HELD

    def run(
        self,
        head: Head,
        published: Sequence[SnapshotLink],
        *,
        pinned_lsn: int | None,
        oldest_inline_record: tuple[int, int] | None,
        dry_run: bool,
        go_on: Callable[[], bool],
        least: bool,
    ) -> tuple[int, int]:
        """Collect once, as long as ``go_on`` says so before a deletion; returns (objects, bytes) deleted.

        ``published``: snapshots whose note this epoch committed; ``pinned_lsn``: the lowest that a pin names up to ``head``;
        ``oldest_inline_record`` (epoch, index): it and all records after it stay; ``least``: the newest snapshot is enough, except for
        pins and the horizon.
        """
        self._oldest_inline_record = oldest_inline_record or _NOTHING_HELD
        trusted = [link for link in (self._own.payload.snapshot, *published) if link is not None]
        trusted = [link for link in trusted if link.lsn <= head.position.lsn and self._streams.is_ours(link)]
        trusted = [link for link in trusted if self._storage.exists(link.name)]
        if not trusted:
            return 0, 0
        self._validated.update(link.name for link in trusted)
        newest = max(link.lsn for link in trusted)
        # Those of a successor, of whom we may know nothing yet, are not ours to judge.
        stored = [item for item in list_snapshots(self._storage, self._names) if item.epoch <= self._own.epoch]
        kept = 1 if least else self._settings.tuning.snapshots_kept
        keep_from = self._keep_from(stored, newest, kept, dry_run=dry_run)
        if self._own.payload.snapshot is not None:
            # Readers start from the snapshot that the newest OPEN names.
            keep_from = min(keep_from, self._own.payload.snapshot.lsn)
        if pinned_lsn is not None and pinned_lsn < keep_from:
            keep_from = self._pinned_from(stored, pinned_lsn, dry_run=dry_run)
        objects = size = 0
        for snapshot in stored:
            if snapshot.lsn < keep_from:
                if not go_on():
                    return objects, size
                objects += snapshot.objects
                size += snapshot.size
                if not dry_run:
                    delete_snapshot(self._storage, snapshot.name)
        for info in self._due_records(keep_from):
            if not go_on():
                return objects, size
            objects += 1
            size += info.length
            if not dry_run:
                with suppress(ChunkNotFound):  # a former owner's collector was faster
                    self._storage.delete(info.name)
        return objects, size

    def _keep_from(self, stored: Sequence[StoredSnapshot], newest: int, count: int, *, dry_run: bool) -> int:
        """The lsn of the oldest snapshot that stays: the ``count``-th good one, or older for the PITR horizon."""
        kept = 0
        keep_from = newest
        newer_ms: int | None = None
        horizon_ms = runtime.now_ms() - int(self._settings.pitr_horizon_s * 1000)
        for snapshot in reversed(stored):
            if snapshot.lsn > newest or not self._is_on_history(snapshot):
                continue  # being written, or not named by a record yet; or nothing leads from it to where history is now
            enough = kept >= count
            if enough and self._settings.pitr_horizon_s > 0:
                # Restoring to any time within the horizon needs one snapshot from before it.
                enough = newer_ms is not None and newer_ms < horizon_ms
            if enough:
                return keep_from
            if dry_run or self._is_good(snapshot.name):
                kept += 1
                keep_from = snapshot.lsn
                newer_ms = snapshot.modified_ms
        # No snapshot is older than the horizon: restoring to its beginning replays from further back still.
        inside = self._settings.pitr_horizon_s > 0 and (newer_ms is None or newer_ms >= horizon_ms)
        return 0 if inside else keep_from

    def _pinned_from(self, stored: Sequence[StoredSnapshot], lsn: int, *, dry_run: bool) -> int:
        """The lsn of the newest good snapshot at or below ``lsn``; 0 where there is none: then everything that is left stays."""
        for snapshot in reversed(stored):
            if snapshot.lsn <= lsn and (dry_run or (self._is_on_history(snapshot) and self._is_good(snapshot.name))):
                with suppress(ChunkNotFound):
                    if not dry_run:
                        self._storage.harden(snapshot.name)  # its owner may have died before it was synced (P6)
                    return snapshot.lsn
        return 0

    def _is_on_history(self, snapshot: StoredSnapshot) -> bool:
        """Whether what its owner had at its lsn was not cut off from history since: said by the OPEN that leads past that owner."""
        writer, opened = snapshot.epoch, self._own
        try:
            while opened.payload.previous_epoch > writer:
                opened = self._streams.opened(opened.payload.previous_epoch)
        except Damaged:
            return False  # what leads there cannot be read: an older one will do
        return writer == self._own.epoch or (writer < opened.epoch and snapshot.lsn <= opened.payload.last_lsn)

    def _is_good(self, name: str) -> bool:
        """Whether the snapshot can be read to its end. Asked once per name; ours were read back when they were written."""
        if name in self._validated:
            return True
        try:
            verify_snapshot(self._storage, name, container=self._streams.container)
        except (Damaged, ChunkNotFound):
            return False
        self._validated.add(name)
        return True

    def _due_records(self, keep_from: int) -> Iterator[ChunkInfo]:
        """Records with an lsn up to ``keep_from`` in streams below our own, oldest first."""
        waiting: tuple[_Stream, Opened] | None = None
        for stream in self._list_streams():
            try:
                opened = self._streams.slot0(stream.epoch)
            except Damaged:
                continue  # what it holds is not known, and stays
            if not isinstance(opened, Opened):
                continue  # void: nothing there was ever part of history
            if waiting is not None:
                due, whole = self._due_after(*waiting, opened, keep_from)
                yield from due
                if not whole:
                    return
            waiting = (stream, opened)
        if waiting is not None:
            yield from self._due_after(*waiting, self._own, keep_from)[0]

    def _due_after(
        self, stream: _Stream, opened: Opened, following: Opened, keep_from: int
    ) -> tuple[list[ChunkInfo], bool]:
        """What may go of one stream, and whether that is all of it. ``following`` is the OPEN of a later stream."""
        if stream.log is not None:
            # Whatever a zombie wrote after the cut was never part of history; only what is before it counts.
            goes = following.before_embedded.lsn <= keep_from and stream.epoch < self._oldest_inline_record[0]
            return ([stream.log], True) if goes else ([], False)
        # The highest index of a sealed stream is its SEAL, which stays. Should a lagging LIST hide it, a record stays longer.
        records = stream.slots[:-1]
        due = [
            info
            for index, info in records
            if opened.header.lsn + index <= keep_from and (stream.epoch, index) < self._oldest_inline_record
        ]
        if due and not self._storage.exists(stream.slots[-1][1].name):
            # The LIST shows what is gone, such as a longer stream in a root that was replaced: the SEAL may be the slot below.
            return [], False
        return due, len(due) == len(records)

    def _list_streams(self) -> Iterator[_Stream]:
        """Streams below our own that have anything to collect, by epoch."""
        names = self._names
        stream = _Stream(-1)
        for info in iter_listing(self._storage, names.journal_prefix()):
            slot = names.parse_slot(info.name)
            epoch = slot[0] if slot is not None else names.parse_log(info.name)
            if epoch is None:
                continue
            if epoch != stream.epoch:
                if stream.has_records:
                    yield stream
                stream = _Stream(epoch)
            if epoch >= self._own.epoch:
                return
            if slot is None:
                stream.log = info
            elif slot[1]:
                stream.slots.append((slot[1], info))
        if stream.has_records:
            yield stream
