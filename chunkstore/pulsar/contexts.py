"""The contexts: one row of the table ``offload`` for each offload segment, and the names of its two segments.

Promises: rows are versioned and checked before they are believed (FORMAT.md); rows of a topic come in the order in which its
offload segments began. Leaves out: who writes them when (``writer``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

import msgpack

from chunkstore import runtime
from chunkstore.codec.pulsar.offload_metadata import OffloadContext
from chunkstore.engine.reading import ReadableContainer
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument
from chunkstore.metadata.codec import unpack_row
from chunkstore.records.names import utf8_bytes

__all__ = [
    "LEDGERS_MAX",
    "NAMESPACE",
    "TOPIC_BYTES_MAX",
    "Context",
    "EntryRange",
    "LedgerNotFound",
    "Stored",
    "check_driver",
    "check_topic",
    "damaged_row",
    "dashed",
    "data_segment",
    "decode_context",
    "encode_context",
    "iter_contexts",
    "iter_topics",
    "key_of",
    "new_context",
    "require_numbers",
    "row_fields",
    "segments_of",
    "topic_and_number",
    "uuid_bytes",
]

NAMESPACE: Final = "offload"
TOPIC_BYTES_MAX: Final = 200
"""Longest topic in UTF-8: the names of its segments have at most 255 bytes."""
LEDGERS_MAX: Final = 4096
"""Ledgers in one offload segment: a row holds their ranges."""

MAJOR: Final = 1
MINOR: Final = 2
STATES: Final = ("", "Assigned", "Offloaded", "Failed")
"""By the number in a row."""
DRIVER_PAIRS_MAX: Final = 64
DRIVER_BYTES_MAX: Final = 8192
_NUMBER_MAX: Final = (1 << 63) - 1

Stored = ReadableContainer
"""What ledgers are read from: an owner or a replica."""


class LedgerNotFound(ChunkstoreError):
    """The topic, or a ledger of it, holds no entries here. ``ledger`` is None where the whole topic is unknown."""

    fields: ClassVar[tuple[str, ...]] = ("topic", "ledger")

    def __init__(
        self, topic: str | None, ledger: int | None = None, *, where: str = "this container; 'chunkstore ledger ls'"
    ) -> None:
        names = ([] if ledger is None else [f"ledger {ledger}"]) + ([] if topic is None else [f"topic {topic!r}"])
        super().__init__(f"{' of '.join(names)} is not in {where} shows what is")
        self.topic = topic
        self.ledger = ledger


class EntryRange(NamedTuple):
    """A ledger's entries in one offload segment: from ``first_entry`` to ``last_entry``, both there; gaps may be between. ``entries``: how
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
    assigned_ms: int = 0
    """When it began, ms since 1970 by the clock of that owner: a label."""
    offloaded_ms: int = 0
    """When it was completed; 0: not yet."""
    failures: int = 0
    """How many attempts to write it failed."""
    failed: bool = False
    """Whether the last attempt failed and no other one has begun."""
    begin: tuple[int, int] | None = None
    """Ledger and entry with which a streaming offload began; None: it is ledger-based."""
    driver: tuple[tuple[str, str], ...] = ()
    """Driver metadata, as its streaming offload was given them."""

    @property
    def status(self) -> str:
        """``Assigned``, ``Offloaded`` or ``Failed``."""
        return STATES[2 if self.complete else 3 if self.failed else 1]

    @property
    def end(self) -> tuple[int, int] | None:
        """The last ledger and its last entry here; None: not complete."""
        return (self.ranges[-1].ledger, self.ranges[-1].last_entry) if self.ranges else None

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
        done = self._replace(complete=True, data_length=data_length, index_length=index_length, ranges=ranges)
        return done._replace(failed=False, offloaded_ms=runtime.now_ms())


def check_topic(topic: object) -> str:
    """1 to 200 bytes of UTF-8 without NUL. Raises ``InvalidArgument``."""
    if not isinstance(topic, str) or not 1 <= utf8_bytes(topic) <= TOPIC_BYTES_MAX or "\0" in topic:
        raise InvalidArgument(
            f"a topic is a str of 1 to {TOPIC_BYTES_MAX} bytes without NUL, not {topic!r}", argument="topic"
        )
    return topic


def check_driver(metadata: object) -> tuple[tuple[str, str], ...]:
    """Driver metadata as a row holds them: at most 64 pairs of texts, 8 KiB in all. Raises ``InvalidArgument``."""
    pairs = tuple(metadata.items()) if isinstance(metadata, Mapping) else ()
    sizes = [utf8_bytes(text) if isinstance(text, str) else -1 for pair in pairs for text in pair]
    fits = len(pairs) <= DRIVER_PAIRS_MAX and sum(sizes) <= DRIVER_BYTES_MAX and min(sizes, default=0) >= 0
    if not isinstance(metadata, Mapping) or not fits:
        text = f"driver metadata map texts to texts: at most {DRIVER_PAIRS_MAX} pairs, {DRIVER_BYTES_MAX} bytes"
        raise InvalidArgument(text, argument="driver_metadata")
    return pairs


