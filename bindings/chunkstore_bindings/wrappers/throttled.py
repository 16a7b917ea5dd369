"""A storage that does not ask for more than it is allowed: bytes a second and requests a second, reads and writes apart.

Promises
* In the long run no limit is exceeded; for a moment by at most a burst (one second's worth) and one request. A request
  goes whole, however large: the calls after it wait for it. What a read brings, and what a ``compose`` carries in and out
  again, is known only afterwards and is paid then.
* First come, first served: no call overtakes another within reads, or within writes.
* Limits can be changed at any time, also while calls wait for them.
* A call whose turn cannot come before ``wait_s_max``, or before the operation under way ends (``chunkstore.deadline``), gets
  ``DeadlineExceeded`` at once: nothing was sent.

``sync`` and ``harden`` pass freely: what they make durable was paid for when it was written.
Leaves out: limits over several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from chunkstore import runtime
from chunkstore.deadline import left_s
from chunkstore.errors import DeadlineExceeded, InvalidArgument
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.wrapping import READING, WrappingChunkStorage, bytes_carried, bytes_read

__all__ = ["ThrottleLimits", "ThrottledChunkStorage", "TokenBucket"]

T = TypeVar("T")
_FREE: Final = ("sync", "harden")


class ThrottleLimits(NamedTuple):
    """Bytes and requests a second; 0 is no limit."""

    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    read_requests_per_s: float = 0.0
    write_requests_per_s: float = 0.0


class TokenBucket:
    """``rate`` tokens a second (0: no limit), of which at most ``burst_s`` seconds' worth are saved up. Thread-safe.

    Everyone takes a place on one line that the tokens fill up: a place is served when the tokens have reached it, so that
    the order of arrival is the order of service, whatever the amounts.
    """

    def __init__(self, rate: float, *, burst_s: float = 1.0) -> None:
        self._rate = _checked(rate, "rate")
        self._burst_s = _checked(burst_s, "burst_s")
        self._changed = runtime.condition()
        self._taken = 0.0
        """Where the line of places ends."""
        self._filled = rate * burst_s
        """How far the tokens have come; may be ahead of the line by a burst."""
        self._at_s = runtime.monotonic_s()

    @property
    def rate(self) -> float:
        """Tokens a second; 0: no limit."""
        return self._rate

    def set_rate(self, rate: float) -> None:
        """Change the limit; waiting calls are served at the new rate from now on."""
        _checked(rate, "rate")
        with self._changed:
            self._fill()
            self._rate = rate
            self._changed.notify_all()

    def take(self, amount: float, wait_s: float) -> bool:
        """Wait for our turn, ``wait_s`` at most, and take ``amount``. False: the turn cannot come in time; nothing was taken."""
        end_s = runtime.monotonic_s() + wait_s
        with self._changed:
            self._fill()
            place = self._taken
            if self._missing_s(place) > wait_s:
                return False
            self._taken += amount
            while True:
                missing_s = self._missing_s(place)
                if missing_s <= 0:
                    return True
                left = end_s - runtime.monotonic_s()
                if missing_s > left:
                    # The rate was lowered meanwhile, or others had to pay more than they knew: our share goes to those that follow.
                    self._filled += amount
                    self._changed.notify_all()
                    return False
                self._changed.wait(missing_s)
                self._fill()

    def pay(self, amount: float) -> None:
        """Take ``amount`` without waiting: present and later calls wait longer for it. Below zero: give back."""
        with self._changed:
            self._fill()
            self._filled -= amount
            if amount < 0:
                self._changed.notify_all()

    def _missing_s(self, place: float) -> float:
        missing = place - self._filled
        return missing / self._rate if missing > 0 and self._rate else 0.0

    def _fill(self) -> None:
        now_s = runtime.monotonic_s()
        if self._rate:
            self._filled = min(
                self._filled + self._rate * (now_s - self._at_s), self._taken + self._rate * self._burst_s
            )
        else:
            self._filled = self._taken
        self._at_s = now_s


def _checked(value: float, argument: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InvalidArgument(f"{argument} must be a number from 0 on, not {value!r}", argument=argument)
    return value


class ThrottledChunkStorage(WrappingChunkStorage):
    """See the module. Thread-safe.

    Arguments: ``limits``; ``wait_s_max``: the longest that a call waits for its turn, in seconds.
    Raises ``InvalidArgument`` for what is not a number from 0 on.
    """

    def __init__(self, inner: ChunkStorage, limits: ThrottleLimits, *, wait_s_max: float = 60.0) -> None:
        super().__init__(inner)
        self._wait_s_max = _checked(wait_s_max, "wait_s_max")
        self._read_bytes = TokenBucket(limits.read_bytes_per_s)
        self._write_bytes = TokenBucket(limits.write_bytes_per_s)
        self._read_requests = TokenBucket(limits.read_requests_per_s)
        self._write_requests = TokenBucket(limits.write_requests_per_s)

    @property
    def limits(self) -> ThrottleLimits:
        """The limits of now."""
        return ThrottleLimits(*(bucket.rate for bucket in self._buckets()))

    def set_limits(self, limits: ThrottleLimits) -> None:
        """Change them, for calls that wait already, too. Raises ``InvalidArgument``; then nothing was changed."""
        for value, name in zip(limits, ThrottleLimits._fields, strict=True):
            _checked(value, name)
        for bucket, value in zip(self._buckets(), limits, strict=True):
            bucket.set_rate(value)

    def _buckets(self) -> tuple[TokenBucket, ...]:
        return (self._read_bytes, self._write_bytes, self._read_requests, self._write_requests)

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        if operation in _FREE:
            return call()
        reading = operation in READING
        requests, volume = (
            (self._read_requests, self._read_bytes) if reading else (self._write_requests, self._write_bytes)
        )
        wait_s = left_s(self._wait_s_max)
        end_s = runtime.monotonic_s() + wait_s
        if not requests.take(1, wait_s):
            raise _no_turn(operation, names, wait_s)
        # Also a call that sends nothing waits until what was sent or read before is paid for.
        if not volume.take(size_bytes, max(0.0, end_s - runtime.monotonic_s())):
            requests.pay(-1)
            raise _no_turn(operation, names, wait_s)
        answer = call()
        if reading and operation == "read":
            volume.pay(bytes_read(answer))
        elif operation == "compose":
            self._read_bytes.pay(bytes_carried(answer))
            self._write_bytes.pay(bytes_carried(answer))
        return answer


def _no_turn(operation: str, names: Sequence[str], wait_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"waiting for the throttle before {operation} of {', '.join(names)}", deadline_s=wait_s)
