"""Rows of a chunk's block borders, in the reserved table namespace ``!blocks`` (FORMAT.md next to this file, "Block borders").

Promises: a row is extended by adding CRCs at its end, and commits in the record that makes its chunk that long. Readers believe
no grid: borders are where the rows say, and what is between two neighbours is a block, whatever rows are missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, unpack_from

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import block_key, block_range
from chunkstore.metadata.port import MetadataView
from chunkstore.records.blocks import Borders, in_rows, is_one_block, stretch_at
from chunkstore.records.segments import ChunkRecord, TableRecord

__all__ = ["add_borders", "border_rows", "find_borders", "last_row_key"]

_HEADER = Struct(">BQQ")
_CRC = Struct(">I")
_VERSION = 1


def add_borders(identity: bytes, row: bytes, passed: Iterable[tuple[int, int]]) -> dict[bytes, TableRecord]:
    """The rows with the borders ``passed`` (and their CRCs, ascending) added. ``row``: the value of the chunk's last row, or nothing."""
    rows: dict[bytes, TableRecord] = {}
    for border, crc in passed:
        stretch = stretch_at(border)
        if border == stretch.start or not row:
            row = _HEADER.pack(_VERSION, border, stretch.step)
        row += _CRC.pack(crc)
        rows[block_key(identity, stretch.stop)] = TableRecord(0, row)
    return rows


def border_rows(identity: bytes, borders: Borders) -> dict[bytes, TableRecord]:
    """The rows of a chunk that has all its bytes, and these borders from its first byte to its end, on whatever grids."""
    if len(borders.at) == 2:
        return {}  # one block: most chunks of an import are
    rows = [
        _HEADER.pack(_VERSION, start, step) + b"".join(map(_CRC.pack, crcs)) for start, step, crcs in in_rows(borders)
    ]
    stops = [*(start for start, _, _ in in_rows(borders)), borders.at[-1]][1:]
    return {block_key(identity, stop): TableRecord(0, row) for stop, row in zip(stops, rows, strict=True)}


def last_row_key(identity: bytes, length: int) -> bytes:
    """Key of the row of the last border of a new chunk of ``length`` bytes, if it has one."""
    return block_key(identity, stretch_at(max(0, length - 1)).stop)


def find_borders(view: MetadataView, identity: bytes, chunk: ChunkRecord, low: int, high: int) -> Borders | None:
    """The borders of the blocks of ``chunk`` that hold ``[low, high)``, which is not empty.

    None where nothing verifies these bytes alone: the chunk has no borders, and they are not all of it. Raises ``Damaged`` (a row).
    """
    at, crcs = [0], [0]
    for key, raw in view.scan(*block_range(identity, low)):
        start, step, count, value = _decode(key, raw)
        # From the last border that is not above ``low``, or from the row's first, to the first that is not below ``high``.
        first = max(0, min((low - start) // step, count - 1))
        stop = min(count, max(first + 1, (high - start - 1) // step + 2))
        if start <= low:
            at, crcs = [], []
        elif start + first * step <= at[-1]:
            raise _disorder(identity)
        at += range(start + first * step, start + stop * step, step)
        crcs += unpack_from(f">{stop - first}I", value, _HEADER.size + first * _CRC.size)
        if at[-1] >= high:
            break
    else:
        is_part = at == [0] and high - low < chunk.length and not is_one_block(chunk.length)
        if chunk.crc32c is None or is_part:
            return None
        if at[-1] >= chunk.length:
            raise _disorder(identity)
        at.append(chunk.length)
        crcs.append(chunk.crc32c)
    if at[-1] > chunk.length:
        raise _disorder(identity)
    return Borders(at, crcs)


def _disorder(identity: bytes) -> Damaged:
    return Damaged("its borders do not ascend, or are outside the chunk", object=f"block row of chunk {identity.hex()}")


def _decode(key: bytes, raw: bytes) -> tuple[int, int, int, bytes]:
    """Start, step and number of borders of a row, and its value. Raises ``Damaged``."""
    value = decode_table(key, raw).value
    count, rest = divmod(len(value) - _HEADER.size, _CRC.size)
    if count < 1 or rest or value[0] != _VERSION:
        raise Damaged("not a block row of a known version", object=f"metadata row {key!r}")
    _, start, step = _HEADER.unpack_from(value)
    if not 0 < step < 1 << 62 or not 0 < start < 1 << 62:
        raise Damaged("a block row's start or step cannot be", object=f"metadata row {key!r}")
    return start, step, count, value
