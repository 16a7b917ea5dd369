"""Walking along history as it is stored, without owning it: its streams, its records, and what was collected of them.

Promises: changes nothing; follows links that it has checked. Records of the newest stream are shown as far as they are visible; the
last one may still be undecided. What is in front of ``committed_end`` is history for ever: in SLOT mode its object exists (and was
hardened); in APPEND mode a later record says so, or the file was hardened, holds the record past any page cache, and the next epoch
was unclaimed after that. What a collector took is left out, what is missing else is ``ChunkNotFound``.
Leaves out: what the records say, and judging them (``check``, ``replay_check``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Position
from chunkstore_journal.append_stream import is_suspect, last_record
from chunkstore_journal.claim import find_top, next_below, read_latest, read_voided
from chunkstore_journal.history import Leg, Opened, Streams, position_after, probe_dense
from chunkstore_journal.payloads import SnapshotLink
from chunkstore_journal.record import Record, RecordHeader
from chunkstore_journal.recovery import Link, records_between

__all__ = [
    "collected_max",
    "committed_end",
    "find_last_claim",
    "first_kept",
    "has_beginning",
    "last_label_ms",
    "legs_of_history",
    "named_snapshots",
    "newest_opened",
    "stored_records",
    "visible_end",
    "visible_records",
]

_ASKED_MAX = 5


def find_last_claim(streams: Streams) -> int:
    """M, the highest epoch that is claimed."""
    latest = read_latest(streams.storage, streams.names)
    voided = read_voided(streams.storage, streams.names)
    hint = max(latest.epoch if latest is not None else 0, voided.epoch if voided is not None else 0)
    return find_top(streams.storage, streams.names, hint)


def newest_opened(streams: Streams, top: int | None = None, low: int = 0) -> Opened | None:
    """The newest stream above epoch ``low`` that opened, at or below ``top``."""
    epoch = find_last_claim(streams) if top is None else top
    hint = read_voided(streams.storage, streams.names) if epoch - low > 2 else None
    while epoch > low:
        found = streams.slot0(epoch)
        if isinstance(found, Opened):
            return found
        epoch = next_below(streams, epoch, hint) if found is not None else epoch - 1
    return None


def named_snapshots(streams: Streams, newest: Opened | None) -> list[SnapshotLink]:
    """What LATEST and the newest OPEN name."""
    latest = read_latest(streams.storage, streams.names)
    links = latest.snapshot if latest is not None else None, newest.payload.snapshot if newest is not None else None
    return list({link.name: link for link in links if link is not None}.values())


def collected_max(streams: Streams, newest: Opened | None) -> int:
    """The lsn up to which records may be gone: a snapshot named by a note or an OPEN is there."""
    return max((link.lsn for link in named_snapshots(streams, newest)), default=0)


def legs_of_history(streams: Streams, top: int) -> Iterator[Leg]:
    """All streams of H that opened, oldest first; the end of the newest is where its visible records end."""
    following: Opened | None = None
    found: list[tuple[Opened, Opened | None]] = []
    epoch = top
    while epoch:
        slot0 = streams.slot0(epoch)
        if isinstance(slot0, Opened):
            found.append((slot0, following))
            following = slot0
            epoch = slot0.payload.previous_epoch
        else:
            epoch -= 1
    for opened, after in reversed(found):
        yield Leg(opened, after.previous_end if after is not None else visible_end(streams, opened))


def visible_end(streams: Streams, opened: Opened) -> Position:
    """Where the visible records of a stream that no OPEN has ended end. Raises ``Damaged``."""
    end = opened.position
    with suppress(ChunkNotFound):
        for _, _, position in visible_records(streams, opened.header.token, opened.position):
            end = position
    return end


def visible_records(streams: Streams, token: bytes | None, last: Position) -> Iterator[Link]:
    """What can be seen after ``last`` of a stream that no OPEN has ended. ``token``: of its OPEN; None: unknown.

    Raises ``Damaged`` for broken links and damage in the middle, ``ChunkNotFound`` where a log is missing.
    """
    epoch = last.epoch
    if streams.mode == "slot":
        for record in streams.read_slots(epoch, last.index, None):
            before, last = last, position_after(record, last, object=streams.names.slot(epoch, last.index))
            yield record, before, last
        return
    reader = streams.log_reader(epoch, last.end)
    suspected: int | None = None
    while True:
        for record in reader:
            before, last = last, position_after(record, last, object=streams.names.log(epoch), end=reader.offset)
            yield record, before, last
        if reader.ended != "tail" or not is_suspect(streams, token, last, reader, suspected):
            return
        suspected = last.index


def committed_end(
    streams: Streams,
    opened: Opened,
    start: Position,
    beyond: Callable[[RecordHeader], bool] | None = None,
) -> Position:
    """The committed end of a stream that no OPEN has ended, as far as it can be seen by a caller that does not own it (P9).
    ``start``: a committed point of it.

    ``beyond``: records from the first one on for which it is true are not wanted; where the mode is APPEND, reading ends there.
    Raises ``ChunkNotFound`` (seen and gone: a new owner has opened and collects), ``Damaged``, ``StorageFull``, ``StorageUnavailable``.
    """
    if streams.mode == "append":
        return _end_of_log(streams, opened, start, beyond)
    return _end_of_slots(streams, opened, start)


def _end_of_slots(streams: Streams, opened: Opened, start: Position) -> Position:
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
            return Position(record.header.lsn, record.hash, epoch, last + 1, 0)
        # A SEAL proves nothing until an OPEN on H names it: it may be a doomed claimant's.
        last -= 1
    return start


def _check_next(record: Record, start: Position, name: str) -> None:
    """Raise ``Damaged`` where it does not follow ``start``: then this is not the stream that ``start`` was seen in."""
    if record.header.kind != RecordKind.SEAL:
        position_after(record, start, object=name)


def _end_of_log(
    streams: Streams, opened: Opened, start: Position, beyond: Callable[[RecordHeader], bool] | None
) -> Position:
    committed = last = start
    wanted: Position | None = None
    try:
        for record, before, position in visible_records(streams, opened.header.token, start):
            last = position
            if record.header.committed_lsn >= before.lsn:
                committed = before
            if wanted is None and beyond is not None and beyond(record.header):
                wanted = before
            if wanted is not None and wanted.lsn <= committed.lsn:
                return wanted
        durable = last.lsn > committed.lsn and _is_durable(streams, committed, last)
        if durable and not streams.storage.exists(streams.names.epoch(opened.epoch + 1)):
            # Durable, and unclaimed after that: every later claimant must read it (P5, case 1).
            committed = last
    except ChunkNotFound:
        if start.end or last.index > start.index:
            raise
    return committed if wanted is None or committed.lsn < wanted.lsn else wanted


def _is_durable(streams: Streams, before: Position, last: Position) -> bool:
    """Whether a power cut leaves what follows ``before``, up to ``last``; made so where this can be done.

    A sync of ours alone proves nothing: where the owner's has failed, the pages count as clean, and are readable as long as this
    machine is up (protocol 2.3). Then the record waits for one after it, or for the next OPEN, which embeds it.
    """
    streams.storage.harden(streams.names.log(last.epoch))
    return any(
        record.hash == last.hash for record in streams.log_reader(last.epoch, before.end, last.end, is_uncached=True)
    )


def stored_records(
    streams: Streams, leg: Leg, gone_max: int, holes: list[str]
) -> Iterator[tuple[Record, bool, str, int]]:
    """(record, embedded, object, byte) of one leg: what its OPEN embeds, the OPEN, the rest. Collected records are left out.

    Raises: ``Damaged``, ``ChunkNotFound`` (missing, and not collected). See ``_from`` for ``gone_max`` and ``holes``.
    """
    opened = leg.opened
    if opened.embedded is not None:
        yield opened.embedded, True, opened.object, 0
    yield streams.read_slot(opened.epoch, 0), False, opened.object, 0
    for record, before, _ in _from(streams, first_kept(streams, leg), leg, gone_max, holes):
        yield record, False, streams.object_of(opened.epoch, record.header.index), before.end


def _from(streams: Streams, start: Position, leg: Leg, gone_max: int, holes: list[str]) -> Iterator[Link]:
    """Holes among what may have been collected (up to lsn ``gone_max``) are passed over; ``holes`` collects the first name of each.

    A power cut can bring a collected name back, and a late request a collected record: what is still there need not be one piece.
    """
    while True:
        try:
            yield from records_between(streams, start, leg.end)
            return
        except ChunkNotFound as missing:
            place = streams.names.parse_slot(missing.chunk)
            if place is None or leg.opened.header.lsn + place[1] > gone_max:
                raise
            holes.append(missing.chunk)
            start = _next_kept(streams, leg, place[1] + 1)


def _next_kept(streams: Streams, leg: Leg, index: int) -> Position:
    """In front of the first record that is there from ``index`` on."""
    epoch, end = leg.opened.epoch, leg.end
    for place in range(index, end.index):
        try:
            record = streams.read_slot(epoch, place)
        except ChunkNotFound:
            continue  # collected, perhaps while we look
        if record.header.kind != RecordKind.SEAL:
            return Position(record.header.lsn - 1, record.header.previous_hash, epoch, place, 0)
    return end


def _holds_record(streams: Streams, epoch: int, index: int) -> bool:
    """Whether the slot is still there. A SEAL below the stream's end is a doomed claimant's, in a hole."""
    try:
        return streams.read_slot(epoch, index).header.kind != RecordKind.SEAL
    except ChunkNotFound:
        return False
    except Damaged:
        return True  # it is there; reading the stream reports what is wrong with it


def first_kept(streams: Streams, leg: Leg) -> Position:
    """Where the uncollected rest of a stream begins: collection eats slots from the front, and logs whole."""
    opened, end = leg.opened, leg.end
    if end.index <= 1:
        return end
    if streams.mode == "append":
        return opened.position if streams.storage.exists(streams.names.log(opened.epoch)) else end
    if _holds_record(streams, opened.epoch, 1):
        return opened.position
    low, high = 2, end.index
    while low < high:
        middle = (low + high) // 2
        if _holds_record(streams, opened.epoch, middle):
            high = middle
        else:
            low = middle + 1
    return _next_kept(streams, leg, low)


def last_label_ms(streams: Streams, opened: Opened, end: Position) -> int:
    """The label of time of the last record below ``end``: labels must not go back along history (invariant 30). What cannot be read is not
    worth failing for: then the OPEN's. What is not found is there, and a gateway answers with what was: it is asked again."""
    for _ in range(_ASKED_MAX if end.index > 1 else 0):
        try:
            if streams.mode == "slot":
                return streams.read_slot(opened.epoch, end.index - 1).header.time_ms
            found = last_record(streams, end)
        except ChunkNotFound:
            continue
        except Damaged:
            break
        return opened.header.time_ms if found is None else found.header.time_ms
    return opened.header.time_ms


def has_beginning(streams: Streams) -> bool:
    """Whether history can be followed from nothing on: its first stream still has its first record, or never had any. Where it begins with
    a state it begins with that snapshot. Raises ``Damaged`` (on the way there)."""
    for leg in legs_of_history(streams, find_last_claim(streams)):
        if leg.opened.founded_on is not None:
            return False
        return leg.end.index <= 1 or streams.storage.exists(streams.object_of(leg.opened.epoch, 1))
    return True
