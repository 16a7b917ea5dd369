"""The first OPEN of a container that begins with a state, instead of with nothing (protocol 3.11, 3.15).

Promises: under a claim the caller makes the state, a snapshot; the OPEN that names it is the whole of the container's beginning, so there
is either all of it or no container. The snapshot is in front of lsn 1, with a hash that only this claim's can have, and the OPEN
follows that: so whatever other claimants leave is on no history. No one serves: the stream is closed at once. Leaves out: what the state
consists of (``chunkstore.backup.founding``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from chunkstore import runtime
from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, Conflict
from chunkstore.journal import Batch, JournalBroken, Ownership, RecordKind
from chunkstore.metadata.port import Head, MetadataCache, Position
from chunkstore_journal.claim import ClaimAttempt, ClosedStream
from chunkstore_journal.history import Opened, Streams
from chunkstore_journal.lease import write_lease
from chunkstore_journal.payloads import SnapshotLink
from chunkstore_journal.recovery import Materialised, Progress
from chunkstore_journal.stream import OwnedStream
from chunkstore_journal.takeover import TakeOver

__all__ = ["Founding", "MakeState"]

MakeState: TypeAlias = Callable[[int, bytes], SnapshotLink]
"""Makes the state of a claim, given its epoch and token (``snapshot.write_base``)."""


class Founding(TakeOver):
    """See the module. Use ``found``, once."""

    def __init__(self, streams: Streams, cache: MetadataCache, settings: Settings, *, make: MakeState) -> None:
        super().__init__(streams, cache, settings, own=None, attempt=None)
        self._make = make
        self._empty = cache.create()

    def found(self) -> None:
        """Claim, make the state, and open. Raises as ``JournalService.take_over``, ``Conflict`` (the container has begun), and what
        ``make`` raises. Retry: safe, each is a new epoch, until one has come through."""
        try:
            ownership = self.run()
        finally:
            self._cache.discard(self._empty)
        journal = ownership.journal
        assert isinstance(journal, OwnedStream)
        # From here on it is whole; a stream without an end is one whose owner has died.
        with suppress(ChunkstoreError, JournalBroken):
            journal.append(Batch(RecordKind.CLOSE, (), (), journal.opened.header.digest, runtime.now_ms()))
            end = journal.head
            write_lease(self._storage, self._names, epoch=journal.epoch, counter=1, released=True, end=end)
        journal.close()

    def _genesis(self) -> Materialised:
        return Materialised(self._empty, "genesis", Progress(), None, frozenset(), ())

    def _go_on(
        self, attempt: ClaimAttempt, previous: Opened | None, closed: ClosedStream, found: Materialised
    ) -> Ownership:
        if previous is not None:
            what = f"the beginning of container {self._names.container!r}"
            raise Conflict(
                what, expected="nothing, to make it of a state", found=f"epoch {previous.epoch}, which opened"
            )
        if not attempt.open_data:
            link = self._make(attempt.epoch, attempt.claim.token)
            # Of rows there are none here: the OPEN is built from what is said of them.
            self._empty.finish_load(Head(Position(link.lsn, link.hash, 0, 0, 0), link.digest))
            attempt.closed = closed = ClosedStream(Position(link.lsn, link.hash, 0, 0, 0))
            attempt.open_data = self._build_open(attempt, None, closed, found._replace(snapshot=link))
        return self._serve(attempt, None, closed, found)

    def _finish(self, opened: Opened) -> None:
        """Nothing is served, so no cache needs the rows."""
