"""The gate in front of every change, and the pending states behind it (protocol A6).

Promises
* While anybody wants the gate shut (a roll of the journal, a recovery within it, the end), nothing new is planned.
* Pending states are replaced by fresh ones only when a gate that was shut opens: at any moment all plan on one state of a segment.
* An interrupt (Ctrl-C) on the way in or out leaves nothing shut for ever, and forgets no state that somebody uses.

Leaves out: why it is shut (``lifecycle``), what those who wait do then (``core``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from chunkstore import runtime
from chunkstore.errors import DeadlineExceeded
from chunkstore.names import chunk_epoch
from chunkstore.operations.pending import SegmentState, SegmentStates

if TYPE_CHECKING:
    from chunkstore.operations.core import Core

__all__ = ["Gate", "Shutter"]

Shutter: TypeAlias = Literal["roll", "recovery", "close"]
"""Who may want the gate shut; each is one at a time."""

_MOMENT_S: Final = 0.05


class Gate:
    """One per store. Open at first. Thread-safe."""

    def __init__(self, core: Core) -> None:
        self.states = SegmentStates()
        self._core = core
        self._lock = runtime.lock()
        self._opened = runtime.event()
        self._opened.set()
        self._shut_by: set[Shutter] = set()
        self._kept: list[SegmentState] = []
        """States that are to be kept when it opens again."""

    def is_open(self) -> bool:
        """Whether operations may be reserved now."""
        return self._opened.is_set()

    def wait(self, deadline_s: float) -> None:
        """Wait while it is shut. Raises ``DeadlineExceeded``."""
        if not self._opened.wait(max(0.0, deadline_s - runtime.monotonic_s())):
            raise DeadlineExceeded("waiting for recovery", deadline_s=self._core.settings.op_deadline_s)

    def patience(self) -> Callable[[], float]:
        """One patience for all that somebody has to wait for from now on: how much is left of it, and a moment at least."""
        end_s = runtime.monotonic_s() + self._core.patience_s
        return lambda: max(_MOMENT_S, end_s - runtime.monotonic_s())

    def shut(self, who: Shutter) -> list[SegmentState]:
        """Let no new operation in until ``who`` opens the gate: pending states are marked dead, so that late-comers come back to it.

        A recovery shuts it within a roll that met a fault: it is open again only when nobody wants it shut. Returns the states under
        whose lock a data write is still going on after ``Core.patience_s``: these are as they were.
        """
        with runtime.whole():
            return self._shut(who)

    def _shut(self, who: Shutter) -> list[SegmentState]:
        with self._lock:
            self._shut_by.add(who)
            if self._opened.is_set():
                self._opened = runtime.event()
        left_s = self.patience()
        held: list[SegmentState] = []
        for state in self.states.all():
            if not state.lock.acquire(True, left_s()):
                held.append(state)
                continue
            try:
                state.dead = True
                state.writers.clear()
            finally:
                state.lock.release()
        return held

    def open(self, who: Shutter, kept: Sequence[SegmentState] = ()) -> None:
        """Serve again if nobody else wants the gate shut, or after the end: with fresh pending states, except those ``kept``; but
        nothing that is undecided is forgotten, nor what was poisoned. Can be called twice."""
        with self._lock:
            self._shut_by.discard(who)
            self._kept += kept
            if (self._shut_by and not self._core.ended) or self._opened.is_set():
                # While it is open, operations are planned on the states that there are: others beside them would know nothing of these.
                return
            kept, self._kept = self._kept, []
            done = False
            try:
                self._renew_states(kept)
                done = True
            finally:
                if not done:
                    # Interrupted: nobody else will ever open it.
                    self._renew_states(kept)
                self._opened.set()

    def _renew_states(self, kept: Sequence[SegmentState]) -> None:
        epoch, former = self._core.epoch, self.states.all()
        chosen = {id(state) for state in kept}
        # A roll that gave up waiting leaves reservations behind: who plans next on their segments has to wait for them. What is alive,
        # or locked, was not reached by a shutting that was interrupted: somebody may be planning on it.
        lasting = [
            state
            for state in former
            if id(state) in chosen or not state.dead or state.lock.locked() or state.undecided() is not None
        ]
        chosen = {id(state) for state in lasting}
        self.states = SegmentStates(lasting)
        for former_state in former:
            # Chunks of former epochs do not grow any more, whatever happened to them.
            poisoned = {chunk for chunk in former_state.poisoned or () if chunk_epoch(chunk) == epoch}
            if poisoned and id(former_state) not in chosen:
                state = self.states.acquire(former_state.name)
                state.poisoned = poisoned
                self.states.release(state)
