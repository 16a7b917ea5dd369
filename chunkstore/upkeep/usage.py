"""What a container takes up: the totals of its rows, and the sizes of objects that no row tells.

Promises: nothing is scanned but the index of extents, which are bounded. Journal and snapshots of former epochs are listed by the first
question, and again after a collection; what this owner writes is counted as it is written. Orphans are what the last listing of chunks
found. Leaves out: totals (the metadata store), finding orphans (``operations.orphans``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.metadata.port import MetadataView, Totals
from chunkstore.metadata.retained import all_extents, inline_chunks, oldest_inline_record, size_of_extents
from chunkstore.operations.space import Room
from chunkstore.records.segments import SegmentRecord, Usage

__all__ = ["Space", "StoredSizes", "Written", "count_extents", "segment_usage"]

StoredSizes: TypeAlias = Callable[[int | None], tuple[int, int, int]]
"""Lists the journal and the snapshots: the bytes of records, but for what follows the first one in streams from an epoch on, those of the
first ones, and the bytes of snapshots."""

_FRESH_S: Final = 60.0
"""A replica does not see what is written: it lists again, but no sooner."""


class Written(NamedTuple):
    """What an owner knows of its own writing: its epoch, bytes of that stream's records; bytes of records and snapshots since it opened."""

    epoch: int
    stream_bytes: int
    journal_bytes: int
    snapshot_bytes: int


class _Listing(NamedTuple):
    """Sizes at a moment; what was written until then is in them."""

    journal_bytes: int
    open_bytes: int
    snapshot_bytes: int
    time_ms: int
    made_s: float
    until: Written


_NOTHING_WRITTEN = Written(0, 0, 0, 0)


def _unknown_room() -> Room:
    return Room(None, None, None)


class Space:
    """Sizes of one container that no row tells. Thread-safe. ``written``: None where another process writes."""

    def __init__(
        self, stored_sizes: StoredSizes, written: Callable[[], Written] | None, room: Callable[[], Room] = _unknown_room
    ) -> None:
        self._stored_sizes = stored_sizes
        self._written = written
        self._room = room
        self._listing: _Listing | None = None
        self._orphans: tuple[int, int] | None = None

    def found_orphans(self, size_bytes: int) -> None:
        """A listing of all chunks found orphans of so many bytes."""
        self._orphans = size_bytes, runtime.now_ms()

    def forget(self) -> None:
        """Journal objects or snapshots were deleted: the next question lists again."""
        self._listing = None

    def usage(self, totals: Totals) -> Usage:
        """Of the whole container. Raises what listing raises."""
        listing = self._listing
        if listing is None or (self._written is None and runtime.monotonic_s() - listing.made_s > _FRESH_S):
            listing = self._listing = self._list()
        now = listing.until if self._written is None else self._written()
        orphan_bytes, orphans_ms = self._orphans or (None, None)
        return Usage(
            live_bytes=totals.live_bytes,
            garbage_bytes=totals.garbage_bytes,
            dead_head_bytes=totals.dead_head_bytes,
            orphan_bytes=orphan_bytes,
            journal_bytes=listing.journal_bytes + now.journal_bytes - listing.until.journal_bytes,
            snapshot_bytes=listing.snapshot_bytes + now.snapshot_bytes - listing.until.snapshot_bytes,
            chunks=totals.chunks,
            segments=totals.segments,
            listed_ms=listing.time_ms,
            orphans_ms=orphans_ms,
            open_bytes=listing.open_bytes,
            **self._room()._asdict(),
        )

    def _list(self) -> _Listing:
        # First what was written, then the listing: a record is never missing from both.
        until = _NOTHING_WRITTEN if self._written is None else self._written()
        time_ms, made_s = runtime.now_ms(), runtime.monotonic_s()
        journal_bytes, open_bytes, snapshot_bytes = self._stored_sizes(None if self._written is None else until.epoch)
        return _Listing(journal_bytes + until.stream_bytes, open_bytes, snapshot_bytes, time_ms, made_s, until)


class Extents(NamedTuple):
    """The fields of ``Usage`` about extents."""

    inline_bytes: int
    inline_extents: int
    held_epoch: int | None
    held_index: int | None


def count_extents(view: MetadataView) -> Extents:
    """One look for each: there are ``Tuning.inline_rows_max`` at most, about."""
    count, size_bytes = size_of_extents(view, all_extents(view))
    return Extents(size_bytes, count, *(oldest_inline_record(view) or (None, None)))


def segment_usage(view: MetadataView, segment: SegmentRecord) -> Usage:
    """Of one segment, from its row and those of its extents. Garbage knows no segment."""
    extents, inline_bytes = size_of_extents(view, (identity for _, identity in inline_chunks(view, segment)))
    return Usage(
        live_bytes=segment.length - segment.start_offset,
        garbage_bytes=None,
        dead_head_bytes=segment.first_chunk_skip,
        orphan_bytes=None,
        journal_bytes=None,
        snapshot_bytes=None,
        chunks=segment.chunk_count,
        segments=1,
        inline_bytes=inline_bytes,
        inline_extents=extents,
    )
