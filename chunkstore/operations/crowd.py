"""Whether it is worth it to wait for company before a commit (protocol 3.7, A6).

Promises: at most ``linger_s``, or where that is 0 a fifth of the last commit's time and 2 ms; not at all for who was alone the last time.
Leaves out: the queue. All but ``gather`` is called under the queue's lock, which ``gather`` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chunkstore import runtime
from chunkstore.operations.pending import Waiter

__all__ = ["Crowd"]

_GATHER_SHARE: Final = 0.2
_GATHER_S_MAX: Final = 0.002
_CROWD_SHARE: Final = 0.9


class Crowd:
    """How many committed together the last time, and who waits for as many again. ``lock``: the queue's; ``count``: its length."""

    def __init__(self, linger_s: float, lock: runtime.Lock, count: Callable[[], int]) -> None:
        self._linger_s = linger_s
        self._lock = lock
        self._count = count
        self._waiting: Waiter | None = None
        self._target = 0
        self.last = 1
        self.last_commit_s = 0.0

    def arrived(self, count: int) -> None:
        """So many are in the queue now."""
        if self._waiting is not None and count >= self._target:
            self._waiting.wake()
            self._waiting = None

    def gather(self) -> None:
        """Wait for company, if there is to be any, without the queue's lock."""
        with self._lock:
            waiter = self._begin(self._count())
        if waiter is None:
            return
        waiter.wait(self._linger_s or min(_GATHER_S_MAX, _GATHER_SHARE * self.last_commit_s))
        with self._lock:
            if self._waiting is waiter:
                self._waiting = None

    def _begin(self, count: int) -> Waiter | None:
        """What to wait for, ``count`` being in the queue; None if that is enough."""
        if self.last <= 1 and self._linger_s == 0.0:
            return None
        target = int(self.last * _CROWD_SHARE)
        self._target = target if self._linger_s == 0.0 else max(2, target)
        if count >= self._target:
            return None
        self._waiting = Waiter()
        return self._waiting
