"""Record batches of Kafka's log segments (magic 2), one by one; FORMAT.md next to this file has the bytes.

Promises: each batch is whole, its CRC32C right, and its base offset after the last offset before it, for no CRC covers a base offset.
Magic 0 and 1 are ``Unsupported``. Bytes at the end that are no whole batch are damage, or the ``tail`` of a log that is still written to.
Memory: one window or one batch. Leaves out: what is inside a batch (``records``, ``record_batches``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, Literal, NamedTuple, NoReturn

from chunkstore.checksum import BytesLike, crc32c_of_bytes
from chunkstore.codec.sources import DataSource, read_exactly
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged, InvalidArgument, Unsupported

__all__ = [
    "BATCH_HEADER_BYTES", "CRC_BEGINS", "EVERYTHING", "OFFSET_MAX", "Batch", "LogSummary", "ReadOptions", "Tail", "iter_batches",
    "validate",
]  # fmt: skip

BATCH_HEADER_BYTES: Final = 61
CRC_BEGINS: Final = 21
"""The CRC covers everything from here on: not the base offset, the length and the leader epoch."""
OFFSET_MAX: Final = (1 << 63) - 1

_unpack = Struct(">qiibIhiqqqhii").unpack_from
_LENGTH_ENDS: Final = 12
_LENGTH_MIN: Final = BATCH_HEADER_BYTES - _LENGTH_ENDS
_OLD_LENGTH_MIN: Final = 14


class ReadOptions(NamedTuple):
    """What is read of a log segment, and what is refused. ``position``: of the first batch in the object, in bytes: an index says so.

    ``floor``: the least base offset that the first batch may have: of a segment, the offset in its name. ``start_offset``, ``end_offset``:
    batches without an offset in [start, end) are passed over, and only their headers checked. ``unfinished``: the log is still written to,
    or was when its broker died: it may end with a part of a batch, or with zeros. ``dense``: offsets have no gaps, as of topics that are
    not compacted. ``batch_bytes_max``: longest batch that is read; brokers take 1 MiB by default. ``records_bytes_max``: of its records
    after decompression. ``window_bytes``: asked for in one read: by default what stays in the processor's cache; of a remote object more is
    faster. ``summary`` learns what was read, as far as it was.
    """

    position: int = 0
    floor: int = 0
    start_offset: int = 0
    end_offset: int = OFFSET_MAX
    unfinished: bool = False
    dense: bool = False
    batch_bytes_max: int = 64 * MIB
    records_bytes_max: int = 128 * MIB
    window_bytes: int = 512 * KIB
    summary: LogSummary | None = None


EVERYTHING: Final = ReadOptions()
"""The whole of a segment that is complete."""


class Batch(NamedTuple):
    """One record batch, with the fields of its header; timestamps in milliseconds since 1970, -1 for none.

    ``name``, ``position``: the object that it was read from, and its first byte there. ``length``: bytes after the length field: the next
    batch is 12 bytes further. ``attributes``: bits 0 to 2: the codec; 3 to 5: see the properties; 6: ``base_timestamp``, which the records'
    timestamps count from, is a delete horizon. ``producer_id``, ``producer_epoch``, ``base_sequence``: -1 without an idempotent producer.
    ``count``: records; 0 where compaction left the header alone. ``body``: what the CRC covers: all from ``attributes`` on, as stored.
    """

    name: str
    position: int
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # the method of tuples is not missed
    body: bytes

    @property
    def stored_records(self) -> bytes:
        """The records as stored: compressed where the codec is not 0."""
        return self.body[BATCH_HEADER_BYTES - CRC_BEGINS :]

    @property
    def last_offset(self) -> int:
        """The last offset that belongs to it, whether a record has it or not."""
        return self.base_offset + self.last_offset_delta

    @property
    def timestamp_type(self) -> Literal["create", "append"]:
        """Who set the records' timestamps: "append": the broker, and all have ``max_timestamp``."""
        return "append" if self.attributes & 8 else "create"

    @property
    def transactional(self) -> bool:
        """Whether it is part of a transaction."""
        return bool(self.attributes & 16)

    @property
    def control(self) -> bool:
        """Whether its record is for brokers: consumers never get it."""
        return bool(self.attributes & 32)


class Tail(NamedTuple):
    """The bytes at the end of an object that are no whole batch; ``zeros``: preallocated, all of them."""

    position: int
    length_bytes: int
    zeros: bool


@dataclass(slots=True)
class LogSummary:
    """What was read of a log segment so far. ``start_offset``, ``end_offset``: the first base offset (-1: none), the one after the last.

    ``end_position``: where the last batch ends, in bytes. ``max_timestamp``: in milliseconds since 1970; -1: none. ``gaps``: how often
    offsets are missing between batches, as after compaction. ``epoch_drops``: how often a leader epoch is less than the one before it.
    ``beyond``: the base offset of the batch that ended the reading, as it is not below ``end_offset``; -1: none. ``tail``: what is no
    batch; known at the end.
    """

    batches: int = 0
    records: int = 0
    start_offset: int = -1
    end_offset: int = 0
    end_position: int = 0
    max_timestamp: int = -1
    gaps: int = 0
    epoch_drops: int = 0
    beyond: int = -1
    tail: Tail | None = None


