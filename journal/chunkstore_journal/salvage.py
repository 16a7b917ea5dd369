"""The last good state of a container whose history no replay accepts, and which records follow it (protocol 3.15).

Promises: reads only. The state comes from the newest snapshot that can be read and is on history, or from the beginning, and leads up to
the first record that is missing, damaged, or contradicts its digest. A record of which nothing but bytes of appends is damaged counts,
if the next one names its hash. Records after the gap are counted, never replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.journal import RecordKind, RecordsPast
from chunkstore.metadata.keys import SEGMENT, VISIBLE_SEGMENTS
from chunkstore.metadata.port import Commit, MetadataCache, MetadataStore, Position
from chunkstore.storage import ChunkHandle, iter_listing
from chunkstore_journal.ends import contradicts, missing
from chunkstore_journal.extents import lines_of
from chunkstore_journal.history import Opened, Streams, position_after
from chunkstore_journal.lease import read_lease
from chunkstore_journal.payloads import decode_ops
from chunkstore_journal.record import HEADER_BYTES, Record, decode_damaged, peek_length
from chunkstore_journal.recovery import Link, commit_of, commits_of_open, records_between
from chunkstore_journal.snapshot import list_snapshots, load_snapshot
from chunkstore_journal.walk import find_last_claim, visible_records

__all__ = ["LastGood", "damaged_record", "last_good_state"]

_BATCH_RECORDS: Final = 256
_NAMED_MAX: Final = 1_000


class LastGood(NamedTuple):
    """``store`` has the last good state. ``damage``: why history does not go on from there; None: this is its end."""

    store: MetadataStore
    damage: Damaged | None
    past: RecordsPast


class _Stretch(NamedTuple):
    """A stream of history: its OPEN, or why that cannot be read; and where its successor's OPEN leaves it (None: no one says so)."""

    epoch: int
    opened: Opened | Damaged
    end: Position | None


def last_good_state(streams: Streams, cache: MetadataCache) -> LastGood:
    """The last good state, in a new store of ``cache``. Raises ``Damaged`` where nothing leads to any, and what storage and store raise."""
    stretches = _stretches(streams)
    names = [stored.name for stored in list_snapshots(streams.storage, streams.names) if stored.has_main]
    for name in (*reversed(names), ""):
        store = cache.create()
        found: LastGood | None = None
        try:
            found = _from(streams, store, name, stretches)
        finally:
            if found is None:
                cache.discard(store)
        if found is not None:
            return found
    text = "no snapshot can be read, and no record follows the beginning: nothing can be salvaged. Restore a backup"
    raise Damaged(text, object=streams.names.snapshot_prefix())


def _from(streams: Streams, store: MetadataStore, name: str, stretches: list[_Stretch]) -> LastGood | None:
    """What the snapshot ``name`` leads to; of "" the beginning. None: nothing."""
    if name:
        try:
            load_snapshot(streams.storage, name, store, container=streams.container)
        except (Damaged, ChunkNotFound):
            return None
    start = store.head().position
    first = _first(streams, stretches, name, start)
    if first is None:
        return None
    damage = _replay(streams, store, stretches[first:])
    end = store.head().position
    beginning = stretches[0].opened
    if damage is not None and not name and isinstance(beginning, Opened) and end.lsn <= beginning.header.lsn:
        return None  # an empty container would be a lie
    lease = read_lease(streams.storage, streams.names)
    if damage is None and lease is not None and contradicts(lease, end):
        text = f"{missing(end, lease.lsn)}, according to the lease of epoch {lease.epoch}"
        damage = Damaged(text, object=streams.names.lease)
    return LastGood(store, damage, _count(streams, stretches, end) if damage is not None else RecordsPast())


def _stretches(streams: Streams) -> list[_Stretch]:
    """The streams of history, oldest first, as far as their OPENs lead; where one cannot be read, the next lower one that has records."""
    found: list[_Stretch] = []
    following: Opened | None = None
    epoch = find_last_claim(streams)
    while epoch > 0:
        opened: Opened | Damaged
        try:
            slot0 = streams.slot0(epoch)
            if not isinstance(slot0, Opened):
                if following is None and (slot0 is not None or not _has_bytes(streams, epoch)):
                    epoch -= 1
                    continue
                raise Damaged("this stream was opened, but its OPEN is missing", object=streams.names.slot(epoch, 0))
            opened = slot0
        except Damaged as damage:
            opened = damage
        found.append(_Stretch(epoch, opened, None if following is None else following.previous_end))
        following = opened if isinstance(opened, Opened) else None
        epoch = epoch - 1 if following is None else following.payload.previous_epoch
    return found[::-1]


