"""What was seen of history's end before, and whether the journal still reaches it (protocol 3.2, 3.4 T0 to T3, A17).

Promises: a claimant learns, before it writes anything that would make it final, that the storage lost what a released lease, its
own process or the local cache has seen; so what is put back heals it. A lease speaks of the root itself: ``Damaged``. A cache
speaks of what this machine saw under this root: ``RolledBack``. Nothing here decides who owns what.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chunkstore.errors import Damaged, RolledBack
from chunkstore.journal import LeaseInfo
from chunkstore.metadata.port import GENESIS, Head, Position
from chunkstore_journal.history import Leg, Opened, Streams
from chunkstore_journal.objects import LatestHint
from chunkstore_journal.recovery import Mismatch, route
from chunkstore_journal.walk import newest_opened, visible_end

__all__ = [
    "WAY_ON",
    "SeenEnds",
    "contradicts",
    "missing",
    "naming_salvage",
    "require_held",
    "require_seen",
]

WAY_ON = (
    "Put the missing objects back and open again. Continuing without them (accept_rollback=True, "
    "--accept-rollback) is safe only if no former owner runs any more"
)
_SALVAGE = (
    "Restore a backup; without one, 'chunkstore restore ROOT NEWROOT --salvage' makes a container of what is left"
)


@contextmanager
def naming_salvage() -> Iterator[None]:
    """A caller that cannot follow the journal to its end in here learns the remedy, unless the ``Damaged`` names another one."""
    try:
        yield
    except Damaged as error:
        if not isinstance(error, RolledBack) and WAY_ON not in error.message and _SALVAGE not in error.message:
            error.args = (f"{error.message}. {_SALVAGE}",)
        raise


def contradicts(lease: LeaseInfo | None, end: Position) -> bool:
    """Whether ``lease`` says that the stream which ends at ``end`` was closed further on, or at another record."""
    if lease is None or not lease.lsn or lease.epoch != end.epoch:
        return False
    return lease.lsn > end.lsn or (lease.lsn == end.lsn and lease.hash != end.hash)


class SeenEnds:
    """The witnesses of one take-over. With ``accept`` they are given up where the journal does not reach them, and that is reported."""

    def __init__(
        self,
        streams: Streams,
        *,
        cache: Head | None,
        own: Position | None,
        lease: LeaseInfo | None,
        latest: LatestHint | None,
        accept: bool,
    ) -> None:
        self._streams = streams
        self._names = streams.names
        self._cache = cache
        self._own = own
        self._lease = lease
        self._latest = latest
        self._accept = accept
        self._missing: Position | None = None
        self._cache_holds: bool | None = None
        """Whether the record that the cache is at is in the former stream; None: not asked, or nothing is there."""
        self.latest_holds = False
        self.gave_up = False
        """Whether the journal does not reach what was seen, and the caller goes on without it."""
        self.cache_is_void = False
        """Whether the cache is ahead of a history that goes on without it: it is to be discarded."""
        self.findings: list[str] = []

    @property
    def epoch(self) -> int:
        """The newest epoch that the cache has seen opened."""
        return 0 if self._cache is None else self._cache.position.epoch

    def check_claims(self, top: int) -> None:
        """T0: what was opened is claimed. Raises ``Damaged``, ``RolledBack``."""
        self._check_epochs(top + 1, "claim", self._names.epoch(top + 1))

    def check_opened(self, epoch: int) -> None:
        """T2, before an epoch without slot 0 is voided: it, or one above it, was never opened. Raises as ``check_claims``."""
        self._check_epochs(epoch, "OPEN", self._names.slot(epoch, 0))

    def _check_epochs(self, lost: int, what: str, object: str) -> None:
        lease = self._lease
        if lease is not None and lease.epoch >= lost:
            text = f"epoch {lease.epoch} was opened according to the lease, but the {what} of epoch {lost} is missing: "
            self._lease = None
            self._give_up(Damaged(f"{text}the storage lost names. {WAY_ON}", object=object))
        if self._cache is not None and self.epoch >= lost:
            newest = newest_opened(self._streams, lost - 1)
            end = GENESIS if newest is None else visible_end(self._streams, newest)._replace(end=0)
            self._give_up_cache(self._cache, end, object)

    def known(self, previous: Opened) -> Position | None:
        """The last point of the stream that was seen and is really there: reading and probing may begin at it."""
        cache = None if self._cache is None else self._cache.position
        latest = None if self._latest is None else self._latest.snapshot.position
        if latest is not None and latest.lsn - previous.header.lsn != latest.index - 1:
            latest = None  # a hint may say anything: what contradicts itself is no witness
        known: Position | None = None
        for position, what in ((cache, "the local cache"), (self._own, "this process"), (latest, "")):
            if position is None or position.epoch != previous.epoch or position.index < 1:
                continue
            holds = self._streams.holds(position)
            if position is cache:
                self._cache_holds = holds
            if holds is None and what and self._streams.mode == "slot":
                self._missing = position
            if holds is False and what:
                self.findings.append(f"{what} does not agree with the journal at lsn {position.lsn}")
            if holds and not what:
                self.latest_holds = True
            if holds and (known is None or position.lsn > known.lsn):
                known = position
        return known

    @property
    def synced_hash(self) -> bytes:
        """Of the last record of which its owner has reported that it was synced: this process, or a released lease; empty: no one has."""
        end = self._own if self._own is not None else self._lease
        return b"" if end is None else end.hash

    def judge(self, end: Position, *, torn: bool = False) -> None:
        """T3, before anything is written after ``end``, the last record of the former stream (GENESIS: there is none).

        ``torn``: incomplete bytes follow it, torn only if no more of the stream was ever seen. Raises ``Damaged``, ``RolledBack``.
        """
        name = _next_object(self._streams, end)
        hole = self._missing
        # Asked once more: of a history that was given up, it may be what a live owner has written since.
        if hole is not None and end.index >= hole.index and self._streams.holds(hole) is None:
            text = "the next record exists, but this one, which was seen before, is missing: the storage lost names"
            raise Damaged(text, object=self._names.slot(hole.epoch, hole.index - 1))
        if self._own is not None and self._own.lsn > end.lsn:
            text = f"this process has committed lsn {self._own.lsn}: {missing(end, self._own.lsn)}"
            raise Damaged(text, object=name, position=end.end)
        lease = self._lease
        if lease is not None and contradicts(lease, end):
            gone = missing(end, lease.lsn)
            text = f"epoch {lease.epoch} was closed at lsn {lease.lsn} according to the lease: {gone}. {WAY_ON}"
            self._lease = None
            self._give_up(Damaged(text, object=name, position=end.end))
        if self._cache is not None and self._is_elsewhere(self._cache, end):
            self._give_up_cache(self._cache, end, name)
        self._judge_latest(end, name, torn)

    def _is_elsewhere(self, cache: Head, end: Position) -> bool:
        """Whether the cache has seen what history does not hold: more, or something else, after which others have gone on."""
        at = cache.position
        if at.lsn > end.lsn or at.epoch > end.epoch:
            return True
        if not at.lsn:
            return False
        try:
            first = route(self._streams, cache, Leg(self._streams.opened(end.epoch), end))[0]
        except Mismatch:
            return True
        except Damaged:
            return False  # a caller that needs what is damaged says so
        is_inside = first.start == at and at.lsn < first.leg.end.lsn
        # In the former stream it was asked for its own record before.
        return is_inside and (at.epoch < end.epoch or self._cache_holds is False) and self._streams.goes_on_without(at)

    def _judge_latest(self, end: Position, name: str, torn: bool) -> None:
        if self._latest is None or self._latest.snapshot.lsn <= end.lsn:
            return
        link = self._latest.snapshot
        if torn and link.epoch == end.epoch and link.lsn - end.lsn == link.index - end.index:
            text = f"snapshot LATEST has seen lsn {link.lsn}: {missing(end, link.lsn)}"
            self._latest = None
            self._give_up(Damaged(f"{text}. {WAY_ON}", object=name, position=end.end))
            return
        # Not enough to stop for: a hint that anybody may overwrite.
        self.findings.append(f"snapshot {link.name} is at lsn {link.lsn}, but the journal ends at lsn {end.lsn}")
        self._latest = None

    def _give_up_cache(self, cache: Head, end: Position, object: str) -> None:
        self._cache, self.cache_is_void = None, True
        seen = cache.position
        what = "is older than" if seen.lsn > end.lsn else "has another history than"
        text = (
            f"this root {what} what the local cache has seen: lsn {seen.lsn} then, lsn {end.lsn} now; "
            f"{missing(end, seen.lsn)}. Is this a restored backup, or a copy? {WAY_ON}"
        )
        self._give_up(RolledBack(text, object=object, position=end.end, lsn_seen=seen.lsn, lsn_now=end.lsn))

    def _give_up(self, error: Damaged) -> None:
        if not self._accept:
            raise error
        self.gave_up = True
        self.findings.append(f"accepted: {error.message}")


def require_seen(streams: Streams, seen: Leg, newest: Leg | None) -> None:
    """Raise ``RolledBack`` unless history, which ends with ``newest`` (None: there is none), has or had what is before the end of ``seen``.

    A request for each epoch in between that ``streams`` has not kept. Raises ``Damaged``, too, and what the storage raises.
    """
    opened, now = (None, GENESIS) if newest is None else newest
    lsn, has_left = now.lsn, False
    while opened is not None and _is_foreign(opened, seen.opened):
        has_left, lsn, previous = True, opened.payload.last_lsn, opened.payload.previous_epoch
        opened = streams.opened(previous) if previous else None
    on_stream = opened is not None and opened.hash == seen.opened.hash
    # The newest stream has all of its records, and where an owner was set back with its disk, it goes on with others.
    if on_stream and seen.end.lsn <= lsn and (has_left or streams.is_there(seen)):
        return
    where = streams.object_of(seen.end.epoch, seen.end.index - 1) if on_stream else seen.opened.object
    text = (
        f"the journal, which ends at lsn {now.lsn} of epoch {now.epoch}, no longer has the records that were "
        f"followed up to lsn {seen.end.lsn} of epoch {seen.opened.epoch} ({where}). Records were lost, the root "
        "was replaced by an older state, or the storage returns old answers. Fix this and retry; a newly "
        "opened replica follows the present state"
    )
    raise RolledBack(text, object=_next_object(streams, now), position=now.end, lsn_seen=seen.end.lsn, lsn_now=now.lsn)


def require_held(streams: Streams, seen: Leg) -> None:
    """As ``require_seen``, of the history that is there by now: a few requests more."""
    opened = newest_opened(streams)
    if opened is None:
        require_seen(streams, seen, None)
        return
    end = seen.end if opened.hash == seen.opened.hash else opened.position
    try:
        require_seen(streams, seen, Leg(opened, end))
    except RolledBack:
        require_seen(streams, seen, Leg(opened, visible_end(streams, opened)))  # this tells where it ends


def _is_foreign(opened: Opened, seen: Opened) -> bool:
    """Whether ``opened`` is surely no OPEN of the history that led to ``seen``: below that, lsns and labels are lower (invariant 30)."""
    if opened.epoch == seen.epoch:
        return opened.hash != seen.hash
    header, known = opened.header, seen.header
    return opened.epoch > seen.epoch or header.lsn >= known.lsn or header.time_ms > known.time_ms


def missing(end: Position, lsn: int) -> str:
    """In words: what is missing after ``end`` of what reached ``lsn``."""
    if lsn <= end.lsn:
        return f"another record with lsn {lsn} is stored here"
    count = lsn - end.lsn
    return (
        f"lsn {lsn} (1 record) is missing here"
        if count == 1
        else f"lsn {end.lsn + 1} to {lsn} ({count} records) is missing here"
    )


def _next_object(streams: Streams, end: Position) -> str:
    """The object in which the record after ``end`` would be."""
    return streams.object_of(end.epoch, end.index) if end.epoch else streams.names.journal_prefix()
