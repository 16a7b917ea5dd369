"""A reader of a remote storage reads several pieces at a time: they come in order all the same, and damage stays where it is."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.engine.reader import ReaderOptions, StorageReader
from chunkstore.errors import BadOffset, Damaged, SegmentTruncated
from chunkstore.records.arguments import SegmentHandle
from chunkstore.records.segments import SegmentInfo
from tests.support.data import pattern

PIECE = 4096
Ranges = list[tuple[int, int]]


class Store:
    """A segment whose reads take a while, each another one."""

    def __init__(self, length: int, bad: Ranges, *, seed: int = 0, pause_s: float = 0.0) -> None:
        self.length = length
        self.bad = bad
        self.start = 0
        self.sealed = False
        self.reading = self.most_reading = self.reads = 0
        self.before: Callable[[int], None] = lambda offset: None
        self._chance = random.Random(seed)
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def info(self) -> SegmentInfo:
        return SegmentInfo("a", 1, self.start, self.length, self.sealed, 1, 1, MappingProxyType({}), 0, 0)

    def wait(self, _: SegmentHandle, offset: int, timeout_s: float, ended: Callable[[], bool]) -> SegmentInfo:
        while self.length <= offset and not self.sealed and not ended():
            time.sleep(0.001)
        return self.info()

    def read(self, _: SegmentHandle, offset: int, length: int) -> bytes:
        with self._lock:
            self.reads += 1
            self.reading += 1
            self.most_reading = max(self.most_reading, self.reading)
            pause_s = self._chance.random() * self._pause_s
        try:
            self.before(offset)
            if pause_s:
                time.sleep(pause_s)
            if offset < self.start:
                raise SegmentTruncated("a", start_offset=self.start, offset=offset)
            if offset > self.length:
                raise BadOffset("a", expected=self.length, given=offset)
            stop = min(offset + length, self.length)
            for low, high in self.bad:
                if low < stop and offset < high:
                    raise Damaged("rotten", object="chunk", segment="a", start=low, stop=high)
            return pattern(offset, stop - offset)
        finally:
            with self._lock:
                self.reading -= 1


def reader(store: Store, *, ahead: int = 8, start: int = 0, stop: int | None = None, **more: object) -> StorageReader:
    plan = ReaderOptions(start, stop, ahead * PIECE, piece_bytes=PIECE, **more)  # type: ignore[arg-type]
    return StorageReader(store, store.info(), store.wait, plan, remote=True)


def outcome(of: StorageReader) -> tuple[bytes, list[tuple[int, int]], object]:
    got = bytearray()
    error: object = None
    try:
        for piece in of:
            got += piece
    except Damaged as damaged:
        error = (damaged.start, damaged.stop, of.position)
    of.close()
    return bytes(got), [(skipped.start, skipped.stop) for skipped in of.skipped], error


@given(
    length=st.integers(0, 12 * PIECE),
    cuts=st.lists(st.integers(0, 12 * PIECE), max_size=6, unique=True),
    start=st.integers(0, 3 * PIECE),
    stop=st.none() | st.integers(0, 13 * PIECE),
    ahead=st.integers(1, 9),
    skip=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=150)
def test_as_one_after_the_other(
    length: int, cuts: list[int], start: int, stop: int | None, ahead: int, skip: bool, seed: int
) -> None:
    cuts.sort()
    bad = [(low, min(high, length)) for low, high in zip(cuts[::2], cuts[1::2], strict=False) if low < length]
    how = {"start": min(start, length), "stop": stop, "on_damage": "skip" if skip else "raise"}
    expected = outcome(reader(Store(length, bad), ahead=0, **how))  # type: ignore[arg-type]
    store = Store(length, bad, seed=seed, pause_s=0.001)
    assert outcome(reader(store, ahead=ahead, **how)) == expected  # type: ignore[arg-type]
    assert store.most_reading <= min(8, ahead)
