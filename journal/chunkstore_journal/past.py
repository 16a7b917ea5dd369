"""A moment of the past: which record of history is meant, and a store that shows the state after it (protocol 3.15).

Promises: only what is committed is ever shown, reached as every state is: from a snapshot, by replay with every record's digest. The store
is never the current one of its cache, and is deleted when closed. What leads there and was collected is ``PastCollected``.
Leaves out: the chunks of that moment, which may be gone; keeping any of it (pins).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.errors import (
    CacheDamaged,
    ChunkNotFound,
    Closed,
    Damaged,
    InvalidArgument,
    PastCollected,
    StorageUnavailable,
)
from chunkstore.journal import RecordKind
from chunkstore.metadata.codec import decode_chunk, encode_row
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.port import Commit, Head, MetadataCache, MetadataStore, Position, RowChange
from chunkstore.records.arguments import moment_text
from chunkstore.records.invariants import FUTURE_MS
from chunkstore.storage import ChunkStorage
from chunkstore_journal.ends import require_held
from chunkstore_journal.extents import place_in
from chunkstore_journal.history import Leg, Opened, Streams, open_streams
from chunkstore_journal.record import RecordHeader
from chunkstore_journal.recovery import NothingLeads, commits_of_open, materialise, records_between
from chunkstore_journal.snapshot import list_snapshots
from chunkstore_journal.snapshot_reader import read_snapshot_header
from chunkstore_journal.walk import committed_end, first_kept, has_beginning, last_label_ms, newest_opened

__all__ = ["Asked", "FixedState", "Moment"]

_TRIES: Final = 2


class Asked(NamedTuple):
    """What a caller names a moment by: exactly one of the two."""

    lsn: int | None
    time_ms: int | None

    def is_before(self, header: RecordHeader) -> bool:
        """Whether the record follows the moment."""
        return header.lsn > self.lsn if self.lsn is not None else header.time_ms > (self.time_ms or 0)


class Moment(NamedTuple):
    """Where history is left: at the end of ``leg``; or, with ``adopting``, after the record that this OPEN adopted, which follows it."""

    leg: Leg
    adopting: Opened | None

    @property
    def ahead(self) -> tuple[int, bytes] | None:
        """Number and hash of the adopted record."""
        return None if self.adopting is None else self.adopting.before_open[:2]

    @property
    def lsn(self) -> int:
        """The last record that is shown."""
        return self.leg.end.lsn if self.adopting is None else self.adopting.before_open.lsn


def _find_moment(streams: Streams, asked: Asked) -> Moment:
    """The newest committed record that is not after what was asked for.

    Raises ``InvalidArgument`` (the future, or a record of a wrong clock follows), ``PastCollected``, ``Damaged``, ``StorageUnavailable``.
    """
    tries_left = _TRIES
    while True:
        try:
            found = _find(streams, asked)
            _require_right_clock(streams, asked, found)
            return found
        except ChunkNotFound as missing:
            # A new owner may have opened and collected what was there a moment ago.
            if not tries_left:
                raise _gone(streams, asked) from missing
            tries_left -= 1


def _find(streams: Streams, asked: Asked) -> Moment:
    opened, following = newest_opened(streams), None
    if opened is None:
        raise _future(asked, 0)
    streams.storage.harden(opened.object)  # P6: what it embeds and where it cuts is shown here
    while asked.is_before(opened.header):
        if not opened.payload.previous_epoch:
            raise _gone(streams, asked)
        following, opened = opened, streams.opened(opened.payload.previous_epoch)
        inner = following.embedded
        if inner is not None and not asked.is_before(inner.header):
            return Moment(Leg(opened, following.previous_end), following)
    if following is not None:
        end = following.previous_end
    else:
        end = committed_end(streams, opened, opened.position, asked.is_before)
        _require_past(streams, opened, end, asked)
    return Moment(Leg(opened, _end_in(streams, Leg(opened, end), asked)), None)


def _require_right_clock(streams: Streams, asked: Asked, found: Moment) -> None:
    """Times never go back along history: those that follow one of a wrong clock do not say when their records were made."""
    now_ms = runtime.now_ms()
    if asked.time_ms is None or asked.time_ms > now_ms + FUTURE_MS:
        return
    newest = newest_opened(streams)
    assert newest is not None
    latest_ms = newest.header.time_ms
    if latest_ms <= now_ms + FUTURE_MS:
        latest_ms = last_label_ms(streams, newest, committed_end(streams, newest, newest.position))
    if latest_ms > now_ms + FUTURE_MS and _find(streams, Asked(None, now_ms)).lsn == found.lsn:
        text = (
            f"the records after lsn {found.lsn} have times after now, by a wrong clock: whether they were made by "
            f"{moment_text(asked.time_ms)} is unknown. Name the moment by its lsn; lsn {found.lsn} is the last one with a right time"
        )
        raise InvalidArgument(text, argument="at_time")


def _require_past(streams: Streams, opened: Opened, end: Position, asked: Asked) -> None:
    if asked.lsn is not None:
        if asked.lsn > end.lsn:
            claim = streams.names.epoch(opened.epoch + 1)
            if streams.storage.exists(claim):
                text = f"the next owner has claimed but not yet decided whether lsn {asked.lsn} is history; ask again"
                raise StorageUnavailable(text, object=claim)
            raise _future(asked, end.lsn)
    elif (asked.time_ms or 0) > max(runtime.now_ms(), last_label_ms(streams, opened, end)):
        raise _future(asked, end.lsn)


def _future(asked: Asked, lsn: int) -> InvalidArgument:
    if asked.lsn is not None:
        text = f"lsn {asked.lsn} is in the future: history ends at lsn {lsn}"
        return InvalidArgument(text, argument="at_lsn")
    return InvalidArgument(f"{moment_text(asked.time_ms or 0)} is in the future", argument="at_time")


def _end_in(streams: Streams, leg: Leg, asked: Asked) -> Position:
    """Where the stream is left: after its last record that is not after what was asked for. Its OPEN is not after it."""
    opened, end = leg
    if end.index <= 1 or asked.lsn == end.lsn:
        return end
    if asked.lsn == opened.header.lsn:
        return opened.position
    if streams.mode == "slot":
        return _end_in_slots(streams, leg, asked)
    try:
        for record, before, _ in records_between(streams, opened.position, end):
            if asked.is_before(record.header):
                return before
    except ChunkNotFound:
        return _kept_by_snapshot(streams, asked, end)
    return end


def _end_in_slots(streams: Streams, leg: Leg, asked: Asked) -> Position:
    opened, end = leg
    first = first_kept(streams, leg)
    if asked.lsn is not None:
        after = max(first.index, asked.lsn - opened.header.lsn + 1)
    else:
        slots = range(first.index, end.index)
        after = first.index + bisect_left(
            slots, True, key=lambda index: asked.is_before(streams.read_slot(opened.epoch, index).header)
        )
    if after == end.index:
        return end
    if after == first.index:
        is_known = first.index == 1 or asked.lsn == first.lsn
        return first if is_known else _kept_by_snapshot(streams, asked, first)
    # By the record after it: what a snapshot at this very lsn means may be collected.
    record = streams.read_slot(opened.epoch, after)
    if record.header.kind == RecordKind.SEAL:
        raise ChunkNotFound(streams.names.slot(opened.epoch, after))  # a doomed claimant's, in a hole
    return Position(record.header.lsn - 1, record.header.previous_hash, opened.epoch, after, 0)


def _kept_by_snapshot(streams: Streams, asked: Asked, end: Position) -> Position:
    """The label of the record at ``end`` is gone with it; a snapshot of its state is younger. Raises ``PastCollected``."""
    for lsn, time_ms in _snapshots(streams):
        if lsn == end.lsn and asked.time_ms is not None and time_ms <= asked.time_ms:
            return end
    raise _gone(streams, asked)


def _snapshots(streams: Streams) -> list[tuple[int, int]]:
    """The lsn and the time of snapshots that can be read, oldest first."""
    found = []
    for stored in list_snapshots(streams.storage, streams.names):
        try:
            header = read_snapshot_header(streams.storage, stored.name, container=streams.container)
        except (ChunkNotFound, Damaged):
            continue
        found.append((header.position.lsn, header.time_ms))
    return sorted(found)


def _gone(streams: Streams, asked: Asked) -> PastCollected:
    is_whole = has_beginning(streams)
    oldest = (1, 0) if is_whole else min(_snapshots(streams), default=None)
    what = f"lsn {asked.lsn}" if asked.lsn is not None else f"the state at {moment_text(asked.time_ms or 0)}"
    rest = "nor does anything lead to another moment"
    if is_whole:
        rest = "and history begins after it"
    elif oldest is not None:
        rest = f"the oldest moment that is left is lsn {oldest[0]}, at {moment_text(oldest[1])}"
    text = f"the history up to {what} is no longer stored; {rest}"
    return PastCollected(text, lsn=asked.lsn or 0, oldest_lsn=None if oldest is None else oldest[0])


def _moved(adopting: Opened, adopted: Commit) -> Commit:
    """The record with the places that the OPEN gives its extents: what follows the cut may go."""
    there = dict(adopting.payload.rows)
    if adopted.lines is not None:
        slot, shift = place_in(adopting.payload)
        return adopted._replace(lines=adopted.lines._replace(object=slot, at=adopted.lines.at + shift))
    rows = list[RowChange]()
    for key, value in adopted.rows:
        now = there.get(key) if key[:1] == CHUNK else None
        if value is not None and now is not None:
            chunk, place = decode_chunk(repr(key), value), decode_chunk(repr(key), now)
            value = encode_row(chunk.placed(place.object, place.object_offset))
        rows.append((key, value))
    return adopted._replace(rows=rows)


class FixedState:
    """A state of the past in a store of its own, in the place of a ``Follower``: it stays where it is. Not thread-safe, as that."""

    ahead = ""

    def __init__(self, streams: Streams, cache: MetadataCache, asked: Asked) -> None:
        """Find it and build it. Raises as ``_find_moment``, and ``StorageFull`` (cache disk)."""
        self._streams = streams
        self._cache = cache
        self._asked = asked
        self._moment = _find_moment(streams, asked)
        self._store: MetadataStore | None = None
        self.findings: tuple[str, ...] = ()

    @property
    def store(self) -> MetadataStore:
        """The store. Raises ``Closed``."""
        if self._store is None:
            raise Closed("this state of the past")
        return self._store

    @property
    def unopened_epoch(self) -> int | None:
        """None."""
        return None

    def catch_up(self) -> Head:
        """Nothing but the head, once the store is made; another is made where it has rotted. Raises as the constructor."""
        if self._store is not None:
            try:
                return self._store.head()
            except CacheDamaged:
                store, self._store = self._store, None
                self._cache.discard(store)
        moment = self._moment
        try:
            found = materialise(self._streams, self._cache, moment.leg, current=None, ahead=moment.ahead, past=True)
        except NothingLeads as error:
            raise _gone(self._streams, self._asked) from error
        self._store, self.findings = found.store, found.findings
        if moment.adopting is not None and self._store.head().position.lsn < moment.lsn:
            self._adopt(moment.adopting)
        return self._store.head()

    def _adopt(self, adopting: Opened) -> None:
        """Apply the record that this OPEN adopted. Raises ``Damaged``."""
        adopted = commits_of_open(adopting, embedded=True)[0]
        if self._store is None or not self._store.apply([_moved(adopting, adopted)], verify=False):
            self.close()
            text = "the record that this OPEN adopts does not follow the one before it"
            raise Damaged(text, object=adopting.object)

    def require_on_history(self, storage: ChunkStorage) -> None:
        """As the port says. Raises ``Damaged``, too, and what the storage raises."""
        require_held(open_streams(storage, self._streams.names), self._moment.leg)

    def close(self) -> None:
        """Delete the store. Safe to repeat."""
        store, self._store = self._store, None
        if store is not None:
            self._cache.discard(store)
