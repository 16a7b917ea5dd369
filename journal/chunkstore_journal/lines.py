"""Lines: the payload of a record of appends whose bytes it holds (FORMAT.md beside this file, "Lines"; protocol 3.7).

Promises: encoding is canonical; ``decode_lines`` returns what ``encode_lines`` was given, raises ``Damaged(object, position)`` for garbage,
and never trusts a length. The lines account for every byte of appends in the record, one after the other.
Leaves out: framing (``record``), what the lines change (``chunkstore.metadata.lines``).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is a class, and is used like one)

from chunkstore.metadata.port import Line, Lines
from chunkstore.names import journal_place
from chunkstore_journal.payloads import BLOB_AT, LINES_HEAD, blob_end
from chunkstore_journal.record import FLAG_LINES, HEADER_BYTES, Record
from chunkstore_journal.wire import refuse, unpack

__all__ = ["decode_lines", "encode_lines", "lines_of"]

_LINE = Struct(">QQIIBB")
_EVENT = Struct(">QI")
_JOINED = 0x80
_OFFSET_MAX = (1 << 63) - 1
_make = tuple.__new__  # what a NamedTuple's constructor does, without its argument handling
_pack_line, _pack_event = _LINE.pack, _EVENT.pack


def encode_lines(lines: Sequence[Line]) -> bytes:
    """The lines of a record, one behind the other."""
    parts: list[bytes] = []
    for segment_id, offset, length, crc, joined, name, event in lines:
        flags = _JOINED if joined else 0
        if event is None:
            parts.append(_pack_line(segment_id, offset, length, crc, len(name), flags) + name)
        else:
            writer_id, number, event_crc = event
            front = _pack_line(segment_id, offset, length, crc, len(name), flags | len(writer_id))
            parts.append(front + name + _pack_event(number, event_crc) + writer_id)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decode_lines(raw: bytes, size_bytes: int, *, object: str, position: int) -> list[Line]:
    """The lines in ``raw``, which account for ``size_bytes`` bytes. Raises ``Damaged``."""
    lines: list[Line] = []
    at, end, left, before = 0, len(raw), size_bytes, -1
    try:
        while at < end:
            segment_id, offset, length, crc, name_length, flags = _LINE.unpack_from(raw, at)
            at += _LINE.size + name_length
            name = raw[at - name_length : at]
            event = None
            if writer_length := flags & ~_JOINED:
                number, event_crc = _EVENT.unpack_from(raw, at)
                at += _EVENT.size + writer_length
                event = raw[at - writer_length : at], number, event_crc
            joined = flags >= _JOINED
            left -= length
            if at > end or not length or offset + length > _OFFSET_MAX or not name or (joined and before != segment_id):
                refuse(f"line {len(lines)} of the record cannot be", object, position)
            before = segment_id
            lines.append(_make(Line, (segment_id, offset, length, crc, joined, name, event)))
    except StructError:
        refuse("the record's lines are cut short", object, position)
    if left or not lines:
        refuse(f"the record's lines do not account for its {size_bytes} bytes of appends", object, position)
    return lines


def lines_of(record: Record, begin: int | None, *, object: str, position: int) -> Lines | None:
    """What a record of lines says; None: it is of another form. ``begin``: the byte of the log where it is, or was before it was embedded;
    None: in a slot of its own. Raises ``Damaged``."""
    header, payload = record.header, record.payload
    if not header.flags & FLAG_LINES:
        return None
    end = blob_end(payload)
    back = payload[end : end + 2]
    if end and payload[0] == LINES_HEAD[0] and back[:1] == b"\xc4" and end + 2 + back[-1] == len(payload):
        raw = payload[end + 2 :]
    else:
        # Without the bytes of appends, which are none of what msgpack has to look at.
        value = unpack(payload[:2] + b"\xc4\0" + payload[end:], object, position) if end else None
        if type(value) is not tuple or len(value) < 3 or value[0] != LINES_HEAD[1] or type(value[2]) is not bytes:
            refuse("the payload is not an array of a version, bytes and lines", object, position)
        raw = value[2]
    lines = decode_lines(raw, end - BLOB_AT, object=object, position=position)
    here = journal_place(header.epoch, header.index if begin is None else None)
    return Lines(header.epoch, header.lsn, header.time_ms, here, (begin or 0) + HEADER_BYTES + BLOB_AT, lines)
