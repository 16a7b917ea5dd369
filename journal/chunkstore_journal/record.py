"""Journal records as bytes: framing, checksums, the hash chain's links, and reading a file of them (protocol 3.2).

Promises
* ``encode_record`` is pure; ``decode_record`` accepts exactly what it makes and raises ``Damaged(object, position)`` for all else. Nothing
  is believed before a checksum has covered it: first the header's CRC, then the length it gives, then payload CRC and record hash.
* A record is one only at the byte that its header names; its hash covers all of it but the bytes of extents, which have CRCs.

Leaves out: what a payload means (``payloads``), whether records chain (``history``), whether a bad tail may be cut (``append_stream``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Literal, NamedTuple

from chunkstore.checksum import BytesLike, crc32c_of_bytes, crc32c_of_more
from chunkstore.config import LIMITS, MIB
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.journal import RecordKind
from chunkstore_journal.payloads import BLOB_AT, LINES_HEAD, blob_end
from chunkstore_journal.wire import HASH_BYTES

__all__ = [
    "EMBEDDABLE_BYTES_MAX",
    "FLAG_LINES",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "MAGIC",
    "OVERHEAD_BYTES",
    "LogReader",
    "Record",
    "RecordHeader",
    "decode_damaged",
    "decode_record",
    "decode_slot",
    "encode_lines_record",
    "encode_record",
    "intact_header",
    "peek_length",
]

MAGIC = b"CKSJ"
FORMAT_VERSION = 1
CRC32C_ALGORITHM = 1

_HEADER = Struct(">4sBBBBII16sQQQQQ16s32s16sQI")
"""magic, format version, type, CRC algorithm, flags, payload length, header CRC, container, epoch, index, place, lsn,
committed lsn, previous hash, state digest, token, time, payload CRC. FORMAT.md's table is tested against it."""
_HEADER_CRC_AT = 12
_AFTER_HEADER_CRC = 16

HEADER_BYTES = _HEADER.size
OVERHEAD_BYTES = HEADER_BYTES + HASH_BYTES
FLAG_LINES = 1
"""The payload is lines; the header states no digest (zeros)."""
_NO_DIGEST = bytes(32)
_FRONT = Struct(">4sBBBBI")
_REST = Struct(">16sQQQQQ16s32s16sQI")
"""The header before its own CRC, and after it."""
_PAYLOAD_BYTES_MAX = LIMITS.record_bytes_max - OVERHEAD_BYTES

EMBEDDABLE_BYTES_MAX = LIMITS.record_bytes_max - MIB
"""Any record but an OPEN: an OPEN must be able to embed it whole, next to its own fields (protocol A15)."""

_KINDS: tuple[RecordKind | None, ...] = tuple(
    RecordKind(number) if number in RecordKind._value2member_map_ else None for number in range(256)
)


# The constructors of named tuples are Python functions; replay makes two of them per record.
_make = tuple.__new__
_whole = int.from_bytes


class RecordHeader(NamedTuple):
    """Everything of a record but its payload.

    ``container``: 16 bytes. ``index``: place in the stream of ``epoch``. ``lsn``: place in history (0 for SEAL).
    ``committed_lsn``: highest lsn known to be decided when this record was built. ``previous_hash``: hash of the record
    with the lsn below. ``digest``: state digest after this record. ``token``: 16 bytes, the writer's claim token.
    ``time_ms``: a label. ``at``: the byte of its object at which the record is written; 0 in a slot.
    """

    kind: RecordKind
    flags: int
    container: bytes
    epoch: int
    index: int  # type: ignore[assignment]
    lsn: int
    committed_lsn: int
    previous_hash: bytes
    digest: int
    token: bytes
    time_ms: int
    at: int = 0


class Record(NamedTuple):
    """A whole record; ``hash`` is its 16-byte identity, ``size`` its length in bytes, framing included."""

    header: RecordHeader
    payload: bytes
    hash: bytes
    size: int


