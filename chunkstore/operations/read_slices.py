"""Reading slices of chunks into the caller's buffer, verified against the borders of their blocks on the way (decision 0015).

Promises: where a slice has borders, no byte of it is delivered without an error unless the block it is in was verified; blocks that the
slice holds in part are read whole, next to the buffer. The error names the first bad block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from chunkstore.checksum import BytesLike, crc32c_extend, crc32c_of_bytes
from chunkstore.config import KIB, MIB
from chunkstore.errors import ChunkNotFound, Damaged, Unsupported
from chunkstore.metadata.codec import decode_extent
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.port import MetadataView
from chunkstore.records.blocks import BLOCK_BYTES, Borders, first_bad
from chunkstore.records.layout import ReadSlice
from chunkstore.records.names import Address, ContainerNames, parse_place
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = [
    "NOWHERE",
    "WINDOW_BYTES",
    "Extent",
    "ExtentRun",
    "Places",
    "SliceReader",
    "follow_extents",
    "in_runs",
    "places_of",
    "read_run",
    "sound_blocks",
    "whole_blocks",
]

Extent: TypeAlias = tuple[str, int, int, int, int]
"""Of a chunk's row object (in short), offset there, length and CRC32C; the segment offset of its first byte. Plain, for there are many."""

_GAP_BYTES: Final = 16 * KIB
_REMOTE_GAP_BYTES: Final = 256 * KIB
"""So much between two extents is read through, where reading is a system call, and where it is a request."""
_RUN_BYTES: Final = MIB
_REMOTE_RUN_BYTES: Final = 8 * MIB
_CHUNKS_END: Final = bytes((CHUNK[0] + 1,))


class ExtentRun(NamedTuple):
    """Consecutive extents of a segment that one read brings: bytes ``[low, high)`` of the journal's object ``name``."""

    name: str
    low: int
    high: int
    extents: Sequence[Extent]

    @property
    def start(self) -> int:
        """The segment offset of the first byte."""
        return self.extents[0][4]

    @property
    def stop(self) -> int:
        """... and of the one after the last."""
        return self.extents[-1][4] + self.extents[-1][2]


def follow_extents(view: MetadataView, identity: bytes, offset: int, stop: int) -> tuple[list[Extent], bytes, int]:
    """The extents from the chunk ``identity`` on, which begins at ``offset`` of its segment, as far as the chunks in front of ``stop`` are
    some; and the chunk after them, and where that begins. A row that is not plainly one is left to the reading of chunks."""
    extents: list[Extent] = []
    place = ""
    while identity and offset < stop:
        key, known = CHUNK + identity, len(extents)
        # Ids ascend as extents are made, so the next row is nearly always the next in the store.
        for found, raw in view.scan(key, _CHUNKS_END):
            row = decode_extent(raw) if found == key else None
            if row is None:
                break
            name, at, length, crc, following = row
            if length > BLOCK_BYTES or (name != place and parse_place(name) is None):
                return extents, identity, offset
            place = name
            extents.append((name, at, length, crc, offset))
            identity, offset = following, offset + length
            if offset >= stop or not identity:
                break
            key = CHUNK + identity
        if len(extents) == known:
            break
    return extents, identity, offset


def in_runs(names: ContainerNames, extents: Sequence[Extent], *, remote: bool) -> list[ExtentRun]:
    """What to read for these extents, in their order."""
    gap, most = (_REMOTE_GAP_BYTES, _REMOTE_RUN_BYTES) if remote else (_GAP_BYTES, _RUN_BYTES)
    runs: list[ExtentRun] = []
    first, place, low, high, following = 0, "", 0, 0, 0
    for number, (name, at, length, _, offset) in enumerate(extents):
        if name != place or offset != following or not 0 <= at - high <= gap or at + length - low > most:
            if number:
                runs.append(ExtentRun(names.place(place), low, high, extents[first:number]))
            first, place, low = number, name, at
        high, following = at + length, offset + length
    if extents:
        runs.append(ExtentRun(names.place(place), low, high, extents[first:]))
    return runs


def read_run(
    storage: ChunkStorage, segment: str, run: ExtentRun, offset: int, target: memoryview, *, verify: bool
) -> None:
    """Fill what the run has of ``target``, which is to hold the bytes of ``segment`` from ``offset`` on. Raises ``Damaged``, and what the
    storage raises."""
    name, low, high, extents = run
    data = storage.read(ChunkHandle(name, False), low, high - low)
    pieces: list[bytes] = []
    for _, at, length, crc, begin in extents:
        piece = data[at - low : at - low + length]
        if len(piece) != length or (verify and crc32c_of_bytes(piece) != crc):
            text = f"the extent of {length} bytes does not have the recorded CRC32C"
            if len(piece) != length:
                text = f"the object is shorter than the record of an extent: {len(data)} of {high - low} bytes at byte {low}"
            raise Damaged(text, object=name, position=at, segment=segment, start=begin, stop=begin + length)
        pieces.append(piece)
    start, stop = run.start, offset + len(target)
    if run.stop > stop:
        pieces[-1] = pieces[-1][: stop - extents[-1][4]]
    if start < offset:
        pieces[0], start = pieces[0][offset - start :], offset
    joined = b"".join(pieces)
    target[start - offset : start - offset + len(joined)] = joined


WINDOW_BYTES: Final = 4 * MIB
NOWHERE: Final = -1

Places: TypeAlias = Sequence[tuple[ChunkStorage, Address]]
"""Where a chunk's bytes may be read, the best place first."""


def places_of(
    storage: ChunkStorage, address: Address, names: ContainerNames, identity: bytes, copy: ChunkStorage | None
) -> Places:
    """The chunk, and what a ``copy`` of its container or backups of it may hold of it."""
    if copy is None:
        return ((storage, address),)
    # A backup has copies of extents, too, under the names that chunks of ours would have; a copied root has records.
    return (storage, address), (copy, Address(names.chunk(identity), 0)), (copy, address)


def whole_blocks(borders: Borders, size_bytes_max: int) -> Iterator[Borders]:
    """The blocks in groups of so many bytes at most, or of one block."""
    at, crcs = borders
    first = 0
    for last in range(1, len(at)):
        if last + 1 == len(at) or at[last + 1] - at[first] > size_bytes_max:
            yield Borders(at[first : last + 1], crcs[first : last + 1])
            first = last


def sound_blocks(places: Places, borders: Borders) -> tuple[bytearray, list[int]]:
    """The bytes between the borders, and for each block the number of the place that it comes from, or ``NOWHERE``: then they are zeros.

    Raises what the storages raise, but for objects that are absent, or are none.
    """
    at, crcs = borders
    low = at[0]
    room, found = bytearray(at[-1] - low), [NOWHERE] * (len(at) - 1)
    for place, (storage, address) in enumerate(places):
        data = memoryview(_read(storage, address, low, len(room)))
        for number, known in enumerate(found):
            begin, stop = at[number] - low, at[number + 1] - low
            if known == NOWHERE and stop <= len(data):
                block = data[begin:stop]
                if crc32c_extend(crcs[number], block) == crcs[number + 1]:
                    room[begin:stop] = block
                    found[number] = place
        if NOWHERE not in found:
            break
    return room, found


def _read(storage: ChunkStorage, address: Address, offset: int, length: int) -> bytes:
    try:
        return storage.read(ChunkHandle(address.object, False), address.offset + offset, length)
    except (ChunkNotFound, Damaged, Unsupported):
        return b""  # also what is no file in a copied tree


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
