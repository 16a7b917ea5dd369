"""Every read verifies the blocks it touches (decision 0015): which bits are found, by which reads, and what is told."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

from chunkstore.changes import Append, Concat, Create, Seal
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.operations import read_slices
from chunkstore.records import blocks
from tests.support.data import pattern, problems, refused
from tests.support.rot import Block, blocks_of, flip
from tests.support.worlds import World

BLOCK = 16
LONG = 512 * BLOCK + 300
"""A chunk of so many bytes has blocks of two sizes, and rows of each."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 bytes, so that chunks of some KiB have many rows of borders, and reads of several windows."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(read_slices, "_WINDOW_BYTES", 100)
    monkeypatch.setattr(read_slices, "_LOCAL_BYTES", 70)


class Shape(NamedTuple):
    """A segment of one or several chunks, in some state."""

    name: str
    store: ChunkedSegmentStorage
    start: int
    content: bytes
    """Of the whole segment, what was truncated included."""


def make(world: World, shape: str) -> Shape:
    """A segment ``a``, in pieces that end at borders, before and behind them."""
    store = world.open(rolling=LONG if shape != "short" else BLOCK, parallel_read_bytes_min=1 << 16)
    store.create("a")
    size = {"short": BLOCK, "long": LONG, "growing": LONG - 40}.get(shape, 2 * LONG + 77)
    content = pattern(0, size, seed=3)
    position = 0
    for piece in (1, BLOCK - 1, BLOCK, 1, 2 * BLOCK - 2, 3 * BLOCK + 1, 64 * BLOCK, size):
        store.append("a", content[position : position + piece])
        position = min(size, position + piece)
    start = 0
    if shape == "truncated":
        start = 5 * BLOCK + 3
        store.truncate("a", start)
    elif shape == "sealed":
        store.seal("a")
    elif shape == "concatenated":
        more = pattern(size, LONG + 50, seed=3)
        store.commit([Create("b"), Append("b", more[:BLOCK]), Append("b", more[BLOCK:]), Seal("b"), Concat("a", "b")])
        content += more
    elif shape == "of a former owner":
        store.close()
        world.forget_cache()
        store = world.open(parallel_read_bytes_min=1 << 16)
        more = pattern(size, 3 * BLOCK, seed=3)
        store.append("a", more)
        content += more
    return Shape(shape, store, start, content)


SHAPES = ["short", "long", "growing", "many", "truncated", "sealed", "concatenated", "of a former owner"]


def reads_of(shape: Shape, reader: ChunkedSegmentStorage | Replica, low: int, high: int) -> Iterator[bytes]:
    """The same range by every way there is."""
    yield reader.read("a", low, high - low)
    buffer = bytearray(high - low)
    assert reader.read_into("a", low, buffer) == high - low
    yield bytes(buffer)
    for prefetch_bytes in (0, 1 << 20):
        with reader.reader("a", start=low, stop=high, prefetch_bytes=prefetch_bytes) as pieces:
            yield b"".join(pieces)


@pytest.mark.proof
@pytest.mark.parametrize("kind", SHAPES)
def test_a_flipped_bit_is_found_by_every_read_that_touches_its_block(world: World, kind: str) -> None:
    shape = make(world, kind)
    store, chance = shape.store, random.Random(kind)
    replica = world.replica()
    assert store.read("a", shape.start, 1 << 20) == shape.content[shape.start :]
    found = [block for block in blocks_of(store, "a", BLOCK) if block.offset + block.stop > shape.start]
    chosen = {*found[:2], *found[-2:], *chance.sample(found, min(6, len(found)))}
    chosen |= {block for block in found if block.start == 0 or block.stop - block.start > BLOCK}
    for block in chance.sample(sorted(chosen), min(3, len(chosen))):
        low, high = max(shape.start, block.offset + block.start), block.offset + block.stop
        for position in {block.start, block.stop - 1, chance.randrange(block.start, block.stop)}:
            flip(world, block.chunk, position, chance.randrange(8))
            try:
                check_reads(shape, store, replica, block, low, high, chance)
            finally:
                world.overwrite(block.chunk, shape_bytes(shape, block, world))
    assert store.read("a", shape.start, 1 << 20) == shape.content[shape.start :]


def shape_bytes(shape: Shape, block: Block, world: World) -> bytes:
    """The chunk's bytes as they were written."""
    return shape.content[block.offset : block.offset + len(world.content(block.chunk))]


