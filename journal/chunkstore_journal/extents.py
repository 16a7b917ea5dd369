"""Bytes of appends in a record: its lines, or the rows that lead to them, and what becomes of them when an OPEN embeds it (protocol 3.7).

Promises: pure. Encoding of lines is canonical; decoding raises ``Damaged`` for garbage, and never trusts a length. Lines account for every
byte of appends in the record. A row that a record brings for one of its extents leads into that record's own bytes; a row of any other
extent leads to what is in front of the record. So bytes of one segment are never shown as another's, whatever a record says. Leaves out:
whether they are what was recorded (readers compare CRC32Cs); what lines change (``chunkstore.metadata.lines``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is a class, and is used like one)

from chunkstore.checksum import row_digest
from chunkstore.errors import Damaged
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.codec import decode_chunk, encode_row
from chunkstore.metadata.keys import CHUNK, chunk_key
from chunkstore.metadata.lines import line_extents
from chunkstore.metadata.port import Line, Lines, Op, RowChange
from chunkstore.records.names import NO_CHUNK, journal_place, parse_place
from chunkstore.records.segments import CLOSED, KIND_INLINE, ChunkRecord
from chunkstore_journal.payloads import BLOB_AT, LINES_HEAD, OpenPayload, blob_end, blob_of, decode_ops, embedded_at
from chunkstore_journal.record import FLAG_LINES, HEADER_BYTES, Record
from chunkstore_journal.wire import refuse, unpack

__all__ = ["check_moved", "decode_lines", "encode_lines", "extents_of", "lines_of", "moved_extents", "place_in"]

_APPEND = int(OpCode.APPEND)
_NO_NAME = b"\xa0"
"""What the fourth byte is of nearly all rows of chunks, which have objects of their own."""
_LINE = Struct(">QQIIBB")
_EVENT = Struct(">QI")
_JOINED = 0x80
_OFFSET_MAX = (1 << 63) - 1
_make = tuple.__new__  # what a NamedTuple's constructor does, without its argument handling
_pack_line, _pack_event = _LINE.pack, _EVENT.pack


def encode_lines(lines: Sequence[Line]) -> bytes:
    """The lines of a record, one after the other."""
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
    end = blob_end(payload) if header.kind is RecordKind.OPS else 0
    back = payload[end : end + 2]
    if end and payload[:3] == LINES_HEAD and back[:1] == b"\xc4" and end + 2 + back[-1] == len(payload):
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


def extents_of(
    record: Record, ops: Sequence[Op], rows: Sequence[RowChange], *, begin: int | None, object: str, position: int
) -> list[tuple[bytes, ChunkRecord]]:
    """The extents whose bytes this record brings, in the order of these. ``begin``: the byte of the log where it is, or lay before it was
    embedded; None: in a slot of its own. Raises ``Damaged(object, position)`` for rows that lead anywhere else."""
    blob = blob_of(record.payload)
    added = {chunk_key(identity) for op in ops if op[0] == _APPEND and op[5:6] == (1,) for _, identity in op[4]}  # type: ignore[attr-defined]
    if not added and not blob:
        return []
    epoch, index = record.header.epoch, record.header.index
    here = journal_place(epoch, index if begin is None else None)
    low = (begin or 0) + HEADER_BYTES + BLOB_AT
    found: list[tuple[bytes, ChunkRecord]] = []
    for key, chunk in _inline_rows(rows):
        stop = chunk.object_offset + chunk.length
        if key not in added:
            if not _lies_before(chunk, epoch, index, begin):
                refuse(
                    f"{key!r} points after the record, to byte {chunk.object_offset} of {chunk.object!r}",
                    object,
                    position,
                )
            continue
        if chunk.object != here or chunk.crc32c is None or not low <= chunk.object_offset < stop <= low + len(blob):
            what = f"{chunk.length} bytes from byte {chunk.object_offset} of {chunk.object!r} on"
            refuse(f"{key!r} points to {what}, not into the {len(blob)} bytes of its record", object, position)
        found.append((key, chunk))
    gone = {key for key, value in rows if value is None}
    if len(found) != len(added - gone):
        refuse("an extent has no row for its bytes", object, position)
    found.sort(key=lambda item: item[1].object_offset)
    for (former, chunk), (key, after) in pairwise(found):
        if chunk.object_offset + chunk.length > after.object_offset:
            refuse(f"{former!r} and {key!r} lead to the same bytes", object, position)
    return found


def _inline_rows(rows: Sequence[RowChange]) -> Iterator[tuple[bytes, ChunkRecord]]:
    for key, value in dict(rows).items():
        if key[:1] == CHUNK and value is not None and value[3:4] != _NO_NAME:
            with suppress(Damaged):  # a caller that needs it says so
                chunk = decode_chunk(key, value)
                if chunk.kind == KIND_INLINE:
                    yield key, chunk


def _lies_before(chunk: ChunkRecord, epoch: int, index: int, begin: int | None) -> bool:
    """Whether an extent is in front of a record."""
    place = parse_place(chunk.object)
    if place is None or place[0] != epoch:
        return place is not None and place[0] < epoch
    if place[1] is None:
        return begin is not None and chunk.object_offset + chunk.length <= begin
    return place[1] < index


def _embedded(payload: OpenPayload, record: Record, object: str, position: int) -> list[tuple[bytes, ChunkRecord]]:
    """The extents of the embedded record; those of lines without their neighbours."""
    lines = lines_of(record, payload.end_byte, object=object, position=position)
    if lines is not None:
        header, at, found = record.header, lines.at, list[tuple[bytes, ChunkRecord]]()
        for identity, line, length, crc in line_extents(lines):
            place = lines.object, at, length, crc, NO_CHUNK, NO_CHUNK, line.segment_id
            found.append((chunk_key(identity), ChunkRecord(*place, header.epoch, CLOSED, KIND_INLINE, lines.time_ms)))
            at += length
        return found
    ops, rows = decode_ops(record.payload, object=object, position=position)
    return extents_of(record, ops, rows, begin=payload.end_byte, object=object, position=position)


def place_in(payload: OpenPayload) -> tuple[str, int]:
    """The ``object`` of extents that an OPEN embeds, and what to add to their offsets."""
    return journal_place(payload.epoch, 0), HEADER_BYTES + embedded_at(payload) - payload.end_byte


def moved_extents(
    payload: OpenPayload, record: Record | None, rows: Mapping[bytes, bytes | None], *, object: str
) -> tuple[list[RowChange], int]:
    """What an OPEN says of the extents of the record that it embeds, which is in ``object`` so far; and what that
    adds to the state digest. ``rows``: those that the record makes. Raises ``Damaged``."""
    if record is None or not blob_of(record.payload):
        return [], 0
    moved: list[RowChange] = []
    digest = 0
    place, shift = place_in(payload)
    for key, chunk in _embedded(payload, record, object, payload.end_byte):
        raw = rows.get(key)
        if raw is not None:
            chunk = decode_chunk(key, raw)
        after = encode_row(chunk.placed(place, chunk.object_offset + shift))
        moved.append((key, after))
        digest += row_digest(key, after) - row_digest(key, encode_row(chunk))
    return moved, digest


def check_moved(payload: OpenPayload, record: Record, *, object: str) -> None:
    """Raise ``Damaged`` unless the OPEN in ``object`` says of every extent that it embeds where this is in it, and of none other."""
    if not blob_of(record.payload):
        return
    changed = dict(payload.rows)
    place, shift = place_in(payload)
    extents = dict(_embedded(payload, record, object, 0))
    for key, chunk in extents.items():
        raw = changed.get(key, b"")
        if raw is None:
            continue
        found, wanted = decode_chunk(key, raw) if raw else chunk, chunk.placed(place, chunk.object_offset + shift)
        if found[:4] != wanted[:4] or found.kind != KIND_INLINE:
            what = f"byte {found.object_offset} of {found.object!r}, not to byte {wanted.object_offset} of {place!r}"
            refuse(f"{key!r}, an extent of the embedded record, points to {what}", object, 0)
    for key, chunk in _inline_rows(payload.rows):
        if key not in extents and not _lies_before(chunk, record.header.epoch, record.header.index, payload.end_byte):
            refuse(f"{key!r} points after the cut, to byte {chunk.object_offset} of {chunk.object!r}", object, 0)
