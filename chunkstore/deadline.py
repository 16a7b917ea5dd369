"""The end of the operation under way, for the layers below that wait on its behalf.

Promises: ``until`` says when the operation that the present thread works for has to be over; the calls of a pool that it
starts inherit that. ``left_s`` bounds a wait by it. Where nothing was said there is no bound.
Leaves out: ending anything. Nothing is interrupted; waits and retries ask first.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType
from typing import Final, NoReturn

from chunkstore import runtime
from chunkstore.errors import DeadlineExceeded

__all__ = ["Deadline", "left_s", "paced_s", "until"]

_end_s: ContextVar[float | None] = ContextVar("chunkstore_operation_end_s", default=None)

_PACE: Final = 8


def paced_s(quiet_s: float, least_s: float, most_s: float) -> float:
    """How long to pause where nothing has happened for ``quiet_s``: an eighth of that, so whoever looks in this way is late by no more
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
