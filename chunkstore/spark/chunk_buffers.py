"""Bytes of several segments on their way into chunks of a session, and rows of a batch apart by what they belong to.

Promises: the bytes of a segment keep their order; they are copied where parts are small, and by a storage that does not append. What is
held is in proportion to a chunk. Leaves out: what the bytes are (``chunks_out``, ``ledgers_out``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore.checksum import BytesLike, crc32c_of_bytes, crc32c_of_more
from chunkstore.config import MIB
from chunkstore.errors import InvalidArgument
from chunkstore.sessions import SessionChunk, SessionWriter
from chunkstore.spark.once import Content
from chunkstore.storage import ChunkStorage

__all__ = ["ChunkBuffers", "check_no_nulls", "content_of", "grouped"]

_HELD_BYTES: Final = 128 * MIB
"""How much a task of many segments holds, unless one chunk is more."""
_PART_BYTES: Final = 1 * MIB
"""Parts are put together up to this before they are written: a system call for each row would cost more than the copy."""


class _Pending:
    """Bytes of a segment that are not in a chunk yet, and what was written of it."""

    def __init__(self) -> None:
        self.parts: list[BytesLike] = []
        self.size = 0
        self.chunks: list[SessionChunk] = []


class ChunkBuffers:
    """Of one task. Everything that writes raises as ``SessionWriter.write_chunk``."""

    def __init__(self, storage: ChunkStorage, writer: SessionWriter, chunk_bytes: int) -> None:
        self._storage = storage
        self._writer = writer
        self._pending: dict[str, _Pending] = {}
        self._held = 0
        self._number = 0
        self.held_bytes_max: int = max(_HELD_BYTES, chunk_bytes)

    def add(self, segment: str, data: BytesLike) -> int:
        """Hold these bytes, which must not change. Returns how many of the segment are held."""
        pending = self._pending.setdefault(segment, _Pending())
        if len(data):
            pending.parts.append(data)
            pending.size += len(data)
            self._held += len(data)
        return pending.size

    def relieve(self) -> None:
        """Write what is held of the segments that have most, until it is not too much."""
        while self._held > self.held_bytes_max:
            longest = max(self._pending.values(), key=lambda item: item.size)
            self._write(longest, longest.size)

    def write(self, segment: str, size: int) -> None:
        """Write the first ``size`` bytes that are held of a segment as a chunk."""
        self._write(self._pending[segment], size)

    def finish(self, segment: str) -> tuple[SessionChunk, ...]:
        """Write the rest of a segment, and forget it. Returns all its chunks."""
        pending = self._pending.pop(segment)
        if pending.size:
            self._write(pending, pending.size)
        return tuple(pending.chunks)

    def _write(self, pending: _Pending, size: int) -> None:
        parts, left, kept = [], size, len(pending.parts)
        for number, part in enumerate(pending.parts):
            view = memoryview(part)
            parts.append(view[:left])
            left -= len(parts[-1])
            if left == 0:
                kept = number + (len(parts[-1]) == len(view))
                if kept == number:
                    pending.parts[number] = view[len(parts[-1]) :]
                break
        del pending.parts[:kept]
        pending.size -= size
        self._held -= size
        if not self._writer.session_id:
            return
        chunk = self._writer.write_chunk(self._storage, self._number, list(_coalesced(parts)))
        self._number += 1
        pending.chunks.append(chunk)


def _coalesced(parts: list[memoryview]) -> Iterator[BytesLike]:
    """The same bytes in parts that are not small."""
    held: list[memoryview] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _PART_BYTES:
            yield held[0] if len(held) == 1 else b"".join(held)
            held, size = [], 0
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)


def check_no_nulls(batch: pa.RecordBatch, names: Iterable[str]) -> None:
    """Raise ``InvalidArgument`` naming a column that has one."""
    for name in names:
        if batch.column(name).null_count:
            at = pc.index(batch.column(name).is_null(), True).as_py()
            text = f"column {name!r} is null in a row (row {at} of a batch): filter such rows, or give them a value"
            raise InvalidArgument(text, argument=name)


def content_of(batch: pa.RecordBatch, names: Iterable[str], target: str) -> Content:
    """Of these rows: the CRC of each is over ``target`` and the columns, in this order."""
    crcs: Iterable[int] = repeat(crc32c_of_bytes(target.encode()), batch.num_rows)
    for name in names:
        column = batch.column(name)
        text = column.cast(pa.string()) if pa.types.is_integer(column.type) else column
        crcs = map(crc32c_of_more, crcs, text.cast(pa.large_binary()).to_pylist())
    return Content(batch.num_rows, sum(crcs))


def grouped(by: pa.Array, columns: list[pa.Array]) -> Iterator[tuple[Any, list[pa.Array]]]:
    """The rows of each value of ``by``, in their order."""
    runs = pc.run_end_encode(by)
    if len(runs.values) > 1 and len(runs.values) > len(pc.unique(by)):
        at = pc.sort_indices(by)  # stable
        by, columns = by.take(at), [column.take(at) for column in columns]
        runs = pc.run_end_encode(by)
    start = 0
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield value, [column.slice(start, end - start) for column in columns]
        start = end
