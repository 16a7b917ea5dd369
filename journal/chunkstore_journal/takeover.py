"""Take-over: claim, decide, end the former stream, materialise, open (protocol 3.4 T0 to T9, 3.9, A1, A12, A15).

Promises: one code path for opening, restart, fail-over, every journal error and every roll. What an OPEN fixes (its
predecessor and the cut) was made durable before it, and is fixed for ever by put-if-absent. A claimant that met a later
one raises ``NotOwner`` and has changed nothing that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from chunkstore import runtime
from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.config import LIMITS, Settings
from chunkstore.errors import CacheDamaged, ChunkExists, ChunkNotFound, ChunkstoreError, Conflict, Damaged, NotOwner
from chunkstore.journal import Batch, JournalBroken, LeaseInfo, Ownership, RecordKind, TakeOverReport
from chunkstore.metadata.keys import chunk_key, is_row
from chunkstore.metadata.lines import LineFold, line_extents
from chunkstore.metadata.port import (
    GENESIS,
    Head,
    MetadataCache,
    MetadataStore,
    MetadataView,
    Position,
    RowChange,
    furthest,
)
from chunkstore_journal.append_stream import AppendStream, read_tail
from chunkstore_journal.claim import (
    ClaimAttempt,
    ClosedStream,
    claim_next,
    claim_own_next,
    decide_below,
    find_top,
    moved,
    read_latest,
    read_voided,
)
from chunkstore_journal.ends import SeenEnds
from chunkstore_journal.extents import moved_extents
from chunkstore_journal.history import Leg, Opened, Streams
from chunkstore_journal.lease import overrule_lease, read_lease, write_lease
from chunkstore_journal.objects import LatestHint
from chunkstore_journal.payloads import (
    FLAG_GIVEN_UP,
    OpenPayload,
    SnapshotLink,
    encode_open,
)
from chunkstore_journal.record import RecordHeader, encode_record
from chunkstore_journal.recovery import Materialised, Progress, commit_of, materialise
from chunkstore_journal.slot_stream import SlotStream, seal_stream
from chunkstore_journal.slots import Undecided, put_decided, read_if_present
from chunkstore_journal.stream import OwnedStream
from chunkstore_journal.walk import last_label_ms

__all__ = ["Founding", "TakeOver", "adopted_position"]

_STORES_MAX: Final = 2
"""How many stores of the cache may prove rotten during a take-over."""


class TakeOver:
    """One take-over. For a self-take-over that failed half-way, run a new one with the same ``attempt``."""

    def __init__(
        self,
        streams: Streams,
        cache: MetadataCache,
        settings: Settings,
        *,
        own: OwnedStream | None,
        attempt: ClaimAttempt | None,
        lease: LeaseInfo | None = None,
        accept_rollback: bool = False,
    ) -> None:
        self._streams = streams
        self._storage = streams.storage
        self._names = streams.names
        self._cache = cache
        self._settings = settings
        self._deadline_s = settings.op_deadline_s
        self._own = own
        self._attempt = attempt
        self._claimed: ClaimAttempt | None = None
        self._lease = lease
        self._latest: LatestHint | None = None
        self._accept_rollback = accept_rollback
        self._store: MetadataStore | None = None
        self._findings: list[str] = []
        self._seen: SeenEnds

    def run(self) -> Ownership:
        """Do it. Raises as ``JournalService.take_over``."""
        try:
            self._store = self._cache.open_current()  # what it has seen, history must hold
            for _ in range(_STORES_MAX):
                try:
                    return self._run()
                except CacheDamaged as damage:
                    # Every step can be taken again, without the cache's store once that proves rotten.
                    self._findings.append(f"the local cache was discarded during the take-over: {damage}")
                    self._discard_store()
            return self._run()
        except BaseException as error:
            if self._store is not None:
                self._store.close(clean=True)
            if isinstance(error, Undecided):
                raise error.error.copy() from error
            raise

    def _run(self) -> Ownership:
        if self._claimed is None:
            self._claimed = self._claim()
        epoch = self._claimed.epoch
        try:
            return self._after_claim(self._claimed)
        except (Damaged, ChunkNotFound) as error:
            # A later owner may be collecting what we read. Its claim explains everything; without it, this is real.
            if self._storage.exists(self._names.epoch(epoch + 1)):
                raise NotOwner(epoch=epoch, owner=epoch + 1) from error
            raise

    def _discard_store(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            self._cache.discard(store)

    def _claim(self) -> ClaimAttempt:
        self._latest = read_latest(self._storage, self._names)
        # In this order: what was there before we look at names must be found among them.
        self._seen = SeenEnds(
            self._streams,
            cache=furthest(self._store.head() if self._store is not None else None, self._cache.seen()),
            own=self._own.head if self._own is not None else None,
            lease=None if self._own is not None else self._lease or read_lease(self._storage, self._names),
            latest=self._latest,
            accept=self._accept_rollback,
        )
        if self._own is not None:
            # A1: our own next epoch or none. A process that was overtaken never climbs back by itself.
            assert self._attempt is not None
            self._require_own_claim(self._own, self._attempt)
            claim_own_next(self._storage, self._names, self._attempt, deadline_s=self._deadline_s)
            return self._attempt
        voided = read_voided(self._storage, self._names)
        hints = (self._seen.epoch, self._latest.epoch if self._latest else 0, voided.epoch if voided else 0)
        top = find_top(self._storage, self._names, max(hints))
        self._seen.check_claims(top)
        return claim_next(self._storage, self._names, top, deadline_s=self._deadline_s)

    def _require_own_claim(self, own: OwnedStream, attempt: ClaimAttempt) -> None:
        """Raise unless the claim that we take over from is seen where we made it: ``StorageUnavailable``, or ``NotOwner`` above it."""
        if own.sees_own_claim():
            return
        found = read_if_present(self._storage, self._names.epoch(attempt.epoch), size_max=LIMITS.small_object_bytes_max)
        if found is not None and found != attempt.data:
            raise NotOwner(epoch=own.epoch, owner=attempt.epoch)
        raise moved(self._storage, self._names, own.epoch)

    def _after_claim(self, attempt: ClaimAttempt) -> Ownership:
        streams = self._streams
        if attempt.previous_epoch is None:
            hint = read_voided(self._storage, self._names) if attempt.epoch > 2 else None
            attempt.previous_epoch = decide_below(
                streams, attempt, hint=hint, deadline_s=self._deadline_s, check_opened=self._seen.check_opened
            )
        previous = streams.opened(attempt.previous_epoch) if attempt.previous_epoch else None
        if attempt.closed is None:
            attempt.closed = self._close_stream(previous, attempt)
        closed = attempt.closed
        self._forget_what_is_lost(attempt)
        if previous is None:
            found = self._genesis()
        else:
            ahead = None if closed.embedded is None else (closed.embedded.header.lsn, closed.embedded.hash)
            leg = Leg(previous, closed.end)
            found = materialise(self._streams, self._cache, leg, current=self._store, ahead=ahead)
        self._store = found.store
        return self._go_on(attempt, previous, closed, found)

    def _go_on(
        self, attempt: ClaimAttempt, previous: Opened | None, closed: ClosedStream, found: Materialised
    ) -> Ownership:
        """Open after the end of history, at which ``found`` is."""
        if not attempt.open_data:
            self._streams.require_begun(found.store.head().position)
            attempt.open_data = self._build_open(attempt, previous, closed, found)
        return self._serve(attempt, previous, closed, found)

    def _serve(
        self, attempt: ClaimAttempt, previous: Opened | None, closed: ClosedStream, found: Materialised
    ) -> Ownership:
        """T6 to T9, and what came of it."""
        streams = self._streams
        opened = self._open(attempt)
        self._finish(opened)
        self._findings += (*self._seen.findings, *found.findings)
        former = previous.payload if previous is not None and self._own is None else None
        report = TakeOverReport(
            epoch=attempt.epoch,
            previous_epoch=previous.epoch if previous is not None else 0,
            source=found.source,
            journal_mode=streams.mode,
            replayed_records=found.progress.records,
            replayed_bytes=found.progress.bytes,
            tail_cut=closed.tail_cut,
            findings=tuple(self._findings),
            previous_owner=f"{former.host}, pid {former.pid}" if former is not None else "",
        )
        stream = AppendStream if streams.mode == "append" else SlotStream
        journal = stream(streams, opened, self._settings, attempt.identity)
        assert self._store is not None
        adopted = GENESIS if self._own is None else adopted_position(closed)
        return Ownership(journal=journal, store=self._store, report=report, adopted=adopted)

    def _forget_what_is_lost(self, attempt: ClaimAttempt) -> None:
        """Let no witness that was given up speak again, before our OPEN says that history goes on without it (A17)."""
        if self._seen.gave_up:
            overrule_lease(self._storage, self._names, attempt.previous_epoch or 0)
        if self._seen.cache_is_void:
            self._discard_store()

    def _genesis(self) -> Materialised:
        store = self._store
        if store is None:
            store = self._cache.create()
            self._cache.make_current(store)
        return Materialised(store, "genesis", Progress(), None, frozenset(), ())

    def _close_stream(self, previous: Opened | None, attempt: ClaimAttempt) -> ClosedStream:
        """T3."""
        if previous is None:
            self._seen.judge(GENESIS)
            return ClosedStream(GENESIS)
        known = self._seen.known(previous)
        if self._streams.mode == "slot":
            end = seal_stream(
                self._streams, previous, attempt, known=known, judge=self._seen.judge, deadline_s=self._deadline_s
            )
            return ClosedStream(end)
        closed = read_tail(self._streams, previous, known=known, synced_hash=self._seen.synced_hash)
        self._seen.judge(adopted_position(closed), torn=closed.tail_cut is not None)
        return closed

    def _build_open(
        self,
        attempt: ClaimAttempt,
        previous: Opened | None,
        closed: ClosedStream,
        found: Materialised,
    ) -> bytes:
        """The OPEN's bytes. Extents of the embedded record get their place in our OPEN in the same step (protocol 3.7)."""
        claim, end, last = attempt.claim, closed.end, adopted_position(closed)
        with found.store.view() as view:
            digest_before = view.head.digest
            digest, changed = self._embedded(view, closed)
        time_ms = max(runtime.now_ms(), found.progress.time_ms)
        # Before the first OPEN there is what the container begins with: nothing, or a state (protocol 3.11).
        base = end
        if previous is not None:
            # The digest is the judge of "changed no row": equal digests are equal states, so readers may jump.
            unchanged = previous.is_quiet and digest_before == previous.header.digest
            base = previous.payload.base if unchanged else end
            # Who replayed to the end has looked at the last record's label, and the embedded one's, below, is none older.
            looked = found.progress.records or closed.embedded is not None
            label_ms = previous.header.time_ms if looked else last_label_ms(self._streams, previous, end)
            time_ms = max(time_ms, label_ms)
        if closed.embedded is not None:
            time_ms = max(time_ms, closed.embedded.header.time_ms)
        payload = OpenPayload(
            epoch=claim.epoch,
            token=claim.token,
            previous_epoch=previous.epoch if previous is not None else 0,
            end_index=end.index,
            end_byte=end.end,
            last_lsn=last.lsn,
            last_hash=last.hash,
            embedded=closed.embedded_data,
            base=base,
            snapshot=self._newest_snapshot(previous, found, end),
            mode=self._streams.mode,
            host=claim.host,
            pid=claim.pid,
            boot_id=claim.boot_id,
            flags=FLAG_GIVEN_UP if self._seen.gave_up else 0,
        )
        log = self._names.log(previous.epoch) if previous is not None else ""
        moved_rows, digest_of_moves = moved_extents(payload, closed.embedded, changed, object=log)
        payload = payload._replace(rows=moved_rows)
        digest = (digest + digest_of_moves) % DIGEST_MODULUS
        header = RecordHeader(
            RecordKind.OPEN, 0, self._streams.container, claim.epoch, 0, last.lsn + 1, last.lsn, last.hash,
            digest, claim.token, time_ms,
        )  # fmt: skip
        return encode_record(header, encode_open(payload))[0]

    def _embedded(self, view: MetadataView, closed: ClosedStream) -> tuple[int, dict[bytes, bytes | None]]:
        """The digest after the embedded record, recomputed: it is not applied before our OPEN makes it history (A12). And its rows."""
        digest, at = view.head.digest, view.head.position
        if closed.embedded is None:
            return digest, {}
        here = adopted_position(closed)._replace(end=0)
        name = self._names.log(here.epoch)
        commit = commit_of(closed.embedded, here, object=name, at=closed.end.end, embedded=True)
        # Its owner may have applied it, and the state comes from its snapshot or its cache.
        applied = at.lsn == here.lsn
        if commit.lines is None:
            rows = dict(commit.rows)
        elif applied:
            keys = [chunk_key(identity) for identity, _, _, _ in line_extents(commit.lines)]
            rows = {key: view.get(key) for key in keys}
        else:
            lines = LineFold(view.get)
            lines.add(commit.lines)
            rows = {key: value for key, value, _ in lines.take().rows}
        if applied:
            return digest, rows
        digest = (digest + _sum_of(view, list(rows.items()))) % DIGEST_MODULUS
        if commit.digest not in (None, digest):
            raise Damaged(
                f"the record with lsn {here.lsn} does not lead to the state it names; if the local cache "
                "is at fault, deleting it helps",
                object=name,
                position=closed.end.end,
            )
        return digest, rows

    def _newest_snapshot(self, previous: Opened | None, found: Materialised, end: Position) -> SnapshotLink | None:
        """What our OPEN names: readers start there, and the collector of this epoch never passes it (A10)."""
        links = [found.snapshot, *found.progress.notes]
        if previous is not None:
            links.append(previous.payload.snapshot)
        if self._latest is not None and self._seen.latest_holds and self._latest.snapshot.lsn <= end.lsn:
            links.append(self._latest.snapshot)
        named = [link for link in links if link is not None and self._streams.is_ours(link)]
        usable = [link for link in named if link.name not in found.damaged]
        return max(usable, key=lambda link: link.lsn, default=None)

    def _open(self, attempt: ClaimAttempt) -> Opened:
        """T6 to T8."""
        epoch, names, storage = attempt.epoch, self._names, self._storage
        if self._streams.mode == "append":
            # Before OPEN, not after it: then a stream that was opened and has no file has lost it.
            self._create_log(attempt)
        stored = put_decided(storage, names.slot(epoch, 0), attempt.open_data, deadline_s=self._deadline_s)
        opened = self._streams.decode_slot0(epoch, stored)
        if stored != attempt.open_data or not isinstance(opened, Opened):
            if isinstance(opened, Opened):
                # Only who claimed an epoch opens it, and the claim is ours: the former claim was lost.
                raise Damaged(
                    "this epoch was opened before, but its claim is missing: the storage lost names",
                    object=names.epoch(epoch),
                )
            # Voided by a later claimant while we were at work: whatever we have read counts for nothing.
            raise NotOwner(epoch=epoch, owner=opened.payload.by_epoch)
        if storage.exists(names.epoch(epoch + 1)):
            raise NotOwner(epoch=epoch, owner=epoch + 1)
        return opened

    def _create_log(self, attempt: ClaimAttempt) -> None:
        if attempt.log_is_durable:
            return
        log = self._names.log(attempt.epoch)
        try:
            self._storage.create(log)
        except ChunkExists:
            # Ours, from an earlier try of the same attempt: nothing was appended, because no stream was handed out.
            if self._storage.stat(log).length:
                raise Damaged("the journal file of a new epoch is not empty", object=log) from None
        try:
            self._storage.sync([log])
        except ChunkstoreError:
            # In doubt for ever: the storage refuses to write to it. It is not referred to yet, so the next try makes a new one.
            with suppress(ChunkstoreError):
                self._storage.delete(log)
            raise
        attempt.log_is_durable = True

    def _finish(self, opened: Opened) -> None:
        """T9: apply what our OPEN made history; only now may this process serve."""
        found = materialise(self._streams, self._cache, Leg(opened, opened.position), current=self._store)
        self._store = found.store
        self._findings += found.findings


