"""Clocks for tests: one that passes only when somebody sleeps (waits cost no time, and are written down), and one that can be put on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from chunkstore import runtime


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


class JumpingClock(runtime._Production):
    """Production, with time that can be put on: what is to be old need not be waited for, and what is to be young may take its time."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_s = 0

    def now_ns(self) -> int:
        return super().now_ns() + 1_000_000_000 * self._ahead_s

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._ahead_s

    def jump(self, seconds: int) -> None:
        """From now on it is that much later."""
        self._ahead_s += seconds


@contextmanager
def jumping_clock() -> Iterator[JumpingClock]:
    """Install one for the length of a block."""
    clock = JumpingClock()
    runtime.install(clock)
    try:
        yield clock
    finally:
        runtime.install(None)
