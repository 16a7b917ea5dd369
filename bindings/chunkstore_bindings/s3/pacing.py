"""When a request is sent, and whether it is sent again (``chunkstore.deadline.Backoff`` has the pauses of one request).

All requests of a client pause before they are sent while more than half of them are refused. The pause grows with the share of refusals,
up to half a second: it slows down a client that sends too much, and a share that does not depend on the rate costs a bounded pause for
each attempt.
"""

from __future__ import annotations

from typing import Final

from chunkstore import runtime
from chunkstore.deadline import Backoff, chance, left_s
from chunkstore_bindings.s3.refusals import Refusal

__all__ = ["Pacer", "may_repeat"]

_PACE_S_MAX: Final = 0.5
_FREE_SHARE: Final = 0.5
"""Below this share the pauses between the tries of each refused call slow the client down enough."""
_WEIGHT: Final = 1 / 16
"""Of one answer in the share of refusals."""


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
            runtime.sleep_s(left_s(2 * pause_s * (0.5 + 0.5 * chance())) / 2)


def may_repeat(refusal: Refusal, backoff: Backoff) -> bool:
    """Whether the request is sent again; sleeps before that."""
    return refusal.may_pass and backoff.pause(busy=refusal.is_busy, retry_after_s=refusal.retry_after_s)
