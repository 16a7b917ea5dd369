"""Every rule of the fence: what an owner does once a newer claim is seen (protocol 3.4, 3.13, A1, A5, A13).

Promises
* A deposed owner never climbs (A1): from then on it answers ``NotOwner`` and commits nothing.
* A fenced look begins when it is asked for. Where a stat may be stale (NFS) it is a committed HEARTBEAT instead.
* Our own claim, while a self-take-over is under way, is never mistaken for a stranger's.
* "No newer claim" counts only where our own claim is seen, too: in a tree that was moved or replaced nothing is answered (3.6, P10).
* Callers that come while one look is under way share the next (``SharedCheck``). One that answers for a caller has begun after that
  caller came, so after the local part of its read; a failed one answers only for the caller that made it. It waits for the look before for
  ``_MOMENT_S`` at most, so that one that hangs holds up no others.
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore import runtime
from chunkstore.deadline import left_s
from chunkstore.errors import Closed, Damaged, NotOwner
from chunkstore.journal import JournalService
from chunkstore.operations.owned_epoch import OwnedEpoch

__all__ = ["Fence", "SharedCheck"]


class Fence:
    """One per container; ``deposed`` is called once."""

    current: OwnedEpoch
    """The epoch of ours that serves, or that ended last."""

    def __init__(self, service: JournalService, deposed: Callable[[NotOwner], None]) -> None:
        self._service = service
        self._deposed = deposed
        self.error: NotOwner | None = None
        """Set once a newer owner has been seen."""

    def close(self, error: NotOwner) -> None:
        """We were deposed: every later change and fenced read says so."""
        if self.error is None:
            self.error = error
            self._deposed(error)

    def close_to_owner(self, epoch: int) -> NotOwner:
        """As ``close``, by the next epoch; returns what is said from now on."""
        error = NotOwner(epoch=epoch, owner=epoch + 1)
        self.close(error)
        return error

    def check(self) -> None:
        """Raise ``NotOwner`` if the container has a newer owner, else the name was absent after this was called.

        Raises what the storage raises. Sound only where names are never stale (``Capabilities.fence_by_stat``).
        """
        while True:
            if self.error is not None:
                raise self.error.copy()
            current = self.current
            owner = self._newer_owner(current)
            if owner is None:
                return
            if self.current is current:
                # A1: halt now, instead of committing until that claimant gets to the seal.
                error = NotOwner(epoch=current.epoch, owner=owner)
                self.close(error)
                raise error

    def give_way(self) -> None:
        """Stop owning if a newer claim is there already. Asks the storage once; never waits, never writes."""
        current = self.current
        if current.end_reason is None:
            owner = self._newer_owner(current)
            if owner is not None and self.current is current:
                self.close(NotOwner(epoch=current.epoch, owner=owner))

    def explain(self, owned: OwnedEpoch, damage: Damaged) -> None:
        """Rows of the cache contradicted what ``owned`` remembers.

        Returns if ``owned`` has ended, for they may be those of a later epoch of ours: look again. Raises ``NotOwner`` if we are
        deposed: a record that our successor decided may never have reached the rows. Else raises ``damage``.
        """
        if self.error is not None:
            raise self.error.copy() from damage
        if owned.end_reason is None:
            raise damage

    def _newer_owner(self, current: OwnedEpoch) -> int | None:
        """The epoch of a claim above ``current`` that is not our own, or None."""
        if current.end_reason is None:
            try:
                current.journal.check_fence()
                return None
            except (NotOwner, Closed):
                # A stranger's claim; or a self-take-over has begun, which has closed the stream, too.
                pass
        return self._service.foreign_claim(current.journal)


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
