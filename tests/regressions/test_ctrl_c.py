"""Regressions of Ctrl-C: Python raises it between any two steps of the main thread, which is where commits are made."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore import runtime
from tests.support.interrupted import INTERRUPTS_LEAST
from tests.support.worlds import World

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("mode", "kind"), [("append", "event"), ("slot", "row")])
def test_whoever_is_interrupted_leaves_the_store_as_it_should_be(mode: str, kind: str) -> None:
    """Of a thousand interrupts some dozens lost a batch, the lead of the queue or a lock: segments were damaged for good, or no
    change was ever made again."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.interrupted", mode, kind, "1", "7"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "bindings"), str(ROOT / "journal")))},
        capture_output=True,
        timeout=120,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert told["interrupts"] >= INTERRUPTS_LEAST


@pytest.fixture
def default_handler() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are for the main thread")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_handler")
def test_an_interrupt_waits_for_the_end_and_the_second_one_does_not() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), runtime.defer_interrupt():
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)
        steps.append("after one")
    assert steps == ["after one"]
    with pytest.raises(KeyboardInterrupt), runtime.defer_interrupt(), runtime.defer_interrupt():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)
        steps.append("after two")
    assert steps == ["after one"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class _Pressing:
    """A lock whose taker is interrupted between having it and being told so."""

    def __init__(self) -> None:
        self.inner = threading.Lock()
        self.presses = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = self.inner.acquire(blocking, timeout)
        self.presses += 1
        signal.raise_signal(signal.SIGINT)
        return got

    def release(self) -> None:
        self.inner.release()

    def locked(self) -> bool:
        return self.inner.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *unused: object) -> None:
        self.release()


def _hold(lock: runtime.Lock, wait_s: float, body: Callable[[], object]) -> bool:
    holding = runtime.interruptible_lock(lock)
    try:
        if holding.wait(wait_s):
            body()
        return holding.got
    finally:
        if holding.got:
            holding.lock.release()


@pytest.mark.usefixtures("default_handler")
def test_wherever_it_interrupts_a_lock_is_given_back() -> None:
    """One press at a time, at random moments of taking and giving back."""
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    chance = random.Random(5)
    lock = threading.Lock()
    presses = 0
    begin_s = time.monotonic()
    try:
        # A machine that stands still for a second is no reason to have pressed too seldom.
        while (took_s := time.monotonic() - begin_s) < 1.5 or (presses <= 50 and took_s < 60):
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 30e-6))
                for _ in range(30):
                    _hold(lock, 1.0, int)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                presses += 1
            assert not lock.locked(), presses
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
    assert presses > 50


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("operation", ["refresh", "collect", "snapshot"])
def test_who_is_interrupted_with_a_lock_in_hand_can_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    store = world.open()
    store.create("s")
    store.append("s", b"data")
    replica = world.replica()
    pressing = _Pressing()
    calls: dict[str, tuple[Callable[[], object], object, str]] = {
        "refresh": (replica.refresh, replica, "_lock"),
        "collect": (store.collect, store._container, "collecting"),
        "snapshot": (store.snapshot, store._maintenance.snapshots, "_lock"),
    }
    call, holder, name = calls[operation]
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, pressing)
        with pytest.raises(KeyboardInterrupt):
            call()
        assert pressing.presses == 1
        assert not pressing.locked()
    call()
    replica.close()
    assert replica._released
