"""Records of Kafka's log segments one by one, control records, and aborted transactions; FORMAT.md next to this file has the bytes.

Promises: every record that a consumer gets, in order, and none that it does not get; lengths, counts and offsets are checked before use,
and damage is ``Damaged`` with object and position. Memory: one batch with its records decompressed. Leaves out: Arrow
(``record_batches``), and what the records' bytes mean.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final, Literal, NamedTuple

from chunkstore.codec.kafka.batches import EVERYTHING, OFFSET_MAX, Batch, ReadOptions, iter_batches
from chunkstore.codec.kafka.compression import decompress
from chunkstore.codec.kafka.indexes import AbortedTransaction
from chunkstore.codec.sources import DataSource
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "ControlRecord", "Isolation", "Record", "Transactions", "control_record", "iter_records", "parse_records", "records_data",
    "scan_transactions", "visible_batches",
]  # fmt: skip

Headers = tuple[tuple[str, bytes | None], ...]
Isolation = Literal["read_uncommitted", "read_committed"]

_RECORD_BYTES_MIN: Final = 7
"""What a record takes at least: one byte each for length, attributes, two deltas, two lengths and the number of headers."""
_CONTROL_KEY: Final = Struct(">hh")
_CONTROL_VALUE: Final = Struct(">hi")


class Record(NamedTuple):
    """A record. ``timestamp``: milliseconds since 1970, -1 for none, set by the producer ("create") or the broker ("append").

    ``key``, ``value`` and a header's value are ``None`` where they are null. Headers keep their order, and names may come twice.
    ``leader_epoch`` and ``producer_id`` are -1 where there is none.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: Literal["create", "append"]
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int
    producer_id: int
    transactional: bool


class ControlRecord(NamedTuple):
    """What a control batch says. ``type``: "abort" or "commit" ends a transaction of ``producer_id``; a number: others, of KRaft's log.

    ``coordinator_epoch`` is ``None`` where the record has none. ``timestamp``: milliseconds since 1970.
    """

    offset: int
    timestamp: int
    version: int
    type: Literal["abort", "commit"] | int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None


class Transactions(NamedTuple):
    """How transactions ended, as the transaction indexes of the segments say, or ``scan_transactions``.

    ``aborted``: those with records in what is read, in any order. ``last_stable_offset``: the first offset that is not decided; ``None``:
    all are. ``open``: producer ids of transactions without an end, and their first offsets.
    """

    aborted: tuple[AbortedTransaction, ...] = ()
    last_stable_offset: int | None = None
    open: Mapping[int, int] = {}


def iter_records(
    source: DataSource,
    topic: str,
    partition: int,
    *,
    isolation: Isolation = "read_uncommitted",
    transactions: Transactions | None = None,
    options: ReadOptions = EVERYTHING,
) -> Iterator[Record]:
    """The records of a log segment, in order. Control records are left out.

    A segment does not name its ``topic`` and ``partition``: they are given in each record. With "read_committed" the records of aborted
    transactions are left out, and those from ``transactions.last_stable_offset`` on; ``transactions`` is not used otherwise. Records
    outside of the offsets of ``options`` are left out.

    Raises ``InvalidArgument`` at once for an unknown isolation, or "read_committed" without ``transactions``. Raises while iterating, after
    the records before it: ``Damaged`` at the first batch that is wrong; ``Unsupported`` for magic 0 or 1, an unknown codec, or one whose
    package is not installed (extra ``kafka``); what ``iter_batches`` raises otherwise. Retry: safe.
    """
    options, batches = visible_batches(source, isolation, transactions, options)
    return (
        record
        for batch in batches
        for record in parse_records(batch, records_data(batch, options), topic, partition)
        if options.start_offset <= record.offset < options.end_offset
    )


def visible_batches(
    source: DataSource, isolation: Isolation, transactions: Transactions | None, options: ReadOptions
) -> tuple[ReadOptions, Iterator[Batch]]:
    """The batches with records that consumers get, and ``options`` with the end offset that they see. Otherwise as ``iter_records``."""
    if isolation not in ("read_uncommitted", "read_committed"):
        raise InvalidArgument(f"isolation: read_uncommitted or read_committed, not {isolation!r}", argument="isolation")
    aborted: dict[int, list[tuple[int, int]]] = {}
    if isolation == "read_committed":
        if transactions is None:
            raise InvalidArgument("read_committed needs transactions: see scan_transactions", argument="transactions")
        if transactions.last_stable_offset is not None:
            options = options._replace(end_offset=min(options.end_offset, transactions.last_stable_offset))
        for producer_id, first_offset, last_offset, _ in sorted(transactions.aborted):
            aborted.setdefault(producer_id, []).append((first_offset, last_offset))

    def is_aborted(batch: Batch) -> bool:
        ranges = aborted.get(batch.producer_id, [])
        place = bisect_right(ranges, (batch.base_offset, OFFSET_MAX)) - 1
        return batch.transactional and place >= 0 and batch.base_offset <= ranges[place][1]

    return options, (batch for batch in iter_batches(source, options) if not (batch.control or is_aborted(batch)))


def _broken(batch: Batch, message: str) -> Damaged:
    """The error about the records of a batch."""
    return Damaged(f"batch at offset {batch.base_offset}: {message}", object=batch.name, position=batch.position)


