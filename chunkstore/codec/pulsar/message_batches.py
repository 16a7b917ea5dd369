"""The messages inside entries of Pulsar as Arrow batches, without one Python object per message where entries are batches.

Batches are taken apart in step (``message_steps``); places become the offsets of an Arrow array over the decompressed bytes, and ``take``
copies the values. Everything else goes message by message through ``messages``, into the same batches. Promises: the rows of
``iter_messages``, in its order. Memory: about 8 MiB of payloads with their columns, or one entry. Leaves out: what ``messages`` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from chunkstore.codec.pulsar.message_entries import (
    EntryOpener,
    Opened,
    OpenedItems,
    RawEntry,
    Transactions,
    opener_of,
)
from chunkstore.codec.pulsar.message_steps import PAD_BYTES, Field, Flags, Ints, Stepped, pairs_of, step
from chunkstore.codec.pulsar.messages import SINGLE_BYTES_MIN, Message, key_bytes_of, rows_of, signed64
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument, Unsupported

__all__ = ["MESSAGE_SCHEMA", "MessageBatches", "message_batches"]

_PAIR: Final = pa.list_(pa.int64())
_TYPES: Final[dict[str, pa.DataType]] = {
    "ledger": pa.int64(),
    "entry": pa.int64(),
    "batch_index": pa.int32(),
    "batch_size": pa.int32(),
    "first_chunk": _PAIR,
    "producer": pa.string(),
    "sequence_id": pa.int64(),
    "publish_time": pa.int64(),
    "event_time": pa.int64(),
    "key": pa.string(),
    "key_hex": pa.string(),
    "key_b64": pa.bool_(),
    "null_key": pa.bool_(),
    "ordering_key_hex": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "null_value": pa.bool_(),
    "schema_version_hex": pa.string(),
    "compression": pa.string(),
    "entry_uncompressed_size": pa.int64(),
    "txn": _PAIR,
    "encryption_keys": pa.int32(),
    "deliver_at": pa.int64(),
    "broker_time": pa.int64(),
    "index": pa.int64(),
    "payload": pa.binary(),
    "encrypted": pa.bool_(),
    "damaged": pa.bool_(),
    "raw": pa.bool_(),
    "txn_state": pa.string(),
}
_NEVER_NULL: Final = ("ledger", "entry", "encrypted", "damaged", "raw")
MESSAGE_SCHEMA: Final = pa.schema([pa.field(name, kind, name not in _NEVER_NULL) for name, kind in _TYPES.items()])
"""The columns of ``message_batches``: the fields of ``Message``, in its order. ``first_chunk`` and ``txn`` are lists of two numbers."""

# A piece: what is taken apart in step. More messages do not make it faster, and the table has 88 bytes for each.
_PIECE_BYTES: Final = 8 * MIB
_PIECE_MESSAGES: Final = 1 << 16
_PIECE_ENTRIES: Final = 1 << 12
_ROWS_AT_ONCE: Final = 1 << 12
_SHARED_BYTES_MAX: Final = 256
"""Text that every row of an entry repeats, in a piece: longer text would make columns of gigabytes out of one entry."""
_WIDTH_MIN = 8
"""Batches that must go in step on average: a step costs as much for one as for a hundred."""
_FIELDS: Final[dict[str, tuple[int, ...]]] = {
    "sequence_id": (Field.SEQUENCE_ID,),
    "event_time": (Field.EVENT_TIME,),
    "key": (Field.PARTITION_KEY, Field.KEY_B64),
    "key_hex": (Field.PARTITION_KEY, Field.KEY_B64),
    "key_b64": (Field.KEY_B64,),
    "null_key": (Field.NULL_KEY,),
    "ordering_key_hex": (Field.ORDERING_KEY,),
    "properties": (Field.PROPERTIES,),
}
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)

if sys.byteorder != "little":
    raise Unsupported("messages in Arrow need a little-endian machine; read them one by one instead", feature="arrow")


class MessageBatches(OpenedItems[pa.RecordBatch]):
    """Batches with the messages of some entries; ``schema`` has the columns."""

    def __init__(self, entries: Iterable[RawEntry], opener: EntryOpener, names: Sequence[str]) -> None:
        self.schema: Any = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
        super().__init__(_batches(entries, opener, self.schema), opener)


def message_batches(
    entries: Iterable[RawEntry],
    *,
    columns: Sequence[str] | None = None,
    transactions: Literal["committed", "all"] = "committed",
    known: Transactions | None = None,
    messages: Literal["strict", "lenient"] = "strict",
) -> MessageBatches:
    """The messages in ``entries`` as record batches, at most about 8 MiB of payloads each (more where one entry has more).

    Args:
      entries: as ``iter_messages``, and so the others that are not described here.
      transactions: "committed" or "all".
      known: how transactions ended.
      messages: "strict" or "lenient".
      columns: of ``MESSAGE_SCHEMA``, in this order; all by default. What is not asked for costs little, and its text is not checked.

    Raises:
      Damaged, Unsupported: as ``iter_messages``; messages before that have come by then, also where ``entries`` raises.
      InvalidArgument: as ``iter_messages``, and for columns that are unknown, given twice, or none.
    """
    names = list(_TYPES) if columns is None else list(columns)
    if not names or len(set(names)) < len(names) or not set(names) <= set(_TYPES):
        raise InvalidArgument(f"columns are some of {', '.join(_TYPES)}; not {names}", argument="columns")
    return MessageBatches(entries, opener_of(entries, transactions, known, messages), names)


def _batches(entries: Iterable[RawEntry], opener: EntryOpener, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    piece: list[Opened] = []
    size_bytes = messages = 0
    source = iter(entries)
    while True:
        try:
            found = next(source, None)
            opened = None if found is None else opener.open(*found)
        except ChunkstoreError:
            yield from _piece_batches(piece, opener, schema)
            raise
        if found is None:
            break
        if opened is None:
            continue
        count = opened.batch_size if opened.kind == "batch" else 1
        shared = len(opened.common.producer or "") + len(opened.common.schema_version_hex or "")
        if count > _PIECE_MESSAGES or shared > _SHARED_BYTES_MAX:
            # As many rows as one entry can hold are too much for one batch.
            yield from _piece_batches(piece, opener, schema)
            at_once = max(1, min(_ROWS_AT_ONCE, _PIECE_BYTES // (shared + 1)))
            yield from _row_batches(rows_of(opened, opener), schema, at_once)
            piece, size_bytes, messages = [], 0, 0
            continue
        piece.append(opened)
        size_bytes += len(opened.stored) + len(opened.data or b"")
        messages += count
        if size_bytes >= _PIECE_BYTES or messages >= _PIECE_MESSAGES or len(piece) >= _PIECE_ENTRIES:
            yield from _piece_batches(piece, opener, schema)
            piece, size_bytes, messages = [], 0, 0
    yield from _piece_batches(piece, opener, schema)
    opener.finish()


def _row_batches(rows: Iterator[Message], schema: pa.Schema, at_once: int = _ROWS_AT_ONCE) -> Iterator[pa.RecordBatch]:
    failure: Damaged | None = None

    def until_damage() -> Iterator[Message]:
        nonlocal failure
        try:
            yield from rows
        except Damaged as error:
            failure = error

    some = until_damage()
    while several := list(islice(some, at_once)):
        yield _of_rows(several, schema)
    if failure is not None:
        raise failure


def _of_rows(rows: list[Message], schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, Sequence[Any]] = dict(zip(Message._fields, zip(*rows, strict=True), strict=True))
    if "properties" in schema.names:
        columns["properties"] = [None if value is None else list(value.items()) for value in columns["properties"]]
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _piece_batches(piece: list[Opened], opener: EntryOpener, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of some entries: those of batches in step, the others one by one, put into the entries' order again."""
    if not piece:
        return
    stepped, owners, done = _in_step(piece, schema)
    places: list[int] = []
    reached = len(piece)

    def others() -> Iterator[Message]:
        nonlocal reached
        for place, item in enumerate(piece):
            if place in done:
                continue
            reached = place
            for row in rows_of(item, opener):
                places.append(place)
                yield row
        reached = len(piece)

    if stepped is None:
        yield from _row_batches(others(), schema)
        return
    parts = [stepped]
    failure: Damaged | None = None
    try:
        for part in _row_batches(others(), schema):
            parts.append(part)  # noqa: PERF402  # what came before an error stays
    except Damaged as error:
        failure = error
    if len(parts) > 1 or failure is not None:
        owners = np.concatenate([owners, np.array(places, np.int64)])
        order = np.argsort(owners, kind="stable")
        table = pa.Table.from_batches(parts).take(pa.array(order[owners[order] <= reached]))
        yield from table.combine_chunks().to_batches()
    elif stepped.num_rows:
        yield stepped
    if failure is not None:
        raise failure


