"""One look at the fence for many reads (protocol 3.13): callers that come while one is under way share the next.

Promises: a check that answers for a caller has begun after that caller came, so after the local part of its read; a failed
check answers only for the caller that made it. Waits for the check before for ``_MOMENT_S`` at most, so that one that hangs
holds up no others. Leaves out: what a check is.
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore import runtime
from chunkstore.deadline import left_s

__all__ = ["SharedCheck"]

_MOMENT_S = 0.05


class _Round:
    __slots__ = ("ended", "passed")

    def __init__(self) -> None:
        self.ended = runtime.event()
        self.passed = False


class SharedCheck:
    """Callable in place of ``check``, which raises where all is not well; after ``wait_s`` a caller makes its own. Thread-safe."""

    def __init__(self, check: Callable[[], None], wait_s: float) -> None:
        self._check = check
        self._wait_s = wait_s
        self._lock = runtime.lock()
        self._gathering: _Round | None = None
        self._under_way: _Round | None = None

    def __call__(self) -> None:
        """Raises what ``check`` raises."""
        with runtime.defer_interrupt():
            with self._lock:
                joined, before = self._gathering, self._under_way
                mine = self._gathering = joined or _Round()
            if joined is None:
                self._lead(mine, before)
            elif not mine.ended.wait(left_s(self._wait_s)) or not mine.passed:
                with self._lock:
                    # Its leader may have been interrupted before.
                    if self._gathering is mine:
                        self._gathering = None
                # Another caller's failure is not ours: its deadline may have passed, not ours.
                self._check()

    def _lead(self, mine: _Round, before: _Round | None) -> None:
        try:
            if before is not None:
                before.ended.wait(left_s(_MOMENT_S))
            with self._lock:
                # The check begins now: callers that come from here on share the next.
                self._gathering, self._under_way = None, mine
            self._check()
            mine.passed = True
        finally:
            with self._lock:
                if self._gathering is mine:
                    self._gathering = None
                if self._under_way is mine:
                    self._under_way = None
            mine.ended.set()
