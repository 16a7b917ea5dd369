"""Blocks of chunks, worked out anew: where their borders lie, what their CRCs are, and single bits that flip."""

from __future__ import annotations

from itertools import pairwise
from struct import iter_unpack
from typing import NamedTuple

from google_crc32c import value

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.metadata.codec import decode_table
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


def stored_borders(store: ChunkedSegmentStorage) -> dict[bytes, dict[int, int]]:
    """The borders that the metadata has, and their CRCs, by chunk id."""
    prefix = b"T\x07!blocks"
    found: dict[bytes, dict[int, int]] = {}
    with store._context.store().view() as view:
        for key, raw in view.scan(prefix, prefix + b"\xff" * 37):
            identity, stop = key[len(prefix) : -8], int.from_bytes(key[-8:], "big")
            row = decode_table(key, raw).value
            start, step = int.from_bytes(row[1:9], "big"), int.from_bytes(row[9:17], "big")
            crcs = [crc for (crc,) in iter_unpack(">I", row[17:])]
            assert row[0] == 1 and len(crcs) <= 64 and start + (len(crcs) - 1) * step < stop
            for number, crc in enumerate(crcs):
                assert start + number * step not in found.setdefault(identity, {})
                found[identity][start + number * step] = crc
    return found


def expected_borders(world: World, store: ChunkedSegmentStorage, block_bytes: int) -> dict[bytes, dict[int, int]]:
    """As ``stored_borders``, from the bytes of the chunks that segments have."""
    found = {}
    for info in store.segments():
        for chunk in store.layout(info.name):
            data = world.content(chunk.name)
            crcs = {border: value(data[:border]) for border in borders_of(chunk.length, block_bytes)}
            identity = world.names().parse_chunk(chunk.name)
            assert identity is not None
            if crcs:
                found[identity] = crcs
    return found


def flip(world: World, name: str, position: int, bit: int = 0) -> None:
    """Flip one bit of an object, or flip it back."""
    content = bytearray(world.content(name))
    content[position] ^= 1 << bit
    world.overwrite(name, bytes(content))
