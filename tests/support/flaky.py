"""A storage in bad weather: every so many calls one fails as if the network had, and none fails twice in a row."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from chunkstore.errors import StorageUnavailable
from chunkstore.storage import ChunkStorage
from tests.support.forwarding import Forwarding

T = TypeVar("T")


class Flaky(Forwarding):
    """Every ``every``-th call fails: ``lost`` says whether only the reply is lost, or nothing happened at all.

    ``spared`` operations never fail; those in ``never_lost`` fail before they happen, if at all."""

    def __init__(
        self,
        inner: ChunkStorage,
        *,
        every: int = 3,
        lost: bool = False,
        spared: tuple[str, ...] = (),
        never_lost: tuple[str, ...] = (),
    ) -> None:
        super().__init__(inner)
        self.failed: Counter[str] = Counter()
        self._every = every
        self._lost = lost
        self._spared = spared
        self._never_lost = never_lost
        self._lock = threading.Lock()
        self._calls = 0

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        if operation in self._spared:
            return call()
        with self._lock:
            self._calls += 1
            fails = self._calls % self._every == 0
            if fails:
                self.failed[operation] += 1
        if fails and not (self._lost and operation not in self._never_lost):
            raise StorageUnavailable(f"injected before {operation}")
        answer = call()
        if fails:
            raise StorageUnavailable(f"injected: the reply to {operation} was lost")
        return answer
