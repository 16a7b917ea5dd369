"""How far those have come who write, or export, from outside the owner: rows of the reserved table namespace ``!sinks`` (FORMAT.md,
"Sinks").

Promises: a row is put by the very commit that it speaks of, so reading it tells whether that has happened; no two commits put the
same value.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from chunkstore.config import LIMITS
from chunkstore.errors import Damaged

__all__ = [
    "JOB",
    "STREAM",
    "SinkRow",
    "decode_sink",
    "encode_sink",
    "sink_key",
    "unnamed_key",
]

_HEADER = Struct(">BBQ16s16s16s16s")
_VERSION = 2
_NUMBER_MAX = (1 << 63) - 1

STREAM: Final = b"s"
"""What the key of a stream's row begins with; its sink id follows."""
JOB: Final = b"j"
"""... of the row of batch writes; their application's id follows."""
_UNNAMED: Final = b"u"
"""... of the rows that batch writes without such an id share; one byte follows."""


class SinkRow(NamedTuple):
    """What was committed last: ``number`` is the micro-batch's, or the version that the application gave; ``container`` the uuid of that
    which it was written to; ``query`` the streaming query's id; ``run`` a digest of the query's run, or of what an offload has written so
    far; ``token`` random; ``content`` what the rows of commit ``number`` were: their count and the sum of their CRC32Cs (u64be each)."""

    number: int
    container: bytes
    run: bytes
    token: bytes
    query: str = ""
    content: bytes = bytes(16)


def sink_key(kind: bytes, name: bytes) -> bytes:
    """The key of a row: ``name`` is at most 255 bytes."""
    return kind + name


def unnamed_key(session_id: int) -> bytes:
    """The key of the row of a session that belongs to no application and no stream."""
    return sink_key(_UNNAMED, bytes((session_id & 0xFF,)))


def encode_sink(row: SinkRow) -> bytes:
    """The value of a row."""
    return _HEADER.pack(_VERSION, 0, row.number, row.container, row.run, row.token, row.content) + row.query.encode()


def decode_sink(key: bytes, value: bytes) -> SinkRow:
    """What a row says. Raises ``Damaged``, also for one of a version that is not known."""
    query = value[_HEADER.size :]
    if len(value) >= _HEADER.size and len(query) <= LIMITS.segment_name_bytes_max:
        version, flags, number, container, run, token, content = _HEADER.unpack_from(value)
        text = query.decode("utf-8", "replace")
        if (version, flags) == (_VERSION, 0) and number <= _NUMBER_MAX and text.encode() == query:
            return SinkRow(number, container, run, token, text, content)
    raise Damaged("not a sink's row of a known version", object=f"metadata row !sinks {key!r}")