def _in_step(piece: list[Opened], schema: pa.Schema) -> tuple[pa.RecordBatch | None, Ints, frozenset[int]]:
    """The messages of the batches in ``piece`` that are not odd, the place of each one's entry, and all places that are done."""
    places = [
        place
        for place, item in enumerate(piece)
        if item.kind == "batch" and item.batch_size * SINGLE_BYTES_MIN <= len(item.data or b"")
    ]
    counts = np.array([piece[place].batch_size for place in places], np.int64)
    nothing = None, np.zeros(0, np.int64), frozenset[int]()
    if not places or counts.sum() < _WIDTH_MIN * counts.max():
        return nothing
    sizes = np.array([len(piece[place].data or b"") for place in places], np.int64)
    data = b"".join([*(piece[place].data or b"" for place in places), bytes(PAD_BYTES)])
    ends = np.cumsum(sizes)
    wanted = frozenset(field for name in schema.names for field in _FIELDS.get(name, ()))
    stepped = step(data, ends - sizes, ends, counts, wanted)
    items = [piece[place] for place in places]
    try:
        columns = _Columns(data, items, counts, stepped, with_pairs=Field.PROPERTIES in wanted)
        arrays = [columns.array(field) for field in schema]
    except (_OddError, pa.ArrowInvalid):
        # Text that is not UTF-8, or a property that is there twice: one by one the entry is found.
        return nothing
    done = frozenset(np.array(places)[~columns.odd].tolist())
    if not done:
        return nothing
    owners = np.array(places, np.int64)[columns.owners]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), owners, done


