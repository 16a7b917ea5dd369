"""Reading slices of chunks into the caller's buffer, verified against the borders of their blocks on the way (decision 0015).

Promises: where a slice has borders, no byte of it is delivered without an error unless the block it is in was verified; blocks that the
slice holds in part are read whole, next to the buffer. The error names the first bad block.
Leaves out: which slices (``read``).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from chunkstore.checksum import BytesLike, crc32c_extend
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged
from chunkstore.records.blocks import first_bad
from chunkstore.records.layout import ReadSlice
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["SliceReader"]

_WINDOW_BYTES: Final = 512 * KIB
"""One read where reading is a system call: it is verified while it is in the processor's cache."""
_LOCAL_BYTES: Final = 256 * KIB
"""Up to here one read next to the buffer, and a copy, instead of others for the ends of the slice."""
_REMOTE_BYTES: Final = 8 * MIB
"""The same where reading is a request."""
_UNBOUNDED: Final = 1 << 62


class SliceReader:
    """Reads slices of the segment named ``segment``."""

    def __init__(self, storage: ChunkStorage, segment: str, *, remote: bool) -> None:
        self._storage = storage
        self._segment = segment
        self._bounce_bytes_max = _REMOTE_BYTES if remote else _LOCAL_BYTES
        self._once_bytes = _UNBOUNDED if remote else _WINDOW_BYTES

    def is_short(self, piece: ReadSlice) -> bool:
        """Whether ``read`` is the better way: one read, and no other memory than its own."""
        return piece.borders is None or piece.borders.at[-1] - piece.borders.at[0] <= self._bounce_bytes_max

    def read(self, piece: ReadSlice) -> bytes:
        """The bytes of a slice. Raises ``Damaged``, and what the storage raises."""
        if piece.borders is None:
            return self._read(piece, piece.offset, piece.offset + piece.length)
        at, crcs = piece.borders
        low, high = at[0], at[-1]
        data = self._read(piece, low, high)
        if crc32c_extend(crcs[0], data) != crcs[-1]:
            raise self._bad_block(piece, low, crcs[0], data, 0)
        begin = piece.offset - low
        return data if high - low == piece.length else data[begin : begin + piece.length]

    def read_into(self, piece: ReadSlice, target: memoryview) -> None:
        """Fill the slice's part of ``target``. Raises as ``read``."""
        part = target[piece.start : piece.start + piece.length]
        if piece.borders is None:
            self._fill(piece, piece.offset, part)
            return
        at, crcs = piece.borders
        offset, stop = piece.offset, piece.offset + piece.length
        low, crc, passed = at[0], crcs[0], 0
        while low < at[-1]:
            high, reached = self._window(piece, low, passed)
            data: BytesLike
            if offset <= low and high <= stop:
                data = part[low - offset : high - offset]
                self._fill(piece, low, data)
            else:
                data = self._read(piece, low, high)
                begin, end = max(low, offset), min(high, stop)
                if begin < end:
                    part[begin - offset : end - offset] = memoryview(data)[begin - low : end - low]
            before, crc = crc, crc32c_extend(crc, data)
            if reached > passed and crc != crcs[reached]:
                raise self._bad_block(piece, low, before, data, passed)
            low, passed = high, reached

    def _window(self, piece: ReadSlice, low: int, passed: int) -> tuple[int, int]:
        """Where the read that begins at ``low`` ends, and the number of the last border up to there; ``passed``: the last up to ``low``."""
        assert piece.borders is not None
        at = piece.borders.at
        if at[-1] - low <= self._bounce_bytes_max:
            return at[-1], len(at) - 1
        if low >= piece.offset:
            # Whole blocks, which need no copy.
            reached = bisect_right(at, min(piece.offset + piece.length, low + self._once_bytes), passed) - 1
            if reached > passed:
                return at[reached], reached
        if at[passed + 1] - low <= self._once_bytes:
            return at[passed + 1], passed + 1
        return low + self._once_bytes, passed

    def _read(self, piece: ReadSlice, low: int, high: int) -> bytes:
        name, begin = piece.address
        data = self._storage.read(ChunkHandle(name, False), begin + low, high - low)
        if len(data) != high - low:
            raise self._too_short(piece, low, len(data), high - low)
        return data

    def _fill(self, piece: ReadSlice, low: int, part: memoryview) -> None:
        name, begin = piece.address
        count = self._storage.read_into(ChunkHandle(name, False), begin + low, part)
        if count != len(part):
            raise self._too_short(piece, low, count, len(part))

    def _too_short(self, piece: ReadSlice, low: int, count: int, wanted: int) -> Damaged:
        message = f"the chunk is shorter than its record: {count} of {wanted} bytes at byte {low}"
        bad, stop = low + count, piece.offset + piece.length
        if piece.borders is not None:
            at = piece.borders.at
            bad, stop = at[bisect_right(at, bad) - 1], at[-1]
        return self._damaged(piece, message, bad, stop)

    def _bad_block(self, piece: ReadSlice, low: int, crc: int, data: BytesLike, passed: int) -> Damaged:
        assert piece.borders is not None
        at, crcs = piece.borders
        following = zip(at[passed + 1 :], crcs[passed + 1 :], strict=True)
        bad = passed + (first_bad(low, crc, data, following) or 0)
        message = f"the block of {at[bad + 1] - at[bad]} bytes does not have the recorded CRC32C"
        return self._damaged(piece, message, at[bad], at[bad + 1])

    def _damaged(self, piece: ReadSlice, message: str, low: int, high: int) -> Damaged:
        return Damaged(
            message,
            object=piece.address.object,
            position=piece.address.offset + low,
            segment=self._segment,
            start=piece.chunk_offset + low,
            stop=piece.chunk_offset + high,
        )
