"""``to_batches`` and ``ledger_batches``: segments and ledgers as Arrow record batches, for Polars, DuckDB, pandas and others. No JVM.

Promises: rows come in order and once each; a batch is bounded in bytes and rows; every block that is read is verified; the end is fixed by
the call. Batches before an error are good. An error keeps its class in Python (``for batch in reader``), and only its message where an
engine reads the stream through Arrow's C interface. Needs the extra ``arrow``.
Leaves out: following a tail, parsing what records hold, the messages in Pulsar's entries (``PulsarBucket.message_batches``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Literal

import pyarrow as pa

from chunkstore.config import GIB, MIB
from chunkstore.engine.reader import StorageReader
from chunkstore.engine.reading import ReadableContainer
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.pulsar.container import LedgerReader
from chunkstore.pulsar.contexts import Stored
from chunkstore.records.arguments import SegmentHandle, SegmentRef, check_flags, check_number
from chunkstore.records.framing import Framing, Records, RecordSplitter, check_framing

__all__ = ["LEDGER_SCHEMA", "SCHEMA", "TEXT_SCHEMA", "ledger_batches", "to_batches"]


def _schema(key: str, value: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(key, pa.int64(), nullable=False), pa.field("value", value, nullable=False)])


SCHEMA: Final = _schema("offset", pa.binary())
"""The columns of ``to_batches``: the offset of a record's first byte (its prefix included), and its payload."""
TEXT_SCHEMA: Final = _schema("offset", pa.string())
"""As ``SCHEMA``, of ``text=True``."""
LEDGER_SCHEMA: Final = _schema("entry", pa.binary())
"""The columns of ``ledger_batches``."""

_BYTES_MAX: Final = 1 * GIB  # binary columns count their bytes in 31 bits, and one record may exceed the batch
_PIECE_BYTES_MIN: Final = 4096


def to_batches(
    store: ReadableContainer,
    segment: SegmentRef,
    framing: Framing | Literal["none"] = "lines",
    *,
    start: int | None = None,
    stop: int | None = None,
    text: bool = False,
    record_bytes_max: int = 64 * MIB,
    batch_bytes: int = 1 * MIB,
    batch_rows: int = 65_536,
) -> pa.RecordBatchReader:
    """A segment's records, one a row: ``offset`` (int64) and ``value`` (binary; string with ``text``), never null.

    Arguments: ``store``: an owner, or a replica as far as it has come (``refresh``); ``framing``: "none" gives consecutive pieces of the
    bytes, whose borders mean nothing; ``start``, ``stop``: the bytes ``[start, stop)``, both where records begin (None: the first byte, and
    the length now); ``record_bytes_max``: of one payload, at most 1 GiB; ``batch_bytes`` (of payloads, 4 KiB to 1 GiB) and ``batch_rows``:
    of one batch, but a longer record is a batch of its own. Memory: a batch, a record, and 8 MiB of read-ahead.

    Raises ``InvalidArgument``, and as ``ReadableContainer.reader``. While iterating: ``Damaged`` (object and offset) where a record exceeds
    ``record_bytes_max``, a length-prefixed one is cut off, ``text`` is not UTF-8, or stored bytes are not what was written; and as
    ``ReadableContainer.read``. Writes nothing. Retry: safe.
    """
    if framing != "none":
        check_framing(framing)
    for value, argument in ((record_bytes_max, "record_bytes_max"), (batch_bytes, "batch_bytes")):
        least = 1 if argument == "record_bytes_max" else _PIECE_BYTES_MIN
        if type(value) is not int or not least <= value <= _BYTES_MAX:
            raise InvalidArgument(f"{argument} must be from {least} to {_BYTES_MAX}, not {value!r}", argument=argument)
    if type(batch_rows) is not int or batch_rows < 1:
        raise InvalidArgument(f"batch_rows must be a number from 1 on, not {batch_rows!r}", argument="batch_rows")
    check_flags(text=text)
    check_number(0 if stop is None else stop, "stop")
    info = store.info(segment)
    end = info.length if stop is None else min(stop, info.length)
    handle = SegmentHandle(info.name, info.id, False)
    reader = store.reader(handle, start=start, stop=end, piece_bytes=min(batch_bytes, MIB))
    name = f"segment {info.name}"
    splitter = None if framing == "none" else RecordSplitter(name, framing, reader.position, record_bytes_max)
    groups = _pieces(reader) if splitter is None else _records(reader, splitter)
    schema = TEXT_SCHEMA if text else SCHEMA
    make = partial(_batch, name, schema)
    return pa.RecordBatchReader.from_batches(schema, map(make, _cut(groups, batch_bytes, batch_rows)))


