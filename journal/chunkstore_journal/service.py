"""``JournalService`` for one container: the port's face over claims, streams, recovery, snapshots and collection.

Promises: as the port. A self-take-over that failed half-way is continued by the next call with the same claim and the same bytes, so a
process never meets its own attempt as a stranger. Calls that change anything come from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.config import LIMITS, Settings
from chunkstore.errors import ChunkNotFound, InvalidArgument, NotOwner, StorageUnavailable
from chunkstore.journal import Journal, JournalService, LeaseInfo, Ownership, SnapshotReport
from chunkstore.metadata.port import Head, MetadataCache, MetadataStore, Position
from chunkstore.metadata.retained import oldest_inline_record, pinned_lsn
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.claim import ClaimAttempt, new_attempt
from chunkstore_journal.collect import Collector
from chunkstore_journal.container import check_writable
from chunkstore_journal.ends import naming_salvage
from chunkstore_journal.history import ZERO_HASH, Opened, Streams
from chunkstore_journal.lease import read_lease, write_lease
from chunkstore_journal.objects import ContainerFormat, LatestHint, decode_claim, encode_latest
from chunkstore_journal.payloads import SnapshotLink
from chunkstore_journal.slots import read_if_present
from chunkstore_journal.snapshot import write_snapshot
from chunkstore_journal.stream import OwnedStream
from chunkstore_journal.takeover import Founding, TakeOver

__all__ = ["ContainerJournal"]


class ContainerJournal(JournalService):
    """The journal of one container. ``format`` is its FORMAT (``container.read_format`` or ``create_container``)."""

    def __init__(
        self,
        storage: ChunkStorage,
        names: ContainerNames,
        format: ContainerFormat,
        cache: MetadataCache,
        settings: Settings,
    ) -> None:
        self._storage = storage
        self._names = names
        self._format = format
        self._cache = cache
        self._settings = settings
        self._streams = Streams(storage, names, format)
        self._attempt: ClaimAttempt | None = None
        self._owned: OwnedStream | None = None
        self._store: MetadataStore | None = None
        self._collector: Collector | None = None
        self._published: list[SnapshotLink] = []
        self._lease_counter = 0

    def take_over(
        self,
        *,
        own: Journal | None,
        lease: LeaseInfo | None = None,
        accept_rollback: bool = False,
    ) -> Ownership:
        """As the port says."""
        check_writable(self._storage, self._format, self._settings)
        stream: OwnedStream | None = None
        if own is not None:
            if not isinstance(own, OwnedStream):
                raise InvalidArgument("own must be a journal that this service handed out", argument="own")
            stream = own
            stream.close()
            if self._attempt is None or self._attempt.epoch != own.epoch + 1:
                self._attempt = new_attempt(own.epoch + 1)
        attempt = self._attempt if own is not None else None
        try:
            run = TakeOver(
                self._streams,
                self._cache,
                self._settings,
                own=stream,
                attempt=attempt,
                lease=lease,
                accept_rollback=accept_rollback,
            )
            with naming_salvage():
                ownership = run.run()
        except NotOwner:
            self._attempt = None
            raise
        # The attempt stays: a caller interrupted before it adopted the result asks again, and gets the same.
        return self._adopt(ownership)

    def found(self, make: Callable[[int, bytes], SnapshotLink]) -> None:
        """Make the container of a state that ``make`` writes under a claim (epoch, token). No one owns it then. Raises as ``take_over``,
        ``Conflict`` (it has begun), and what ``make`` raises. Retry: safe, begins anew."""
        check_writable(self._storage, self._format, self._settings)
        with naming_salvage():
            Founding(self._streams, self._cache, self._settings, make=make).found()

    def _adopt(self, ownership: Ownership) -> Ownership:
        journal = ownership.journal
        assert isinstance(journal, OwnedStream)
        self._owned = journal
        self._store = ownership.store
        self._published.clear()
        self._collector = Collector(self._streams, self._settings, journal.opened)
        return ownership

    def foreign_claim(self, own: Journal) -> int | None:
        epoch = own.epoch + 1
        name = self._names.epoch(epoch)
        data = read_if_present(self._storage, name, size_max=LIMITS.small_object_bytes_max)
        if data is not None:
            attempt = self._attempt
            if (
                attempt is None
                or attempt.epoch != epoch
                or decode_claim(data, object=name).token != attempt.claim.token
            ):
                return epoch
            if self._storage.exists(self._names.epoch(epoch + 1)):
                return epoch + 1
        if isinstance(own, OwnedStream) and not own.sees_own_claim():
            raise own.moved()
        return None

    def resolve(self, position: Position) -> bool | None:
        epoch = position.epoch + 1
        while True:
            found = self._streams.slot0(epoch)
            if found is None:
                return None
            if isinstance(found, Opened):
                break
            epoch += 1
        if found.payload.previous_epoch != position.epoch:
            return False
        if found.embedded is not None and found.embedded.header.lsn == position.lsn:
            # The hash of a record whose append failed may be unknown to the caller; a stream has one writer anyhow.
            return position.hash in (ZERO_HASH, b"", found.embedded.hash)
        return position.lsn <= found.payload.last_lsn

    def write_snapshot(self, store: MetadataStore, *, epoch: int) -> SnapshotReport:
        try:
            with store.view() as view:
                return write_snapshot(self._storage, self._names, container=self._format.uuid, view=view, epoch=epoch)
        except ChunkNotFound as missing:
            # Only the collector of a later owner removes a snapshot in the making, because newer ones exist.
            raise StorageUnavailable(
                f"{missing.chunk} vanished while it was written", object=missing.chunk
            ) from missing

    def publish_latest(self, report: SnapshotReport, *, epoch: int) -> None:
        link = SnapshotLink(*report.note)  # type: ignore[arg-type]
        self._storage.put(self._names.latest, encode_latest(LatestHint(link, epoch)))
        self._published.append(link)  # not before: what it means is collected, and a caller that looks goes by LATEST

    def collect(
        self, *, head: Head, epoch: int, dry_run: bool, go_on: Callable[[], bool] = lambda: True, least: bool = False
    ) -> tuple[int, int]:
        if self._collector is None or self._owned is None or epoch != self._owned.epoch:
            raise InvalidArgument(
                f"only the owner of epoch {epoch} may collect, and only streams of former epochs", argument="epoch"
            )
        assert self._store is not None
        with self._store.view() as view:
            lowest, held = pinned_lsn(view), oldest_inline_record(view)
        return self._collector.run(
            head,
            self._published,
            pinned_lsn=lowest,
            oldest_inline_record=held,
            dry_run=dry_run,
            go_on=go_on,
            least=least,
        )

    def renew_lease(self, epoch: int, *, released: bool) -> None:
        self._lease_counter += 1
        owned = self._owned
        end = owned.head if released and owned is not None and owned.epoch == epoch else None
        write_lease(
            self._storage,
            self._names,
            epoch=epoch,
            counter=self._lease_counter,
            released=released,
            end=end,
        )

    def read_lease(self) -> LeaseInfo | None:
        return read_lease(self._storage, self._names)