class Founding(TakeOver):
    """The first OPEN of a container that begins with a state, instead of with nothing (protocol 3.11). Use ``found``, once.

    Under the claim ``make`` makes the state, a snapshot, given epoch and token; the OPEN that names it is the whole of the container's
    beginning, so there is either all of it or no container. The snapshot is in front of lsn 1, with a hash that only this claim's can have:
    whatever other claimants leave is on no history. No one serves: the stream is closed at once.
    """

    def __init__(
        self, streams: Streams, cache: MetadataCache, settings: Settings, *, make: Callable[[int, bytes], SnapshotLink]
    ) -> None:
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


def _sum_of(view: MetadataView, rows: Sequence[RowChange]) -> int:
    """What these changes, of different keys, add to the state digest."""
    digest = 0
    for key, value in rows:
        if is_row(key):
            old = view.get(key)
            digest -= row_digest(key, old) if old is not None else 0
            digest += row_digest(key, value) if value is not None else 0
    return digest


def adopted_position(closed: ClosedStream) -> Position:
    """The point after what a successor adopts of a stream that ends so."""
    end, embedded = closed.end, closed.embedded
    if embedded is None:
        return end
    size = len(closed.embedded_data)
    return Position(embedded.header.lsn, embedded.hash, end.epoch, end.index + 1, end.end + size)