def _has_bytes(streams: Streams, epoch: int) -> bool:
    """Whether anything was written in a stream: the log of one that never opened is empty."""
    return any(info.length for info in iter_listing(streams.storage, streams.names.stream(epoch)))


def _slots_of(streams: Streams, epoch: int) -> list[int]:
    names = streams.names
    found = (names.parse_slot(info.name) for info in iter_listing(streams.storage, names.stream(epoch)))
    return sorted(slot[1] for slot in found if slot is not None)


def _first(streams: Streams, stretches: list[_Stretch], name: str, start: Position) -> int | None:
    """The number of the stretch in which a replay from ``start`` goes on; None where that is not on history."""
    for number, (epoch, opened, end) in enumerate(stretches):
        if not start.lsn:
            begins = isinstance(opened, Opened) and not opened.payload.previous_epoch
            base = opened.founded_on if isinstance(opened, Opened) else None
            return 0 if begins and name == ("" if base is None else base.name) else None
        if epoch == start.epoch:
            # A record that the next OPEN has taken in is one further.
            is_inside = end is None or start.index <= end.index + 1
            return number if is_inside and not streams.goes_on_without(start) else None
    return None


# ---- replay


def _replay(streams: Streams, store: MetadataStore, stretches: list[_Stretch]) -> Damaged | None:
    """Bring the store as far as it goes; why not further."""
    commits = _commits(streams, stretches, store.head().position)
    damage: Damaged | None = None
    while True:
        batch: list[Commit] = []
        try:
            batch.extend(islice(commits, _BATCH_RECORDS))  # keeps those before an error
        except Damaged as error:
            damage = error
        except ChunkNotFound as error:
            damage = Damaged("a record of history is missing", object=error.chunk)
        if not batch:
            return damage
        bad = _apply(store, batch)
        if bad is not None:
            at = bad.position
            name = streams.object_of(at.epoch, max(0, at.index - 1))
            return Damaged(f"the record with lsn {at.lsn} does not lead to the state that it names", object=name)


def _apply(store: MetadataStore, batch: list[Commit]) -> Commit | None:
    """Apply them, up to the first one that does not lead to the state that it names, which is returned."""
    with suppress(Damaged):
        if store.apply(batch, verify=True):
            return None
    if len(batch) == 1:
        return batch[0]
    return next((bad for commit in batch if (bad := _apply(store, [commit])) is not None), None)


def _commits(streams: Streams, stretches: list[_Stretch], at: Position) -> Iterator[Commit]:
    for epoch, opened, end in stretches:
        if epoch != at.epoch:
            if isinstance(opened, Damaged):
                raise opened
            for commit in commits_of_open(opened, embedded=True):
                if commit.position.lsn > at.lsn:
                    yield commit
            at = opened.position
        if end is None or at.lsn < end.lsn:
            token = opened.header.token if isinstance(opened, Opened) else None
            for record, before, position in _records(streams, token, at, end):
                yield commit_of(record, position, object=streams.object_of(epoch, before.index), at=before.end)
                at = position
            if end is not None and (at.lsn, at.hash) != (end.lsn, end.hash):
                text = f"epoch {epoch} does not end as its successor recorded"
                raise Damaged(text, object=streams.names.stream(epoch), position=at.end)


