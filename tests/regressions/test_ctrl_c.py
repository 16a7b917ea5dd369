"""Regressions of Ctrl-C: Python raises it between any two steps of the main thread, which is where commits are made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from chunkstore import runtime
from tests.support.interrupted import INTERRUPTS_LEAST
from tests.support.paths import ROOT, SOURCES


@pytest.mark.parametrize(("mode", "kind"), [("append", "event"), ("slot", "row")])
def test_whoever_is_interrupted_leaves_the_store_as_it_should_be(mode: str, kind: str) -> None:
    """Of a thousand interrupts some dozens lost a batch, the lead of the queue or a lock: segments were damaged for good, or no
    change was ever made again."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.interrupted", mode, kind, "1", "7"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": SOURCES},
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
