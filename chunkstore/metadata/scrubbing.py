"""Where scrubbing goes on: one row without a key in the reserved table namespace ``!scrub`` (FORMAT.md next to this file, "Scrubbing").

Promises: a position is a place in the bytes of a segment, so it means the same after chunks were merged, truncated or deleted.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from chunkstore.config import LIMITS
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import SCRUB_KEY
from chunkstore.metadata.port import MetadataView
from chunkstore.records.reports import ScrubMark, ScrubPosition

__all__ = ["BEGINNING", "ScrubMark", "ScrubPosition", "decode_mark", "encode_mark", "find_mark"]

_HEADER = Struct(">BQQ")
_VERSION = 1
_OFFSET_MAX = (1 << 63) - 1
_TIME_MS_MAX = (1 << 63) - 1


BEGINNING: Final = ScrubPosition("", 0)


def encode_mark(mark: ScrubMark) -> bytes:
    """The value of the row."""
    return _HEADER.pack(_VERSION, mark.began_ms, mark.position.offset) + mark.position.segment.encode()


def decode_mark(raw: bytes) -> ScrubMark:
    """What the row says. Raises ``Damaged``."""
    value = decode_table(SCRUB_KEY, raw).value
    name = value[_HEADER.size :]
    if len(value) >= _HEADER.size and len(name) <= LIMITS.segment_name_bytes_max and b"\0" not in name:
        version, began_ms, offset = _HEADER.unpack_from(value)
        text = name.decode("utf-8", "replace")
        good = version == _VERSION and text.encode() == name and (offset == 0 or text != "")
        if good and offset <= _OFFSET_MAX and began_ms <= _TIME_MS_MAX:
            return ScrubMark(ScrubPosition(text, offset), began_ms)
    raise Damaged("not a scrubbing position of a known version", object=f"metadata row {SCRUB_KEY!r}")


def find_mark(view: MetadataView) -> ScrubMark | None:
    """Where a pass is, or that it has ended. None: there is no row, or it cannot be read, and scrubbing begins anew."""
    raw = view.get(SCRUB_KEY)
    try:
        return None if raw is None else decode_mark(raw)
    except Damaged:
        return None
