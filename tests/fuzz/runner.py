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
from dataclasses import dataclass, field
from types import FrameType

from tests.fuzz.chance import Chance
from tests.fuzz.target import Gate, Target

BLOCK = 1000
"""Inputs that follow from one seed: what is repeated to replay one of them. Of targets that take several at once, so many fewer."""
TRACED_EVERY = 50
SECONDS_PER_INPUT = 2.0
MEMORY_FLOOR_BYTES = 128 << 10
"""What an error with its traceback and a decoder's own objects may take, whatever the input: an unpacker has 43 KB."""
MEMORY_FACTOR = 160
"""Bytes in memory for each byte given: an empty map is one byte of msgpack and 80 in Python, and its tuple's place."""
SPARE_BYTES = 128 << 20


def memory_bound_bytes(length: int) -> int:
    """How much memory decoding ``length`` bytes may take at its peak."""
    return MEMORY_FLOOR_BYTES + MEMORY_FACTOR * length


class Finding(AssertionError):
    """A decoder broke a rule. ``data`` is the input."""

    def __init__(self, target: str, rule: str, data: bytes) -> None:
        super().__init__(f"{target}: {rule}; {len(data)} bytes: {data[:80].hex()}{'...' if len(data) > 80 else ''}")
        self.target = target
        self.rule = rule
        self.data = data

    def __reduce__(self) -> tuple[type[Finding], tuple[str, str, bytes]]:
        return Finding, (self.target, self.rule, self.data)


@dataclass
class Result:
    """What a run has seen; results of the same target add up."""

    target: str
    inputs: int = 0
    past: int = 0
    seconds: float = 0.0
    seconds_max: float = 0.0
    memory_bytes_max: int = 0
    memory_input_bytes: int = 0
    """The length of the input that took most."""

    def add(self, other: Result) -> None:
        """Add another run of the same target."""
        assert other.target == self.target
        if other.memory_bytes_max > self.memory_bytes_max:
            self.memory_bytes_max, self.memory_input_bytes = other.memory_bytes_max, other.memory_input_bytes
        self.inputs += other.inputs
        self.past += other.past
        self.seconds += other.seconds
        self.seconds_max = max(self.seconds_max, other.seconds_max)

    @property
    def past_share(self) -> float:
        """The share of inputs that came past the first check, from 0 to 1."""
        return self.past / self.inputs if self.inputs else 0.0


class _Hang(BaseException):
    """The alarm: not an Exception, so that no decoder translates it."""


@dataclass
class Outcome:
    """How one input went; reused for each."""

    seconds: float = 0.0
    memory_bytes: int = 0
    gate: Gate = field(default_factory=Gate)


def judge(target: Target, data: bytes, outcome: Outcome, *, traced: bool = False, repeated: bool = False) -> None:
    """Give one input to the decoder. Raises ``Finding``."""
    gate = outcome.gate
    gate.next_input()
    if traced:
        tracemalloc.start()
    began = time.thread_time()  # whoever is taken off the processor meanwhile has not taken long
    again = None
    try:
        try:
            again = target.decode(data, gate)
        finally:
            outcome.seconds = time.thread_time() - began
            if traced:
                outcome.memory_bytes = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
        if again is not None:
            again()
    except target.errors:
        pass
    except _Hang:
        raise Finding(target.name, f"no end after {SECONDS_PER_INPUT} s", data) from None
    except BaseException as error:
        raise Finding(target.name, f"{type(error).__name__}: {error}"[:300], data) from error
    if traced and outcome.memory_bytes > target.memory_bytes + memory_bound_bytes(len(data)):
        if not repeated:
            # What other threads took meanwhile was counted, too (a worker of tests is sent thousands of orders at once).
            judge(target, data, outcome, traced=True, repeated=True)
            return
        raise Finding(target.name, f"{outcome.memory_bytes} bytes of memory for {len(data)} of input", data)


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


def run_blocks(target: Target, seed: int, blocks: range) -> Result:
    """Run some blocks of ``BLOCK`` inputs each. Raises ``Finding``."""
    result = Result(target.name)
    outcome = Outcome()
    began = time.perf_counter()
    gc.collect()
    with target.watched(outcome.gate), _alarm() as wind, _little_to_spare():
        for block in blocks:
            chance = Chance(f"{seed}/{target.name}/{block}")
            for number in range(BLOCK // target.each):
                if number % 100 == 0:
                    wind()
                data = target.make(chance)
                traced = number % TRACED_EVERY == 0
                judge(target, data, outcome, traced=traced)
                if outcome.seconds > result.seconds_max:
                    result.seconds_max = outcome.seconds
                    if outcome.seconds > SECONDS_PER_INPUT:
                        raise Finding(target.name, f"{outcome.seconds:.1f} s for one input", data)
                if traced and outcome.memory_bytes > result.memory_bytes_max:
                    result.memory_bytes_max, result.memory_input_bytes = outcome.memory_bytes, len(data)
            result.inputs += BLOCK
    result.past = outcome.gate.passed * target.each
    result.seconds = time.perf_counter() - began
    return result
