"""Blocks of PIP-17 and PIP-76 from and to Arrow, without one Python object per entry (only one int, while scanning).

Reading: marks from the scan become the offsets of an Arrow array over the very window, whose values are by turns an entry's
header and its payload; ``take`` of the odd ones copies the payloads, ``take`` of the even ones the ids. Writing goes the other
way round. Promises: record batches own their memory, in pieces of about 1 MiB; the same checks as ``windows``.
Leaves out: anything beyond the columns ledger, entry and payload.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from struct import pack
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.frames import ENTRY_HEADER_BYTES, WINDOW_BYTES, check_dense, check_entry
from chunkstore.codec.pulsar.windows import BlockReader, Window, ascending
from chunkstore.errors import InvalidArgument, Unsupported

__all__ = ["SCHEMA", "append_batch", "batch_of", "read_batches"]

SCHEMA: Final = pa.schema(
    [
        pa.field("ledger", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""The columns of ``read_batches``."""


class Framing(Protocol):
    """What ``append_batch`` needs of an encoder; each as ``SegmentEncoder`` says. After ``cut`` there is room in a block of the ledger."""

    @property
    def dense(self) -> bool: ...
    @property
    def room(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def last_entry(self) -> int: ...
    def append_framed(self, first: int, last: int, entries: int, framed: BytesLike) -> None: ...
    def cut(self) -> None: ...


if sys.byteorder != "little":
    raise Unsupported("Arrow batches need a little-endian machine; read entries one by one instead", feature="arrow")

# An int64 that holds the int32 pair (x, x + delta) in its two halves is x * _TWICE + (delta << 32): pairs without a loop.
_TWICE: Final = pa.scalar((1 << 32) + 1, pa.int64())
_NEXT: Final = pa.scalar(ENTRY_HEADER_BYTES << 32, pa.int64())
_HEADER_STEP: Final = pa.scalar(ENTRY_HEADER_BYTES, pa.int64())
_ORDINALS_LEAST = 1 << 17
# Framed at a time: twice a window, so that arrays of about a window are not torn into one large and one tiny piece.
_PIECE_BYTES = 2 * WINDOW_BYTES


def read_batches(reader: BlockReader, ledger: int, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
    """Record batches (``SCHEMA``) with the entries ``first`` to ``last`` (both included) of ``ledger``, ascending.

    A batch is what one window holds: about 1 MiB, less at the end of a block. Gaps are left out. Raises as
    ``BlockReader.windows`` does; batches that came before an error are good.
    """
    return map(batch_of, reader.windows(ledger, first, last))


def append_batch(encoder: Framing, entries: int | pa.Array, payloads: pa.Array | pa.ChunkedArray) -> None:
    """Add an array of payloads (binary, large_binary or string) to the encoder's ledger; hands full blocks to its sink.

    ``entries`` is the id of the first, the others following without gaps, or an int64 array of all ids. Raises
    ``InvalidArgument`` for nulls, other types, ids that do not ascend, or a payload over 128 MiB, and ``Unsupported`` for a gap
    where the format has none; nothing is added then.
    Memory: the block at hand and a few MiB.
    """
    chunks = payloads.chunks if isinstance(payloads, pa.ChunkedArray) else [payloads]
    chunks = [_checked_payloads(chunk) for chunk in chunks]
    total = sum(len(chunk) for chunk in chunks)
    if not total:
        return
    ids = entries if isinstance(entries, int) else _checked_ids(entries, total)
    first, last = (ids, ids + total - 1) if isinstance(ids, int) else (ids[0].as_py(), ids[-1].as_py())
    check_entry(last, 0, first - 1)
    check_entry(first, max(pc.max(pc.binary_length(chunk)).as_py() or 0 for chunk in chunks), encoder.last_entry)
    if encoder.dense:
        _check_dense(first, last, ids, encoder.last_entry)
    done = 0
    for chunk in chunks:
        _append_chunk(encoder, ids + done if isinstance(ids, int) else ids.slice(done, len(chunk)), chunk)
        done += len(chunk)


@cache
def _ordinals(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


def _ordinals_of(count: int) -> pa.Array:
    """0 to ``count - 1``, cut from a table that is made once."""
    size = _ORDINALS_LEAST
    while size < count:
        size *= 2
    return _ordinals(size).slice(0, count)


@cache
def _turns(odd: int, size: int) -> pa.Array:
    """int32 indices odd, odd + 2, odd + 4, ..."""
    return pa.array(range(odd, odd + 2 * size, 2), pa.int32())


def _every_second(values: pa.Array, odd: int, count: int) -> pa.Array:
    size = _ORDINALS_LEAST
    while size < count:
        size *= 2
    return values.take(_turns(odd, size).slice(0, count))


def batch_of(window: Window) -> pa.RecordBatch:
    """The window's entries as one record batch. Raises as ``ascending``."""
    count = len(window.marks) - 1
    marks = pa.Array.from_buffers(pa.int64(), count + 1, [None, pa.py_buffer(pack(f"{count + 1}q", *window.marks))])
    offsets = pc.add(pc.multiply(marks, _TWICE), _NEXT).buffers()[1]
    turns = pa.Array.from_buffers(pa.binary(), 2 * count, [None, offsets, pa.py_buffer(window.data)])
    ids = _ids_of(window, _every_second(turns, 0, count), count)
    columns = [pa.repeat(pa.scalar(window.ledger, pa.int64()), count), ids, _every_second(turns, 1, count)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _ids_of(window: Window, headers: pa.Array, count: int) -> pa.Array:
    """The ids in ``headers`` (12 bytes each, without holes), checked to ascend from the window's floor."""
    words = array("i")
    words.frombytes(memoryview(headers.buffers()[2])[: ENTRY_HEADER_BYTES * count])
    words.byteswap()
    pairs = array("i", bytes(8 * count))
    pairs[0::2], pairs[1::2] = words[2::3], words[1::3]
    ids = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(pairs)])
    first = ids[0].as_py()
    # The reader looked at the first and the last id already; most ledgers have no gaps, which one comparison shows.
    if first >= window.floor and pc.add(_ordinals_of(count), ids[0]).equals(ids):
        return ids
    for _ in ascending(window, ids.to_pylist()):
        pass
    return ids


def _checked_payloads(values: Any) -> pa.Array:
    if not isinstance(values, pa.Array) or values.null_count:
        raise InvalidArgument("payloads are an Arrow array without nulls", argument="payloads")
    if values.type in (pa.binary(), pa.large_binary()):
        return values
    if values.type in (pa.string(), pa.large_string()):
        return values.cast(pa.binary() if values.type == pa.string() else pa.large_binary())
    raise InvalidArgument(f"payloads of type {values.type}: binary, large_binary or string", argument="payloads")


def _checked_ids(values: Any, count: int) -> pa.Array:
    if not isinstance(values, pa.Array) or values.type != pa.int64() or values.null_count or len(values) != count:
        raise InvalidArgument(f"entry ids are an int64 array of {count} without nulls", argument="entries")
    if count > 1 and not pc.all(pc.greater(values.slice(1), values.slice(0, count - 1))).as_py():
        raise InvalidArgument("entry ids do not ascend", argument="entries")
    return values


def _check_dense(first: int, last: int, ids: int | pa.Array, previous: int) -> None:
    check_dense(first, previous)
    if not isinstance(ids, int) and last - first >= len(ids):
        steps = pc.subtract(ids, _ordinals_of(len(ids)))
        place = pc.index(pc.greater(steps, ids[0]), value=True).as_py()  # ids ascend
        check_dense(ids[place].as_py(), ids[place - 1].as_py())


def _append_chunk(encoder: Framing, ids: int | pa.Array, values: pa.Array) -> None:
    count = len(values)
    if not count:
        return
    view = memoryview(values.buffers()[1])
    edges = view.cast("i") if values.type == pa.binary() else view.cast("q")
    ends = edges[values.offset : values.offset + count + 1]
    done = 0
    while done < count:
        base = ends[done] + ENTRY_HEADER_BYTES * done
        room = min(encoder.room, _PIECE_BYTES)
        # The last boundary at which the framed bytes from ``done`` on still fit.
        fit = (
            bisect_right(range(count + 1), room, lo=done, key=lambda at: ends[at] + ENTRY_HEADER_BYTES * at - base) - 1
        )
        if fit <= done and encoder.pending_bytes and ends[done + 1] - ends[done] + ENTRY_HEADER_BYTES > encoder.room:
            encoder.cut()
            continue
        fit = max(fit, done + 1)
        part = values.slice(done, fit - done)
        framed_ids = _ordinal_ids(ids, done, fit)
        first = ids + done if isinstance(ids, int) else ids[done].as_py()
        last = ids + fit - 1 if isinstance(ids, int) else ids[fit - 1].as_py()
        length = ends[fit] + ENTRY_HEADER_BYTES * fit - base
        encoder.append_framed(first, last, fit - done, _framed(framed_ids, part)[:length])
        done = fit


def _ordinal_ids(ids: int | pa.Array, begin: int, end: int) -> pa.Array:
    if isinstance(ids, int):
        return pc.add(_ordinals_of(end - begin), pa.scalar(ids + begin, pa.int64()))
    return ids.slice(begin, end - begin)


def _raw(values: pa.Array, width: int) -> memoryview:
    return memoryview(values.buffers()[1])[width * values.offset : width * (values.offset + len(values))]


def _framed(ids: pa.Array, payloads: pa.Array) -> memoryview:
    """The bytes of entries as a block has them; the buffer may be longer."""
    count = len(payloads)
    lengths = array("i")
    lengths.frombytes(_raw(pc.binary_length(payloads).cast(pa.int32()), 4))
    lengths.byteswap()
    swapped = array("q")
    swapped.frombytes(_raw(ids, 8))
    swapped.byteswap()
    halves = array("i")
    halves.frombytes(memoryview(swapped).cast("B"))
    words = array("i", bytes(ENTRY_HEADER_BYTES * count))
    words[0::3], words[1::3], words[2::3] = lengths, halves[0::2], halves[1::2]
    edges = pc.multiply(_ordinals_of(count + 1), _HEADER_STEP).cast(pa.int32())
    headers = pa.Array.from_buffers(pa.binary(), count, [None, edges.buffers()[1], pa.py_buffer(words)])
    both = pa.concat_arrays([headers.cast(payloads.type), payloads])
    # Indices 0, n, 1, n + 1, ...: pairs again.
    pairs = pc.add(pc.multiply(_ordinals_of(count), _TWICE), pa.scalar(count << 32, pa.int64()))
    turns = pa.Array.from_buffers(pa.int32(), 2 * count, [None, pairs.buffers()[1]])
    return memoryview(both.take(turns).buffers()[2]).cast("B")
