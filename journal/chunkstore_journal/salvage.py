"""The last good state of a container whose history no replay accepts, and which records follow it (protocol 3.15).

Promises: reads only. The state comes from the newest snapshot that can be read and is on history, or from the beginning, and leads up to
the first record that is missing, damaged, or contradicts its digest. A record of which nothing but bytes of appends is damaged counts,
if the next one names its hash. Records after the gap are counted, never replayed.
Leaves out: the bytes of chunks (``chunkstore.backup.salvage``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.checksum import crc32c_combine, crc32c_extend, crc32c_of_bytes
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.journal import RecordKind, RecordsPast
from chunkstore.metadata.keys import SEGMENT, VISIBLE_SEGMENTS
from chunkstore.metadata.lines import line_extents
from chunkstore.metadata.port import Commit, MetadataCache, MetadataStore, Position
from chunkstore.storage import ChunkHandle, iter_listing
from chunkstore_journal.ends import contradicts, missing
from chunkstore_journal.extents import extents_of, lines_of
from chunkstore_journal.history import Opened, Streams, position_after
from chunkstore_journal.lease import read_lease
from chunkstore_journal.payloads import BLOB_AT, decode_ops
from chunkstore_journal.record import HEADER_BYTES, Record, decode_unproven, peek_length
from chunkstore_journal.recovery import commit_of, commits_of_open
from chunkstore_journal.snapshot import list_snapshots, load_snapshot
from chunkstore_journal.walk import find_last_claim

__all__ = ["LastGood", "damaged_record", "last_good_state"]

_BATCH_RECORDS: Final = 256
_WORKERS: Final = 16
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


_Found: TypeAlias = tuple[Record, str, int, int, Damaged | None]
"""A record, its object, where it begins and ends there, and what is damaged of it."""


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
            for record, name, begin, position in _records(streams, at, end, token):
                yield commit_of(record, position, object=name, at=begin)
                at = position
            if end is not None and (at.lsn, at.hash) != (end.lsn, end.hash):
                text = f"epoch {epoch} does not end as its successor recorded"
                raise Damaged(text, object=streams.names.stream(epoch), position=at.end)


def _records(
    streams: Streams, last: Position, end: Position | None, token: bytes | None
) -> Iterator[tuple[Record, str, int, Position]]:
    """The records of a stream after ``last``. Those of which bytes of appends are damaged come with what proves their hashes: the next one
    that is whole, or ``end``. Raises ``Damaged`` after the last good one."""
    unproven: list[tuple[Record, str, int, Position]] = []
    doubt: Damaged | None = None
    reader = _log(streams, last, end, token) if streams.mode == "append" else _slots(streams, last, end)
    for record, name, begin, stop, damage in reader:
        try:
            last = position_after(record, last, object=name, end=stop)
        except Damaged as error:
            raise doubt or error from None
        unproven.append((record, name, begin, last))
        doubt = doubt or damage
        if damage is None:
            yield from unproven
            unproven, doubt = [], None
    if doubt is not None and (end is None or (last.lsn, last.hash) != (end.lsn, end.hash)):
        raise doubt
    yield from unproven


def _log(streams: Streams, start: Position, end: Position | None, token: bytes | None) -> Iterator[_Found]:
    name, lsn, doubted = streams.names.log(start.epoch), start.lsn, -1
    reader = streams.log_reader(start.epoch, start.end, None if end is None else end.end)
    while True:
        begin = reader.offset
        for record in reader:
            yield record, name, begin, reader.offset, None
            begin, lsn = reader.offset, record.header.lsn
        if reader.ended == "clean":
            break
        found = damaged_record(streams, name, begin)
        if found is None:
            if end is None and reader.find_record_after(begin, lsn=lsn, token=token, moved=True) is None:
                return  # as a torn write leaves it
            if doubted == begin:
                raise Damaged(reader.reason, object=name, position=begin)
            doubted = begin  # once more: an owner that is alive may have gone on meanwhile
            continue
        record, damage = found
        reader.offset, lsn = begin + record.size, record.header.lsn
        yield record, name, begin, reader.offset, damage
    if end is not None and begin < end.end:
        raise Damaged(f"{end.end - begin} bytes of it are missing", object=name, position=begin)


def _slots(streams: Streams, start: Position, end: Position | None) -> Iterator[_Found]:
    epoch = start.epoch
    stop = max(_slots_of(streams, epoch), default=0) + 1 if end is None else end.index
    pool = runtime.pool("journal-salvage", _WORKERS)
    try:
        for first in range(start.index, stop, _WORKERS):
            indexes = range(first, min(stop, first + _WORKERS))
            # One that cannot be read must not hide those before it, which are asked for at the same time.
            calls = [partial(_slot, streams, epoch, index) for index in indexes]
            for index, found in zip(indexes, pool.run_all(calls), strict=True):
                if isinstance(found, Damaged):
                    raise found
                record, damage = found
                if record.header.kind == RecordKind.SEAL and end is None and index == stop - 1:
                    return
                yield record, streams.names.slot(epoch, index), 0, 0, damage
    finally:
        pool.close()


def _slot(streams: Streams, epoch: int, index: int) -> tuple[Record, Damaged | None] | Damaged:
    name = streams.names.slot(epoch, index)
    try:
        return streams.read_slot(epoch, index), None
    except Damaged as damage:
        return damaged_record(streams, name, None) or damage
    except ChunkNotFound:
        return Damaged("a record of history is missing", object=name)


def damaged_record(streams: Streams, name: str, begin: int | None) -> tuple[Record, Damaged] | None:
    """The record at byte ``begin`` of a log (None: in a slot of its own) of which nothing but bytes of appends is damaged, and what to say
    of it. Raises ``ChunkNotFound``, and what the storage raises.

    Its header has its CRC32C, and the payload's CRC32C in it is what follows from the payload with the CRC32Cs of the extents in the place
    of their bytes. That the record was durable only the next one proves, which names its hash.
    """
    handle, position = ChunkHandle(name, False), begin or 0
    size = peek_length(streams.storage.read(handle, position, HEADER_BYTES), 0, position)
    found = decode_unproven(streams.storage.read(handle, position, size or HEADER_BYTES), streams.container, position)
    if found is None:
        return None
    record, crc = found
    if crc32c_of_bytes(record.payload) == crc:
        return None  # its hash is damaged
    try:
        extents = _extents(record, begin, name)
    except Damaged:
        return None
    proven, at = 0, 0
    for start, length, part in extents:
        proven = crc32c_combine(crc32c_extend(proven, record.payload[at:start]), part, length)
        at = start + length
    if not extents or crc32c_extend(proven, record.payload[at:]) != crc:
        return None
    return record, Damaged("bytes of appends are damaged in this record", object=name, position=position)


def _extents(record: Record, begin: int | None, name: str) -> list[tuple[int, int, int]]:
    """The extents in a payload: begin, length and CRC32C. Raises ``Damaged``."""
    position = begin or 0
    lines = lines_of(record, begin, object=name, position=position)
    if lines is None:
        ops, rows = decode_ops(record.payload, object=name, position=position)
        found = extents_of(record, ops, rows, begin=begin, object=name, position=position)
        return [(row.object_offset - position - HEADER_BYTES, row.length, row.crc32c or 0) for _, row in found]
    extents, at = list[tuple[int, int, int]](), BLOB_AT
    for _, _, length, part in line_extents(lines):
        extents.append((at, length, part))
        at += length
    return extents


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
