"""Blocks of PIP-17 and PIP-76 from and to Arrow, without one Python object per entry (only one int, while scanning).

Reading: marks from the scan become the offsets of an Arrow array over the very window, whose values are by turns an entry's
header and its payload; ``take`` copies every second one. Writing goes the other way round. Promises: record batches own their
memory, in pieces of about 1 MiB; the same checks as ``windows``. Leaves out: anything beyond the columns ledger, entry and payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from chunkstore.codec.pulsar.encoding import BlockEncoder
from chunkstore.codec.pulsar.frames import ENTRY_HEADER_BYTES, WINDOW_BYTES, check_dense
from chunkstore.codec.pulsar.windows import BlockReader, Window, ascending
from chunkstore.errors import InvalidArgument

__all__ = ["SCHEMA", "append_batch", "append_fitting", "batch_of", "checked_payloads", "longest_of", "read_batches"]

SCHEMA: Final = pa.schema(
    [
        pa.field("ledger", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""The columns of ``read_batches``."""

_HEADER: Final = np.dtype([("length", ">i4"), ("entry", ">i8")])
_PIECE_BYTES: Final = 2 * WINDOW_BYTES
"""Framed at a time: twice a window, so that arrays of about a window are not torn into one large and one tiny piece."""


def read_batches(reader: BlockReader, ledger: int, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
    """Record batches (``SCHEMA``) with the entries ``first`` to ``last`` (both included) of ``ledger``, ascending.

    A batch is what one window holds: about 1 MiB, less at the end of a block. Gaps are left out. Raises as
    ``BlockReader.windows`` does; batches that came before an error are good.
    """
    return map(batch_of, reader.windows(ledger, first, last))


def batch_of(window: Window) -> pa.RecordBatch:
    """The window's entries as one record batch. Raises as ``ascending``."""
    marks = np.array(window.marks, np.int32)
    count = len(marks) - 1
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0::2] = marks
    offsets[1::2] = marks[:-1] + ENTRY_HEADER_BYTES
    turns = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(window.data)])
    headers, payloads = (turns.take(pa.array(np.arange(at, 2 * count, 2, dtype=np.int32))) for at in (0, 1))
    ids = np.frombuffer(headers.buffers()[2], _HEADER, count)["entry"].astype(np.int64)
    if ids[0] < window.floor or not (np.diff(ids) == 1).all():
        for _ in ascending(window, ids.tolist()):
            pass
    columns = [pa.repeat(pa.scalar(window.ledger, pa.int64()), count), pa.array(ids), payloads]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def append_batch(encoder: BlockEncoder, entries: int | pa.Array, payloads: pa.Array | pa.ChunkedArray) -> None:
    """Add an array of payloads (binary, large_binary or string) to the encoder's ledger.

    ``entries``: the id of the first, the others following without gaps, or an int64 array of all ids. Raises as
    ``BlockEncoder.append``, and ``InvalidArgument`` for nulls and other types; nothing is added then. Memory: the block at hand and a
    few MiB.
    """
    chunks = checked_payloads(payloads)
    total = sum(map(len, chunks))
    if not total:
        return
    ids = None if isinstance(entries, int) else _checked_ids(entries, total)
    first, last = (entries, entries + total - 1) if ids is None else (int(ids[0]), int(ids[-1]))
    encoder.check_follows(first, last, longest_of(chunks))
    if ids is not None and encoder.format.dense and last - first >= total:
        gap = int(np.argmax(np.diff(ids) > 1))
        check_dense(int(ids[gap + 1]), int(ids[gap]))
    done = 0
    for chunk in chunks:
        begin, end = done, done + len(chunk)
        while done < end:
            left = first + done if ids is None else ids[done:end]
            added = append_fitting(encoder, left, chunk.slice(done - begin))
            if not added:
                encoder.cut()
            done += added


def _checked_ids(values: Any, count: int) -> npt.NDArray[np.int64]:
    if not isinstance(values, pa.Array) or values.type != pa.int64() or values.null_count or len(values) != count:
        raise InvalidArgument(f"entry ids are an int64 array of {count} without nulls", argument="entries")
    ids: npt.NDArray[np.int64] = values.to_numpy()
    if not (ids[1:] > ids[:-1]).all():
        raise InvalidArgument("entry ids do not ascend", argument="entries")
    return ids


def checked_payloads(payloads: Any) -> list[pa.Array]:
    """Binary arrays, none of them empty, of these payloads. Raises ``InvalidArgument``."""
    if not isinstance(payloads, pa.Array | pa.ChunkedArray) or payloads.null_count:
        raise InvalidArgument("payloads are an Arrow array without nulls", argument="payloads")
    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    kind = kinds.get(payloads.type, payloads.type)
    if kind not in kinds.values():
        raise InvalidArgument(f"payloads of type {kind}: binary, large_binary or string", argument="payloads")
    chunks = payloads.chunks if isinstance(payloads, pa.ChunkedArray) else [payloads]
    return [chunk.cast(kind) for chunk in chunks if len(chunk)]


def longest_of(chunks: list[pa.Array]) -> int:
    """Bytes of the longest payload."""
    return max(int(pc.max(pc.binary_length(chunk)).as_py()) for chunk in chunks)


def append_fitting(encoder: BlockEncoder, ids: int | npt.NDArray[np.int64], values: pa.Array) -> int:
    """Add those of the first ``values`` that fit the block at hand, which were checked; how many. An empty block takes any entry.

    ``ids``: the first one, the others following without gaps, or all."""
    room = max(0, min(encoder.room, _PIECE_BYTES))
    edges = _edges(values.slice(0, max(1, room // ENTRY_HEADER_BYTES)))
    ends = edges - edges[0] + ENTRY_HEADER_BYTES * np.arange(len(edges))
    count = int(np.searchsorted(ends, room, side="right")) - 1
    if not count:
        if encoder.pending_bytes and ends[1] > encoder.room:
            return 0
        count = 1
    numbers = np.arange(ids, ids + count) if isinstance(ids, int) else ids[:count]
    framed = _framed(numbers, values.slice(0, count))[: int(ends[count])]
    encoder.append_framed(int(numbers[0]), int(numbers[-1]), count, framed)
    return count


def _edges(values: pa.Array) -> npt.NDArray[Any]:
    """Where each value begins in their buffer, and where the last one ends."""
    kind = np.int32 if values.type == pa.binary() else np.int64
    return np.frombuffer(values.buffers()[1], kind)[values.offset : values.offset + len(values) + 1]


def _framed(ids: npt.NDArray[np.int64], payloads: pa.Array) -> memoryview:
    """The bytes of entries as a block has them; the buffer may be longer."""
    count = len(payloads)
    headers = np.empty(count, _HEADER)
    headers["length"] = np.diff(_edges(payloads))
    headers["entry"] = ids
    borders = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * ENTRY_HEADER_BYTES)
    framing = pa.Array.from_buffers(pa.binary(), count, [None, borders, pa.py_buffer(headers)])
    both = pa.concat_arrays([framing.cast(payloads.type), payloads])
    by_turns = np.arange(2 * count, dtype=np.int32).reshape(2, count).T.ravel()
    return memoryview(both.take(pa.array(by_turns)).buffers()[2]).cast("B")
