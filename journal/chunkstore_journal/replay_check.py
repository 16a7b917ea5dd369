"""The deep check of history: replay everything that is stored, and hold every snapshot against it (invariants 10 and 11).

Promises: reads only, each record once, into a scratch store. Every record's state digest is recomputed (10). Every whole snapshot is
compared with the replayed state at its lsn (11); one that is not whole is damage only if a note, an OPEN or LATEST vouched for it. The
replay begins at the beginning of history, or at the oldest snapshot from which everything is there. Damage is a finding, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Commit, MetadataCache, MetadataStore, Position
from chunkstore.records.invariants import Finding
from chunkstore_journal.claim import read_latest
from chunkstore_journal.history import Streams
from chunkstore_journal.payloads import SnapshotLink, decode_note
from chunkstore_journal.recovery import commit_of, commits_of_open, records_between
from chunkstore_journal.snapshot import list_snapshots, load_snapshot
from chunkstore_journal.snapshot_reader import verify_snapshot
from chunkstore_journal.walk import (
    find_last_claim,
    has_beginning,
    legs_of_history,
    named_snapshots,
    newest_opened,
)

__all__ = ["check_replay"]

_BATCH_RECORDS = 256


class _Gap(Exception):
    """Records after the start are missing: another start may do."""


def check_replay(streams: Streams, scratch: MetadataCache) -> Iterator[Finding]:
    """Replay history in stores of ``scratch``, which are discarded. Findings of invariants 6, 10 and 11.

    Raises ``StorageUnavailable``, and ``StorageFull`` where the scratch store has no room.
    """
    stored = {(lsn, name) for name, lsn, *_ in list_snapshots(streams.storage, streams.names)}
    try:
        # A LIST may lag behind a collector, and what it shows be gone.
        stored |= {(link.lsn, link.name) for link in named_snapshots(streams, newest_opened(streams))}
        starts: list[SnapshotLink | None] = [None] if has_beginning(streams) else []
    except Damaged as damage:
        yield _of_damage(6, damage)
        return
    found: dict[str, SnapshotLink | Finding] = {}
    for _, name in sorted(stored):
        with suppress(ChunkNotFound):
            found[name] = _read(streams, name)
    starts += [link for link in found.values() if isinstance(link, SnapshotLink)]
    for start in starts:
        store = scratch.create()
        try:
            if start is not None:
                load_snapshot(streams.storage, start.name, store, container=streams.container, expected=start)
            yield from list(_replay(streams, store, found))
            return
        except (_Gap, ChunkNotFound):
            continue  # collected, perhaps while we look
        except Damaged as damage:
            yield _of_damage(6, damage)
            return
        finally:
            scratch.discard(store)
    message = "there is neither a beginning nor a snapshot from which all of history that follows is stored"
    yield _damage(11, streams.names.snapshot_prefix(), message)


def _read(streams: Streams, name: str) -> SnapshotLink | Finding:
    """The link of a snapshot that can be read to its end, or what is wrong with it. Raises ``ChunkNotFound``."""
    try:
        return verify_snapshot(streams.storage, name, container=streams.container).header.link(name)
    except ChunkNotFound:
        raise
    except ChunkstoreError as error:
        return _damage(11, name, error.message, getattr(error, "position", 0))


def _damage(invariant: int, object: str, message: str, position: int = 0) -> Finding:
    return Finding(invariant, "damage", "", "", object, position, message)


def _of_damage(invariant: int, error: Damaged) -> Finding:
    return _damage(invariant, error.object, error.message, error.position)


def _replay(streams: Streams, store: MetadataStore, found: Mapping[str, SnapshotLink | Finding]) -> Iterator[Finding]:
    """Replay from where ``store`` is to the visible end, and judge what was found. Raises ``_Gap``, ``ChunkNotFound``, ``Damaged``."""
    links = [link for link in found.values() if isinstance(link, SnapshotLink)]
    watched = {link.lsn for link in links}
    latest = read_latest(streams.storage, streams.names)
    vouched = {latest.snapshot.name} if latest is not None else set[str]()
    head = store.head()
    start = head.position
    seen = {start.lsn: (start.hash, head.digest)}
    batch: list[Commit] = []
    for commit in _commits(streams, start, vouched):
        batch.append(commit)
        if len(batch) >= _BATCH_RECORDS or commit.position.lsn in watched:
            yield from _apply(store, batch)
            head, batch = store.head(), []
            seen[head.position.lsn] = (head.position.hash, head.digest)
    if batch:
        yield from _apply(store, batch)
    yield from (flaw for name, flaw in found.items() if isinstance(flaw, Finding) and name in vouched)
    for link in links:
        if link.lsn < start.lsn or (not link.lsn and link.name not in vouched):
            continue  # left by a collection that was interrupted, or by another process that was about to make the container
        identity, digest = seen.get(link.lsn, (b"", 0))
        if not identity:
            yield _damage(11, link.name, f"it claims lsn {link.lsn}, which history does not reach")
        elif identity != link.hash:
            yield _damage(11, link.name, f"lsn {link.lsn} of history has another hash")
        elif digest != link.digest:
            yield _damage(11, link.name, f"the replayed state at lsn {link.lsn} has another digest")


def _commits(streams: Streams, at: Position, vouched: set[str]) -> Iterator[Commit]:
    """All commits after ``at``; the names of snapshots that records vouch for go into ``vouched``."""
    for leg in legs_of_history(streams, find_last_claim(streams)):
        opened, end = leg
        if opened.payload.snapshot is not None:
            vouched.add(opened.payload.snapshot.name)
        if end.lsn <= at.lsn:
            continue
        yield from (commit for commit in commits_of_open(opened, embedded=True) if commit.position.lsn > at.lsn)
        start = at if at.epoch == opened.epoch and at.index else opened.position
        for record, before, position in records_between(streams, start, end):
            kind, name = record.header.kind, streams.object_of(opened.epoch, before.index)
            if kind == RecordKind.SNAPSHOT_NOTE:
                note = decode_note(kind, record.payload, object=name, position=before.end)
                vouched |= {note.name} if isinstance(note, SnapshotLink) else set()
            yield commit_of(record, position, object=name, at=before.end)


def _apply(store: MetadataStore, commits: list[Commit]) -> Iterator[Finding]:
    try:
        is_next = store.apply(commits, verify=True)
    except Damaged as first:
        yield _of_damage(10, first)
        # From here on the records' word is taken for the digest, so that each wrong one is named once.
        is_next = store.apply(commits, verify=False)
    if not is_next:
        raise _Gap
