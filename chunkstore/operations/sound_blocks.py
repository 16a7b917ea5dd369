"""Blocks of a chunk that have their recorded CRC32C, each from the first place that holds it: the chunk itself, or a copy.

Promises: reads only; a byte is handed on only if its block has the CRC that the container's own metadata says. Memory: one window of
blocks. Leaves out: what becomes of the bytes (``upkeep.scrub``, ``backup.salvage``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, Damaged, Unsupported
from chunkstore.records.blocks import Borders
from chunkstore.records.names import Address, ContainerNames
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["NOWHERE", "WINDOW_BYTES", "Places", "places_of", "sound_blocks", "whole_blocks"]

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