def ledger_batches(
    store: Stored, topic: str, ledger: int, *, start: int = 0, stop: int | None = None
) -> pa.RecordBatchReader:
    """A ledger's entries, one a row: ``entry`` (int64) and ``value`` (binary), never null; batches of about 1 MiB, or one entry.

    Arguments: ``store``: an owner or a replica; ``start``, ``stop``: the entries ``[start, stop)`` (None: all that are acknowledged now,
    those in open offload segments included); gaps are left out.

    Raises ``InvalidArgument``, ``LedgerNotFound``, and as ``LedgerReader.read``; while iterating ``Damaged`` at the first byte that is
    wrong, and what reading raises. Writes nothing. Retry: safe.
    """
    check_number(start, "start")
    check_number(start if stop is None else stop, "stop")
    found = LedgerReader(store).read_batches(topic, ledger, start, None if stop is None else max(start, stop - 1))
    wanted = () if stop is not None and stop <= start else found
    rows = (pa.record_batch([batch.column(1), batch.column(2)], schema=LEDGER_SCHEMA) for batch in wanted)
    return pa.RecordBatchReader.from_batches(LEDGER_SCHEMA, rows)


def _pieces(reader: StorageReader) -> Iterator[Records]:
    with reader:
        for piece in reader:
            yield Records([reader.position - len(piece)], [piece])


def _records(reader: StorageReader, splitter: RecordSplitter) -> Iterator[Records]:
    with reader:
        for piece in reader:
            yield splitter.feed(piece)
        yield splitter.end()


def _cut(groups: Iterable[Records], bytes_max: int, rows_max: int) -> Iterator[Records]:
    """The same records in groups within these limits."""
    held, size = Records([], []), 0
    for group in groups:
        more = sum(map(len, group.values))
        if held.values and (size + more > bytes_max or len(held.values) + len(group.values) > rows_max):
            yield held
            held, size = Records([], []), 0
        if more <= bytes_max and len(group.values) <= rows_max:
            held.offsets.extend(group.offsets)
            held.values.extend(group.values)
            size += more
            continue
        for offset, value in zip(*group, strict=True):
            if held.values and (size + len(value) > bytes_max or len(held.values) == rows_max):
                yield held
                held, size = Records([], []), 0
            held.offsets.append(offset)
            held.values.append(value)
            size += len(value)
    if held.values:
        yield held


def _batch(name: str, schema: pa.Schema, records: Records) -> pa.RecordBatch:
    try:
        values = pa.array(records.values, schema.field(1).type)
    except pa.ArrowInvalid as error:  # only text can be wrong
        raise _not_text(name, records) from error
    return pa.record_batch([pa.array(records.offsets, pa.int64()), values], schema=schema)


def _not_text(name: str, records: Records) -> Damaged:
    for offset, value in zip(*records, strict=True):
        try:
            value.decode()
        except UnicodeDecodeError as error:
            at = f"the record at {offset} is not UTF-8 from its byte {error.start} on: read it without text"
            return Damaged(at, object=name, position=offset)
    return Damaged("records are not text: read them without text", object=name, position=records.offsets[0])
