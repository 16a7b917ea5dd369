"""How long a commit waits for more operations, and which of the queued ones are committed together, in one record (protocol 3.7, A6).

Promises: waits at most ``linger_s``, or where that is 0 a fifth of the last commit's time and 20 ms; not at all after a batch of one, and
seldom where those who were there last do not come again in that time. Without waiting for those of the last batch, two halves of a
crowd would take turns: each half is in the queue while the other one is committed.
The order in which operations entered stays, for each segment; a note has a record of its own; an operation with more than a batch's
worth goes alone; lines and other operations are never in one record.
Leaves out: the queue (``commit_queue``). All of ``BatchWindow`` but ``gather`` is called under the queue's lock, which ``gather`` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chunkstore import runtime
from chunkstore.config import LIMITS
from chunkstore.journal import RecordKind
from chunkstore.operations.pending import Pending, PendingLine, PendingSegment, Waiter

__all__ = ["BatchWindow", "next_batch"]


_GATHER_SHARE: Final = 0.2
_GATHER_S_MAX: Final = 0.02
_COMPANY_SHARE: Final = 0.95
_PASSED_OVER_MAX: Final = 8
"""Commits without a wait after one that was in vain."""


class BatchWindow:
    """How many operations were about at the last commit, and the leader that waits for as many again. ``lock``: the queue's; ``queue``:
    what is in it."""

    def __init__(self, linger_s: float, lock: runtime.Lock, queue: list[Pending]) -> None:
        self._linger_s = linger_s
        self._lock = lock
        self._queue = queue
        self._target = 0
        self.waiting: Waiter | None = None
        """Set while a leader gathers; ``arrived`` is to be called then."""
        self.company = 1
        """Operations of the last batch, and those that were queued when it was decided."""
        self.last_commit_s: float = 0.0
        self._pass_over = self._passed_over = 0

    def arrived(self) -> None:
        """One more is in the queue."""
        if self.waiting is not None and len(self._queue) >= self._target:
            self.waiting.wake()
            self.waiting = None

    def gather(self) -> None:
        """Wait for more operations, without the queue's lock."""
        with self._lock:
            target = int(self.company * _COMPANY_SHARE)
            self._target = target if self._linger_s == 0.0 else max(2, target)
            if len(self._queue) >= self._target:
                return
            if self._pass_over and self._linger_s == 0.0:
                self._pass_over -= 1
                return
            waiter = self.waiting = Waiter()
        waiter.wait(self._linger_s or min(_GATHER_S_MAX, _GATHER_SHARE * self.last_commit_s))
        with self._lock:
            in_vain = self.waiting is waiter
            if in_vain:
                self.waiting = None
            self._passed_over = min(_PASSED_OVER_MAX, 2 * self._passed_over + 1) if in_vain else 0
            self._pass_over = self._passed_over


def next_batch(queue: Sequence[Pending]) -> list[Pending]:
    """The next batch of what is queued; nothing where all of it is held up."""
    batch, size_bytes = list[Pending](), 0
    held_up: set[PendingSegment] = set()
    lines = False
    for op in queue:
        other = bool(batch) and lines is not (type(op) is PendingLine)
        note = op.kind is not RecordKind.OPS
        if not op.written or (other and not note) or (held_up and not held_up.isdisjoint(op.segments)):
            held_up.update(op.segments)
            continue
        size_bytes += op.size_bytes_estimate()
        if batch and (note or size_bytes > LIMITS.batch_bytes_max or len(batch) == LIMITS.batch_ops_max):
            break
        lines = type(op) is PendingLine
        batch.append(op)
        if note:
            break
    return batch
