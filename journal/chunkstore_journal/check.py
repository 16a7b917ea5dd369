"""What ``check`` finds in the journal: the invariants of streams, records and snapshots, of pins and extents (protocol 4).

Promises: reads only, claims nothing, believes nothing unchecked; damage is a finding, never an error. What is found counts if a second
look finds it again, for a collector or a take-over may be at work meanwhile.
Leaves out: a whole replay (``replay_check``); the invariants of metadata and chunks (``chunkstore.operations.check``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged
from chunkstore.journal import LeaseInfo, RecordKind
from chunkstore.metadata.codec import decode_extent
from chunkstore.metadata.keys import chunk_key
from chunkstore.metadata.port import GENESIS, Head, MetadataCache, MetadataView, Position
from chunkstore.metadata.retained import all_extents
from chunkstore.records.arguments import moment_text
from chunkstore.records.invariants import CUTS, FUTURE_MS, PINNED, Finding
from chunkstore.records.names import ContainerNames, parse_place
from chunkstore.storage import ChunkStorage
from chunkstore_journal.ends import contradicts, missing
from chunkstore_journal.history import Leg, Opened, Sealed, Streams, open_streams
from chunkstore_journal.inspect import read_claim
from chunkstore_journal.lease import read_lease
from chunkstore_journal.record import Record
from chunkstore_journal.replay_check import check_replay
from chunkstore_journal.snapshot import StoredSnapshot, list_snapshots
from chunkstore_journal.snapshot_reader import verify_snapshot
from chunkstore_journal.walk import (
    collected_max,
    find_last_claim,
    first_kept,
    has_beginning,
    legs_of_history,
    named_snapshots,
    stored_records,
    visible_end,
)

__all__ = ["check_journal", "check_pinned", "journal_findings"]

_CACHE = "metadata cache"
_MEMORY = "metadata cache of an owner on this machine"


def journal_findings(
    storage: ChunkStorage,
    names: ContainerNames,
    scratch: Callable[[], MetadataCache],
    level: str,
    view: MetadataView,
    pinned_lsn: int | None,
    memory: Head | None = None,
) -> list[Finding]:
    """The journal's own invariants (1 to 6, 11, 12, 25, 28, 30, 37, 39; ``deep``: 10 and all of 11), for ``check``.

    ``view``: of the rows in use; ``scratch`` makes a cache for a replay; ``memory``: where the cache of an owner on this machine is.
    """

    def stored() -> list[Finding]:
        streams = open_streams(storage, names)
        pinned = check_pinned(streams, pinned_lsn) if pinned_lsn else ()
        return [*check_journal(streams, view.head, memory), *pinned, *_check_places(streams, view)]

    def replayed() -> list[Finding]:
        room = scratch()
        try:
            return [*check_replay(open_streams(storage, names), room)]
        finally:
            room.close()

    found = _found_twice(stored)
    if level == "deep":
        known = {(item.invariant, item.object) for item in found}
        found += [item for item in _found_twice(replayed) if (item.invariant, item.object) not in known]
    return found


def _found_twice(look: Callable[[], list[Finding]]) -> list[Finding]:
    found = look()
    again = {(item.invariant, item.object) for item in look()} if found else set()
    return [item for item in found if (item.invariant, item.object) in again]


def _damage(invariant: int, object: str, message: str, position: int = 0) -> Finding:
    return Finding(invariant, "damage", "", "", object, position, message)


def _warning(invariant: int, object: str, message: str) -> Finding:
    return Finding(invariant, "warning", "", "", object, 0, message)


def _of_damage(invariant: int, error: Damaged) -> Finding:
    return _damage(invariant, error.object, error.message, error.position)


def check_journal(streams: Streams, head: Head | None = None, memory: Head | None = None) -> Iterator[Finding]:
    """Check invariants 1 to 6, 11, 12, 25, 28 and 30 of protocol 4. Never raises ``Damaged``: damage is a finding.

    ``head``: where the metadata cache in use was before the call, ``memory``: that of an owner on this machine (invariant 12).
    """
    storage, names = streams.storage, streams.names
    lease = read_lease(storage, names)  # first: what it speaks of was there before
    top = find_last_claim(streams)
    if not storage.exists(names.format):
        yield _damage(25, names.format, "FORMAT is gone")
    slot0: dict[int, Opened | Sealed | None] = {}
    for epoch in range(1, top + 1):
        try:
            slot0[epoch] = streams.slot0(epoch)
        except Damaged as damage:
            yield _of_damage(2, damage)
            continue
        if slot0[epoch] is None and epoch < top:
            yield _warning(2, names.slot(epoch, 0), f"epoch {epoch} is neither opened nor void yet")
    yield from _check_claims(streams, slot0, top)
    newest = next((found for found in reversed(slot0.values()) if isinstance(found, Opened)), None)
    last = 0 if newest is None else newest.epoch
    if lease is not None and lease.epoch > last:
        yield _damage(5, names.lease, f"it names epoch {lease.epoch} as opened, but the newest is {last}")
    heads = {what: seen for what, seen in ((_CACHE, head), (_MEMORY, memory)) if seen is not None}
    for what, seen in heads.items():
        if seen.position.epoch > top:
            yield _damage(12, what, f"it is in epoch {seen.position.epoch}, but only {top} is claimed")
    if newest is None:
        return
    yield from _check_opens(streams, slot0, newest.epoch)
    yield from _check_records(streams, newest, heads, lease)
    yield from _check_snapshots(streams, newest)


def _check_claims(streams: Streams, slot0: dict[int, Opened | Sealed | None], top: int) -> Iterator[Finding]:
    for epoch in range(1, top + 1):
        name = streams.names.epoch(epoch)
        try:
            claim = read_claim(streams, epoch)
        except Damaged as damage:
            yield _of_damage(1, damage)
            continue
        if claim is None:
            yield _damage(1, name, f"the claim of epoch {epoch} is missing, though {top} is claimed")
        elif claim.epoch != epoch:
            yield _damage(1, name, f"this is the claim of epoch {claim.epoch}")
        elif isinstance(opened := slot0.get(epoch), Opened) and opened.payload.token != claim.token:
            yield _damage(28, opened.object, f"OPEN({epoch}) was not written by its claimant")


def _check_opens(streams: Streams, slot0: dict[int, Opened | Sealed | None], newest: int) -> Iterator[Finding]:
    """Invariants 3, 5 and 25: links between the OPENs of history, and the SEAL at each recorded end."""
    storage, names = streams.storage, streams.names
    epoch = newest
    while isinstance(opened := slot0.get(epoch), Opened):
        previous, epoch = opened.payload.previous_epoch, opened.payload.previous_epoch
        if previous and not isinstance(slot0.get(previous), Opened):
            yield _damage(3, opened.object, f"its predecessor {previous} never opened")
        for between in range(previous + 1, opened.epoch):
            if not isinstance(slot0.get(between), Sealed):
                yield _damage(3, opened.object, f"epoch {between}, before it, is not void")
        if not previous:
            continue
        end = opened.payload.end_index
        if streams.mode == "slot":
            try:
                record = streams.read_slot(previous, end)
                if record.header.kind != RecordKind.SEAL:
                    yield _damage(5, names.slot(previous, end), "not a SEAL where the stream ends")
            except ChunkNotFound:
                yield _damage(25, names.slot(previous, end), "the SEAL that ends the stream is missing")
            except Damaged as damage:
                yield _of_damage(5, damage)
        else:
            try:
                length = storage.stat(names.log(previous)).length
            except ChunkNotFound:
                continue  # collected, or never created
            if length < opened.payload.end_byte:
                message = f"{length} bytes are left of the {opened.payload.end_byte} that the next OPEN recorded"
                yield _damage(5, names.log(previous), message, length)


class _Walk:
    """What a walk along history compares each record with: the one before it, the heads of caches, and the lease."""

    def __init__(self, heads: Mapping[str, Head], lease: LeaseInfo | None) -> None:
        self._heads = heads
        self._lease = lease
        self._time_ms = 0

    def look_at(self, record: Record, name: str, position: int) -> Iterator[Finding]:
        header = record.header
        if header.time_ms < self._time_ms:
            message = f"lsn {header.lsn} is labelled {header.time_ms} ms, a record before it {self._time_ms}"
            yield _damage(30, name, message, position)
        self._time_ms = max(self._time_ms, header.time_ms)
        for what, head in self._heads.items():
            if header.lsn == head.position.lsn and record.hash != head.position.hash:
                yield _damage(12, what, f"it holds another lsn {header.lsn} than history")

    def end(self, streams: Streams, end: Position) -> Iterator[Finding]:
        if self._time_ms > runtime.now_ms() + FUTURE_MS:
            message = f"lsn {end.lsn} has the time {moment_text(self._time_ms)}, after now: a clock is or was wrong; name moments by lsn"
            yield _warning(30, streams.names.epoch(end.epoch), message)
        for what, head in self._heads.items():
            if head.position.lsn > end.lsn:
                yield _damage(12, what, f"it is at lsn {head.position.lsn}, but history ends at {end.lsn}")
        if self._lease is not None and contradicts(self._lease, end):
            what = missing(end, self._lease.lsn)
            message = f"epoch {end.epoch} was closed at lsn {self._lease.lsn} according to the lease: {what}"
            yield _damage(5, streams.object_of(end.epoch, end.index), message, end.end)


def _check_records(
    streams: Streams, newest: Opened, heads: Mapping[str, Head], lease: LeaseInfo | None
) -> Iterator[Finding]:
    """Invariants 4 to 6, 12 and 30: indexes, ends, lsns, hashes and labels of time over everything that is still stored."""
    gone_max = collected_max(streams, newest)
    walk = _Walk(heads, lease)
    end = GENESIS
    try:
        for leg in legs_of_history(streams, newest.epoch):
            opened = leg.opened
            before = opened.before_embedded
            if opened.founded_on is not None:
                end = opened.previous_end
            if (before.lsn, before.hash) != (end.lsn, end.hash):
                yield _damage(6, opened.object, f"it continues from lsn {before.lsn}, history is at {end.lsn}")
            try:
                kept_from = first_kept(streams, leg)
                if kept_from.index > 1 and kept_from.lsn > gone_max:
                    message = f"records up to lsn {kept_from.lsn} are missing, but no snapshot is after {gone_max}"
                    yield _damage(4, streams.names.stream(opened.epoch), message)
                holes: list[str] = []
                for record, _, name, position in stored_records(streams, leg, gone_max, holes):
                    yield from walk.look_at(record, name, position)
                for name in holes:
                    yield _warning(4, name, "missing, though an earlier record exists; a snapshot replaces it")
            except Damaged as damage:
                yield _of_damage(6, damage)
            except ChunkNotFound as gone:
                yield _damage(4, gone.chunk, "a record inside history is missing")
            end = leg.end
        yield from walk.end(streams, end)
    except Damaged as damage:
        yield _of_damage(6, damage)


def _listed_snapshot(streams: Streams, lsn_max: int | None = None) -> StoredSnapshot | None:
    """The newest snapshot that a list shows and that can be read to its end, as an opener will find it, too."""
    for stored in reversed(list_snapshots(streams.storage, streams.names)):
        if lsn_max is None or stored.lsn <= lsn_max:
            with suppress(Damaged, ChunkNotFound):
                verify_snapshot(streams.storage, stored.name, container=streams.container)
                return stored
    return None


def _check_snapshots(streams: Streams, newest: Opened) -> Iterator[Finding]:
    """Invariant 11: the snapshots that are named can be read, and history is reachable from one of them or its beginning."""
    usable = 0
    for link in named_snapshots(streams, newest):
        try:
            reader = verify_snapshot(streams.storage, streams.snapshot(link), container=streams.container)
            if reader.header.link(link.name) != link:
                yield _damage(11, link.name, "the snapshot is not at its link's position")
                continue
            usable += 1
            holds = streams.holds(link.position) if link.index else None
            if holds is False:
                yield _damage(11, link.name, f"lsn {link.lsn} of history has another hash")
            elif holds is None and not streams.passes(visible_end(streams, newest), link.epoch, link.lsn):
                yield _damage(11, link.name, f"it is at lsn {link.lsn}, after its epoch's end in history")
        except ChunkNotFound:
            yield _warning(11, link.name, "a named snapshot is missing")
        except ChunkstoreError as error:
            yield _damage(11, link.name, error.message, getattr(error, "position", 0))
    try:
        reachable = bool(usable) or has_beginning(streams)
    except Damaged:
        return  # reported with invariant 2 or 6; where history begins is unknown
    if reachable:
        return
    listed = _listed_snapshot(streams)
    if listed is None:
        yield _damage(11, streams.names.snapshot_prefix(), "no usable snapshot, and lsn 1 was collected")
    else:
        yield _warning(11, listed.name, "no snapshot is named, and only a list shows this one; write another")


def check_pinned(streams: Streams, lsn: int) -> Iterator[Finding]:
    """Invariant 39, of the pin at ``lsn``, the lowest of all: a snapshot at or below it that can be read, or the beginning, and every
    record from there up to the pin. Raises ``StorageUnavailable``."""
    try:
        snapshot = _listed_snapshot(streams, lsn)
        if snapshot is None and not has_beginning(streams):
            text = (
                f"lsn {lsn} is pinned, and neither a snapshot at or below it nor the beginning of history can be read"
            )
            yield _damage(PINNED, streams.names.snapshot_prefix(), text)
            return
        start = 0 if snapshot is None else snapshot.lsn
        for leg in legs_of_history(streams, find_last_claim(streams)):
            if (
                leg.end.lsn > start
                and leg.opened.header.lsn <= lsn
                and (missing := _first_missing(streams, leg, start, lsn))
            ):
                text = f"lsn {lsn} is pinned, and records between lsn {start} and it are missing here"
                yield _damage(PINNED, missing, text)
    except Damaged as damage:
        yield _of_damage(PINNED, damage)


def _first_missing(streams: Streams, leg: Leg, start: int, stop: int) -> str:
    """The object that lacks a record of the stream, of those after lsn ``start`` and before ``stop``; empty: none."""
    if first_kept(streams, leg).lsn > max(start, leg.opened.header.lsn):
        return streams.names.stream(leg.opened.epoch)
    try:
        for record, *_ in stored_records(streams, leg, start, []):
            if record.header.lsn >= stop:
                break
    except ChunkNotFound as gone:
        return gone.chunk
    except ChunkstoreError:
        pass  # what cannot be read is reported with invariant 6
    return ""


def _check_places(streams: Streams, view: MetadataView) -> Iterator[Finding]:
    """Invariant 37: the extents of a state are in front of the cuts that the OPENs of its history have made."""
    cuts: _Cuts | None = None
    for identity in all_extents(view):
        row = decode_extent(view.get(chunk_key(identity)) or b"")
        place = None if row is None else parse_place(row[0])
        if row is None or place is None:
            continue
        cuts = cuts or _read_cuts(streams, view.head.position)
        (epoch, index), (name, offset, length, *_) = place, row
        if epoch not in cuts.epochs or index == 0:
            continue  # slot 0 is in front of every cut
        end_index, end_byte = cuts.ends.get(epoch, (0, 0))
        if index >= end_index if index is not None else offset + length > end_byte:
            what = f"an extent of {length} bytes, which is at or after the cut of its stream"
            yield _damage(CUTS, streams.names.place(name), what, offset)


class _Cuts(NamedTuple):
    epochs: range
    """What the streams of these epochs hold is judged: others have no cut yet, or it cannot be read."""
    ends: dict[int, tuple[int, int]]
    """The first index and byte that is not in history; a stream that is not here is no part of it."""


def _read_cuts(streams: Streams, at: Position) -> _Cuts:
    """What the OPENs say that are part of history up to ``at``."""
    ends: dict[int, tuple[int, int]] = {}
    epoch = newest = at.epoch
    with suppress(Damaged):
        while epoch:
            payload = streams.opened(epoch).payload
            if epoch == at.epoch and not at.index:
                newest = payload.previous_epoch  # the record that it embeds is, and itself is not
            else:
                ends[payload.previous_epoch] = payload.end_index, payload.end_byte
            epoch = payload.previous_epoch
    return _Cuts(range(epoch, newest), ends)
