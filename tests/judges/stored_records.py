"""A decoder of stored journal bytes of its own: what it shares with the engine is the text of the two FORMAT.md, not code.

Promises: every length is checked before it is believed; anything that is not as documented raises ``Unreadable``.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple

import google_crc32c
import msgpack

OPEN: Final = 1
SEAL: Final = 2
SNAPSHOT_NOTE: Final = 4
_KINDS: Final = range(1, 11)
_HEADER = Struct(">4sBBBBII16sQQQQQ16s32s16sQI")
_FRAME = Struct(">4sBBHII")
_HASH_BYTES: Final = 16
_RECORD_MAX: Final = 16 << 20
_FRAME_MAX: Final = 64 << 10
CHUNK_FIELDS: Final = 11
GARBAGE_FIELDS: Final = 7
PIN_FIELDS: Final = 5
SEGMENT_FIELDS: Final = 15
TABLE_FIELDS: Final = 2
_OP_SHAPES: Final[dict[int, tuple[type, ...]]] = {
    1: (int, str), 2: (int, int, int, list), 3: (int,), 4: (int,), 5: (int,), 6: (int, int), 7: (int, int, int), 8: (int,),
    9: (int, int, int, list), 10: (str, bytes), 11: (str, bytes), 12: (int,), 13: (int,), 14: (bytes, int),
    15: (int, int, int, list), 16: (int, int, int, list),
}  # fmt: skip
"""Arguments of each operation, as ``chunkstore.journal.OpCode`` lists them."""


class Unreadable(ValueError):
    """Bytes that are not what the format says."""


class Record(NamedTuple):
    """One record: the fields of its header that judges need, its payload unpacked, its hash and whole size."""

    kind: int
    epoch: int
    index: int  # type: ignore[assignment]
    lsn: int
    previous_hash: bytes
    digest: int
    token: bytes
    time_ms: int
    payload: list[Any]
    hash: bytes
    size: int
    at: int
    """The byte of its object at which it was written."""
    appended: tuple[bytes, bytes] | None
    """The bytes of appends, and the lines that say whose they are, of a record of lines."""


class Claim(NamedTuple):
    """Who claimed an epoch."""

    epoch: int
    token: bytes
    host: str
    pid: int


class Open(NamedTuple):
    """An OPEN's payload, without what only replicas and bootstraps need. ``snapshot``: name and lsn, or None."""

    epoch: int
    token: bytes
    previous_epoch: int
    end_index: int
    end_byte: int
    last_lsn: int
    last_hash: bytes
    embedded: bytes
    snapshot: tuple[str, int] | None
    rows: list[Any]


def _crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


def _unpack(data: bytes) -> list[Any]:
    """One msgpack array and nothing behind it. (An array may claim no more elements than there are bytes.)"""
    try:
        value = msgpack.unpackb(data, max_array_len=len(data), max_map_len=64, max_ext_len=0)
    except (msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"not a msgpack value: {error}") from error
    if type(value) is not list:
        raise Unreadable("not an array")
    return value


def _fields(values: list[Any], *types: type) -> list[Any]:
    """The first elements, which must be of these types; ints are not negative."""
    found = values[: len(types)]
    if [type(value) for value in found] != list(types) or any(type(value) is int and value < 0 for value in found):
        raise Unreadable(f"not {[kind.__name__ for kind in types]}: {found!r:.200}")
    return found


def record_size(data: bytes | bytearray, at: int) -> int | None:
    """The size that the record beginning there says it has; None where no whole header is."""
    head = bytes(data[at : at + _HEADER.size])
    if len(head) < _HEADER.size or head[:4] != b"CKSJ" or _crc(head[:12] + head[16:]) != int.from_bytes(head[12:16]):
        return None
    size = _HEADER.size + int.from_bytes(head[8:12]) + _HASH_BYTES
    return size if size <= _RECORD_MAX else None


