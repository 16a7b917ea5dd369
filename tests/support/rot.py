"""Blocks of chunks, worked out anew: where their borders lie, what their CRCs are, and single bits that flip."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from chunkstore.engine.store import ChunkedSegmentStorage
from tests.support.worlds import World


class Block(NamedTuple):
    """Bytes ``[start, stop)`` of chunk ``chunk``, whose first byte is byte ``offset`` of the segment."""

    chunk: str
    offset: int
    start: int
    stop: int


def borders_of(length: int, block_bytes: int) -> list[int]:
    """The borders inside a chunk of ``length`` bytes: 512 blocks of one size, then 512 of twice that, and so on."""
    borders, position, step, number = list[int](), 0, block_bytes, 0
    while (position := position + step) < length:
        borders.append(position)
        number += 1
        if number % 512 == 0:
            step *= 2
    return borders


def blocks_of(store: ChunkedSegmentStorage, segment: str, block_bytes: int) -> list[Block]:
    """The blocks of a segment's chunks, in order."""
    found = []
    for chunk in store.layout(segment):
        ends = [0, *borders_of(chunk.length, block_bytes), chunk.length]
        found += [Block(chunk.name, chunk.offset, low, high) for low, high in pairwise(ends)]
    return found


def flip(world: World, name: str, position: int, bit: int = 0) -> None:
    """Flip one bit of an object, or flip it back."""
    content = bytearray(world.content(name))
    content[position] ^= 1 << bit
    world.overwrite(name, bytes(content))
