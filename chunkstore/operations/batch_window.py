"""How long a commit waits for more operations (protocol 3.7, A6).

Promises: at most ``linger_s``, or where that is 0 a fifth of the last commit's time and 2 ms; not at all after a batch of one.
Leaves out: the queue. All but ``gather`` is called under the queue's lock, which ``gather`` takes.
"""

from __future__ import annotations

from typing import Final

from chunkstore import runtime
from chunkstore.operations.pending import PendingOp, Waiter

__all__ = ["BatchWindow"]

_GATHER_SHARE: Final = 0.2
_GATHER_S_MAX: Final = 0.002
_COMPANY_SHARE: Final = 0.9


class BatchWindow:
    """The last batch's size, and the leader that waits for as many operations again. ``lock``: the queue's; ``queue``: what is in it."""

    def __init__(self, linger_s: float, lock: runtime.Lock, queue: list[PendingOp]) -> None:
        self._linger_s = linger_s
        self._lock = lock
        self._queue = queue
        self._target = 0
        self.waiting: Waiter | None = None
        """Set while a leader gathers; ``arrived`` is to be called then."""
        self.last_count = 1
        self.last_commit_s = 0.0

    def arrived(self) -> None:
        """One more is in the queue."""
        if self.waiting is not None and len(self._queue) >= self._target:
            self.waiting.wake()
            self.waiting = None

    def gather(self) -> None:
        """Wait for more operations, without the queue's lock."""
        with self._lock:
            target = int(self.last_count * _COMPANY_SHARE)
            self._target = target if self._linger_s == 0.0 else max(2, target)
            if len(self._queue) >= self._target:
                return
            waiter = self.waiting = Waiter()
        waiter.wait(self._linger_s or min(_GATHER_S_MAX, _GATHER_SHARE * self.last_commit_s))
        with self._lock:
            if self.waiting is waiter:
                self.waiting = None
