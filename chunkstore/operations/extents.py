"""Extents, which lie in the journal's objects, many to a read: neighbours in one object are read at once (protocol 3.7).

Promises: every byte that is given out was compared with the CRC32C in its extent's row, if it is to be; what lies between two extents of
a read (headers, rows, bytes of other segments) is read and left alone. A row is looked up by itself only where the list leaves the order
of the ids. Leaves out: where an extent is missing or damaged, what to do about it (``read``, ``spill``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from chunkstore.blocks import BLOCK_BYTES
from chunkstore.checksum import crc32c_of_bytes
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_extent
from chunkstore.metadata.keys import CHUNK, chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.names import CHUNK_ID_BYTES, ContainerNames, parse_place
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["Extent", "ExtentRun", "follow_extents", "in_runs", "read_run"]

Extent: TypeAlias = tuple[str, int, int, int, int]
"""Of a chunk's row object (in short), offset there, length and CRC32C; the segment offset of its first byte. Plain, for there are many."""

_GAP_BYTES: Final = 16 * KIB
_REMOTE_GAP_BYTES: Final = 256 * KIB
"""So much between two extents is read through, where reading is a system call, and where it is a request."""
_RUN_BYTES: Final = MIB
_REMOTE_RUN_BYTES: Final = 8 * MIB
_HIGHEST: Final = b"\xff" * CHUNK_ID_BYTES


class ExtentRun(NamedTuple):
    """Extents that one read brings: bytes ``[low, high)`` of the journal's object ``name``."""

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
        """... and of the one behind the last."""
        return self.extents[-1][4] + self.extents[-1][2]


def follow_extents(view: MetadataView, identity: bytes, offset: int, stop: int) -> tuple[list[Extent], bytes, int]:
    """The extents from the chunk ``identity`` on, which begins at ``offset`` of its segment, as far as the chunks in front of ``stop`` are
    some; and the chunk behind them, and where that begins. A row that is not plainly one is left to who reads chunks."""
    extents: list[Extent] = []
    rows: Iterator[tuple[bytes, bytes]] = iter(())
    place = ""
    while identity and offset < stop:
        key = chunk_key(identity)
        # Ids ascend as extents are made, so the next row is nearly always the next in the store.
        found = next(rows, None)
        if found is None or found[0] != key:
            rows = view.scan(key, CHUNK + _HIGHEST)
            found = next(rows, None)
        row = decode_extent(found[1]) if found is not None and found[0] == key and identity[0] < 0x80 else None
        if row is None:
            break
        name, at, length, crc, following = row
        if length > BLOCK_BYTES or not at or (name != place and parse_place(name) is None):
            break
        place = name
        extents.append((name, at, length, crc, offset))
        identity, offset = following, offset + length
    return extents, identity, offset


def in_runs(names: ContainerNames, extents: Sequence[Extent], *, remote: bool) -> list[ExtentRun]:
    """What to read for these extents, in their order."""
    gap, most = (_REMOTE_GAP_BYTES, _REMOTE_RUN_BYTES) if remote else (_GAP_BYTES, _RUN_BYTES)
    runs: list[ExtentRun] = []
    first, place, low, high = 0, "", 0, 0
    for number, (name, at, length, _, _) in enumerate(extents):
        if name != place or not 0 <= at - high <= gap or at + length - low > most:
            if number:
                runs.append(ExtentRun(names.place(place), low, high, extents[first:number]))
            first, place, low = number, name, at
        high = at + length
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
    stop = offset + len(target)
    for _, at, length, crc, begin in extents:
        piece = data[at - low : at - low + length]
        if len(piece) != length or (verify and crc32c_of_bytes(piece) != crc):
            text = f"the extent of {length} bytes does not have the recorded CRC32C"
            if len(piece) != length:
                text = f"the object is shorter than the record of an extent: {len(data)} of {high - low} bytes at byte {low}"
            raise Damaged(text, object=name, position=at, segment=segment, start=begin, stop=begin + length)
        if begin < offset or begin + length > stop:
            first = max(0, offset - begin)
            piece = piece[first : stop - begin]
            begin += first
        target[begin - offset : begin - offset + len(piece)] = piece
