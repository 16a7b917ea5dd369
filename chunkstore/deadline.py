"""The end of the operation under way, for the layers below that wait on its behalf; and the pauses between the tries of one call.

``until`` sets when the operation of the present thread has to be over; the calls of a pool that it starts inherit that. ``left_s``
bounds a wait by it. Without ``until`` there is no bound. Nothing is interrupted: waits and retries ask first.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from math import inf
from types import TracebackType
from typing import Final, NoReturn

from chunkstore import runtime
from chunkstore.errors import DeadlineExceeded

__all__ = ["Backoff", "Deadline", "chance", "left_s", "paced_s", "until"]

_end_s: ContextVar[float | None] = ContextVar("chunkstore_operation_end_s", default=None)

_PACE: Final = 8


def paced_s(quiet_s: float, least_s: float, most_s: float) -> float:
    """How long to pause where nothing has happened for ``quiet_s``: an eighth of that, so looking in this way is late by no more
    than an eighth of the silence before."""
    return min(most_s, max(least_s, quiet_s / _PACE))


class Deadline:
    """The end of one operation that may take ``limit_s`` from now: ``end_s`` on the monotonic clock."""

    __slots__ = ("end_s", "limit_s")

    def __init__(self, limit_s: float) -> None:
        self.limit_s: float = limit_s
        self.end_s: float = runtime.monotonic_s() + limit_s

    def left_s(self) -> float:
        """Seconds that are left; never below zero."""
        return max(0.0, self.end_s - runtime.monotonic_s())

    def acquire(self, lock: runtime.Lock, what: str) -> None:
        """Take a lock within the deadline. Raises ``DeadlineExceeded``: nothing was done."""
        if not lock.acquire(True, self.left_s()):
            self.fail(f"waiting for {what}")

    def fail(self, what: str) -> NoReturn:
        """Raise ``DeadlineExceeded``: nothing was done."""
        raise DeadlineExceeded(what, deadline_s=self.limit_s)


def chance() -> float:
    """A random number between 0 and 1."""
    return int.from_bytes(runtime.token(4), "big") / 0xFFFF_FFFF


class Backoff:
    """The pauses between the tries of one call, within its time.

    They double from ``pause_s_first`` to ``pause_s_max``; half of each is chance, so that clients that collide do not meet again in
    step. A server's wish (``retry_after_s``) makes one longer. None takes more than half of the time that is left: an answer needs time,
    and the caller's last error is what it has met. ``tries_max``: calls in all; a refusal because of load (``busy``) uses up half a try,
    because the server is there. ``budget_s``: no try begins later than this after now, nor when the operation has no time left.
    """

    __slots__ = ("_end_s", "_least_s", "_pause_s", "_pause_s_max", "_tries_left")

    def __init__(
        self, budget_s: float = inf, *, tries_max: float = inf, pause_s_first: float = 0.05, pause_s_max: float = 5.0
    ) -> None:
        self._end_s = runtime.monotonic_s() + budget_s
        self._tries_left = tries_max
        self._pause_s = min(pause_s_first, pause_s_max)
        self._least_s = 2 * self._pause_s
        self._pause_s_max = pause_s_max

    def plan(self, chance: float, left_s: float, *, busy: bool = False, retry_after_s: float = 0.0) -> float | None:
        """The pause before the next try, in seconds; None: there is to be none. ``chance``: 0 to 1; ``left_s``: to the call."""
        self._tries_left -= 0.5 if busy else 1
        if self._tries_left <= 0 or left_s <= self._least_s:
            return None
        pause_s = min(left_s / 2, max(self._pause_s * (0.5 + 0.5 * chance), retry_after_s))
        self._pause_s = min(self._pause_s_max, self._pause_s * 2)
        return pause_s

    def pause(self, *, busy: bool = False, retry_after_s: float = 0.0) -> bool:
        """Sleep before the next try; False, without sleeping, when there is to be none."""
        left = left_s(self._end_s - runtime.monotonic_s())
        pause_s = self.plan(chance(), left, busy=busy, retry_after_s=retry_after_s)
        if pause_s is None:
            return False
        runtime.sleep_s(pause_s)
        return True


class until:  # noqa: N801  (reads as a word: ``with until(end_s):``)
    """``with until(end_s):`` the operation ends at this point of the monotonic clock, or at an earlier one said before."""

    __slots__ = ("_token", "_value")

    def __init__(self, end_s: float) -> None:
        self._value = end_s
        self._token: Token[float | None] | None = None

    def __enter__(self) -> None:
        before = _end_s.get()
        self._token = _end_s.set(self._value if before is None or self._value < before else before)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _end_s.reset(self._token)


def left_s(most_s: float) -> float:
    """Seconds that are left to the operation, ``most_s`` at most; never below zero."""
    end_s = _end_s.get()
    if end_s is None:
        return most_s
    return max(0.0, min(most_s, end_s - runtime.monotonic_s()))
