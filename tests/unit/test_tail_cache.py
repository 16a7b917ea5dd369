"""What is held of the ends of segments: contiguous, bounded, and never under a wrong offset."""

from __future__ import annotations

import random

from chunkstore.journal import OpCode
from chunkstore.tail_cache import TailCache, extents_of

APPEND = int(OpCode.APPEND)
MIB = 1 << 20


def found(cache: TailCache, segment: int, offset: int, length: int) -> bytes | None:
    pieces = cache.find(segment, offset, length)
    return None if pieces is None else b"".join(pieces)


def test_every_range_of_what_is_held() -> None:
    cache = TailCache(MIB)
    data = random.Random(1).randbytes(60)
    begin = 100
    for size in (1, 2, 3, 4, 20, 30):
        cache.put(7, begin, data[begin - 100 :][:size])
        begin += size
    for low in range(60):
        for high in range(low + 1, 61):
            assert found(cache, 7, 100 + low, high - low) == data[low:high]
    assert found(cache, 7, 99, 2) is None and found(cache, 7, 159, 2) is None and found(cache, 8, 100, 1) is None


def test_what_came_between_ends_what_is_held() -> None:
    cache = TailCache(MIB)
    cache.put(7, 0, b"abc")
    cache.put(7, 5, b"fg")
    assert found(cache, 7, 0, 3) is None and found(cache, 7, 2, 4) is None and found(cache, 7, 5, 2) == b"fg"
    cache.put(7, 5, b"XY")  # what may have been there was cut off
    assert found(cache, 7, 5, 2) == b"XY"
    cache.clear()
    assert found(cache, 7, 5, 2) is None and cache.counts().held_bytes == 0


def test_it_is_bounded_and_gives_up_what_was_appended_to_longest_ago() -> None:
    cache = TailCache(20_000)
    for number in range(2_000):
        cache.put(1, number * 100, bytes(100))
        assert cache.counts().held_bytes <= 20_000
    assert found(cache, 1, 1_999 * 100, 100) == bytes(100) and found(cache, 1, 0, 100) is None
    held = next(number for number in range(2_000) if cache.find(1, number * 100, 100))
    assert 60 < 2_000 - held <= 200  # it holds pieces, not only what they cost
    for segment in range(2, 100):
        cache.put(segment, 0, bytes(100))
        assert cache.counts().held_bytes <= 20_000
    assert cache.find(1, 1_999 * 100, 100) is None and cache.find(99, 0, 100) is not None
    cache.put(2, 5, bytes(20_001))  # never fits: what is held stays
    assert cache.find(99, 0, 100) is not None
    cache.clear()
    cache.put(5, 0, b"x")
    assert cache.counts().held_bytes < 1_000


def test_what_was_spilled_goes_first() -> None:
    """What was not has to be asked of the storage once it is forgotten, one request for each extent."""
    cache = TailCache(20_000)
    for segment in range(1, 5):
        for number in range(10):
            cache.put(segment, number * 100, bytes(100))
    cache.spilled(3, 800)
    cache.spilled(4, 250)
    cache.spilled(77, 100)  # of which nothing is held
    for number in range(45):
        cache.put(5, number * 100, bytes(100))
    assert cache.counts().held_bytes <= 20_000
    assert found(cache, 1, 0, 1_000) == bytes(1_000) and found(cache, 4, 0, 1_000) is not None
    assert found(cache, 3, 0, 100) is None and found(cache, 3, 900, 100) == bytes(100)
    for number in range(45, 49):
        cache.put(5, number * 100, bytes(100))
    assert found(cache, 4, 100, 100) is None and found(cache, 4, 200, 800) == bytes(800), "it was spilled in a part"
    cache.spilled(2, 1_000)
    for number in range(49, 56):
        cache.put(5, number * 100, bytes(100))
    assert found(cache, 2, 600, 100) is None and found(cache, 1, 500, 500) is not None
    cache.put(2, 5_000, b"new")  # what came between is in chunks
    for number in range(56, 300):
        cache.put(5, number * 100, bytes(100))
        assert cache.counts().held_bytes <= 20_000


def test_the_extents_of_a_record_by_its_operations() -> None:
    ops = [
        (APPEND, 1, 10, 3, ((10, b"a"),), 1),
        (APPEND, 2, 0, 2, ((0, b"b"),), 1),
        (APPEND, 1, 13, 4, ()),  # more of the first extent
        (APPEND, 3, 50, 9, ()),  # into a chunk that grows
        (int(OpCode.SEAL), 2),
        (APPEND, 4, 0, 8, ((0, b"d"),)),  # a chunk
        (APPEND, 4, 8, 8, ()),
    ]
    assert extents_of(ops, 9) == [(1, 10, 7, b"a"), (2, 0, 2, b"b")]
    assert extents_of(ops, 8) == extents_of(ops, 10) == []
    cache = TailCache(MIB)
    cache.put_record(ops, b"abcdefgXY")
    assert found(cache, 1, 10, 7) == b"abcdefg" and found(cache, 2, 0, 2) == b"XY" and cache.find(4, 0, 1) is None
