"""Single bits of chunks that flip: ``python -m tests.faults.rot [--flips N] [--seed S] [--save]``.

Each round makes a container by chance (pieces that end anywhere, rollovers, truncation, concat, a session's chunk, former
owners), and flips one bit at a time, by chance in any block, at its ends more often. Every read that touches the block must say
``Damaged`` and name the block, by every way of reading; reads beside it must be right; ``check("deep")`` must name it, and no
other. Then the bit is flipped back.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

from chunkstore import blocks
from chunkstore.changes import Attach, Concat, Seal
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from chunkstore.operations import read_slices
from chunkstore.reading import ReadableContainer
from tests.support.report import Report
from tests.support.rot import Block, blocks_of, flip
from tests.support.worlds import World

__all__ = ["run"]

BLOCK_BYTES = 64
FLIPS_OF_A_ROUND = 40


@contextmanager
def _small_blocks() -> Iterator[None]:
    with (
        mock.patch.object(blocks, "BLOCK_BYTES", BLOCK_BYTES),
        mock.patch.object(read_slices, "_WINDOW_BYTES", 1024),
        mock.patch.object(read_slices, "_LOCAL_BYTES", 300),
    ):
        yield


def run(flips: int, seed: int) -> Counter[str]:
    """Flip that many bits; how many reads of each kind were judged. Raises ``AssertionError`` where one was wrong."""
    done: Counter[str] = Counter()
    number = 0
    while done["flips"] < flips:
        chance = random.Random(f"{seed}/{number}")
        world_kind = chance.choice(("append", "slot"))
        with tempfile.TemporaryDirectory() as folder, _small_blocks():
            world = World("memory", world_kind, Path(folder))  # type: ignore[arg-type]
            try:
                _round(world, chance, min(FLIPS_OF_A_ROUND, flips - done["flips"]), done)
            except AssertionError as error:
                error.add_note(f"seed {seed}, round {number}")
                raise
            finally:
                world.close()
        number += 1
    return done


def _round(world: World, chance: random.Random, flips: int, done: Counter[str]) -> None:
    store, content, start = _made(world, chance)
    replica = world.replica()
    found = [block for block in blocks_of(store, "a", BLOCK_BYTES) if block.offset + block.stop > start]
    assert store.read("a", start, 1 << 30) == content[start:]
    for _ in range(flips):
        block = chance.choice(found)
        position = chance.choice((block.start, block.stop - 1, chance.randrange(block.start, block.stop)))
        bit = chance.randrange(8)
        flip(world, block.chunk, position, bit)
        for reader in (store, replica):
            _judge(reader, content, start, block, chance, done)
        named = [item for item in store.check("deep") if item.severity == "damage"] if chance.random() < 0.1 else None
        assert named is None or [(item.object, item.position) for item in named] == [(block.chunk, block.start)]
        flip(world, block.chunk, position, bit)
        done["flips"] += 1
    assert store.read("a", start, 1 << 30) == content[start:]


def _made(world: World, chance: random.Random) -> tuple[ChunkedSegmentStorage, bytes, int]:
    """A segment ``a``, its bytes from offset 0 on, and where it starts."""
    rolling = chance.choice((50, 64, 65, 1000, 40_000))
    store = world.open(rolling=rolling)
    store.create("a")
    content = b""
    for _ in range(chance.randrange(2, 8)):
        size = chance.choice((1, 63, 64, 65, 500, chance.randrange(1, 4000 if rolling < 100 else 30_000)))
        piece = chance.randbytes(size)
        match chance.randrange(6):
            case 0:
                store.create("b")
                store.append("b", piece)
                store.commit([Seal("b"), Concat("a", "b")])
            case 1:
                with store.session("rot") as session:
                    chunk = session.writer(0).write_chunk(world.storage(), 0, piece)
                    store.commit([Attach("a", session.id, (chunk,))])
            case 2:
                store.close()
                if chance.random() < 0.5:
                    world.forget_cache()
                store = world.open(rolling=rolling)
                store.append("a", piece)
            case _:
                store.append("a", piece)
        content += piece
    start = chance.choice((0, chance.randrange(len(content))))
    store.truncate("a", start)
    return store, content, start


def _judge(
    reader: ReadableContainer, content: bytes, start: int, block: Block, chance: random.Random, done: Counter[str]
) -> None:
    end, first, last = len(content), block.offset + block.start, block.offset + block.stop
    low = max(start, first)
    inside = chance.randrange(low, last)
    for begin, stop in (
        (inside, inside + 1),
        (chance.randrange(start, inside + 1), chance.randrange(inside + 1, end + 1)),
        (start, end),
    ):
        if stop > low:
            for way in _ways(reader, begin, stop - begin):
                _expect(way, block, first, last)
                done["reads that touch"] += 1
    for begin, stop in ((start, low), (last, end), (max(start, low - 70), low), (last, min(end, last + 70))):
        if begin < stop:
            for way in _ways(reader, begin, stop - begin):
                assert way() == content[begin:stop], f"[{begin}, {stop}) is hurt by {block}"
                done["reads beside"] += 1
    with reader.reader("a", start=start, on_damage="skip", piece_bytes=4096, prefetch_bytes=0) as pieces:
        assert b"".join(pieces) == content[start:low] + content[last:]
        assert [(item.start, item.stop) for item in pieces.skipped] == [(low, last)]
    done["salvaged"] += 1


def _ways(reader: ReadableContainer, begin: int, length: int) -> list[Callable[[], bytes]]:
    def filled() -> bytes:
        buffer = bytearray(length)
        assert reader.read_into("a", begin, buffer) == length
        return bytes(buffer)

    def streamed() -> bytes:
        with reader.reader("a", start=begin, stop=begin + length, prefetch_bytes=0, piece_bytes=4096) as pieces:
            return b"".join(pieces)

    return [partial(reader.read, "a", begin, length), filled, streamed]


def _expect(way: Callable[[], bytes], block: Block, first: int, last: int) -> None:
    try:
        way()
    except Damaged as error:
        told = error.object, error.position, error.segment, error.start, error.stop
        assert told == (block.chunk, block.start, "a", first, last), f"{told} is told of {block}"
        return
    raise AssertionError(f"bytes of {block} were given out")


def main() -> int:
    """Run the campaign; ``--save`` keeps its figures in ``benchmarks/results/rot.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    began = time.monotonic()
    done = run(options.flips, options.seed)
    report = Report("rot")
    for name, count in done.items():
        report.add(name, count, "", detail=f"seed {options.seed}")
    report.add("wrong answers", 0, "", at_most=0)
    report.add("duration", time.monotonic() - began, "s")
    if options.save:
        report.save()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