def new_context(topic: str, sequence: int) -> Context:
    """Of an offload segment that begins. A random UUID (version 4) as RFC 9562 lays it out; Pulsar names its objects so."""
    uuid = bytearray(runtime.token(16))
    uuid[6] = 0x40 | uuid[6] & 0x0F
    uuid[8] = 0x80 | uuid[8] & 0x3F
    return Context(topic, sequence, bytes(uuid), complete=False, assigned_ms=runtime.now_ms())


def data_segment(topic: str, uuid: bytes) -> str:
    """The name of an offload segment's data."""
    return f"{segments_of(topic)}/{dashed(uuid)}"


def dashed(uuid: bytes) -> str:
    """A uuid in lower case with dashes, as Pulsar's keys have it."""
    digits = uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def segments_of(topic: str) -> str:
    """How the names of its segments begin; of the beginning of a topic, how those of all such topics do."""
    return f"offload/{topic}"


def uuid_bytes(value: object) -> bytes:
    """A UUID, given as 16 bytes, text, ``uuid.UUID`` or in an ``OffloadContext``. Raises ``InvalidArgument``."""
    if isinstance(value, OffloadContext) and value.uid_msb is not None and value.uid_lsb is not None:
        return b"".join(half.to_bytes(8, "big", signed=True) for half in (value.uid_msb, value.uid_lsb))
    raw = getattr(value, "bytes", value)
    try:
        found = raw if isinstance(raw, bytes) else bytes.fromhex(str(raw).replace("-", ""))
    except ValueError:
        found = b""
    if len(found) != 16:
        raise InvalidArgument(f"{value!r} is not a UUID", argument="uuid")
    return found


def key_of(topic: str, number: int) -> bytes:
    """The key of a row: of an offload segment by its sequence number, of a ledger by its id."""
    return topic.encode() + b"\0" + number.to_bytes(8, "big")


def topic_and_number(key: bytes) -> tuple[str, int]:
    """Inverse of ``key_of``. Raises ``ValueError``."""
    topic = key[:-9].decode()
    if key[-9:-8] != b"\0" or not topic:
        raise ValueError("not a key of topic and number")
    return topic, int.from_bytes(key[-8:], "big")


def row_fields(value: bytes, count: int, items_max: int, *, minor: int = MINOR) -> tuple[Any, ...]:
    """The fields of a row that this version knows, after its versions. Raises ``ValueError`` and ``TypeError``."""
    row = unpack_row(value, items_max)
    if type(row) is not tuple or len(row) < 2 + count or row[0] != MAJOR or row[1] < minor:
        raise ValueError(f"not a row of major version {MAJOR}")
    return row[2 : 2 + count]


def require_numbers(*numbers: object) -> None:
    """Raise ``ValueError`` unless all are lengths, ids or times."""
    for number in numbers:
        if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
            raise ValueError(f"{number!r} is not a number")


def damaged_row(table: str, key: bytes, error: Exception) -> Damaged:
    """The error about a row that is none."""
    return Damaged(f"a row of offloads: {error or type(error).__name__}", object=f"table {table}, row {key!r}")


def encode_context(context: Context) -> bytes:
    """The row's value."""
    flat = [number for item in context.ranges for number in item[:3]]
    counts = [item.entries for item in context.ranges]
    state = STATES.index(context.status)
    about = (context.assigned_ms, context.offloaded_ms, context.failures, *(context.begin or ()))
    driver = [text for pair in context.driver for text in pair]
    lengths = (context.data_length, context.index_length)
    row = (MAJOR, MINOR, context.uuid, state, *lengths, flat, counts, about, driver)
    value: bytes = msgpack.packb(row)
    return value


def decode_context(key: bytes, value: bytes, version: int = 0) -> Context:
    """The context of a row. Raises ``Damaged`` naming the row."""
    try:
        topic, sequence = topic_and_number(key)
        uuid, state, data_length, index_length, *arrays = row_fields(value, 8, 3 * LEDGERS_MAX)
        flat, counts, about, driver = arrays
        if type(uuid) is not bytes or len(uuid) != 16 or state not in (1, 2, 3):
            raise ValueError("uuid or state is wrong")
        if any(type(item) is not tuple for item in arrays) or len(about) not in (3, 5) or len(flat) != 3 * len(counts):
            raise ValueError("entry ranges, counts, times or driver metadata are wrong")
        if any(type(text) is not str for text in driver):
            raise ValueError("driver metadata are not texts")
        require_numbers(data_length, index_length, *flat, *counts, *about)
        ranges = tuple(map(EntryRange, flat[::3], flat[1::3], flat[2::3], counts))
        if any(not item.entries <= item.last_entry - item.first_entry + 1 > 0 for item in ranges):
            raise ValueError("an entry range ends before it begins, or has more entries than ids")
        pairs = tuple(zip(driver[::2], driver[1::2], strict=True))
    except (ValueError, TypeError) as error:
        raise damaged_row(NAMESPACE, key, error) from error
    assigned_ms, offloaded_ms, failures, *begin = about
    context = Context(topic, sequence, uuid, state == 2, data_length, index_length, ranges, version)
    context = context._replace(assigned_ms=assigned_ms, offloaded_ms=offloaded_ms, failures=failures)
    return context._replace(failed=state == 3, begin=tuple(begin) or None, driver=pairs)


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
