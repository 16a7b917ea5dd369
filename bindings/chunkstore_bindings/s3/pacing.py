"""When a request is sent, and when it is sent again: arithmetic, with a thin part that sleeps.

Promises
* ``Pacer``: all requests of a client pause before they are sent while more than half of them are refused. The pause grows with
  the share of refusals, up to half a second: it slows down a client that sends too much, and a share that does not depend on
  the rate costs a bounded pause for each attempt.
* ``Patience``: the tries of one request. Pauses double, half of each is chance; ``Retry-After`` makes one longer, at most half
  of the time that is left, so that there is time for an answer. A refusal because of load uses up half a try: the server is there.
Leaves out: which requests may be repeated (``client``).
"""

from __future__ import annotations

from typing import Final

from chunkstore import runtime
from chunkstore.deadline import left_s
from chunkstore_bindings.s3.refusals import Refusal

__all__ = ["Pacer", "Patience"]

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 5.0
_PACE_S_MAX: Final = 0.5
_FREE_SHARE: Final = 0.5
"""Below this share the pauses between the tries of each refused call slow the client down enough."""
_WEIGHT: Final = 1 / 16
"""Of one answer in the share of refusals."""


def _chance() -> float:
    return int.from_bytes(runtime.token(4), "big") / 0xFFFF_FFFF


class Pacer:
    """How long every request of a client pauses at present, by the share of the last answers that were refusals. Thread-safe."""

    __slots__ = ("_lock", "_share")

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._share = 0.0

    @property
    def pause_s(self) -> float:
        """The pause before a request; chance takes up to half of it off."""
        return _PACE_S_MAX * max(0.0, self._share - _FREE_SHARE) / (1 - _FREE_SHARE)

    def answered(self, *, refused: bool) -> None:
        """Count one answer. ``refused``: the server has too much to do."""
        if refused or self._share:
            with self._lock:
                self._share += _WEIGHT * (refused - self._share)

    def wait(self) -> None:
        """Sleep for the pause, at most half of the time that is left."""
        if (pause_s := self.pause_s) > 0:
            runtime.sleep_s(left_s(2 * pause_s * (0.5 + 0.5 * _chance())) / 2)


class Patience:
    """The tries of one request, within the time of its call."""

    __slots__ = ("_pause_s", "_tries")

    def __init__(self, tries_max: int) -> None:
        self._tries = float(tries_max)
        self._pause_s = _FIRST_PAUSE_S

    def plan(self, chance: float, left_s: float, *, busy: bool = False, retry_after_s: float = 0.0) -> float | None:
        """The pause before the next try, in seconds; None: there is to be none. ``chance``: 0 to 1; ``left_s``: to the call;
        ``busy``: the server has too much to do; ``retry_after_s``: its wish."""
        self._tries -= 0.5 if busy else 1
        pause_s = max(self._pause_s * (0.5 + 0.5 * chance), min(retry_after_s, left_s / 2))
        if self._tries <= 0 or pause_s > left_s:
            return None
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)
        return pause_s

    def pause(self, refusal: Refusal) -> bool:
        """Sleep before the next try; False, without sleeping, when there is to be none."""
        left = left_s(max(2 * refusal.retry_after_s, _LONGEST_PAUSE_S))
        pause_s = self.plan(_chance(), left, busy=refusal.is_busy, retry_after_s=refusal.retry_after_s)
        if pause_s is None:
            return False
        runtime.sleep_s(pause_s)
        return True
