"""Appends by lines, by a plain model: the operations and rows that a record of them makes (protocol 3.7).

Promises: as ``stored_records``, what it shares with the engine is the text of the two FORMAT.md. Rows are made one line after the
other, each from the rows as the line before has left them. A line that its bytes, or the rows, contradict raises ``Unreadable``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is a class, and is used like one)
from typing import Any, Final, NamedTuple

import google_crc32c
import msgpack

from tests.judges.stored_records import Record, Unreadable

_LINE: Final = Struct(">QQIIBB")
_EVENT: Final = Struct(">QI")
_CHUNK_ID: Final = Struct(">QQQI")
_WRITER_ROW: Final = Struct(">BQQQI")
_BYTES_AT: Final = 148 + 7
"""Of a record: the bytes of its appends."""
_LENGTH, _CRC, _NEXT = 4, 5, 7
"""Fields of a chunk's row."""


class _Line(NamedTuple):
    segment: int
    offset: int
    length: int
    crc: int
    joined: bool
    name: bytes
    event: tuple[bytes, int, int] | None


def _lines(raw: bytes) -> Iterator[_Line]:
    at = 0
    while at < len(raw):
        try:
            segment, offset, length, crc, name_length, flags = _LINE.unpack_from(raw, at)
            at += _LINE.size + name_length
            name, event = raw[at - name_length : at], None
            if flags & 0x7F:
                number, event_crc = _EVENT.unpack_from(raw, at)
                at += _EVENT.size + (flags & 0x7F)
                event = raw[at - (flags & 0x7F) : at], number, event_crc
        except StructError as error:
            raise Unreadable(f"lines that are cut short: {error}") from error
        yield _Line(segment, offset, length, crc, flags >= 0x80, name, event)


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def appended(
    rows: Mapping[bytes, bytes], record: Record, *, append: bool
) -> tuple[list[list[Any]], list[tuple[bytes, bytes]]]:
    """The operations, and the rows that change, of a record of lines. ``rows``: those before it; ``append``: it is in a log."""
    assert record.appended is not None
    data, raw = record.appended
    place = f"{record.epoch:x}" if append else f"{record.epoch:x}/{record.index:x}"
    now: dict[bytes, list[Any]] = {}

    def row(key: bytes) -> list[Any]:
        if key not in now:
            if key not in rows:
                raise Unreadable(f"lsn {record.lsn} appends where there is no row {key!r}")
            now[key] = msgpack.unpackb(rows[key])
        return now[key]

    ops: list[list[Any]] = []
    at = begin = number = 0
    last: _Line | None = None
    for line in _lines(raw):
        segment = row(b"S" + line.name)
        if segment[3] != line.segment or segment[4] & 1 or segment[6] != line.offset or not line.length:
            raise Unreadable(f"lsn {record.lsn} appends {line} to segment {segment[2:7]}")
        if line.joined:
            if last is None or last.segment != line.segment:
                raise Unreadable(f"lsn {record.lsn} joins {line} to {last}")
            chunk = row(b"C" + segment[8])
            chunk[_LENGTH], chunk[_CRC] = chunk[_LENGTH] + line.length, line.crc
        else:
            begin = at
            identity = _CHUNK_ID.pack(line.segment, record.epoch, 1 << 63 | record.lsn, number)
            number += 1
            if segment[8]:
                row(b"C" + segment[8])[_NEXT] = identity
            now[b"C" + identity] = [
                1, 0, place, record.at + _BYTES_AT + at, line.length, line.crc, segment[8], b"", line.segment, record.epoch, 2, 2,
                record.time_ms,
            ]  # fmt: skip
            segment[7], segment[8], segment[9] = segment[7] or identity, identity, line.offset
            segment[13] += 1
        at += line.length
        if _crc(data[begin:at]) != line.crc:
            raise Unreadable(f"lsn {record.lsn} gives its bytes up to byte {at} another CRC: {line}")
        segment[6], segment[12], segment[16] = line.offset + line.length, record.epoch, record.time_ms
        if line.event is not None:
            writer, event, event_crc = line.event
            if event_crc != _crc(data[at - line.length : at]):
                raise Unreadable(f"lsn {record.lsn} gives an event another CRC: {line}")
            value = _WRITER_ROW.pack(2, event, line.offset, line.length, event_crc)
            now[b"T\x08!writers" + line.segment.to_bytes(8) + writer] = [1, 0, record.lsn, value]
        fresh = [] if line.joined else [[line.offset, segment[8]]]
        ops.append([2, line.segment, line.offset, line.length, fresh, 1])
        last = line
    if at != len(data) or not ops:
        raise Unreadable(f"lsn {record.lsn} has {len(data)} bytes of appends, and lines of {at}")
    return ops, [(key, bytes(msgpack.packb(value))) for key, value in now.items()]
