"""Whether the lowest pin can be restored: what the journal's collector must have left for it (protocol 3.14.7, invariant 39).

Promises: reads only. A snapshot at or below the pin that can be read and is on history, or the beginning, and every record from there up
to the pin; damage is a finding, never an error. Leaves out: the chunks (``chunkstore.operations.check``), replaying.
"""

from __future__ import annotations

from collections.abc import Iterator

from chunkstore import runtime
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged
from chunkstore.records.invariants import PINNED
from chunkstore_journal.history import Streams
from chunkstore_journal.inspect import Finding
from chunkstore_journal.snapshot import list_snapshots, verify_snapshot
from chunkstore_journal.walk import (
    first_kept,
    has_beginning,
    legs_of_history,
    newest_opened,
    stored_records,
)

__all__ = ["check_pinned"]

_WORKERS = 16


def check_pinned(streams: Streams, lsn: int) -> Iterator[Finding]:
    """Findings of invariant 39 about the pin at ``lsn``, the lowest of all. Raises ``StorageUnavailable``."""
    newest = newest_opened(streams)
    try:
        start = _start(streams, lsn)
        if start is None:
            message = (
                f"lsn {lsn} is pinned, and neither a snapshot at or below it nor the beginning of history can be read"
            )
            yield Finding(PINNED, "error", streams.names.snapshot_prefix(), 0, message)
            return
        yield from _check_records(streams, start, lsn, newest)
    except Damaged as damage:
        yield Finding(PINNED, "error", damage.object, damage.position, damage.message)


def _start(streams: Streams, lsn: int) -> int | None:
    """The lsn of the newest usable snapshot at or below the pin, 0 for the beginning, None: there is no such place."""
    for stored in reversed(list_snapshots(streams.storage, streams.names)):
        if stored.lsn > lsn:
            continue
        try:
            verify_snapshot(streams.storage, stored.name, container=streams.container)
        except (ChunkNotFound, Damaged):
            continue
        return stored.lsn
    return 0 if has_beginning(streams) else None


def _check_records(streams: Streams, start: int, lsn: int, newest: int) -> Iterator[Finding]:
    pool = runtime.pool("journal-pin-check", _WORKERS)
    try:
        for leg in legs_of_history(streams, newest):
            first = leg.opened.header.lsn
            if leg.end.lsn <= start or first > lsn:
                continue
            missing = streams.names.stream(leg.opened.epoch) if first_kept(streams, leg).lsn > max(start, first) else ""
            try:
                for record, *_ in stored_records(streams, leg, pool, start, []):
                    if record.header.lsn >= lsn:
                        break
            except ChunkNotFound as gone:
                missing = missing or gone.chunk
            except ChunkstoreError:
                pass  # what cannot be read is reported with invariant 6
            if missing:
                message = f"lsn {lsn} is pinned, and records between lsn {start} and it are missing here"
                yield Finding(PINNED, "error", missing, 0, message)
    finally:
        pool.close()
