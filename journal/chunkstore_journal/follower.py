"""Following a container's history without owning it (protocol 3.13, P9).

Promises: the store is a prefix of H at all times, across any number of epochs; nothing is claimed, and nothing is written to the
container. Only committed records are applied (``walk.committed_end``). Leaves out: when to poll; serving reads (``store`` gives views).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from chunkstore import runtime
from chunkstore.checksum import crc32c_of_bytes, crc32c_of_more
from chunkstore.config import Settings
from chunkstore.errors import (
    CacheDamaged,
    ChunkNotFound,
    ChunkstoreError,
    Closed,
    Damaged,
)
from chunkstore.metadata.codec import decode_extent
from chunkstore.metadata.keys import chunk_key
from chunkstore.metadata.port import GENESIS, Commit, Head, MetadataCache, MetadataStore, Position
from chunkstore.metadata.tail_cache import TailCache, extents_of
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.claim import find_top, read_latest
from chunkstore_journal.ends import naming_salvage, require_seen
from chunkstore_journal.history import Leg, Opened, Streams, probe_dense
from chunkstore_journal.objects import ContainerFormat
from chunkstore_journal.payloads import blob_of
from chunkstore_journal.recovery import materialise
from chunkstore_journal.walk import committed_end, newest_opened

__all__ = ["Follower"]

_RESTARTS_MAX: Final = 4


class Follower:
    """Follows one container. Not thread-safe; views of ``store`` may be used by other threads."""

    def __init__(
        self,
        storage: ChunkStorage,
        names: ContainerNames,
        format: ContainerFormat,
        cache: MetadataCache,
        settings: Settings,
    ) -> None:
        self.tail = TailCache(settings.tail_cache_bytes)
        """The bytes of extents that were followed last."""
        self._format = format
        self._streams = Streams(storage, names, format)
        self._storage = storage
        self._names = names
        self._cache = cache
        self._settings = settings
        self._top = 0
        self._newest: Opened | None = None
        self._store = cache.open_current()
        self._lost: ChunkstoreError | None = None
        self._seen: Leg | None = None
        """The end of history that we have seen. Up to there it may have been shown, whatever becomes of the store that did so."""
        self._is_on_history = False
        """Whether the journal was asked for the record that the store is on: a store from an earlier process may be ahead of it."""
        self._retired: deque[tuple[float, MetadataStore]] = deque()
        """Stores that are of no use any more, and since when."""
        self.findings: tuple[str, ...] = ()
        """What the last rebuild had to work around, one sentence each."""
        self.ahead = ""
        """In words, that this replica had applied more than the journal holds; empty as long as it has not."""

    @property
    def store(self) -> MetadataStore:
        """The store at the position ``catch_up`` last reached; ask again after each call, a rebuild replaces it.

        Raises what ``catch_up`` raised last if it had to throw the store away and has found no other.
        """
        store, lost = self._store, self._lost
        if lost is not None:
            raise lost.copy()
        if store is None:
            store = self._store  # found, perhaps, between the two looks
        if store is None:
            store = self._store = self._cache.create()
            self._cache.make_current(store)
        return store

    def catch_up(self) -> Head:
        """Apply everything that is committed now, and return where the store is.

        About four requests when nothing is new. Raises: ``Damaged`` (history cannot be trusted, or no snapshot leads to
        its end), ``RolledBack`` (what this follower saw is not in the journal), ``StorageFull``, ``StorageUnavailable``. Retry: safe.
        """
        try:
            with naming_salvage():
                return self._catch_up()
        except ChunkstoreError as error:
            if self._lost is not None:
                self._lost = error  # there is still nothing to show, and this is why
            if isinstance(error, Damaged):
                self._forget()  # it may be of another state, which stood there before or will
            raise

    def _catch_up(self) -> Head:
        now_s = runtime.monotonic_s()
        while self._retired and now_s - self._retired[0][0] > self._settings.op_deadline_s:
            self._cache.discard(self._retired.popleft()[1])
        self._retire_damaged()
        leg = self._find_end()
        if leg is None:
            if self._store is not None and self._store.head().position != GENESIS:
                self._note_ahead(self._store.head(), 0)
                self._retire(self._store)
                self._store = None
            return self.store.head()
        for restarts_left in range(_RESTARTS_MAX, -1, -1):
            head = self._store.head() if self._store is not None else None
            if head is not None and (head.position.lsn, head.position.hash) == (leg.end.lsn, leg.end.hash):
                return head
            if head is not None:
                self._note_ahead(head, leg.end.lsn)
            try:
                found = materialise(
                    self._streams, self._cache, leg, current=self._store, discard=self._retire, taken=self._keep
                )
                break
            except Damaged as error:
                self._drop_if_retired(error)
                # Once history has gone on, snapshots and records up to the end that we saw may be collected: look again.
                newer = self._find_end()
                if not restarts_left or newer is None or newer.end.lsn <= leg.end.lsn:
                    raise
                leg = newer
            except ChunkstoreError as error:
                self._drop_if_retired(error)
                raise
        self._store = found.store
        self._is_on_history = True
        self._lost = None
        self.findings = found.findings
        return found.store.head()

    def _note_ahead(self, head: Head, lsn: int) -> None:
        if head.position.lsn > lsn:
            self.ahead = (
                f"this replica had applied lsn {head.position.lsn}, and the journal ends at lsn {lsn}: records were lost, or this is a "
                "restored backup or a copy"
            )

    def _find_end(self) -> Leg | None:
        """The newest OPEN and what is committed after it; None: there is no OPEN. Raises ``Damaged``, ``RolledBack``."""
        before: Opened | None = None
        for _ in range(_RESTARTS_MAX + 1):
            is_anew = not self._top
            opened, seen = self._find_newest(), self._seen
            if opened is None:
                self._require_seen(None)
                return None
            try:
                leg = Leg(opened, self._visible_end(opened))
            except ChunkNotFound as error:
                # Seen and gone: a new owner has opened and collects, and its OPEN is there now. Or an older state is in the root's place.
                lost = error.chunk
                if opened is before:
                    self._forget()
                before = opened
                continue
            except Damaged:
                if is_anew:
                    raise
                self._forget()  # another state may be there, of which we know no more than the numbers of its epochs
                continue
            if seen is not None and seen.end == leg.end and not is_anew and not self._streams.is_there(leg):
                self._forget()
                continue
            self._require_seen(leg)
            self._seen = leg
            return leg
        raise Damaged("the journal's newest stream disappeared, and no newer one exists", object=lost)

    def _forget(self) -> None:
        """Look for everything anew: what was read may belong to another state than the one that is there now."""
        self._top, self._newest, self._is_on_history = 0, None, False
        self._streams = Streams(self._storage, self._names, self._format)

    def _retire(self, store: MetadataStore) -> None:
        """Keep it open until operations of its readers have ended. No bytes are kept meanwhile: others may be at those offsets."""
        self._retired.append((runtime.monotonic_s(), store))
        self.tail.clear()

    def _keep(self, commit: Commit, payload: bytes) -> None:
        """Keep the bytes of extents in a record that was applied."""
        blob = None if self.tail.is_off or self._retired else blob_of(payload)
        if not blob:
            return
        crc = 0
        begin = 0
        if commit.lines is not None:
            for line in commit.lines.lines:
                data = bytes(blob[begin : begin + line.length])
                begin += line.length
                # ``crc32c`` goes on from line to line of an extent.
                crc = crc32c_of_more(crc, data) if line.joined else crc32c_of_bytes(data)
                if crc == line.crc32c:
                    self.tail.put(line.segment_id, line.offset, data)
            return
        rows = dict(commit.rows)
        for segment_id, offset, length, identity in extents_of(commit.ops, len(blob)):
            data = bytes(blob[begin : begin + length])
            begin += length
            # A segment that was deleted in the same record has left no row.
            row = decode_extent(rows.get(chunk_key(identity)) or b"")
            if row is not None and row[2:4] == (length, crc32c_of_bytes(data)):
                self.tail.put(segment_id, offset, data)

    def _retire_damaged(self) -> None:
        """A store that does not hold what was written shows nothing any more."""
        if self._store is not None:
            try:
                self._store.head()
            except CacheDamaged as damage:
                self._retire(self._store)
                self._drop_if_retired(damage)

    def _drop_if_retired(self, error: ChunkstoreError) -> None:
        """An empty store instead of the retired one would show an empty container: say why there is nothing to show."""
        if self._store is None or any(store is self._store for _, store in self._retired):
            # In this order: a concurrent reader always finds one of the two.
            self._lost = error
            self._store = None

    def close(self) -> None:
        """Release the stores."""
        if self._lost is None:
            self._lost = Closed("this follower")
        store, self._store = self._store, None
        if store is not None:
            store.close(clean=True)
        while self._retired:
            self._cache.discard(self._retired.popleft()[1])

    @property
    def unopened_epoch(self) -> int | None:
        """The highest claim that was seen, unless it has opened. What the end below it shows may lack the last record (P6)."""
        newest = self._newest.epoch if self._newest is not None else 0
        return self._top if self._top > newest else None

    def _find_newest(self) -> Opened | None:
        """The newest OPEN. What is claimed above it but not opened decides nothing yet."""
        if self._top:
            top = probe_dense(lambda n: self._storage.exists(self._names.epoch(n)), self._top)
        else:
            latest = read_latest(self._storage, self._names)
            known = self._store.head().position.epoch if self._store is not None else 0
            top = find_top(self._storage, self._names, max(known, latest.epoch if latest is not None else 0))
        self._top = top
        found = newest_opened(self._streams, top, self._newest.epoch if self._newest is not None else 0)
        if found is not None:
            # P6: what it embeds and where it cuts is applied here, so it must not vanish any more.
            self._storage.harden(found.object)
            self._newest = found
        return self._newest

    def _visible_end(self, opened: Opened) -> Position:
        """The committed end of the newest stream, as far as it can be seen."""
        start = opened.position
        own = self._store.head().position if self._store is not None else GENESIS
        points = [(own, self._is_on_history)]
        seen = self._seen.end if self._seen is not None else GENESIS
        if (seen.epoch, seen.lsn) > (own.epoch, own.lsn):
            # Seen, and not applied or lost again: what was committed then may not look it now, under a claim.
            points.insert(0, (seen, False))
        for position, is_known in points:
            here = position.epoch == opened.epoch and position.index >= 1 and position.lsn >= start.lsn
            if here and (is_known or self._holds(position)):
                self._is_on_history = self._is_on_history or position is own
                start = position
                break
        try:
            return committed_end(self._streams, opened, start)
        except Damaged:
            # What is rotten in front of a snapshot no one needs any more.
            later = self._published(opened)
            if later is None or later.lsn <= start.lsn:
                raise
            return committed_end(self._streams, opened, later)

    def _published(self, opened: Opened) -> Position | None:
        """The point of LATEST's snapshot in this stream, if it really is there: it was published after a committed note."""
        latest = read_latest(self._storage, self._names)
        if latest is None or latest.snapshot.epoch != opened.epoch:
            return None
        link, position = latest.snapshot, latest.snapshot.position
        is_sound = link.index > 1 and link.lsn - opened.header.lsn == link.index - 1
        return position if is_sound and self._holds(position) else None

    def _require_seen(self, leg: Leg | None) -> None:
        """What this process has seen does not go away."""
        seen = self._seen
        if seen is not None and (leg is None or leg.opened is not seen.opened or leg.end.lsn < seen.end.lsn):
            # What was kept of the streams between may be of another state, where numbers recur.
            self._streams = Streams(self._storage, self._names, self._format)
            require_seen(self._streams, seen, leg)

    def _holds(self, position: Position) -> bool:
        """Whether the journal holds what we know of. A gateway that answers with what was is asked again."""
        return any(self._streams.holds(position) for _ in range(_RESTARTS_MAX))