class _OddError(Exception):
    """Something in a piece that is rare enough to read all of it message by message."""


class _Columns:
    """The columns of the messages that were found in step."""

    def __init__(self, data: bytes, items: list[Opened], counts: Ints, stepped: Stepped, *, with_pairs: bool) -> None:
        self._data = data
        self._items = items
        self.odd = stepped.odd
        owners = np.repeat(np.arange(len(items)), counts)
        if with_pairs:
            self._pairs, wrong = pairs_of(data, stepped.pairs)
            self.odd[owners[wrong]] = True
        kept = ~self.odd[owners] & (stepped.table[Field.COMPACTED_OUT] <= 0)
        self._kept = kept
        self._table = stepped.table if kept.all() else stepped.table[:, kept]
        self.owners: Ints = owners[kept]
        self._owners = pa.array(self.owners.astype(np.int32))
        self._numbers: Ints = (np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts))[kept]
        self._counts = counts

    def array(self, field: pa.Field) -> pa.Array:
        """The column of this field."""
        make = _MAKERS.get(field.name)
        if make is not None:
            return make(self)
        if field.name in _FLAGS:
            return pa.array(self._table[_FLAGS[field.name]] > 0)
        if field.name in _FIXED:
            return pa.repeat(pa.scalar(_FIXED[field.name], field.type), len(self.owners))
        values = [getattr(item.common, field.name) for item in self._items]
        return pa.array(values, field.type).take(self._owners)

    def batch_index(self) -> pa.Array:
        return pa.array(self._numbers.astype(np.int32))

    def batch_size(self) -> pa.Array:
        return pa.array(self._counts.astype(np.int32)[self.owners])

    def sequence_id(self) -> pa.Array:
        bases = np.array([item.head.metadata.sequence_id for item in self._items if item.head is not None], np.int64)
        own = self._table[Field.SEQUENCE_ID]
        return pa.array(np.where(own >= 0, own, bases[self.owners] + self._numbers))

    def index(self) -> pa.Array:
        lasts = [None if item.head is None else item.head.last_index for item in self._items]
        firsts = [
            None if last is None else signed64(last - size + 1)
            for last, size in zip(lasts, self._counts.tolist(), strict=True)
        ]
        numbers = np.array([first or 0 for first in firsts], np.int64)[self.owners] + self._numbers
        if None not in firsts:
            return pa.array(numbers)
        return pa.array(numbers, mask=np.array([first is None for first in firsts])[self.owners])

    def event_time(self) -> pa.Array:
        return pa.array(np.maximum(self._table[Field.EVENT_TIME], 0))

    def payload(self) -> pa.Array:
        size = self._table[Field.PAYLOAD_SIZE]
        return self._values(self._table[Field.PAYLOAD], size, self._table[Field.NULL_VALUE] <= 0)

    def key(self) -> pa.Array:
        return self._bytes(Field.PARTITION_KEY, self._table[Field.KEY_B64] <= 0).cast(pa.string())

    def key_hex(self) -> pa.Array:
        keys = self._bytes(Field.PARTITION_KEY)
        of_base64 = self._table[Field.KEY_B64] > 0
        if not of_base64.any():
            return _hex(keys)
        try:
            decoded = [
                None if key is None else key_bytes_of(key, base64=flag).hex()
                for key, flag in zip(keys.to_pylist(), of_base64.tolist(), strict=True)
            ]
        except ValueError as error:
            raise _OddError from error
        return pa.array(decoded, pa.string())

    def ordering_key_hex(self) -> pa.Array:
        return _hex(self._bytes(Field.ORDERING_KEY))

    def properties(self) -> pa.Array:
        kept = self._kept[self._pairs.column]
        column, key_at, key_size, value_at, value_size = (part[kept] for part in self._pairs)
        every = np.ones(len(column), np.bool_)
        keys = self._values(key_at, key_size, every).cast(pa.string())
        values = self._values(value_at, value_size, every).cast(pa.string())
        counts = np.bincount(column, minlength=len(self._kept))[self._kept]
        if len(counts) and counts.max() > 1:
            codes = keys.dictionary_encode()
            both = column * len(codes.dictionary) + codes.indices.to_numpy()
            if len(np.unique(both)) < len(both):
                raise _OddError
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)

    def _bytes(self, field: int, valid: Flags | None = None) -> pa.Array:
        """A field of bytes; null where it is absent, or not ``valid``."""
        found = self._table[field]
        there = found >= 0 if valid is None else (found >= 0) & valid
        # What is null has a place nonetheless, so that places ascend.
        at = np.where(there, found >> 32, self._table[Field.PAYLOAD])
        return self._values(at, np.where(there, found & 0xFFFFFFFF, 0), there)

    def _values(self, at: Ints, size: Ints, valid: Flags) -> pa.Array:
        """The bytes at these places, which ascend: every second value of an array over all bytes; the others are the gaps."""
        count = len(at)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[:-1:2] = at
        offsets[1::2] = at + size
        offsets[-1] = len(self._data)
        turns = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self._data)])
        taken = np.arange(0, 2 * count, 2, dtype=np.int32)
        return turns.take(pa.array(taken) if valid.all() else pa.array(taken, mask=~valid))


_MAKERS: Final[dict[str, Callable[[_Columns], pa.Array]]] = {
    "batch_index": _Columns.batch_index,
    "batch_size": _Columns.batch_size,
    "sequence_id": _Columns.sequence_id,
    "event_time": _Columns.event_time,
    "key": _Columns.key,
    "key_hex": _Columns.key_hex,
    "ordering_key_hex": _Columns.ordering_key_hex,
    "properties": _Columns.properties,
    "index": _Columns.index,
    "payload": _Columns.payload,
}
_FLAGS: Final = {"key_b64": Field.KEY_B64, "null_key": Field.NULL_KEY, "null_value": Field.NULL_VALUE}
_FIXED: Final = {"first_chunk": None, "encrypted": False, "damaged": False, "raw": False}


def _hex(values: pa.Array) -> pa.Array:
    """Binary values, from their buffers' beginning on, as text in hex."""
    validity, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(values) + 1]
    held = np.frombuffer(data or b"", np.uint8)[: int(edges[-1])]
    doubled = pa.py_buffer(edges * 2), pa.py_buffer(_HEX[held])
    return pa.Array.from_buffers(pa.string(), len(values), [validity, *doubled], values.null_count)
