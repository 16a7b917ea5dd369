"""A clock that passes only when somebody sleeps: waits cost no time, and are written down."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from chunkstore import runtime

__all__ = ["StoppedClock", "stopped_clock"]


class StoppedClock(runtime._Production):
    """Production, except for time and chance."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self._chance = random.Random(seed)

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep_s(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds

    def token(self, size_bytes: int) -> bytes:
        return self._chance.randbytes(size_bytes)


@contextmanager
def stopped_clock(seed: int = 1) -> Iterator[StoppedClock]:
    """Install one for the length of a block."""
    clock = StoppedClock(seed)
    runtime.install(clock)
    try:
        yield clock
    finally:
        runtime.install(None)
