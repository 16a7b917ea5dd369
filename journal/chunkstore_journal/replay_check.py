"""The deep check of history: replay everything that is stored, and hold every snapshot against it (invariants 10 and 11).

Promises: reads only, each record once; the state is built in a scratch store, never in one that serves. The state digest of each
record is recomputed from the rows (10). Every whole snapshot is read to its end, and its position, hash and digest are compared with the
replayed state at its lsn (11); one that is not whole is damage only if a note, an OPEN or LATEST vouched for it, for else it may be
half written. The replay begins at the beginning of history, or where that was collected at the oldest snapshot from which everything
is there. Damage is a finding, never an error. Leaves out: rows against operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Commit, MetadataCache, MetadataStore, Position
from chunkstore.records.invariants import Finding
from chunkstore_journal.claim import read_latest
from chunkstore_journal.history import Streams
from chunkstore_journal.payloads import SnapshotLink, decode_note, decode_open
from chunkstore_journal.record import Record
from chunkstore_journal.recovery import commit_of, commits_of_open
from chunkstore_journal.snapshot import list_snapshots, load_snapshot, verify_snapshot
from chunkstore_journal.walk import (
    collected_max,
    find_last_claim,
    has_beginning,
    legs_of_history,
    named_snapshots,
    newest_opened,
    stored_records,
)

__all__ = ["check_replay"]

_BATCH_RECORDS = 256


class _Gap(Exception):
    """Records after the start are missing: another start may do."""


class _File(NamedTuple):
    """A snapshot as it is stored; ``link`` is None, and ``flaw`` says why, where it cannot be read to its end."""

    name: str
    lsn: int
    link: SnapshotLink | None
    flaw: Finding | None


def check_replay(streams: Streams, scratch: MetadataCache) -> Iterator[Finding]:
    """Replay history in stores of ``scratch``, which are discarded. Findings of invariants 4, 6, 10 and 11.

    Raises ``StorageUnavailable``, and ``StorageFull`` where the scratch store has no room.
    """
    stored = {name: lsn for name, lsn, *_ in list_snapshots(streams.storage, streams.names)}
    try:
        newest = newest_opened(streams)
        # A LIST may lag behind a collector, and what it shows be gone.
        stored.update((link.name, link.lsn) for link in (named_snapshots(streams, newest) if newest else ()))
    except Damaged as damage:
        yield _damage(6, damage.object, damage.message, damage.position)
        return
    oldest_first = sorted(stored.items(), key=lambda item: (item[1], item[0]))
    files = [found for name, lsn in oldest_first if (found := _read(streams, name, lsn)) is not None]
    starts: list[SnapshotLink | None] = [found.link for found in files if found.link is not None]
    try:
        if has_beginning(streams):
            starts.insert(0, None)
    except Damaged as damage:
        yield _damage(6, damage.object, damage.message, damage.position)
        return
    for start in starts:
        store = scratch.create()
        try:
            if start is not None:
                load_snapshot(streams.storage, start.name, store, container=streams.container, expected=start)
            replay = _Replay(streams, store, {found.lsn for found in files})
            findings = list(replay.run())
            yield from findings
            yield from replay.judge(files)
            return
        except (_Gap, ChunkNotFound):
            continue  # collected, perhaps while we look
        except Damaged as damage:
            yield _damage(6, damage.object, damage.message, damage.position)
            return
        finally:
            scratch.discard(store)
    message = "there is neither a beginning nor a snapshot from which all of history that follows is stored"
    yield _damage(11, streams.names.snapshot_prefix(), message)


def _read(streams: Streams, name: str, lsn: int) -> _File | None:
    """Read a snapshot to its end; None if it is gone."""
    try:
        reader = verify_snapshot(streams.storage, name, container=streams.container)
        return _File(name, lsn, reader.header.link(name), None)
    except ChunkNotFound:
        return None
    except ChunkstoreError as error:
        return _File(name, lsn, None, _damage(11, name, error.message, getattr(error, "position", 0)))


def _damage(invariant: int, object: str, message: str, position: int = 0) -> Finding:
    return Finding(invariant, "damage", "", "", object, position, message)


class _Replay:
    """One replay, from where ``store`` is. Remembers hash and digest at the lsns of snapshots, and which of them are named."""

    def __init__(self, streams: Streams, store: MetadataStore, watched: set[int]) -> None:
        self._streams = streams
        self._store = store
        self._watched = watched
        self._seen: dict[int, tuple[bytes, int]] = {}
        self._vouched: set[str] = set()
        self._start = store.head().position.lsn
        latest = read_latest(streams.storage, streams.names)
        if latest is not None:
            self._vouched.add(latest.snapshot.name)

    def run(self) -> Iterator[Finding]:
        """Replay to the visible end. Raises ``_Gap``, ``ChunkNotFound``, ``Damaged``."""
        self._remember()
        batch: list[Commit] = []
        lsn = self._start
        for record, name, position in self._records():
            if record.header.lsn != lsn + 1:
                raise _Gap
            lsn += 1
            self._note(record, name, position)
            batch.append(_commit(self._streams, record, name, position))
            if len(batch) >= _BATCH_RECORDS or record.header.lsn in self._watched:
                yield from self._apply(batch)
                self._remember()
                batch = []
        if batch:
            yield from self._apply(batch)

    def judge(self, files: list[_File]) -> Iterator[Finding]:
        """What the snapshots are worth, now that the state at their lsns is known."""
        for found in files:
            if found.link is None:
                if found.flaw is not None and found.name in self._vouched:
                    yield found.flaw
                continue
            link = found.link
            if link.lsn < self._start or (not link.lsn and link.name not in self._vouched):
                continue  # left by a collection that was interrupted, or by somebody else who was about to found the container
            seen = self._seen.get(link.lsn)
            if seen is None:
                yield _damage(11, link.name, f"it claims lsn {link.lsn}, which history does not reach")
            elif seen[0] != link.hash:
                yield _damage(11, link.name, f"lsn {link.lsn} of history has another hash")
            elif seen[1] != link.digest:
                yield _damage(11, link.name, f"the replayed state at lsn {link.lsn} has another digest")

    def _records(self) -> Iterator[tuple[Record, str, int]]:
        streams = self._streams
        top = find_last_claim(streams)
        newest = newest_opened(streams, top)
        gone_max = collected_max(streams, newest) if newest else 0
        for leg in legs_of_history(streams, top):
            if leg.end.lsn <= self._start:
                continue
            for record, _, name, position in stored_records(streams, leg, gone_max, []):
                if record.header.lsn > self._start:
                    yield record, name, position

    def _note(self, record: Record, name: str, position: int) -> None:
        kind = record.header.kind
        link: object = None
        if kind == RecordKind.SNAPSHOT_NOTE:
            link = decode_note(kind, record.payload, object=name, position=position)
        elif kind == RecordKind.OPEN:
            link = decode_open(record.payload, object=name, position=position).snapshot
        if isinstance(link, SnapshotLink):
            self._vouched.add(link.name)

    def _remember(self) -> None:
        head = self._store.head()
        if head.position.lsn in self._watched:
            self._seen[head.position.lsn] = (head.position.hash, head.digest)

    def _apply(self, commits: list[Commit]) -> Iterator[Finding]:
        try:
            is_next = self._store.apply(commits, verify=True)
        except Damaged as first:
            yield _damage(10, first.object, first.message, first.position)
            # From here on the records' word is taken for the digest, so that each wrong one is named once.
            is_next = self._store.apply(commits, verify=False)
        if not is_next:
            raise _Gap


def _commit(streams: Streams, record: Record, name: str, position: int) -> Commit:
    header = record.header
    if header.kind == RecordKind.OPEN:
        return commits_of_open(streams.opened(header.epoch), embedded=False)[-1]
    is_log = name == streams.names.log(header.epoch)
    at = Position(header.lsn, record.hash, header.epoch, header.index + 1, position + record.size if is_log else 0)
    if streams.mode == "slot" or is_log:
        return commit_of(record, at, object=name, at=position)
    # Embedded: its OPEN is looked at with it.
    return commit_of(record, at, object=name, at=position, embedded=True)
