"""The contexts: one row of the table ``offload`` for each offload segment, and the names of its two segments.

Promises: rows are versioned and checked before they are believed (FORMAT.md); rows of a topic come in the order in which its
offload segments began. Leaves out: who writes them when (``writer``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgpack

from chunkstore import runtime
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument
from chunkstore.metadata.codec import unpack_row
from chunkstore.names import utf8_bytes
from chunkstore.replica import Replica

__all__ = [
    "LEDGERS_MAX",
    "NAMESPACE",
    "TOPIC_BYTES_MAX",
    "Context",
    "EntryRange",
    "LedgerNotFound",
    "Stored",
    "check_topic",
    "data_segment",
    "decode_context",
    "encode_context",
    "iter_contexts",
    "iter_topics",
    "key_of",
    "new_context",
    "segments_of",
]

NAMESPACE: Final = "offload"
TOPIC_BYTES_MAX: Final = 200
"""Longest topic in UTF-8: the names of its segments have at most 255 bytes."""
LEDGERS_MAX: Final = 4096
"""Ledgers in one offload segment: a row holds their ranges."""

MAJOR: Final = 1
MINOR: Final = 1
OPEN: Final = 1
COMPLETE: Final = 2
_NUMBER_MAX: Final = (1 << 63) - 1
_FIELDS: Final = 7
_FIELDS_WITH_COUNTS: Final = 8
_FIELDS_MAX: Final = 64

Stored = ChunkedSegmentStorage | Replica
"""What ledgers are read from: an owner or a replica."""


class LedgerNotFound(ChunkstoreError):
    """The topic, or a ledger of it, holds no entries here. ``ledger`` is None where the whole topic is unknown."""

    fields = ("topic", "ledger")

    def __init__(
        self, topic: str | None, ledger: int | None = None, *, where: str = "this container; 'chunkstore ledger ls'"
    ) -> None:
        names = ([] if ledger is None else [f"ledger {ledger}"]) + ([] if topic is None else [f"topic {topic!r}"])
        super().__init__(f"{' of '.join(names)} is not in {where} shows what is")
        self.topic = topic
        self.ledger = ledger


class EntryRange(NamedTuple):
    """A ledger's entries in one offload segment: from ``first_entry`` to ``last_entry``, both there; gaps may lie between. ``entries``: how
    many there are; 0: not known."""

    ledger: int
    first_entry: int
    last_entry: int
    entries: int = 0


class Context(NamedTuple):
    """One offload segment of a topic. Lengths in bytes; of an open one they are 0 and ``ranges`` is empty: its data knows."""

    topic: str
    sequence: int
    uuid: bytes
    complete: bool
    data_length: int = 0
    index_length: int = 0
    ranges: tuple[EntryRange, ...] = ()
    version: int = 0
    """The row's version (0: not stored yet)."""

    @property
    def data(self) -> str:
        """The name of the data segment."""
        return data_segment(self.topic, self.uuid)

    @property
    def index_segment(self) -> str:
        """The name of the index segment (there once the offload segment is complete)."""
        return self.data + "-index"

    def completed(self, data_length: int, index_length: int, ranges: tuple[EntryRange, ...]) -> Context:
        """What the row says once the offload segment is complete."""
        return self._replace(complete=True, data_length=data_length, index_length=index_length, ranges=ranges)


def check_topic(topic: object) -> str:
    """1 to 200 bytes of UTF-8 without NUL. Raises ``InvalidArgument``."""
    if not isinstance(topic, str) or not 1 <= utf8_bytes(topic) <= TOPIC_BYTES_MAX or "\0" in topic:
        raise InvalidArgument(
            f"a topic is a str of 1 to {TOPIC_BYTES_MAX} bytes without NUL, not {topic!r}", argument="topic"
        )
    return topic


def new_context(topic: str, sequence: int) -> Context:
    """Of an offload segment that begins. A random UUID (version 4) as RFC 9562 lays it out; Pulsar names its objects so."""
    uuid = bytearray(runtime.token(16))
    uuid[6] = 0x40 | uuid[6] & 0x0F
    uuid[8] = 0x80 | uuid[8] & 0x3F
    return Context(topic, sequence, bytes(uuid), complete=False)


