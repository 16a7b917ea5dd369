"""Extents, which are in the journal's objects, many to a read: neighbours in one object are read at once (protocol 3.7).

Promises: every byte that is given out was compared with the CRC32C in its extent's row, if it is to be; what is between two extents of
a read (headers, rows, bytes of other segments) is read and left alone. A row is looked up by itself only where the list leaves the order
of the ids. Leaves out: where an extent is missing or damaged, what to do about it (``read``, ``spill``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_extent
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.port import MetadataView
from chunkstore.records.blocks import BLOCK_BYTES
from chunkstore.records.names import ContainerNames, parse_place
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["Extent", "ExtentRun", "follow_extents", "in_runs", "read_run"]

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
    some; and the chunk after them, and where that begins. A row that is not plainly one is left to who reads chunks."""
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
