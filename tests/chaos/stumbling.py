"""A storage whose process falls asleep in the middle of things: at its calls, by ``SIGSTOP`` to itself.

Promises: the whole process stops right before or right after a call of the storage, at chance, as a paused machine would; the
supervisor sees it asleep and wakes it, usually after somebody else has taken over. So zombies wake up between the look at
the fence and the write, between the write and the sync, or in front of a deletion, far more often than stops from outside
would bring about.
Leaves out: errors (the disk makes real ones).
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from typing import TypeVar

from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.wrapping import WrappingChunkStorage

__all__ = ["StumblingChunkStorage"]

T = TypeVar("T")


class StumblingChunkStorage(WrappingChunkStorage):
    """Stops its process with ``probability`` before, and as often after, each call."""

    def __init__(self, inner: ChunkStorage, chance: random.Random, probability: float) -> None:
        super().__init__(inner)
        self._chance = chance
        self._probability = probability

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        self._stumble()
        answer = call()
        self._stumble()
        return answer

    def _stumble(self) -> None:
        if self._chance.random() < self._probability:
            os.kill(os.getpid(), signal.SIGSTOP)
