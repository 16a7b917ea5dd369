"""What lies behind the last good record: everything that can be read there, and the places that cannot (protocol 3.15).

Promises: reads only, in the order in which it was written, each record once; records that an earlier repair cut off, and what lies behind
a cut that history knows, are left out. Nothing is believed of a record but that its own checksums are right.
Leaves out: what it is worth (``chunkstore.operations.cut_off``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Lines, Op, RowChange
from chunkstore_journal.extents import extents_of, lines_of
from chunkstore_journal.history import Opened, Streams
from chunkstore_journal.payloads import decode_ops
from chunkstore_journal.record import Record
from chunkstore_journal.repair import Diagnosis, has_records, list_slots, streams_of

__all__ = ["Behind", "Unreadable", "records_behind"]


class Behind(NamedTuple):
    """A record behind the last good one that can be read: what it says, and where it lies."""

    lsn: int
    ops: Sequence[Op]
    rows: Sequence[RowChange]
    object: str
    position: int
    lines: Lines | None = None


class Unreadable(NamedTuple):
    """A place behind the last good record where something was written, or must have been, and cannot be read."""

    object: str
    position: int
    reason: str


def records_behind(streams: Streams, diagnosis: Diagnosis) -> Iterator[Behind | Unreadable]:
    """Everything behind the last good record, in the order in which it was written. Raises what the storage raises."""
    lsn = diagnosis.store.head().position.lsn
    cut = 0 if diagnosis.previous is None else diagnosis.previous.epoch
    groups, _ = streams_of(streams, diagnosis.top)
    ends = {opened.epoch: end for group in groups for opened, end in group}
    tokens = {opened.epoch: opened.header.token for group in groups for opened, _ in group}
    for epoch in range(max(1, cut), diagnosis.top + 1):
        if epoch not in ends and _is_of_no_account(streams, epoch):
            continue
        index, byte = 1, 0
        if epoch == cut:
            closed = diagnosis.closed
            index = closed.end.index + (closed.embedded is not None)
            byte = closed.end.byte + len(closed.embedded_data)
        else:
            yield from _of_open(streams, epoch, lsn)
        end = ends.get(epoch)
        stop = None if end is None else (end.index, end.byte)
        reading = _of_log if streams.mode == "append" else _of_slots
        for found in reading(streams, epoch, index, byte, stop, tokens.get(epoch)):
            if isinstance(found, Unreadable) or found.lsn > lsn:
                yield found


def _is_of_no_account(streams: Streams, epoch: int) -> bool:
    """Void, or cut off by an earlier repair, or never opened."""
    try:
        found = streams.slot0(epoch)
    except Damaged:
        return False
    return isinstance(found, Opened) or not has_records(streams, epoch)


def _of_open(streams: Streams, epoch: int, lsn: int) -> Iterator[Behind | Unreadable]:
    name = streams.names.slot(epoch, 0)
    try:
        opened = streams.opened(epoch)
        if opened.embedded is not None and opened.embedded.header.lsn > lsn:
            yield _behind(opened.embedded, name, 0, opened.payload.end_byte)
    except Damaged as damage:
        yield Unreadable(name, damage.position, damage.message)
        return
    if opened.payload.rows:
        yield Behind(opened.header.lsn, (), opened.payload.rows, name, 0)


def _behind(record: Record, name: str, position: int, begin: int | None) -> Behind | Unreadable:
    try:
        lines = lines_of(record, begin, object=name, position=position)
        if lines is not None:
            return Behind(record.header.lsn, (), (), name, position, lines)
        ops, rows = decode_ops(record.payload, object=name, position=position)
        extents_of(record, ops, rows, begin=begin, object=name, position=position)
    except Damaged as damage:
        return Unreadable(name, position, damage.message)
    return Behind(record.header.lsn, ops, rows, name, position)


def _of_slots(
    streams: Streams, epoch: int, index: int, _byte: int, stop: tuple[int, int] | None, _token: bytes | None
) -> Iterator[Behind | Unreadable]:
    last = max(list_slots(streams, epoch), default=0) + 1 if stop is None else stop[0]
    for number in range(index, last):
        name = streams.names.slot(epoch, number)
        try:
            record = streams.read_slot(epoch, number)
        except ChunkNotFound:
            yield Unreadable(name, 0, "it is missing")
        except Damaged as damage:
            yield Unreadable(name, damage.position, damage.message)
        else:
            if record.header.kind != RecordKind.SEAL:
                yield _behind(record, name, 0, None)


def _of_log(
    streams: Streams, epoch: int, _index: int, byte: int, stop: tuple[int, int] | None, token: bytes | None
) -> Iterator[Behind | Unreadable]:
    name = streams.names.log(epoch)
    reader = streams.log_reader(epoch, byte, None if stop is None else stop[1])
    lsn = 0
    while True:
        begin, reason = reader.offset, ""
        try:
            for record in reader:
                yield _behind(record, name, begin, begin)
                begin, lsn = reader.offset, record.header.lsn
            reason = reader.reason
            if reader.ended == "clean":
                break
        except ChunkNotFound:
            yield Unreadable(name, begin, "it is missing")
            return
        except Damaged as damage:
            reason = damage.message
        yield Unreadable(name, begin, reason)
        later = reader.find_record_after(begin, lsn=lsn, token=token)
        if later is None:
            return
        reader.offset = later[0]
    if stop is not None and reader.offset < stop[1]:
        yield Unreadable(name, reader.offset, f"{stop[1] - reader.offset} bytes are missing")
