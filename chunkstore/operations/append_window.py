"""Several appends of one caller to one segment, on their way at once and committed in the order they were begun (decision 0036).

Promises
* An append enters the queue behind the one before it and nowhere else: in the same epoch while that is undecided, or once it is
  committed. So what is committed is a prefix: when one fails, all behind it have failed or are refused.
* Once ``close`` has returned, nothing enters any more.

Only where every append makes chunks of its own: their bytes are written behind the reservation, at the same time. Where chunks grow
they are written under the segment's lock, one after the other (decision 0008).
Leaves out: which thread does what, and answering in order (``chunkstore.writer``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from chunkstore.checksum import BytesLike
from chunkstore.config import MIB
from chunkstore.errors import CacheDamaged, ChunkstoreError, Closed
from chunkstore.operations.append import AppendRequest, Underway, fail_unwritten, reserve
from chunkstore.operations.append_plan import write_pieces
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import Pending

__all__ = ["AppendWindow"]

_UNDERWAY_BYTES_MIN: Final = 1 * MIB
_DEADLINE_SHARE: Final = 0.25


class _Alone(Exception):
    """It can only be done when everything before it is."""


class _Refused(Exception):
    """What was before it failed with ``error``."""

    def __init__(self, error: ChunkstoreError) -> None:
        super().__init__()
        self.error = error


class AppendWindow:
    """See the module. ``begin`` is for one thread at a time; ``finish`` for many."""

    def __init__(self, container: OwnedContainer, name: str, identity: int) -> None:
        self._container = container
        self._name = name
        self._identity = identity
        self._closed = False
        self.wide: bool = not container.storage.capabilities.append
        """Whether several can be written at the same time."""
        self.remote: bool = container.remote

    def most_bytes(self, width: int, least_bytes: int) -> int:
        """So much may be under way, of ``width`` appends: a share of the deadline is enough for it, at the pace of before."""
        container = self._container
        if not container.pace_bytes_s:
            return width * least_bytes
        share_s = container.settings.op_deadline_s * _DEADLINE_SHARE
        return max(least_bytes, _UNDERWAY_BYTES_MIN, int(container.pace_bytes_s * share_s))

    def measure(self, size_bytes: int, meanwhile_bytes: int, took_s: float) -> None:
        """So much was committed while an append of ``size_bytes`` was under way. A little one that took long says nothing about how long
        a large one takes."""
        pace = meanwhile_bytes / max(1e-6, took_s)
        if size_bytes >= _UNDERWAY_BYTES_MIN or pace > self._container.pace_bytes_s:
            self._container.pace_bytes_s = pace

    def begin(
        self,
        data: BytesLike,
        before: Underway | None,
        *,
        expected_offset: int | None,
        writer_id: bytes | None,
        event_number: int,
    ) -> Underway | None:
        """Reserve and enter an append behind ``before`` (None: all before it is committed). None: it has to be done alone, when everything
        before it is committed: there is nothing to write, or what was before it did not happen and is done again. Whatever it returns
        must come to ``finish``. Raises as ``append``; nothing happened."""
        container = self._container
        deadline = container.deadline()
        underway = Underway(partial(self._check, before))
        request = AppendRequest(
            self._name, self._identity, data, expected_offset, writer_id, event_number, deadline, underway
        )

        def attempt(owned: OwnedEpoch) -> tuple[Pending | None, int]:
            # In another epoch nothing holds this one up: what became of the one before has to be known first.
            foreign = before is not None and before.owned is not owned
            if before is not None and foreign and not before.owned.queue.wait_decided(before.op, deadline):
                deadline.fail("waiting for an earlier append of this writer")
            return reserve(container, request, owned)

        try:
            owned, op, offset = container.enter(attempt, deadline, len(data))
        except _Alone:
            return None
        except _Refused as refused:
            raise refused.error from None
        if op is None:
            return None
        underway.owned, underway.op, underway.offset, underway.request = owned, op, offset, request
        return underway

    def _check(self, before: Underway | None) -> None:
        """With the segment's lock held: may the next one enter?"""
        if self._closed:
            raise _Refused(Closed("this writer"))
        if before is not None and before.op.decided and before.op.error is not None:
            raise _Alone if isinstance(before.op.error, CacheDamaged) else _Refused(before.op.error.copy())

    def finish(self, underway: Underway, written: Callable[[], None]) -> int:
        """Write the bytes, call ``written``, and wait until the append is committed; returns its offset. Raises as ``append``, and
        ``CacheDamaged``: it did not happen, nor did anything behind it."""
        owned, op, request = underway.owned, underway.op, underway.request
        if underway.planned is not None and not op.decided:
            try:
                write_pieces(self._container, underway.planned, request.data, request.deadline)
                owned.queue.written(op)  # type: ignore[arg-type]  # only lines have nothing to write
            except BaseException as error:
                fail_unwritten(owned, op, error)
                raise
        written()
        self._container.wait(owned, op, request.deadline)
        return underway.offset

    def close(self) -> None:
        """Refuse what has not entered yet."""
        self._closed = True