def records_data(batch: Batch, options: ReadOptions) -> bytes:
    """The records of a batch, decompressed. Raises ``Damaged``, ``Unsupported``."""
    try:
        data = decompress(batch.attributes & 7, batch.stored_records, options.records_bytes_max)
    except ValueError as error:
        raise _broken(batch, str(error)) from error
    if batch.count * _RECORD_BYTES_MIN > len(data):
        raise _broken(batch, f"{batch.count} records in {len(data)} bytes")
    return data


def parse_records(batch: Batch, data: bytes, topic: str = "", partition: int = 0) -> Iterator[Record]:
    """The records of a batch, one by one, from its decompressed ``data``. Raises ``Damaged``; what came before is right."""
    kind = batch.timestamp_type
    common = batch.leader_epoch, batch.producer_id, batch.transactional
    at = number = 0
    previous = -1
    try:
        while number < batch.count:
            size, begin = _varint(data, at)
            end = begin + size
            if size < 0 or end > len(data):
                raise ValueError(f"{size} bytes of record")
            time_delta, at = _varint(data, begin + 1, width_max=10)
            delta, at = _varint(data, at)
            if not previous < delta <= batch.last_offset_delta:
                raise ValueError(f"offset delta {delta} after {previous}, of at most {batch.last_offset_delta}")
            key, at = _bytes(data, at, end)
            value, at = _bytes(data, at, end)
            several, at = _varint(data, at)
            headers = _headers(data, at, end, several)
            timestamp = batch.max_timestamp if kind == "append" else _signed64(batch.base_timestamp + time_delta)
            yield Record(topic, partition, batch.base_offset + delta, timestamp, kind, key, value, headers, *common)
            at, previous = end, delta
            number += 1
        if at != len(data):
            raise ValueError("bytes after the last record")
    except (ValueError, IndexError) as error:
        text = "it is cut off" if isinstance(error, IndexError) else str(error)
        raise _broken(batch, f"record {number} of {batch.count}, near byte {at} of {len(data)}: {text}") from error


def _varint(data: bytes, at: int, width_max: int = 5) -> tuple[int, int]:
    """The zigzag number at ``at``, and where it ends. Raises ``ValueError``, ``IndexError``."""
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift, last = byte & 127, 7, at + width_max - 1
    while True:
        if at == last:
            raise ValueError(f"a number of more than {width_max} bytes")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at


def _bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """The bytes after their length at ``at``, ``None`` for length -1. Raises ``ValueError``, ``IndexError``."""
    size, begin = _varint(data, at)
    if size == -1:
        return None, begin
    stop = begin + size
    if size < 0 or stop > end:
        raise ValueError(f"{size} bytes of key, value or header")
    return data[begin:stop], stop


def _headers(data: bytes, at: int, end: int, several: int) -> Headers:
    """The ``several`` headers of a record, from ``at`` to ``end``, where it ends. Raises ``ValueError``, ``IndexError``."""
    if not 0 <= 2 * several <= end - at:
        raise ValueError(f"{several} headers in {end - at} bytes")
    found = []
    for _ in range(several):
        name, at = _bytes(data, at, end)
        value, at = _bytes(data, at, end)
        if name is None:
            raise ValueError("a header without a name")
        found.append((name.decode(errors="replace"), value))  # as Kafka's own clients do
    if at != end:
        raise ValueError(f"{end - at} bytes after its last field")
    return tuple(found)


def _signed64(value: int) -> int:
    """``value`` modulo 2**64, as a signed number: what Java's arithmetic gives."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def control_record(batch: Batch) -> ControlRecord | None:
    """What a control batch says; ``None`` of other batches, and where compaction has emptied it. Raises ``Damaged``, ``Unsupported``."""
    if not batch.control or not batch.count:
        return None
    record = next(parse_records(batch, records_data(batch, EVERYTHING)))
    key, value = record.key or b"", record.value or b""
    if len(key) < _CONTROL_KEY.size:
        raise _broken(batch, "a control record without version and type")
    version, number = _CONTROL_KEY.unpack_from(key)
    kind: Literal["abort", "commit"] | int = "abort" if number == 0 else "commit" if number == 1 else number
    epoch = _CONTROL_VALUE.unpack_from(value)[1] if number in (0, 1) and len(value) >= _CONTROL_VALUE.size else None
    return ControlRecord(record.offset, record.timestamp, version, kind, batch.producer_id, batch.producer_epoch, epoch)


def scan_transactions(batches: Iterable[Batch], open: Mapping[int, int] | None = None) -> Transactions:
    """How the transactions in ``batches`` ended, of one log in order: its segments, one after the other.

    ``open``: transactions that are open before the first batch (producer id, first offset). Without it, an abort marker whose records are
    all in earlier segments is passed over: none of its records are here. ``last_stable_offset`` is the first offset of an open
    transaction, else the one after the last batch. Raises what ``batches`` raises, and ``Damaged``. Retry: safe.
    """
    going = dict(open or {})
    aborted: list[AbortedTransaction] = []
    end_offset: int | None = None
    for batch in batches:
        end_offset = batch.last_offset + 1
        if batch.control:
            found = control_record(batch)
            ends = found is not None and found.type in ("abort", "commit")
            first_offset = going.pop(batch.producer_id, None) if ends else None
            if found is not None and found.type == "abort" and first_offset is not None:
                aborted.append(AbortedTransaction(batch.producer_id, first_offset, found.offset))
        elif batch.transactional:
            going.setdefault(batch.producer_id, batch.base_offset)
    return Transactions(tuple(aborted), min(going.values(), default=end_offset), going)
