"""Every reply lost once, over memory: with objects that are put and with files that grow, with and without ``retrying``."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Literal

import pytest

from chunkstore.storage import ChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy
from tests.faults.lost_replies import LossGround, LostReplies, Told, Work
from tests.support.faulty import Call, FaultyChunkStorage, Outcome, outcomes_of

_numbers = itertools.count(1)
QUICK = RetryPolicy(tries_max=5, budget_s=600.0, pause_s_first=0.001, pause_s_max=0.002)


class SharedWire(FaultyChunkStorage):
    """Outlives the processes that use it."""

    def close(self) -> None:
        return None


class MemoryGround(LossGround):
    """Every process has its own wire to the same memory; all of them lose together."""

    def __init__(self, mode: Literal["slot", "append"], *, retrying: bool) -> None:
        self.mode = mode
        self.url = f"memory://lost-{os.getpid()}-{next(_numbers)}"
        self._retrying = retrying
        self._wire = SharedWire(self.direct())

    def direct(self) -> ChunkStorage:
        return MemoryChunkStorage(self.url, append=self.mode == "append")

    def storage(self) -> ChunkStorage:
        wire = self._wire
        return RetryingChunkStorage(wire, QUICK) if self._retrying else wire

    def watch(self) -> None:
        self._wire.watch()

    def changing(self) -> list[tuple[int, Call]]:
        return [
            (number, call) for number, call in enumerate(self._wire.trace) if Outcome.ERROR_AFTER in outcomes_of(call)
        ]

    def trace(self) -> list[str]:
        return [f"{call.operation} {' '.join(call.names)}" for _, call in self.changing()]

    def lose(self, number: int) -> None:
        def is_due(operation: str, name: str) -> bool:
            # The call has just been recorded as the last one.
            return len(self.changing()) == number + 1 and self.changing()[-1][0] == len(self._wire.trace) - 1

        self._wire.inject(is_due, Outcome.ERROR_AFTER)

    def heal(self) -> bool:
        self._wire.heal()
        return self._wire.fired


class InMemory(LostReplies):
    mode: Literal["slot", "append"]
    retrying = False

    @pytest.fixture
    def ground(self) -> Iterator[LossGround]:
        ground = MemoryGround(self.mode, retrying=self.retrying)
        yield ground
        forget_memory(ground.url)


@pytest.mark.proof
class TestSlot(InMemory):
    mode = "slot"

    def allowed(self, work: Work, request: str) -> tuple[Told, ...]:
        # A conditional request is asked again until it is decided: FORMAT, claims, OPEN, SEAL and records are never in doubt.
        # (The probe of a new container is told what the storage answers, and gives up.)
        if request.startswith("create_if_absent") and "/tmp/probe" not in request:
            return ("acknowledged",)
        return super().allowed(work, request)


class TestAppend(InMemory):
    mode = "append"
