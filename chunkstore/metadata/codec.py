"""Bytes of the metadata rows: msgpack arrays ``[major, minor, field, ...]`` (FORMAT.md beside this file).

Promises: encoding is canonical (arrays, ints, bytes, str; attributes sorted by name). A row of a newer minor version is
read, its further fields survive in ``extra`` and are written back; a newer major version is refused. Decoding never
trusts lengths: a damaged row raises ``Damaged`` naming the key. Leaves out: keys (``keys``).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack

from chunkstore.errors import Damaged
from chunkstore.records import (
    AttributeValue,
    ChunkRecord,
    GarbageRecord,
    SegmentRecord,
    SessionRecord,
    TableRecord,
)

__all__ = [
    "decode_chunk",
    "decode_garbage",
    "decode_segment",
    "decode_session",
    "decode_table",
    "encode_chunk",
    "encode_garbage",
    "encode_segment",
    "encode_session",
    "encode_table",
]

MAJOR = 1
MINOR = 0
_packb = msgpack.packb
_NO_ATTRIBUTES: Mapping[str, AttributeValue] = {}
