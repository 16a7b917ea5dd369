"""Bytes that tell where they belong, calls that must be refused, and threads that report what went wrong."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.records.invariants import Finding

BLOCK = random.Random(20_26).randbytes(65_521)


def pattern(offset: int, length: int, seed: int = 0) -> bytes:
    """What belongs at ``[offset, offset + length)`` of a segment; ``seed`` tells segments apart."""
    begin = (offset + seed * 7919) % len(BLOCK)
    repeated = BLOCK * ((begin + length) // len(BLOCK) + 1)
    return repeated[begin : begin + length]


def lengths(store: ChunkedSegmentStorage, name: str = "a") -> list[int]:
    """The lengths of a segment's chunks."""
    return [chunk.length for chunk in store.layout(name)]


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """What a check finds wrong. Orphans are not: a crash, or a write that failed, leaves them behind."""
    return [finding for finding in findings if finding.severity != "info"]


def refused(error: type[BaseException], *calls: Callable[[], object]) -> None:
    """Each call must raise exactly this error."""
    for number, call in enumerate(calls):
        with pytest.raises(error) as caught:
            call()
            pytest.fail(f"call {number} was accepted")
        assert type(caught.value) is error, f"call {number}"


def fails_in_time(
    error: type[BaseException] | tuple[type[BaseException], ...],
    *calls: Callable[[], object],
    match: str | None = None,
    within_s: float = 60.0,
    at_once: bool = False,
) -> list[str]:
    """Each call must raise such an error, and soon: what ends by a deadline of a few seconds has ended by then, on a busy machine too,
    and what waits for a longer one has not. ``at_once``: in a thread each. Returns what the errors say."""
    said = [""] * len(calls)

    def ask(number: int) -> None:
        began = time.monotonic()
        with pytest.raises(error, match=match) as caught:
            calls[number]()
        assert time.monotonic() - began < within_s
        said[number] = str(caught.value)

    if at_once:
        run_threads(len(calls), ask)
    else:
        for number in range(len(calls)):
            ask(number)
    return said


def run_threads(count: int, work: Callable[[int], None], *, timeout_s: float = 120.0) -> None:
    """Run ``work(0)`` .. ``work(count - 1)`` in threads that start together; raise the first error, or say who hangs."""
    barrier = threading.Barrier(count)
    errors: list[tuple[int, BaseException]] = []

    def body(number: int) -> None:
        try:
            barrier.wait(timeout_s)
            work(number)
        except BaseException as error:  # noqa: BLE001  (carried to the test)
            errors.append((number, error))

    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if errors:
        raise errors[0][1]
    hanging = [number for number, thread in enumerate(threads) if thread.is_alive()]
    assert not hanging, f"threads {hanging} did not end within {timeout_s} s"
