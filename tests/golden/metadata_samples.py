"""One fixed value of every kind of metadata row, its codec, and its stored bytes in ``metadata.json``.

The bytes are part of the format: they change only together with a version (FORMAT.md of ``chunkstore.metadata``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chunkstore.metadata import codec
from chunkstore.records.segments import ChunkRecord, GarbageRecord, PinRecord, SegmentRecord, SessionRecord, TableRecord

__all__ = ["CHUNK", "DECODERS", "ENCODERS", "GOLDEN", "SAMPLES", "SEGMENT", "U63", "A", "B", "kind_of"]

GOLDEN: dict[str, str] = json.loads((Path(__file__).parent / "metadata.json").read_text(encoding="utf-8"))
A, B = bytes(range(28)), bytes(range(100, 128))
U63 = (1 << 63) - 1
SEGMENT = SegmentRecord(
    "orders-0", 7, 1, 6, 123_456_789, A, B, 120_000_000, 6, 1 << 27, 3, 12,
    {"z": b"\x00\xff", "a": -1, "é": "text"}, 1_700_000_000_000, 1_700_000_000_001,
)  # fmt: skip
CHUNK = ChunkRecord("", 0, 4096, 0xDEADBEEF, A, b"", 7, 3, 1, 1, 1_700_000_000_002)
SAMPLES: dict[str, Any] = {
    "segment": SEGMENT,
    "segment-empty": SegmentRecord("é", 1, 0, 0, 0, b"", b"", 0, 0, 1, 0, 0, {}, 0, 0),
    "segment-newer": SEGMENT._replace(attributes={}, extra=(5, b"new")),
    "chunk": CHUNK,
    "chunk-inline": CHUNK._replace(object="1f/a3", object_offset=147, next=B, state=2, kind=2),
    "chunk-inline-in-log": CHUNK._replace(object="1f", object_offset=U63, previous=b"", state=2, kind=2),
    "chunk-newer": CHUNK._replace(extra=((1, 2, "x"),)),
    "garbage": GarbageRecord(A, B, 5000, 1 << 40, 77, 1_700_000_000_003, 7),
    "garbage-holding": GarbageRecord(b"", b"", 0, 0, 77, 1_700_000_000_003, 0, (0x1F, 0xA3)),
    "table": TableRecord(1, b"value"),
    "table-empty": TableRecord(U63, b""),
    "session": SessionRecord("spark-1", 1, 2),
    "pin": PinRecord(77, 1_700_000_000_004, 86_400_000, "host-1:4711", "nightly é"),
    "pin-for-ever": PinRecord(U63, 0, 0, "", ""),
}
ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "segment": codec.encode_segment,
    "chunk": codec.encode_row,
    "garbage": codec.encode_row,
    "table": codec.encode_row,
    "session": codec.encode_row,
    "pin": codec.encode_row,
}
DECODERS: dict[str, Callable[[bytes, bytes], Any]] = {
    "segment": codec.decode_segment,
    "chunk": codec.decode_chunk,
    "garbage": codec.decode_garbage,
    "table": codec.decode_table,
    "session": codec.decode_session,
    "pin": codec.decode_pin,
}


def kind_of(sample: str) -> str:
    return sample.partition("-")[0]
