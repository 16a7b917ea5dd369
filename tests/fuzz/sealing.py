"""Checksums over whatever is to be believed: records, frames and snapshots that are right on the outside only.

Written from the formats' descriptions, not with the encoders under test: an encoder refuses to write most of this.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend, value

from chunkstore.checksum import DIGEST_MODULUS, row_digest
from tests.fuzz.chance import packed

_RECORD = Struct(">4sBBBBII16sQQQQQ16s32s16sQI")
_FRAME = Struct(">4sBBHII")
_U32 = Struct(">I")
_U64 = (1 << 64) - 1
_U32_MAX = (1 << 32) - 1


class Fields(NamedTuple):
    """A record's header; ``length`` None is the payload's true one."""

    kind: int
    container: bytes
    epoch: int
    place: int
    lsn: int
    committed_lsn: int
    previous: bytes
    digest: bytes
    token: bytes
    time_ms: int
    magic: bytes = b"CKSJ"
    version: int = 1
    algorithm: int = 1
    flags: int = 0
    length: int | None = None
    at: int = 0


def sealed_record(fields: Fields, payload: bytes) -> bytes:
    """The record, every checksum of it right. Numbers are cut to their place."""
    length = len(payload) if fields.length is None else fields.length & _U32_MAX
    raw = _RECORD.pack(
        fields.magic, fields.version & 255, fields.kind & 255, fields.algorithm & 255, fields.flags & 255, length, 0,
        fields.container, fields.epoch & _U64, fields.place & _U64, fields.at & _U64, fields.lsn & _U64,
        fields.committed_lsn & _U64, fields.previous, fields.digest, fields.token, fields.time_ms & _U64, value(payload),
    )  # fmt: skip
    raw = raw[:12] + _U32.pack(extend(value(raw[:12]), raw[16:])) + raw[16:]
    skipped = 0
    blob = payload[1:3] in (b"\x02\xc6", b"\x03\xc6") and 0x93 <= payload[0] <= 0x9F
    if blob and len(payload) >= 7 + int.from_bytes(payload[3:7]):
        skipped = int.from_bytes(payload[3:7])  # bytes of extents
    hashed = raw + payload[:7] + payload[7 + skipped :]
    return b"".join((raw, payload, blake2b(hashed, digest_size=16).digest()))


def sealed_frame(
    magic: bytes, version: int, kind: int, body: bytes, *, zero: int = 0, length: int | None = None
) -> bytes:
    """The frame with a right CRC; ``length`` is what it claims (None: the truth)."""
    claimed = len(body) if length is None else length & _U32_MAX
    front = _FRAME.pack(magic, version & 255, kind & 255, zero & 0xFFFF, claimed, 0)[:12]
    return b"".join((front, _U32.pack(extend(value(front), body)), body))


def digest_of(pairs: list[tuple[bytes, bytes]]) -> int:
    """The state digest of rows; index entries do not count."""
    return sum(row_digest(key, row) for key, row in pairs if key[:1] in b"CEGPST" and key) % DIGEST_MODULUS


def sealed_snapshot(header: bytes, blocks: list[bytes], counts: tuple[int, int, int], digest: bytes) -> bytes:
    """A snapshot of whole frames and a trailer that vouches for them: (blocks, rows, index entries) and the digest."""
    front = b"".join((header, *blocks))
    body = packed((*counts, digest, blake2b(front, digest_size=32).digest()))
    return front + sealed_frame(b"CKSS", 1, 4, body)