def data_segment(topic: str, uuid: bytes) -> str:
    """The name of an offload segment's data."""
    digits = uuid.hex()
    dashed = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return f"{segments_of(topic)}/{dashed}"


def segments_of(topic: str) -> str:
    """How the names of its segments begin; of the beginning of a topic, how those of all such topics do."""
    return f"offload/{topic}"


def key_of(topic: str, sequence: int) -> bytes:
    """The row's key."""
    return topic.encode() + b"\0" + sequence.to_bytes(8, "big")


def encode_context(context: Context) -> bytes:
    """The row's value."""
    flat = [number for item in context.ranges for number in item[:3]]
    counts = [item.entries for item in context.ranges]
    state = COMPLETE if context.complete else OPEN
    row = (MAJOR, MINOR, context.uuid, state, context.data_length, context.index_length, flat, counts)
    value: bytes = msgpack.packb(row)
    return value


def decode_context(key: bytes, value: bytes, version: int = 0) -> Context:
    """The context of a row. Raises ``Damaged`` naming the row."""
    try:
        topic = key[:-9].decode()
        row = unpack_row(value, 3 * LEDGERS_MAX)
        if type(row) is not tuple or not _FIELDS <= len(row) <= _FIELDS_MAX or row[0] != MAJOR:
            raise _damage(key, f"not a context of major version {MAJOR}")
        _, minor, uuid, state, data_length, index_length, flat = row[:_FIELDS]
        if key[-9:-8] != b"\0" or not topic or type(uuid) is not bytes or len(uuid) != 16 or state not in (1, 2):
            raise _damage(key, "topic, uuid or state is wrong")
        if type(flat) is not tuple or len(flat) % 3:
            raise _damage(key, "entry ranges are not triples")
        counts: tuple[int, ...] = (0,) * (len(flat) // 3)
        if type(minor) is not int or minor > 0:
            if len(row) < _FIELDS_WITH_COUNTS or type(row[7]) is not tuple or len(row[7]) != len(counts):
                raise _damage(key, "the counts of entries are not those of its ranges")
            counts = row[7]
        _check_numbers(key, (data_length, index_length, *flat, *counts))
    except (ValueError, TypeError) as error:
        raise _damage(key, str(error) or type(error).__name__) from error
    ranges = tuple(EntryRange(flat[at], flat[at + 1], flat[at + 2], counts[at // 3]) for at in range(0, len(flat), 3))
    if any(item.last_entry < item.first_entry for item in ranges):
        raise _damage(key, "an entry range ends before it begins")
    if any(item.entries > item.last_entry - item.first_entry + 1 for item in ranges):
        raise _damage(key, "an entry range has more entries than ids")
    sequence = int.from_bytes(key[-8:], "big")
    return Context(topic, sequence, uuid, state == COMPLETE, data_length, index_length, ranges, version)


def _check_numbers(key: bytes, numbers: tuple[Any, ...]) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
            raise _damage(key, f"{number!r} is no length and no id")


def _damage(key: bytes, message: str) -> Damaged:
    return Damaged(f"offload context: {message}", object=f"table {NAMESPACE}, row {key!r}")


def iter_contexts(store: Stored, topic: str) -> list[Context]:
    """The topic's contexts in the order in which they began, from one view. Raises ``Damaged`` and what tables raise."""
    rows = store.table(NAMESPACE).scan(topic.encode() + b"\0")
    return [decode_context(row.key, row.value, row.version) for row in rows]


def iter_topics(store: Stored) -> Iterator[str]:
    """All topics, in the order of their bytes; each by one look-up. Raises as ``iter_contexts``."""
    table = store.table(NAMESPACE)
    after: bytes | None = None
    while True:
        rows = table.scan(after=after)
        row = next(rows, None)
        rows.close()  # type: ignore[attr-defined]  # a generator: ends its view
        if row is None:
            return
        topic = decode_context(row.key, row.value).topic
        yield topic
        after = topic.encode() + b"\0" + b"\xff" * 8