def validate(source: DataSource, options: ReadOptions = EVERYTHING) -> LogSummary:
    """Check every batch of a log segment without decompressing its records. Raises as ``iter_batches``."""
    summary = LogSummary()
    deque(iter_batches(source, options._replace(summary=summary)), 0)
    return summary


def iter_batches(source: DataSource, options: ReadOptions = EVERYTHING) -> Iterator[Batch]:
    """The record batches of a log segment, in order, each one checked.

    Raises while iterating: ``InvalidArgument`` for a position that is not in the object, ``Damaged`` at the first byte that is wrong,
    ``Unsupported`` for magic 0 and 1, and what ``source.read`` raises. Retry: safe.
    """
    seen = options.summary or LogSummary()
    length_max, start_offset, stop = options.batch_bytes_max, options.start_offset, source.length
    if not 0 <= options.position <= source.length:
        raise InvalidArgument(f"position {options.position} of {source.length} bytes", argument="options")
    data: BytesLike = b""
    begin = at = seen.end_position = options.position
    next_offset = seen.end_offset = options.floor
    epoch = -1
    while at < stop:
        place = at - begin
        if place + BATCH_HEADER_BYTES > len(data):
            data, begin, place = _window(source, at, options), at, 0
            if len(data) < BATCH_HEADER_BYTES:
                seen.tail = _tail(source, at, options)
                return
        fields = _unpack(data, place)
        base, length, leader_epoch, magic, crc, _, last_delta, _, max_timestamp, *_, count = fields
        size = length + _LENGTH_ENDS
        if magic != 2 or not _LENGTH_MIN <= length <= length_max or size > stop - at:
            _check_frame(source, at, options, bytes(data[place : place + BATCH_HEADER_BYTES]))
            seen.tail = _tail(source, at, options)
            return
        if not (next_offset <= base <= OFFSET_MAX - last_delta and 0 <= count <= last_delta + 1 > 0):
            _fail(f"{count} records, offsets {base} to {base + last_delta}, after {next_offset - 1}", source, at)
        if base >= options.end_offset:
            seen.beyond = base
            return
        if not seen.batches:
            seen.start_offset = base
        elif base != next_offset:
            seen.gaps += 1
            if options.dense:
                _fail(f"offsets {next_offset} to {base - 1} are missing before this batch", source, at)
        if leader_epoch < epoch:
            seen.epoch_drops += 1
        epoch, next_offset = leader_epoch, base + last_delta + 1
        if next_offset > start_offset:
            if place + size > len(data):
                data, begin, place = _window(source, at, options, size), at, 0
            body = bytes(data[place + CRC_BEGINS : place + size])
            if crc32c_of_bytes(body) != crc:
                _fail(f"the batch at offset {base} does not have CRC32C {crc:#010x}", source, at)
        else:
            body = b""
        at = seen.end_position = at + size
        seen.end_offset = next_offset
        seen.batches += 1
        seen.records += count
        seen.max_timestamp = max(seen.max_timestamp, max_timestamp)
        if body:
            yield Batch._make((source.name, at - size, *fields, body))


def _window(source: DataSource, at: int, options: ReadOptions, least: int = BATCH_HEADER_BYTES) -> BytesLike:
    """At least ``least`` bytes from ``at`` on, fewer where the object ends."""
    return read_exactly(source, at, min(max(least, options.window_bytes), source.length - at))


def _check_frame(source: DataSource, at: int, options: ReadOptions, header: bytes) -> None:
    """Raises for a header of no batch that is read; what returns may be a tail."""
    _, length, _, magic, *_ = _unpack(header)
    if magic in (0, 1) and length >= _OLD_LENGTH_MIN:
        text = f"{source.name} at byte {at}: a message set of magic {magic}; only record batches of magic 2 are read"
        raise Unsupported(text, feature=f"magic {magic}")
    if magic != 2 and any(header):
        _fail(f"no batch begins here: magic {magic}", source, at)
    if magic == 2 and (length < _LENGTH_MIN or length + _LENGTH_ENDS <= source.length - at):
        _fail(f"a batch of {length} bytes; {_LENGTH_MIN} to {options.batch_bytes_max} are read", source, at)


def _tail(source: DataSource, at: int, options: ReadOptions) -> Tail:
    """The bytes from ``at`` on, which are no whole batch. Raises ``Damaged`` unless the log is unfinished."""
    left = source.length - at
    if not options.unfinished:
        text = f"the last {left} bytes are not a whole batch; a log that is still being written may end so (unfinished=True)"
        _fail(text, source, at)
    zeros, place = True, at
    while zeros and place < source.length:
        window = _window(source, place, options)
        zeros, place = not bytes(window).strip(b"\0"), place + len(window)
    return Tail(at, left, zeros)


def _fail(message: str, source: DataSource, position: int) -> NoReturn:
    raise Damaged(message, object=source.name, position=position)