def _records(streams: Streams, token: bytes | None, last: Position, end: Position | None) -> Iterator[Link]:
    """The records of a stream after ``last``. Those of which bytes of appends are damaged come with what proves their hashes: the next one
    that is whole, or ``end``. Raises ``Damaged`` and ``ChunkNotFound`` after the last good one."""
    unproven: list[Link] = []
    doubt: Damaged | None = None
    while end is None or last.index < end.index:
        is_log = streams.mode == "append"
        try:
            found = visible_records(streams, token, last) if end is None else records_between(streams, last, end)
            for link in found:
                yield from unproven
                yield link
                last, unproven, doubt = link[2], [], None
            if end is None and not is_log and last.index < max(_slots_of(streams, last.epoch), default=0):
                raise Damaged("a record of history is missing", object=streams.object_of(last.epoch, last.index))
            break
        except Damaged as damage:
            name = streams.object_of(last.epoch, last.index)
            record = damaged_record(streams, name, last.end if is_log else None)
            if record is None:
                raise doubt or damage from None
            text = "bytes of appends are damaged in this record"
            doubt = doubt or Damaged(text, object=name, position=last.end)
            stop = last.end + record.size if is_log else 0
            before, last = last, position_after(record, last, object=name, end=stop)
            unproven.append((record, before, last))
    if doubt is not None and (end is None or (last.lsn, last.hash) != (end.lsn, end.hash)):
        raise doubt
    yield from unproven


def damaged_record(streams: Streams, name: str, begin: int | None) -> Record | None:
    """The record at byte ``begin`` of a log (None: in a slot of its own) of which nothing but bytes of appends is damaged.

    That it was durable only the next one proves, which names its hash. Raises ``ChunkNotFound``, and what the storage raises.
    """
    handle, position = ChunkHandle(name, False), begin or 0
    size = peek_length(streams.storage.read(handle, position, HEADER_BYTES), 0, position)
    return decode_damaged(streams.storage.read(handle, position, size or HEADER_BYTES), streams.container, position)


# ---- records after the gap


def _count(streams: Streams, stretches: list[_Stretch], good: Position) -> RecordsPast:
    past, names = RecordsPast(), set[str]()
    for record, begin in _intact(streams, [item for item in stretches if item.epoch >= good.epoch], good):
        header = record.header
        if header.lsn <= good.lsn or header.kind in (RecordKind.OPEN, RecordKind.SEAL):
            continue
        if not past.records:
            past = past._replace(lsn_min=header.lsn, first_ms=header.time_ms)
        # In the order in which they were written.
        past = past._replace(records=past.records + 1, lsn_max=header.lsn, last_ms=header.time_ms)
        if len(names) < _NAMED_MAX:
            with suppress(Damaged):
                names |= _segments(record, begin)
    return past._replace(segments=tuple(sorted(names)[:_NAMED_MAX]))


def _intact(streams: Streams, stretches: Sequence[_Stretch], good: Position) -> Iterator[tuple[Record, int | None]]:
    """The records after ``good`` that can be read, each with the byte of the log where it is or was."""
    for epoch, opened, end in stretches:
        token = None
        if isinstance(opened, Opened):
            token = opened.header.token
            if opened.embedded is not None:
                yield opened.embedded, opened.payload.end_byte
        index, byte = (good.index, good.end) if epoch == good.epoch else (1, 0)
        if streams.mode == "append":
            with suppress(ChunkNotFound):
                yield from _intact_of_log(streams, epoch, byte, end, good.lsn, token)
            continue
        for number in _slots_of(streams, epoch):
            if number >= index and (end is None or number < end.index):
                with suppress(ChunkNotFound, Damaged):
                    yield streams.read_slot(epoch, number), None


def _intact_of_log(
    streams: Streams, epoch: int, byte: int, end: Position | None, lsn: int, token: bytes | None
) -> Iterator[tuple[Record, int]]:
    reader = streams.log_reader(epoch, byte, None if end is None else end.end)
    while True:
        begin = reader.offset
        with suppress(Damaged):
            for record in reader:
                yield record, begin
                begin = reader.offset
        later = reader.find_record_after(begin, lsn=lsn, token=token)
        if later is None:
            return
        reader.offset = later[0]


def _segments(record: Record, begin: int | None) -> set[str]:
    """The segments that a record names. Raises ``Damaged``."""
    lines = lines_of(record, begin, object="", position=0)
    if lines is not None:
        return {line.name.decode("utf-8", "replace") for line in lines.lines}
    _, rows = decode_ops(record.payload, object="", position=0)
    found = (key for key, _ in rows if key[:1] == SEGMENT and key >= VISIBLE_SEGMENTS)
    return {key[1:].decode("utf-8", "replace") for key in found}