def decode_record(data: bytes, container: bytes, at: int = 0) -> Record:
    """The record that these bytes, from byte ``at`` of their object on, are to the last one."""
    if record_size(data, 0) != len(data):
        raise Unreadable("not one record, whole")
    (
        _,
        version,
        kind,
        algorithm,
        flags,
        _,
        _,
        uuid,
        epoch,
        index,
        place,
        lsn,
        _,
        previous,
        digest,
        token,
        time_ms,
        crc,
    ) = _HEADER.unpack_from(data)
    payload, identity = data[_HEADER.size : -_HASH_BYTES], data[-_HASH_BYTES:]
    if (version, algorithm, uuid, place) != (1, 1, container, at) or kind not in _KINDS:
        raise Unreadable(f"version {version}, CRC {algorithm}, type {kind} of container {uuid.hex()}, byte {place}")
    values = _unpack(payload)
    hashed, appended = payload, None
    if (
        kind == 3
        and values[:1] in ([2], [3])
        and len(values) >= 3
        and type(values[1]) is bytes
        and payload[2:3] == b"\xc6"
    ):
        hashed = payload[:7] + payload[7 + len(values[1]) :]
        if values[0] == 2:
            values = [1, *values[2:4]]  # the bytes of extents, which rows lead to
        elif flags & 1 and type(values[2]) is bytes and not any(digest):
            appended, values = (values[1], values[2]), [1, [], []]
    if _crc(payload) != crc or blake2b(data[: _HEADER.size] + hashed, digest_size=_HASH_BYTES).digest() != identity:
        raise Unreadable("its checksums are wrong")
    if _fields(values, int) != [1]:
        raise Unreadable(f"payload version {values[:1]}")
    number = int.from_bytes(digest)
    return Record(kind, epoch, index, lsn, previous, number, token, time_ms, values, identity, len(data), at, appended)


def _changes(ops: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
    for op in ops:
        if type(op) is not list or not op or op[0] not in _OP_SHAPES:
            raise Unreadable(f"not an operation: {op!r:.200}")
        arguments = _fields(op[1:], *_OP_SHAPES[op[0]])
        if type(arguments[-1]) is list:
            for chunk in arguments[-1]:
                _fields(chunk, int, bytes)
    for row in rows:
        if (
            type(row) is not list
            or len(row) != 2
            or type(row[0]) is not bytes
            or type(row[1]) not in (bytes, type(None))
        ):
            raise Unreadable(f"not a row: {row!r:.200}")
    return ops, rows


def decode_payload(record: Record) -> tuple[list[Any], list[Any], tuple[str, int] | None]:
    """Operations, rows, and the snapshot (name, lsn) that a SNAPSHOT_NOTE notes, of any record but OPEN and SEAL."""
    _, ops, rows = _fields(record.payload, int, list, list)
    note = None
    if record.kind == SNAPSHOT_NOTE:
        name, lsn = _fields(_fields(record.payload, int, list, list, list)[3], str, int)
        note = name, lsn
    return *_changes(ops, rows), note


def decode_open(record: Record) -> Open:
    """What an OPEN says."""
    fields = _fields(record.payload[:10], int, int, bytes, int, int, int, int, bytes, bytes, list)
    link, (*_, rows) = record.payload[10:11], _fields(record.payload[11:17], int, str, int, str, int, list)
    snapshot = None
    if link != [None]:
        name, lsn = _fields(*(_fields(link, list)), str, int)
        snapshot = name, lsn
    _changes([], rows)
    return Open(*(*fields[1:9], snapshot, rows))


def _small_object(data: bytes, number: int) -> list[Any]:
    """The body of a small object of a kind."""
    if len(data) < _FRAME.size or len(data) > _FRAME_MAX:
        raise Unreadable("not a small object")
    magic, version, kind, zero, size, crc = _FRAME.unpack_from(data)
    body = data[_FRAME.size :]
    if (magic, version, kind, zero, size) != (b"CKSO", 1, number, 0, len(body)) or _crc(data[:12] + body) != crc:
        raise Unreadable(f"not a small object of kind {number}, or its CRC is wrong")
    return _unpack(body)


def decode_claim(data: bytes) -> Claim:
    """What a claim says."""
    return Claim(*_fields(_small_object(data, 2), int, bytes, str, int))


def decode_row(value: bytes, fields: int) -> list[Any]:
    """The fields of a row behind its two version numbers."""
    values = _unpack(value)
    if _fields(values, int) != [1] or len(values) < 2 + fields:
        raise Unreadable(f"not a row of {fields} fields")
    return values[2:]


def row_digest(key: bytes, value: bytes) -> int:
    """A row's summand of the state digest."""
    return int.from_bytes(blake2b(key + len(key).to_bytes(4, "little") + value, digest_size=32).digest())
