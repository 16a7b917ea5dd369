"""Runs a decoder over many inputs, and holds it to three rules: no error but the typed one, no hang, no memory that the
input does not justify.

Time: every input is timed, and an alarm ends one that does not end by itself. Memory: a share of the inputs runs under
tracemalloc, with a bound in proportion to the input; all of them run with little address space to spare, so that whoever
allocates what a hostile length claims fails there and then.
"""

from __future__ import annotations

import gc
import resource
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tests.fuzz.chance import Chance
from tests.fuzz.target import Gate, Target

BLOCK = 1000
"""Inputs that follow from one seed: what is repeated to replay one of them. Of targets that take several at once, so many fewer."""
TRACED_EVERY = 50
PAST_SHARE_MIN = 0.05
SECONDS_PER_INPUT = 2.0
MEMORY_FLOOR_BYTES = 128 << 10
"""What an error with its traceback and a decoder's own objects may take, whatever the input: an unpacker has 43 KB."""
MEMORY_FACTOR = 160
"""Bytes in memory for each byte given: an empty map is one byte of msgpack and 80 in Python, and its tuple's place."""
SPARE_BYTES = 128 << 20


class Finding(AssertionError):
    """A decoder broke a rule. ``data`` is the input."""

    def __init__(self, target: str, rule: str, data: bytes) -> None:
        super().__init__(f"{target}: {rule}; {len(data)} bytes: {data[:80].hex()}{'...' if len(data) > 80 else ''}")
        self.target = target
        self.rule = rule
        self.data = data

    def __reduce__(self) -> tuple[type[Finding], tuple[str, str, bytes]]:
        return Finding, (self.target, self.rule, self.data)


class _Hang(BaseException):
    """The alarm: not an Exception, so that no decoder translates it."""


def judge(target: Target, data: bytes, gate: Gate, *, traced: bool = False) -> int:
    """Give one input to the decoder; the bytes of memory it took, if ``traced``. Raises ``Finding``."""
    gate.next_input()
    if traced:
        tracemalloc.start()
    began = time.thread_time()  # whoever is taken off the processor meanwhile has not taken long
    seconds, memory_bytes, again = 0.0, 0, None
    try:
        try:
            again = target.decode(data, gate)
        finally:
            seconds = time.thread_time() - began
            if traced:
                memory_bytes = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
        if again is not None:
            again()
    except target.errors:
        pass
    except _Hang:
        raise Finding(target.name, f"no end after {SECONDS_PER_INPUT} s", data) from None
    except BaseException as error:
        raise Finding(target.name, f"{type(error).__name__}: {error}"[:300], data) from error
    if seconds > SECONDS_PER_INPUT:
        raise Finding(target.name, f"{seconds:.1f} s for one input", data)
    return memory_bytes


@contextmanager
def _alarm() -> Iterator[Callable[[], None]]:
    """A function that winds the alarm up for the next inputs. It counts the processor's time: decoders do not wait."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGPROF, ring)
    try:
        # Wound up once for a hundred inputs: a system call for each would cost as much as decoding it.
        yield lambda: _wind(SECONDS_PER_INPUT * 5)
    finally:
        _wind(0.0)
        signal.signal(signal.SIGPROF, before)


def _wind(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)


@contextmanager
def _little_to_spare() -> Iterator[None]:
    """Little address space beyond what is in use: a length that is believed before it is checked cannot be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + SPARE_BYTES
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run_blocks(target: Target, seed: int, blocks: range) -> float:
    """Run some blocks of ``BLOCK`` inputs each; the share of them that came past the first check. Raises ``Finding``."""
    gate = Gate()
    gc.collect()
    with target.watched(gate), _alarm() as wind, _little_to_spare():
        for block in blocks:
            chance = Chance(f"{seed}/{target.name}/{block}")
            for number in range(BLOCK // target.each):
                if number % 100 == 0:
                    wind()
                data = target.make(chance)
                if number % TRACED_EVERY:
                    judge(target, data, gate)
                    continue
                bound_bytes = target.memory_bytes + MEMORY_FLOOR_BYTES + MEMORY_FACTOR * len(data)
                # What other threads took meanwhile is counted, too (a worker of tests is sent thousands of orders at once).
                if judge(target, data, gate, traced=True) > bound_bytes < judge(target, data, gate, traced=True):
                    raise Finding(
                        target.name, f"more than {bound_bytes} bytes of memory for {len(data)} of input", data
                    )
    return gate.passed * target.each / (BLOCK * len(blocks))
