"""One look at the fence for many reads (protocol 3.13): who comes while one is under way shares the next.

Promises: a check that answers for a caller has begun after that caller came, so after the local part of its read; a failed
check answers for nobody but who made it. At most ``_MOMENT_S`` of waiting for the check before, so that one that hangs holds
up nobody. Leaves out: what a check is.
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
    """Callable in place of ``check``, which raises where all is not well. Thread-safe.

    Arguments: ``check``; ``wait_s``: how long one who came later waits for the shared one, before it asks by itself.
    """

    def __init__(self, check: Callable[[], None], wait_s: float) -> None:
        self._check = check
        self._wait_s = wait_s
        self._lock = runtime.lock()
        self._gathering: _Round | None = None
        self._under_way: _Round | None = None

    def __call__(self) -> None:
        """Raises what ``check`` raises."""
        with runtime.whole():
            self._join()

    def _join(self) -> None:
        with self._lock:
            mine = self._gathering
            if mine is None:
                leads, before = True, self._under_way
                mine = self._gathering = _Round()
            else:
                leads = False
        if leads:
            self._lead(mine, before)
        elif not mine.ended.wait(left_s(self._wait_s)) or not mine.passed:
            with self._lock:
                # Whoever was to lead it may have been interrupted before.
                if self._gathering is mine:
                    self._gathering = None
            # Nobody else's failure is ours: its time may have been up, not ours.
            self._check()

    def _lead(self, mine: _Round, before: _Round | None) -> None:
        try:
            if before is not None:
                before.ended.wait(left_s(_MOMENT_S))
            with self._lock:
                # The check begins now: who comes from here on has missed it.
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