def check_reads(
    shape: Shape,
    store: ChunkedSegmentStorage,
    replica: Replica,
    block: Block,
    low: int,
    high: int,
    chance: random.Random,
) -> None:
    end = len(shape.content)
    touching = [
        (low, low + 1),
        (high - 1, high),
        (shape.start, end),
        (max(shape.start, low - 150), min(end, high + 150)),
    ]
    for reader in (store, replica):
        for begin, stop in touching:
            calls = (
                partial(reader.read, "a", begin, stop - begin),
                partial(reader.read_into, "a", begin, bytearray(stop - begin)),
            )
            for call in calls:
                with pytest.raises(Damaged) as caught:
                    call()
                error = caught.value
                assert (error.object, error.position, error.segment) == (block.chunk, block.start, "a")
                assert (error.start, error.stop) == (block.offset + block.start, block.offset + block.stop)
                assert pickle.loads(pickle.dumps(error)).to_fields() == error.to_fields()
        # Neighbours, which end at the block's borders, are whole.
        for begin, stop in (
            (shape.start, low),
            (high, end),
            (max(shape.start, low - 3), low),
            (high, min(end, high + 3)),
        ):
            if begin < stop:
                for got in reads_of(shape, reader, begin, stop):
                    assert got == shape.content[begin:stop]
        # A reader gives out all that comes before.
        with reader.reader("a", start=shape.start, piece_bytes=4096) as pieces:
            before: list[bytes] = []
            with pytest.raises(Damaged):
                before.extend(pieces)
            assert b"".join(before) == shape.content[shape.start : low] and pieces.position == low
        with reader.reader(
            "a", start=shape.start, on_damage="skip", prefetch_bytes=chance.choice((0, 1 << 20))
        ) as pieces:
            assert b"".join(pieces) == shape.content[shape.start : low] + shape.content[high:]
            assert [(item.start, item.stop) for item in pieces.skipped] == [(low, high)] and pieces.position == end
    finding = [item for item in problems(store.check("deep")) if item.object == block.chunk]
    assert [(item.invariant, item.position) for item in finding] == [(20, block.start)]


def test_off_means_off(world: World) -> None:
    shape = make(world, "long")
    shape.store.close()
    store = world.open(verify="off")
    chunk = max(store.layout("a"), key=lambda chunk: chunk.length)
    flip(world, chunk.name, 5)
    low = chunk.offset + 5
    assert (
        store.read("a", 0, 1 << 20) != shape.content and store.read("a", low + 1, 1 << 20) == shape.content[low + 1 :]
    )
    with store.reader("a") as pieces:
        assert b"".join(pieces) != shape.content
    assert len(problems(store.check("deep"))) == 1


def test_damage_that_is_skipped_is_named_and_nothing_else_is_left_out(world: World) -> None:
    shape = make(world, "many")
    store, chunks = shape.store, [*shape.store.layout("a")]
    wide = [block for block in blocks_of(store, "a", BLOCK) if block.stop - block.start > 2]
    bad = [wide[1], wide[2], wide[-1]]
    for block in bad:
        flip(world, block.chunk, block.stop - 1)
    ranges = [(block.offset + block.start, block.offset + block.stop) for block in bad]
    absent = chunks[-2]
    if world.kind == "memory" and absent.name not in {block.chunk for block in bad}:
        # (A file that is held open can still be read.)
        world.remove(absent.name)
        ranges = sorted([*ranges, (absent.offset, absent.offset + absent.length)])
    good = [low for low in range(len(shape.content)) if not any(begin <= low < end for begin, end in ranges)]
    end = len(shape.content)
    for prefetch_bytes in (0, 1 << 20):
        for start, stop in ((0, end), (ranges[0][0] + 1, end - 1)):
            with store.reader(
                "a", start=start, stop=stop, prefetch_bytes=prefetch_bytes, piece_bytes=4096, on_damage="skip"
            ) as pieces:
                assert b"".join(pieces) == bytes(shape.content[at] for at in good if start <= at < stop)
                told = [(item.start, item.stop) for item in pieces.skipped]
            lost = {at for at in range(start, stop) if any(begin <= at < end for begin, end in ranges)}
            assert [at for low, high in told for at in range(low, high)] == sorted(lost)
            assert all(isinstance(item.error, Damaged) for item in pieces.skipped)
    refused(InvalidArgument, lambda: store.reader("a", on_damage="ignore"))  # type: ignore[arg-type]
