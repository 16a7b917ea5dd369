"""A runner of Spark's jobs without a JVM: tasks one after the other in this process, pickled as they would travel."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from chunkstore.spark.job_runner import OnSpark

__all__ = ["ATTEMPTS", "Here", "Killed"]

ATTEMPTS = count(1)
"""Their numbers, in the whole process."""


class Killed(BaseException):
    """As if the driver died: nobody is told."""


class Here(OnSpark):
    """``twice``: every task is tried twice, and the second result counts. ``dies_at``: the number of the task at which all ends."""

    def __init__(self, *, twice: bool = False, dies_at: int | None = None, width: int = 1) -> None:
        self.twice = twice
        self.width = width
        self.dies_at = dies_at
        self.ran = 0

    def __call__(self, call: Callable[[Any, int], Any], tasks: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        assert len(sizes) == len(tasks)
        found = []
        for task in tasks:
            if self.ran == self.dies_at:
                raise Killed
            self.ran += 1
            raw = pickle.dumps(task)
            if self.twice:
                call(pickle.loads(raw), next(ATTEMPTS))
            found.append(pickle.loads(pickle.dumps(call(pickle.loads(raw), next(ATTEMPTS)))))
        return found
