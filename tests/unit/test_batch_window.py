"""For whom a commit waits, and when it does not (protocol 3.7)."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.operations.batch_window import BatchWindow
from chunkstore.operations.pending import Waiter


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each wait was to be; what is to happen in it is put into ``MEANWHILE``."""
    found: list[float] = []

    def wait(_: object, timeout_s: float) -> bool:
        found.append(timeout_s)
        if MEANWHILE:
            MEANWHILE.pop()()
        return True

    monkeypatch.setattr(Waiter, "wait", wait)
    return found


MEANWHILE: list[Any] = []


def test_who_was_there_last_is_waited_for_and_no_longer(waits: list[float]) -> None:
    queue: list[Any] = []
    window = BatchWindow(0.0, runtime.lock(), queue)
    window.company, window.last_commit_s = 10, 0.01

    def all_come() -> None:
        for number in range(9):
            assert window.waiting is not None
            queue.append(number)
            window.arrived()
        assert window.waiting is None, "nine of ten are enough"

    MEANWHILE.append(all_come)
    window.gather()
    assert waits == [0.002]
    window.gather()
    assert len(waits) == 1, "they are there"


def test_who_does_not_come_is_waited_for_seldom(waits: list[float]) -> None:
    queue: list[Any] = [1]
    window = BatchWindow(0.0, runtime.lock(), queue)
    window.company, window.last_commit_s = 10, 1.0
    for _ in range(300):
        window.gather()
    assert len(waits) == 35 and set(waits) == {0.02}  # behind 0, 1, 3, 7, and then each 8 without a wait


def test_a_linger_is_always_waited_for(waits: list[float]) -> None:
    window = BatchWindow(0.5, runtime.lock(), [])
    for _ in range(5):
        window.gather()
    assert waits == [0.5] * 5
