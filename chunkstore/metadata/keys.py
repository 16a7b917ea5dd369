"""Keys of the metadata store: one byte that says the kind, then the key proper. Key order is snapshot order.

    C <28-byte chunk id>                          chunk row
    G <lsn u64be> <sequence u16be>                garbage row
    E <session id u64be>                          session row
    P <pin name, UTF-8>                           pin row
    S <segment name, UTF-8>                       segment row
    T <len(namespace) u8> <namespace> <key>       table row
    i <run id u64be> <offset in run u64be>        extents: what of the offset index's extent rows is in the journal -> <28-byte chunk id>
    r <segment id u64be> <start offset u64be>     offset index: run row     -> <run id u64be> <base u64be>
    x <run id u64be> <offset in run u64be>        offset index: extent row  -> <28-byte chunk id>
    0x00 ...                                      the store's own head and marks

Promises: ``is_row`` tells the kinds that the state digest covers (upper case); index and head are not among them.
"""

from __future__ import annotations

from struct import Struct

__all__ = [
    "BLOCKS_NAMESPACE",
    "CHUNK",
    "EXTENT",
    "GARBAGE",
    "INLINE",
    "PIN",
    "QUOTA_KEY",
    "QUOTA_NAMESPACE",
    "RETENTION_NAMESPACE",
    "ROW_KINDS",
    "RUN",
    "SCRUB_KEY",
    "SCRUB_NAMESPACE",
    "SEGMENT",
    "SESSION",
    "TABLE",
    "VISIBLE_SEGMENTS",
    "WRITERS_NAMESPACE",
    "all_blocks_range",
    "block_key",
    "block_range",
    "chunk_key",
    "garbage_key",
    "is_row",
    "pin_key",
    "segment_key",
    "session_key",
    "table_key",
    "table_prefix",
    "writer_key",
    "writer_range",
]

CHUNK = b"C"
SESSION = b"E"
GARBAGE = b"G"
PIN = b"P"
SEGMENT = b"S"
VISIBLE_SEGMENTS = SEGMENT + b"\1"
"""Where the keys of segments begin that have names. Before them, after a NUL, which no name has: what is staged for a session."""
TABLE = b"T"
INLINE = b"i"
RUN = b"r"
EXTENT = b"x"
ROW_KINDS = frozenset(b"CEGPST")

# Reserved table namespaces (FORMAT.md has their keys and values).
WRITERS_NAMESPACE = "!writers"
BLOCKS_NAMESPACE = "!blocks"
RETENTION_NAMESPACE = "!retention"
QUOTA_NAMESPACE = "!quota"
SCRUB_NAMESPACE = "!scrub"

_GARBAGE = Struct(">cQH")
_SESSION = Struct(">cQ")
_U64 = Struct(">Q")


def is_row(key: bytes) -> bool:
    """Whether the key is covered by the state digest."""
    return key[0] in ROW_KINDS


def chunk_key(identity: bytes) -> bytes:
    """Key of a chunk row."""
    return CHUNK + identity


def segment_key(name: str) -> bytes:
    """Key of a segment row."""
    return SEGMENT + name.encode()


def garbage_key(lsn: int, sequence: int) -> bytes:
    """Key of a garbage row: the removing commit and the range's number in it."""
    return _GARBAGE.pack(GARBAGE, lsn, sequence)


def session_key(session_id: int) -> bytes:
    """Key of a session row."""
    return _SESSION.pack(SESSION, session_id)


def pin_key(name: str) -> bytes:
    """Key of a pin's row."""
    return PIN + name.encode()


def table_prefix(namespace: str) -> bytes:
    """What every key of a namespace begins with."""
    raw = namespace.encode()
    return TABLE + bytes((len(raw),)) + raw


def table_key(namespace: str, key: bytes) -> bytes:
    """Key of a table row."""
    return table_prefix(namespace) + key


_WRITERS = table_prefix(WRITERS_NAMESPACE)


def writer_key(segment_id: int, writer_id: bytes) -> bytes:
    """Key of the row that remembers a writer's last event number in a segment."""
    return _WRITERS + _U64.pack(segment_id) + writer_id


def writer_range(segment_id: int) -> tuple[bytes, bytes]:
    """Where the rows of a segment's writers begin, and where they end."""
    return writer_key(segment_id, b""), writer_key(segment_id + 1, b"")


SCRUB_KEY = table_key(SCRUB_NAMESPACE, b"")
"""Key of the row that says where scrubbing goes on."""

QUOTA_KEY = table_key(QUOTA_NAMESPACE, b"")
"""Key of the row that holds the container's quota."""


_BLOCKS = table_prefix(BLOCKS_NAMESPACE)


def block_key(identity: bytes, stop: int) -> bytes:
    """Key of the row of the borders in a stretch of a chunk that ends at ``stop``."""
    return _BLOCKS + identity + _U64.pack(stop)


def block_range(identity: bytes, position: int = 0) -> tuple[bytes, bytes]:
    """Where the rows of a chunk's borders begin, from the stretch that holds byte ``position``, and where they end."""
    return block_key(identity, position + 1), _BLOCKS + identity + b"\xff" * 9


def all_blocks_range() -> tuple[bytes, bytes]:
    """Where the rows of all borders begin, and where they end."""
    return _BLOCKS, _BLOCKS + b"\xff" * 37
