"""Take-overs whose OPEN cuts history early (RESTORE): what a repair and a restore in place have in common (protocol 3.15).

Promises: the state that a moment of history left becomes the owner's, together with what its OPEN puts there; what lies behind the
moment stays stored, and is history no more. ``Rewind`` fences, closes and reads the former history like any take-over before it cuts it.
Leaves out: which moment is the last good one (``mend``), what has to be put there (``chunkstore.operations.bring_back``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from chunkstore.config import LIMITS, Settings
from chunkstore.errors import Conflict, Damaged, InvalidArgument, Unsupported
from chunkstore.journal import Ownership
from chunkstore.metadata.port import MetadataCache, MetadataView, Op, RowChange
from chunkstore_journal.claim import ClaimAttempt, ClosedStream
from chunkstore_journal.history import Opened, Streams
from chunkstore_journal.past import Asked, Moment, find_moment, materialise_moment
from chunkstore_journal.payloads import FLAG_RESTORE
from chunkstore_journal.record import encode_record
from chunkstore_journal.recovery import Materialised, commit_of
from chunkstore_journal.takeover import TakeOver, adopted_position

__all__ = ["Amend", "EarlyCut", "Rewind"]

Amend: TypeAlias = Callable[[MetadataView, MetadataView, int], tuple[Sequence[Op], Sequence[RowChange]]]
"""What a restore's OPEN puts into the past state (the first view), given the present one and the OPEN's epoch. It makes the copies."""


class EarlyCut(TakeOver):
    """See the module."""

    def _cut_early(
        self,
        attempt: ClaimAttempt,
        previous: Opened | None,
        closed: ClosedStream,
        found: Materialised,
        ops: Sequence[Op],
        rows: Sequence[RowChange],
        cut_off_lsn: int = 0,
    ) -> Ownership:
        """Open behind ``found``, the state at ``closed`` in the stream ``previous``. ``cut_off_lsn`` as in ``OpenPayload``."""
        self._store = found.store
        if not attempt.open_data:
            try:
                attempt.open_data = self._build_open(
                    attempt, previous, closed, found, FLAG_RESTORE, rows, ops, cut_off_lsn
                )
            except InvalidArgument as error:
                text = f"what has to come back does not fit one record of {LIMITS.record_bytes_max} bytes"
                raise Unsupported(f"{text}: restore into another root", feature="restore_in_place") from error
        return self._serve(attempt, previous, closed, found)

    def _finish(self, opened: Opened) -> None:
        assert self._store is not None
        self._cache.make_current(self._store)
        super()._finish(opened)


class Rewind(EarlyCut):
    """A restore in place to the record ``lsn``, which has this hash. Use ``run``, once."""

    def __init__(
        self, streams: Streams, cache: MetadataCache, settings: Settings, *, lsn: int, hash: bytes, amend: Amend
    ) -> None:
        super().__init__(streams, cache, settings, own=None, attempt=None)
        self._asked = Asked(lsn, None)
        self._hash = hash
        self._amend = amend

    def _go_on(
        self, attempt: ClaimAttempt, previous: Opened | None, closed: ClosedStream, found: Materialised
    ) -> Ownership:
        assert previous is not None, "a moment of history was found before"
        present = found.store
        if closed.embedded is not None and present.head().position.lsn < closed.embedded.header.lsn:
            # Any successor would adopt it, so its owner may have gone by it, too.
            position = adopted_position(previous.epoch, closed)
            record = commit_of(closed.embedded, position, object=previous.object, at=0)
            if not present.apply([record], verify=True):
                raise Damaged("the last record does not follow the one before it", object=previous.object)
        moment = find_moment(self._streams, self._asked)
        past = materialise_moment(self._streams, self._cache, self._asked, moment)
        try:
            if (position := past.store.head().position)[:2] != (self._asked.lsn, self._hash):
                raise Conflict(
                    f"the record lsn {self._asked.lsn}", expected=self._hash.hex(), found=position.hash.hex()
                )
            ops: Sequence[Op] = ()
            rows: Sequence[RowChange] = ()
            if not attempt.open_data:
                with past.store.view() as then, present.view() as now:
                    ops, rows = self._amend(then, now, attempt.epoch)
            cut_off_lsn = self._cut_off_lsn(previous, closed, moment.leg.opened.epoch)
            ownership = self._cut_early(attempt, moment.leg.opened, _cut(moment), past, ops, rows, cut_off_lsn)
        except BaseException:
            # What this machine has seen stays a witness (A17).
            self._store = present
            self._cache.discard(past.store)
            raise
        self._cache.discard(present)
        return ownership

    def _cut_off_lsn(self, newest: Opened, closed: ClosedStream, epoch: int) -> int:
        """The highest lsn of what this and former restores cut off, from stream ``epoch`` on."""
        lsn = closed.end.lsn if closed.embedded is None else closed.embedded.header.lsn
        opened = newest
        while opened.epoch > epoch:
            if opened.payload.flags & FLAG_RESTORE:
                lsn = max(lsn, opened.payload.cut_off_lsn)
            opened = self._streams.opened(opened.payload.previous_epoch)
        return lsn


def _cut(moment: Moment) -> ClosedStream:
    adopting = moment.adopting
    if adopting is None or adopting.embedded is None:
        return ClosedStream(moment.leg.end)
    record = adopting.embedded
    return ClosedStream(moment.leg.end, record, encode_record(record.header, record.payload)[0])
