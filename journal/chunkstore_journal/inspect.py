"""Looking at a journal without owning it: who owns it, what it says, whether it keeps its invariants (protocol 4).

Promises: reads only, claims nothing, believes nothing unchecked. Findings are plain tuples with the number of the
invariant. Records of the newest stream are shown as far as they are visible; the last one may still be undecided.
Leaves out: the invariants of metadata and chunks (fsck above), repair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from chunkstore import runtime
from chunkstore.config import LIMITS
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged
from chunkstore.journal import LeaseInfo, RecordKind
from chunkstore.metadata.port import Op, Position, RowChange
from chunkstore_journal.append_stream import judge_tail
from chunkstore_journal.claim import find_top, read_latest, read_voided
from chunkstore_journal.history import ZERO_HASH, Leg, Opened, Sealed, StreamEnd, Streams, check_link
from chunkstore_journal.lease import read_lease
from chunkstore_journal.objects import Claim, decode_claim
from chunkstore_journal.payloads import FLAG_RESTORE, SnapshotLink, decode_ops
from chunkstore_journal.record import Record
from chunkstore_journal.recovery import Mismatch, records_of_leg
from chunkstore_journal.slots import read_if_present
from chunkstore_journal.snapshot import read_snapshot

__all__ = ["Finding", "OwnerInfo", "RecordInfo", "check_journal", "describe_owner", "iter_records"]

_WORKERS = 16


class OwnerInfo(NamedTuple):
    """``claimed_epoch``: the highest claim; ``opened_epoch``: the highest that opened (0: none yet)."""

    claimed_epoch: int
    opened_epoch: int
    claim: Claim | None
    lease: LeaseInfo | None


class RecordInfo(NamedTuple):
    """One record of history. ``object`` and ``position`` say where its bytes are (an embedded one: in the OPEN)."""

    epoch: int
    index: int  # type: ignore[assignment]
    lsn: int
    kind: str
    time_ms: int
    ops: int
    rows: int
    size: int
    hash: bytes
    digest: int
    embedded: bool
    object: str
    position: int


class Finding(NamedTuple):
    """A broken (``error``) or remarkable (``warning``) fact about invariant ``invariant``."""

    invariant: int
    severity: Literal["error", "warning"]
    object: str
    position: int
    message: str


def _top(streams: Streams) -> int:
    latest = read_latest(streams.storage, streams.names)
    voided = read_voided(streams.storage, streams.names)
    hint = max(latest.epoch if latest is not None else 0, voided.epoch if voided is not None else 0)
    return find_top(streams.storage, streams.names, hint)


def _claim(streams: Streams, epoch: int) -> Claim | None:
    name = streams.names.epoch(epoch)
    data = read_if_present(streams.storage, name, size_max=LIMITS.small_object_bytes_max)
    return None if data is None else decode_claim(data, object=name)


def describe_owner(streams: Streams) -> OwnerInfo:
    """Who claimed last, who opened last, and what the lease hint says. Raises ``Damaged``, ``StorageUnavailable``."""
    top = _top(streams)
    opened = top
    while opened and not isinstance(streams.slot0(opened), Opened):
        opened -= 1
    claim = _claim(streams, opened) if opened else None
    return OwnerInfo(top, opened, claim, read_lease(streams.storage, streams.names))


def _legs(streams: Streams, top: int) -> Iterator[Leg]:
    """All streams of H that opened, oldest first; the end of the newest is where its visible records end."""
    following: Opened | None = None
    found: list[tuple[Opened, Opened | None]] = []
    epoch = top
    while epoch:
        slot0 = streams.slot0(epoch)
        if isinstance(slot0, Opened):
            found.append((slot0, following))
            following = slot0
            epoch = slot0.payload.previous_epoch
        else:
            epoch -= 1
    for opened, after in reversed(found):
        yield Leg(opened, after.previous_end if after is not None else _visible_end(streams, opened))


def _visible_end(streams: Streams, opened: Opened) -> StreamEnd:
    last = opened.position
    for _, position in _visible(streams, opened):
        last = position
    return StreamEnd(last.index, last.end, last.lsn, last.hash)


def _visible(streams: Streams, opened: Opened) -> Iterator[tuple[Record, Position]]:
    """What can be seen of a stream that no OPEN has ended. Raises ``Damaged`` for broken links and damage in the middle."""
    epoch, last = opened.epoch, opened.position
    if streams.mode == "append":
        name = streams.names.log(epoch)
        reader = streams.log_reader(epoch, 0)
        try:
            for record in reader:
                check_link(record, last, object=name, position=last.end)
                last = Position(record.header.lsn, record.hash, epoch, last.index + 1, reader.offset)
                yield record, last
            if reader.ended == "tail":
                judge_tail(streams, opened, last, reader.tail_bytes, reader.reason)
        except ChunkNotFound:
            return
        return
    pool = runtime.pool("journal-inspect", _WORKERS)
    try:
        for record in streams.read_slots(epoch, 1, None, pool):
            check_link(record, last, object=streams.names.slot(epoch, last.index), position=0)
            last = Position(record.header.lsn, record.hash, epoch, last.index + 1, 0)
            yield record, last
    finally:
        pool.close()


def _info(record: Record, *, embedded: bool, name: str, position: int) -> RecordInfo:
    header = record.header
    ops: Sequence[Op] = ()
    rows: Sequence[RowChange] = ()
    if header.kind not in (RecordKind.OPEN, RecordKind.SEAL):
        ops, rows = decode_ops(record.payload, object=name, position=position)
    return RecordInfo(
        header.epoch, header.index, header.lsn, header.kind.name, header.time_ms, len(ops), len(rows), record.size,
        record.hash, header.digest, embedded, name, position,
    )  # fmt: skip


def _records_of(streams: Streams, leg: Leg, pool: runtime.Pool) -> Iterator[tuple[Record, bool, str, int]]:
    """(record, embedded, object, byte) of one leg, its OPEN first. Collected records are left out."""
    opened = leg.opened
    if opened.embedded is not None:
        yield opened.embedded, True, opened.object, 0
    yield streams.read_slot(opened.epoch, 0), False, opened.object, 0
    start = _first_kept(streams, leg)
    at = start.end
    for record, position in _from(streams, start, leg, pool):
        append = streams.mode == "append"
        name = streams.names.log(opened.epoch) if append else streams.names.slot(opened.epoch, record.header.index)
        yield record, False, name, at
        at = position.end


def _from(streams: Streams, start: Position, leg: Leg, pool: runtime.Pool) -> Iterator[tuple[Record, Position]]:
    try:
        yield from records_of_leg(streams, start, leg, pool)
    except Mismatch as mismatch:
        raise Damaged(str(mismatch), object=leg.opened.object) from mismatch


def _holds_record(streams: Streams, epoch: int, index: int) -> bool:
    """Whether the slot is still there. A SEAL below the stream's end is a doomed claimant's, in a hole."""
    try:
        return streams.read_slot(epoch, index).header.kind != RecordKind.SEAL
    except ChunkNotFound:
        return False
    except Damaged:
        return True  # it is there; whoever reads the stream says what is wrong with it


def _first_kept(streams: Streams, leg: Leg) -> Position:
    """Where the uncollected rest of a stream begins: collection eats slots from the front, and logs whole."""
    opened, end = leg.opened, leg.end
    nothing_left = Position(end.lsn, end.hash, opened.epoch, end.index, end.byte)
    if end.index <= 1:
        return nothing_left
    if streams.mode == "append":
        return opened.position if streams.storage.exists(streams.names.log(opened.epoch)) else nothing_left
    if _holds_record(streams, opened.epoch, 1):
        return opened.position
    low, high = 2, end.index
    while low < high:
        middle = (low + high) // 2
        if _holds_record(streams, opened.epoch, middle):
            high = middle
        else:
            low = middle + 1
    if low >= end.index:
        return nothing_left
    record = streams.read_slot(opened.epoch, low)
    return Position(record.header.lsn - 1, record.header.previous_hash, opened.epoch, low, 0)


def iter_records(streams: Streams, epoch: int | None = None) -> Iterator[RecordInfo]:
    """The records of history that are still stored, oldest first; only those of stream ``epoch`` where given.

    Raises: ``Damaged`` where history cannot be read, ``ChunkNotFound`` if a collector runs meanwhile.
    """
    pool = runtime.pool("journal-inspect", _WORKERS)
    try:
        for leg in _legs(streams, _top(streams)):
            if epoch is not None and leg.opened.epoch != epoch:
                continue
            for record, embedded, name, position in _records_of(streams, leg, pool):
                yield _info(record, embedded=embedded, name=name, position=position)
    finally:
        pool.close()


def check_journal(streams: Streams) -> Iterator[Finding]:
    """Check invariants 1 to 6, 11, 25 and 28 of protocol 4. Never raises ``Damaged``: damage is a finding."""
    storage, names = streams.storage, streams.names
    top = _top(streams)
    if not storage.exists(names.format):
        yield Finding(25, "error", names.format, 0, "FORMAT is gone")
    yield from _check_claims(streams, top)
    slot0: dict[int, Opened | Sealed | None] = {}
    for epoch in range(1, top + 1):
        try:
            slot0[epoch] = streams.slot0(epoch)
        except Damaged as damage:
            yield Finding(2, "error", damage.object, damage.position, damage.message)
            continue
        if slot0[epoch] is None and epoch < top:
            yield Finding(2, "warning", names.slot(epoch, 0), 0, f"epoch {epoch} is neither opened nor void yet")
    newest = max((epoch for epoch, found in slot0.items() if isinstance(found, Opened)), default=0)
    if not newest:
        return
    yield from _check_opens(streams, slot0)
    yield from _check_records(streams, newest)
    yield from _check_snapshots(streams, newest)


def _check_claims(streams: Streams, top: int) -> Iterator[Finding]:
    names = streams.names
    for epoch in range(1, top + 1):
        name = names.epoch(epoch)
        try:
            claim = _claim(streams, epoch)
        except Damaged as damage:
            yield Finding(1, "error", name, damage.position, damage.message)
            continue
        if claim is None:
            yield Finding(1, "error", name, 0, f"the claim of epoch {epoch} is missing, though {top} is claimed")
        elif claim.epoch != epoch:
            yield Finding(1, "error", name, 0, f"this is the claim of epoch {claim.epoch}")
        else:
            yield from _check_token(streams, claim)


def _check_token(streams: Streams, claim: Claim) -> Iterator[Finding]:
    try:
        opened = streams.slot0(claim.epoch)
    except Damaged:
        return  # reported with invariant 2
    if isinstance(opened, Opened) and opened.payload.token != claim.token:
        yield Finding(28, "error", opened.object, 0, f"OPEN({claim.epoch}) was not written by its claimant")


def _check_opens(streams: Streams, slot0: dict[int, Opened | Sealed | None]) -> Iterator[Finding]:
    """Invariants 3, 5 and 25: links between OPENs, and the SEAL at each recorded end."""
    storage, names = streams.storage, streams.names
    for epoch, opened in slot0.items():
        if not isinstance(opened, Opened):
            continue
        previous = opened.payload.previous_epoch
        if previous and not isinstance(slot0.get(previous), Opened):
            yield Finding(3, "error", opened.object, 0, f"its predecessor {previous} never opened")
        for between in range(previous + 1, epoch):
            if not isinstance(slot0.get(between), Sealed):
                yield Finding(3, "error", opened.object, 0, f"epoch {between}, before it, is not void")
        if not previous or opened.payload.flags & FLAG_RESTORE:
            continue
        end = opened.payload.end_index
        if streams.mode == "slot":
            try:
                record = streams.read_slot(previous, end)
                if record.header.kind != RecordKind.SEAL:
                    yield Finding(5, "error", names.slot(previous, end), 0, "not a SEAL where the stream ends")
            except ChunkNotFound:
                yield Finding(25, "error", names.slot(previous, end), 0, "the SEAL that ends the stream is gone")
            except Damaged as damage:
                yield Finding(5, "error", damage.object, damage.position, damage.message)
        else:
            try:
                length = storage.stat(names.log(previous)).length
            except ChunkNotFound:
                continue  # collected, or never created
            if length < opened.payload.end_byte:
                message = f"{length} bytes are left of the {opened.payload.end_byte} that the next OPEN recorded"
                yield Finding(5, "error", names.log(previous), length, message)


def _named_snapshots(streams: Streams, newest: int) -> list[SnapshotLink]:
    latest = read_latest(streams.storage, streams.names)
    opened = streams.opened(newest)
    links = (latest.snapshot if latest is not None else None, opened.payload.snapshot)
    return list({link.name: link for link in links if link is not None}.values())


def _check_records(streams: Streams, newest: int) -> Iterator[Finding]:
    """Invariants 4 and 6: dense indexes, lsns and hashes over everything that is still stored."""
    pool = runtime.pool("journal-inspect", _WORKERS)
    collected_max = max((link.lsn for link in _named_snapshots(streams, newest)), default=0)
    lsn, identity = 0, ZERO_HASH
    try:
        for leg in _legs(streams, newest):
            opened = leg.opened
            before = opened.before_embedded
            if (before.lsn, before.hash) != (lsn, identity):
                yield Finding(6, "error", opened.object, 0, f"it continues from lsn {before.lsn}, history is at {lsn}")
            try:
                kept_from = _first_kept(streams, leg)
                if kept_from.index > 1 and kept_from.lsn > collected_max:
                    message = (
                        f"records up to lsn {kept_from.lsn} are gone, but no snapshot stands behind {collected_max}"
                    )
                    yield Finding(4, "error", streams.names.stream(opened.epoch), 0, message)
                for _ in _records_of(streams, leg, pool):
                    pass
            except Damaged as damage:
                yield Finding(6, "error", damage.object, damage.position, damage.message)
            except ChunkNotFound as missing:
                yield Finding(4, "error", missing.chunk, 0, "a record inside history is missing")
            lsn, identity = leg.end.lsn, leg.end.hash
    except Damaged as damage:
        yield Finding(6, "error", damage.object, damage.position, damage.message)
    finally:
        pool.close()


def _check_snapshots(streams: Streams, newest: int) -> Iterator[Finding]:
    """Invariant 11: the snapshots that are named can be read, and history is reachable from one of them or its beginning."""
    latest = read_latest(streams.storage, streams.names)
    opened = streams.opened(newest)
    links = {
        link.name: link for link in (latest.snapshot if latest else None, opened.payload.snapshot) if link is not None
    }
    usable = 0
    for link in links.values():
        try:
            reader = read_snapshot(streams.storage, link.name, container=streams.container)
            for _ in reader.blocks():
                pass
            if reader.header.link(link.name) != link:
                yield Finding(11, "error", link.name, 0, "the snapshot does not stand where its link says")
                continue
            usable += 1
            holds = (
                streams.holds(Position(link.lsn, link.hash, link.epoch, link.index, link.end)) if link.index else None
            )
            if holds is False:
                yield Finding(11, "error", link.name, 0, f"lsn {link.lsn} of history has another hash")
        except ChunkNotFound:
            yield Finding(11, "warning", link.name, 0, "a named snapshot is gone")
        except ChunkstoreError as error:
            yield Finding(11, "error", link.name, getattr(error, "position", 0), error.message)
    if not usable and not _has_beginning(streams):
        yield Finding(11, "error", streams.names.snapshot_prefix(), 0, "no usable snapshot, and lsn 1 was collected")


def _has_beginning(streams: Streams) -> bool:
    """Whether the first stream of history still has its records."""
    for leg in _legs(streams, _top(streams)):
        name = (
            streams.names.log(leg.opened.epoch) if streams.mode == "append" else streams.names.slot(leg.opened.epoch, 1)
        )
        return leg.end.index <= 1 or streams.storage.exists(name)
    return True
