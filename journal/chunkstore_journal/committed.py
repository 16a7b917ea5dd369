"""How far a stream is committed, seen by a caller that does not own it (protocol 3.13, P9).

Promises: what is in front of the end that is found is history for ever: in SLOT mode its object exists (and was hardened); in APPEND
mode a later record says so, or the file was hardened, holds the record past any page cache, and the next epoch was unclaimed after that.
Leaves out: which stream is the newest (``follower``, ``walk``).
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.errors import ChunkNotFound
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Position
from chunkstore_journal.append_stream import is_suspect
from chunkstore_journal.history import Opened, StreamEnd, Streams, check_link, probe_dense
from chunkstore_journal.record import Record, RecordHeader

__all__ = ["committed_end"]


def committed_end(
    streams: Streams,
    opened: Opened,
    start: Position,
    beyond: Callable[[RecordHeader], bool] | None = None,
) -> StreamEnd:
    """The committed end of a stream that no OPEN has ended, as far as it can be seen. ``start``: a committed point of it.

    ``beyond``: records from the first one on for which it is true are not wanted; where the mode is APPEND, reading ends there.
    Raises ``ChunkNotFound`` (seen and gone: a new owner has opened and collects), ``Damaged``, ``StorageFull``, ``StorageUnavailable``.
    """
    if streams.mode == "append":
        return _end_of_log(streams, opened, start, beyond)
    return _end_of_slots(streams, opened, start)


def _end_of_slots(streams: Streams, opened: Opened, start: Position) -> StreamEnd:
    epoch, names, storage = opened.epoch, streams.names, streams.storage
    last = probe_dense(lambda index: storage.exists(names.slot(epoch, index)), start.index - 1)
    if last > start.index:
        _check_next(streams.read_slot(epoch, start.index), start, names.slot(epoch, start.index))
    while last >= start.index:
        record = streams.read_slot(epoch, last)
        if last == start.index:
            _check_next(record, start, names.slot(epoch, last))
        if record.header.kind != RecordKind.SEAL:
            # Existence is commitment, for a successor seals after it; but only once it cannot vanish (P6).
            storage.harden(names.slot(epoch, last))
            return StreamEnd(last + 1, 0, record.header.lsn, record.hash)
        # A SEAL proves nothing until an OPEN on H names it: it may be a doomed claimant's.
        last -= 1
    return StreamEnd(start.index, 0, start.lsn, start.hash)


def _check_next(record: Record, start: Position, name: str) -> None:
    """Raise ``Damaged`` where it does not follow ``start``: then this is not the stream that ``start`` was seen in."""
    if record.header.kind != RecordKind.SEAL:
        check_link(record, start, object=name, position=0)


def _end_of_log(
    streams: Streams, opened: Opened, start: Position, beyond: Callable[[RecordHeader], bool] | None
) -> StreamEnd:
    epoch, name, storage = opened.epoch, streams.names.log(opened.epoch), streams.storage
    reader = streams.log_reader(epoch, start.end)
    committed = last = start
    wanted: Position | None = None
    suspected: int | None = None
    try:
        while True:
            for record in reader:
                check_link(record, last, object=name, position=last.end)
                if record.header.committed_lsn >= last.lsn:
                    committed = last
                if wanted is None and beyond is not None and beyond(record.header):
                    wanted = last
                if wanted is not None and wanted.lsn <= committed.lsn:
                    return _end(wanted)
                last = Position(record.header.lsn, record.hash, epoch, last.index + 1, reader.offset)
            if reader.ended != "tail" or not is_suspect(streams, opened, last, reader, suspected):
                break
            suspected = last.index
        durable = last.lsn > committed.lsn and _is_durable(streams, committed, last)
        if durable and not storage.exists(streams.names.epoch(epoch + 1)):
            # Durable, and unclaimed after that: every later claimant must read it (P5, case 1).
            committed = last
    except ChunkNotFound:
        if start.end or last.index > start.index:
            raise
    return _end(committed if wanted is None or committed.lsn < wanted.lsn else wanted)


def _is_durable(streams: Streams, before: Position, last: Position) -> bool:
    """Whether a power cut leaves what follows ``before``, up to ``last``; made so where this can be done.

    The sync of ours alone proves nothing: where the owner's has failed, the pages count as clean, and are readable as long as this
    machine is up (protocol 2.3). Then the record waits for one after it, or for the next OPEN, which embeds it.
    """
    streams.storage.harden(streams.names.log(last.epoch))
    return any(
        record.hash == last.hash for record in streams.log_reader(last.epoch, before.end, last.end, is_uncached=True)
    )


def _end(position: Position) -> StreamEnd:
    return StreamEnd(position.index, position.end, position.lsn, position.hash)
