"""One frame: magic, version, kind, length and CRC32C in 16 bytes, then a body. Small objects are one; snapshots are many.

Promises: the CRC covers the first twelve bytes and the body, so that every flipped bit is found; a length is compared
with the limit before anything of that length is read. Leaves out: what bodies mean.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from chunkstore.checksum import crc32c, crc32c_extend
from chunkstore_journal.wire import refuse

__all__ = ["FRAME_HEADER_BYTES", "FrameHeader", "check_frame", "decode_frame_header", "encode_frame"]

_HEADER = Struct(">4sBBHII")
"""magic, version, kind, zero, body length, CRC32C. FORMAT.md's table is tested against it."""
_CRC_AT = 12
_CRC = Struct(">I")
FRAME_HEADER_BYTES = _HEADER.size


class FrameHeader(NamedTuple):
    """Believe nothing but ``body_bytes`` (within the limit) before ``check_frame`` has seen the body."""

    version: int
    kind: int
    body_bytes: int


def encode_frame(magic: bytes, version: int, kind: int, body: bytes) -> bytes:
    """The frame's bytes."""
    front = _HEADER.pack(magic, version, kind, 0, len(body), 0)[:_CRC_AT]
    return b"".join((front, _CRC.pack(crc32c_extend(crc32c(front), body)), body))


def decode_frame_header(raw: bytes, magic: bytes, body_bytes_max: int, *, object: str, position: int) -> FrameHeader:
    """The header in the first 16 bytes of ``raw``. Raises ``Damaged`` for a wrong magic, a cut header, a length beyond the limit."""
    if len(raw) < FRAME_HEADER_BYTES:
        refuse(f"{len(raw)} bytes are too few; it is cut short", object, position)
    found, version, kind, _, length, _ = _HEADER.unpack_from(raw)
    if found != magic:
        refuse(f"{found!r} is stored where {magic!r} belongs", object, position)
    if length > body_bytes_max:
        refuse(f"a length of {length} bytes is claimed; {body_bytes_max} is the limit", object, position)
    return FrameHeader(version, kind, length)


def check_frame(header: bytes, body: bytes, *, version: int, object: str, position: int) -> None:
    """Raise ``Damaged`` unless ``header`` (16 bytes, as given to ``decode_frame_header``) vouches for ``body``, in ``version``."""
    _, found, _, zero, length, crc = _HEADER.unpack_from(header)
    if length != len(body):
        refuse(f"{length} bytes are announced, {len(body)} are stored", object, position)
    if crc32c_extend(crc32c(header[:_CRC_AT]), body) != crc:
        refuse("wrong CRC", object, position)
    if found != version or zero:
        refuse(f"version {found} is not {version}, the one this program reads; upgrade it", object, position)