class _Flaw(Exception):
    """``torn`` is False when the header's CRC proves that the record was written so on purpose (a newer version, or elsewhere)."""

    def __init__(self, reason: str, *, torn: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.torn = torn


class _Short(_Flaw):
    """The record goes on after the data; ``needed`` is its whole length in bytes."""

    def __init__(self, needed: int) -> None:
        super().__init__("the record is cut short")
        self.needed = needed


def _header(kind: int, flags: int, payload_bytes: int, rest: bytes) -> bytes:
    front = _FRONT.pack(MAGIC, FORMAT_VERSION, kind, CRC32C_ALGORITHM, flags, payload_bytes)
    return front + crc32c_of_more(crc32c_of_bytes(front), rest).to_bytes(4, "big") + rest


def _header_crc(data: bytes, at: int) -> int:
    crc = crc32c_of_bytes(data[at : at + _HEADER_CRC_AT])
    return crc32c_of_more(crc, data[at + _AFTER_HEADER_CRC : at + HEADER_BYTES])


def _identity(raw_header: bytes, payload: bytes) -> bytes:
    end = blob_end(payload)
    hashed = payload[:BLOB_AT] + payload[end:] if end else payload
    return blake2b(raw_header + hashed, digest_size=HASH_BYTES).digest()


def encode_record(header: RecordHeader, payload: bytes) -> tuple[bytes, bytes]:
    """The record's bytes and its hash (16 bytes).

    Raises: ``InvalidArgument`` when a field does not fit its place, or the record would exceed
    ``LIMITS.record_bytes_max`` (``EMBEDDABLE_BYTES_MAX`` for any kind but OPEN).
    """
    kind, flags, container, epoch, index, lsn, committed_lsn, previous_hash, digest, token, time_ms, at = header
    if not 0 <= kind < 256 or _KINDS[kind] is None:
        raise InvalidArgument(f"{kind} is not a record kind", argument="header")
    limit = LIMITS.record_bytes_max if kind == RecordKind.OPEN else EMBEDDABLE_BYTES_MAX
    size = len(payload) + OVERHEAD_BYTES
    if size > limit:
        raise InvalidArgument(
            f"a {RecordKind(kind).name} record of {size} bytes exceeds {limit} bytes; split the operation",
            argument="payload",
        )
    if not len(container) == len(previous_hash) == len(token) == 16:
        raise InvalidArgument("container, previous_hash and token of a record have 16 bytes each", argument="header")
    try:
        rest = _REST.pack(
            container, epoch, index, at, lsn, committed_lsn, previous_hash, digest.to_bytes(32, "big"), token, time_ms,
            crc32c_of_bytes(payload),
        )  # fmt: skip
        raw = _header(kind, flags, len(payload), rest)
    except (struct.error, OverflowError) as error:
        raise InvalidArgument(f"a field of a record's header is out of range: {error}", argument="header") from error
    identity = _identity(raw, payload)
    return b"".join((raw, payload, identity)), identity


def encode_lines_record(
    stream: tuple[bytes, int, bytes],
    place: tuple[int, int, int, bytes],
    time_ms: int,
    data: Sequence[bytes],
    raw_lines: bytes,
) -> tuple[bytes, bytes]:
    """As ``encode_record``, of appends. ``stream``: container, epoch, token; ``place``: index, byte, lsn of the record before and its hash;
    ``data``: bytes of the appends, in the order of the lines, which ``raw_lines`` holds."""
    container, epoch, token = stream
    index, at, lsn, previous_hash = place
    size = len(data[0]) if len(data) == 1 else sum(map(len, data))
    count = len(raw_lines)
    front = LINES_HEAD + size.to_bytes(4, "big")
    back = (b"\xc4" + count.to_bytes(1, "big") if count < 256 else b"\xc6" + count.to_bytes(4, "big")) + raw_lines
    crc = crc32c_of_bytes(front)
    for piece in data:
        crc = crc32c_of_more(crc, piece)
    crc = crc32c_of_more(crc, back)
    rest = _REST.pack(container, epoch, index, at, lsn + 1, lsn, previous_hash, _NO_DIGEST, token, time_ms, crc)
    header = _header(RecordKind.OPS, FLAG_LINES, len(front) + size + len(back), rest)
    identity = blake2b(header + front + back, digest_size=HASH_BYTES).digest()
    return b"".join((header, front, *data, back, identity)), identity


def _decode(data: bytes, offset: int, container: bytes | None, at: int) -> Record:
    """Decode one record, of byte ``at`` of its object; the hot path of replay. Raises ``_Flaw``."""
    if len(data) - offset < HEADER_BYTES:
        raise _Short(OVERHEAD_BYTES)
    (
        magic, version, kind_number, algorithm, flags, payload_length, header_crc, cid, epoch, index, place, lsn, committed_lsn,
        previous_hash, digest, token, time_ms, payload_crc,
    ) = _HEADER.unpack_from(data, offset)  # fmt: skip
    if magic != MAGIC:
        raise _Flaw("no record begins here")
    header_end = offset + HEADER_BYTES
    if _header_crc(data, offset) != header_crc:
        raise _Flaw("the record's header has a wrong CRC")
    if container is not None and cid != container:
        raise _Flaw("the record belongs to another container")
    if place != at:
        raise _Flaw(f"the record was written at byte {place}, not here", torn=False)
    if version != FORMAT_VERSION or algorithm != CRC32C_ALGORITHM:
        raise _Flaw(
            f"the record has format {version}.{algorithm}, which this program does not read; upgrade it", torn=False
        )
    kind = _KINDS[kind_number]
    if kind is None:
        raise _Flaw(f"the record has type {kind_number}, which this program does not know; upgrade it", torn=False)
    if payload_length > _PAYLOAD_BYTES_MAX:
        raise _Flaw(
            f"the record claims a payload of {payload_length} bytes; {_PAYLOAD_BYTES_MAX} is the limit", torn=False
        )
    payload_end = header_end + payload_length
    end = payload_end + HASH_BYTES
    if end > len(data):
        raise _Short(end - offset)
    payload = data[header_end:payload_end]
    if crc32c_of_bytes(payload) != payload_crc:
        raise _Flaw("the record's payload has a wrong CRC")
    identity = data[payload_end:end]
    if _identity(data[offset:header_end], payload) != identity:
        raise _Flaw("the record's hash does not match its bytes")
    header = _make(
        RecordHeader,
        (kind, flags, cid, epoch, index, lsn, committed_lsn, previous_hash, _whole(digest, "big"), token, time_ms, at),
    )
    return _make(Record, (header, payload, identity, end - offset))


def decode_record(data: BytesLike, offset: int, *, object: str, container: bytes | None, at: int = 0) -> Record:
    """The record that begins at ``offset`` of ``data``, which is byte ``at`` of the object; bytes after it are not looked at.

    ``container`` (16 bytes) must be the record's, unless None. Raises ``Damaged(object, offset)`` for anything wrong:
    a bad magic, version, type, checksum or hash, a record longer than the data or the limit, another container or place.
    """
    try:
        if type(data) is bytes:
            return _decode(data, offset, container, at)
        # Copies one record of a larger buffer, never the whole buffer.
        size = peek_length(data, offset, at) or HEADER_BYTES
        return _decode(bytes(data[offset : offset + size]), 0, container, at)
    except _Flaw as flaw:
        raise Damaged(flaw.reason, object=object, position=offset) from None


def decode_slot(data: BytesLike, *, object: str, container: bytes | None, at: int = 0) -> Record:
    """The one record that a SLOT object consists of, or that OPEN embeds and that was written ``at`` a byte of a log. Raises ``Damaged`` as
    ``decode_record``, and for bytes after it."""
    record = decode_record(data, 0, object=object, container=container, at=at)
    if record.size != len(data):
        raise Damaged(f"{len(data) - record.size} bytes follow the record", object=object, position=record.size)
    return record


def peek_length(data: BytesLike, offset: int, at: int) -> int | None:
    """The whole length in bytes of the record at ``offset``, byte ``at`` of its object; None unless its header is there and valid."""
    raw = bytes(data[offset : offset + HEADER_BYTES])
    try:
        return _decode(raw, 0, None, at).size
    except _Short as short:
        return short.needed if len(raw) == HEADER_BYTES else None
    except _Flaw:
        return None


def decode_damaged(data: bytes, container: bytes | None, at: int) -> Record | None:
    """The record at the beginning of ``data``, byte ``at`` of its object, of which nothing but bytes of extents is damaged: its hash, which
    leaves them out, is right. None: it is whole, or more of it is damaged."""
    size, header = peek_length(data, 0, at), intact_header(data, 0, container)
    if size is None or header is None or size > len(data):
        return None
    payload, identity = data[HEADER_BYTES : size - HASH_BYTES], data[size - HASH_BYTES : size]
    is_whole = crc32c_of_bytes(payload) == _whole(data[HEADER_BYTES - 4 : HEADER_BYTES], "big")
    if is_whole or _identity(data[:HEADER_BYTES], payload) != identity:
        return None
    return Record(header, payload, identity, size)


class LogReader:
    """Iterates the records of an APPEND file, from a byte offset, through ``read(offset, length)`` (short only at the end).

    Memory is bounded by one window (or one longer record). When the iteration stops, ``offset`` is after the last good record and

    * ``ended == "clean"``: the file (or ``stop``) ends there, or nothing but zeros follows: its owner sets space aside;
    * ``ended == "tail"``: ``tail_bytes`` bytes follow that are not a record, and ``reason`` says why not. A torn write looks so, and
      damage in the middle too: ask ``find_record_after``.

    Iterating again goes on from ``offset`` with fresh reads. A record whose header is intact but of a version, type, length or place that
    this program refuses is no torn write: ``Damaged``.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        *,
        object: str,
        container: bytes | None,
        offset: int = 0,
        stop: int | None = None,
        window_bytes: int = 4 * MIB,
    ) -> None:
        self._read = read
        self._object = object
        self._container = container
        self._stop = stop
        self._window_bytes = max(window_bytes, OVERHEAD_BYTES)
        self.offset = offset
        self.ended: Literal["clean", "tail"] | None = None
        self.tail_bytes = 0
        self.reason = ""

    def _fetch(self, offset: int, length: int) -> bytes:
        if self._stop is not None:
            length = min(length, self._stop - offset)
        return self._read(offset, length) if length > 0 else b""

    def __iter__(self) -> Iterator[Record]:
        self.ended, self.tail_bytes, self.reason = None, 0, ""
        container = self._container
        wanted = self._window_bytes
        while True:
            base = self.offset
            data = self._fetch(base, wanted)
            at = 0
            try:
                while True:
                    record = _decode(data, at, container, base + at)
                    at += record.size
                    self.offset = base + at
                    yield record
            except _Short as short:
                if len(data) < wanted:
                    self._finish(data[at:], short.reason)
                    return
                # Either the window ends inside a record (at > 0), or that record is longer than the window.
                wanted = max(self._window_bytes, short.needed)
            except _Flaw as flaw:
                if not flaw.torn:
                    raise Damaged(flaw.reason, object=self._object, position=self.offset) from None
                self._finish(data[at:], flaw.reason)
                return

    def _finish(self, piece: bytes, reason: str) -> None:
        """``piece``: what is at ``offset``, as far as it was read."""
        end = self.offset
        while piece or (piece := self._fetch(end, self._window_bytes)):
            if piece != bytes(len(piece)):  # so compared, zeros cost next to nothing
                self.tail_bytes = end - self.offset + len(piece.rstrip(b"\0"))
            end += len(piece)
            piece = b""
        self.ended = "tail" if self.tail_bytes else "clean"
        self.reason = reason if self.tail_bytes else ""

    def find_record_after(
        self, offset: int, *, lsn: int, token: bytes | None, moved: bool = False
    ) -> tuple[int, RecordHeader] | None:
        """The first intact record header of the claim with ``token`` (None: of any) with an lsn above ``lsn`` *after* byte ``offset``;
        at its own byte, or at any with ``moved``. With its byte offset.

        None: the damage at ``offset`` is the last thing in the file, as a torn write leaves it. A header is proof enough: a record is
        written only after the one before it was made durable, so the damaged one was whole once. Nothing within the length of a damaged
        record counts while that one's own header is intact. Bytes of users hold no such header: they do not know the token.
        """
        overlap = HEADER_BYTES - 1
        offset += peek_length(self._fetch(offset, HEADER_BYTES), 0, offset) or 1
        while True:
            data = self._fetch(offset, self._window_bytes + overlap)
            at = data.find(MAGIC)
            while at >= 0:
                header = intact_header(data, at, self._container)
                known = header is not None and header.lsn > lsn and token in (None, header.token)
                if header is not None and known and (moved or header.at == offset + at):
                    return offset + at, header
                at = data.find(MAGIC, at + 1)
            if len(data) < self._window_bytes + overlap:
                return None
            offset += self._window_bytes


def intact_header(data: bytes, at: int, container: bytes | None) -> RecordHeader | None:
    """The header at byte ``at`` of ``data``, without a look at what follows it; None where it is cut short, has a wrong CRC or is of
    another container."""
    raw = data[at : at + HEADER_BYTES]
    if len(raw) < HEADER_BYTES:
        return None
    (
        _, _, number, _, flags, _, header_crc, cid, epoch, index, place, lsn, committed_lsn, previous_hash, digest, token, time_ms, _,
    ) = _HEADER.unpack(raw)  # fmt: skip
    if _header_crc(raw, 0) != header_crc or (container is not None and cid != container):
        return None
    # A type of a newer version is evidence, too; HEARTBEAT means it because there is no "unknown".
    kind = _KINDS[number] or RecordKind.HEARTBEAT
    return RecordHeader(
        kind, flags, cid, epoch, index, lsn, committed_lsn, previous_hash, _whole(digest, "big"), token, time_ms, place
    )
