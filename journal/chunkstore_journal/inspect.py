"""Looking at a journal without owning it: who owns it, what it says, whether it keeps its invariants (protocol 4).

Promises: reads only, claims nothing, believes nothing unchecked. Findings are plain tuples with the number of the
invariant. Records of the newest stream are shown as far as they are visible; the last one may still be undecided.
Leaves out: the invariants of metadata and chunks (fsck above).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.config import LIMITS
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, InvalidArgument
from chunkstore.journal import LeaseInfo, RecordKind
from chunkstore.metadata.port import Head, Position, RowChange
from chunkstore.records.arguments import moment_text
from chunkstore.records.invariants import FUTURE_MS
from chunkstore_journal.claim import read_latest
from chunkstore_journal.ends import contradicts, missing
from chunkstore_journal.extents import lines_of
from chunkstore_journal.history import ZERO_HASH, Opened, Sealed, StreamEnd, Streams
from chunkstore_journal.lease import read_lease
from chunkstore_journal.objects import Claim, decode_claim
from chunkstore_journal.payloads import SnapshotLink, blob_of, decode_ops
from chunkstore_journal.record import Record
from chunkstore_journal.slots import read_if_present
from chunkstore_journal.snapshot import list_snapshots, verify_snapshot
from chunkstore_journal.walk import (
    collected_max,
    find_last_claim,
    first_kept,
    has_beginning,
    legs_of_history,
    newest_opened,
    stored_records,
)

__all__ = ["Finding", "OwnerInfo", "RecordInfo", "check_journal", "describe_owner", "iter_records"]

_WORKERS = 16
_RANGES_SHOWN_MAX = 20
_CACHE = "metadata cache"
_MEMORY = "metadata cache of an owner on this machine"


Severity: TypeAlias = Literal["error", "warning"]


class OwnerInfo(NamedTuple):
    """``claimed_epoch``: the highest claim; ``opened_epoch``: the highest that opened (0: none yet), and ``claim`` is its."""

    claimed_epoch: int
    opened_epoch: int
    claim: Claim | None
    lease: LeaseInfo | None


class RecordInfo(NamedTuple):
    """One record of history. ``object`` and ``position`` say where its bytes are (an embedded one: in the OPEN, for ever).
    ``inline_bytes``: those of appends that it has taken along, spilled by now or not. Of lines ``ops`` counts; ``digest`` is 0 there."""

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
    inline_bytes: int


class Finding(NamedTuple):
    """A broken (``error``) or remarkable (``warning``) fact about invariant ``invariant``."""

    invariant: int
    severity: Severity
    object: str
    position: int
    message: str


def _claim(streams: Streams, epoch: int) -> Claim | None:
    name = streams.names.epoch(epoch)
    data = read_if_present(streams.storage, name, size_max=LIMITS.small_object_bytes_max)
    return None if data is None else decode_claim(data, object=name)


def describe_owner(streams: Streams) -> OwnerInfo:
    """What was claimed last, who opened last, and what the lease hint says. Raises ``Damaged``, ``StorageUnavailable``."""
    top = find_last_claim(streams)
    opened = newest_opened(streams, top)
    claim = _claim(streams, opened) if opened else None
    return OwnerInfo(top, opened, claim, read_lease(streams.storage, streams.names))


def _info(record: Record, *, embedded: bool, name: str, position: int) -> RecordInfo:
    header = record.header
    ops: Sequence[object] = ()
    rows: Sequence[RowChange] = ()
    inline_bytes = 0
    if header.kind not in (RecordKind.OPEN, RecordKind.SEAL):
        inline_bytes = len(blob_of(record.payload))
        lines = lines_of(record, header.at, object=name, position=position)
        if lines is None:
            ops, rows = decode_ops(record.payload, object=name, position=position)
        else:
            ops = lines.lines
    return RecordInfo(
        header.epoch, header.index, header.lsn, header.kind.name, header.time_ms, len(ops), len(rows), record.size,
        record.hash, header.digest, embedded, name, position, inline_bytes,
    )  # fmt: skip


def iter_records(streams: Streams, epoch: int | None = None) -> Iterator[RecordInfo]:
    """The records of history that are still stored, oldest first; only those of stream ``epoch`` where given.

    Raises: ``InvalidArgument`` where history has no stream ``epoch``, ``Damaged`` where it cannot be read, ``ChunkNotFound`` if
    a collector runs meanwhile.
    """
    pool = runtime.pool("journal-inspect", _WORKERS)
    try:
        gone_max: int | None = None
        others: list[int] = []
        for leg in legs_of_history(streams, find_last_claim(streams)):
            if epoch is not None and leg.opened.epoch != epoch:
                others.append(leg.opened.epoch)
                continue
            if gone_max is None:
                gone_max = collected_max(streams, newest_opened(streams))
            for record, embedded, name, position in stored_records(streams, leg, pool, gone_max, []):
                yield _info(record, embedded=embedded, name=name, position=position)
        if epoch is not None and gone_max is None:
            text = f"no records of epoch {epoch}: there are {_in_words(others)}"
            raise InvalidArgument(text, argument="epoch")
    finally:
        pool.close()


def _in_words(epochs: Sequence[int]) -> str:
    """Ascending epochs as ranges, only the newest of many."""
    ranges: list[tuple[int, int]] = []
    for epoch in epochs:
        first = ranges.pop()[0] if ranges and ranges[-1][1] == epoch - 1 else epoch
        ranges.append((first, epoch))
    shown = [f"{first} to {last}" if first < last else str(first) for first, last in ranges[-_RANGES_SHOWN_MAX:]]
    older = "older ones, " if len(ranges) > _RANGES_SHOWN_MAX else ""
    return f"those of {older}{', '.join(shown)}" if shown else "none at all"


def check_journal(streams: Streams, head: Head | None = None, memory: Head | None = None) -> Iterator[Finding]:
    """Check invariants 1 to 6, 11, 12, 25, 28 and 30 of protocol 4. Never raises ``Damaged``: damage is a finding.

    ``head``: where the metadata cache in use stood before the call, ``memory``: that of an owner on this machine (invariant 12).
    """
    storage, names = streams.storage, streams.names
    lease = read_lease(storage, names)  # first: what it speaks of was there before
    top = find_last_claim(streams)
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
    if lease is not None and lease.epoch > newest:
        yield Finding(5, "error", names.lease, 0, f"it names epoch {lease.epoch} as opened, but the newest is {newest}")
    heads = {what: seen for what, seen in ((_CACHE, head), (_MEMORY, memory)) if seen is not None}
    for what, seen in heads.items():
        if seen.position.epoch > top:
            message = f"it is in epoch {seen.position.epoch}, but only {top} is claimed"
            yield Finding(12, "error", what, 0, message)
    if not newest:
        return
    yield from _check_opens(streams, slot0, newest)
    yield from _check_records(streams, newest, heads, lease)
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


def _check_opens(streams: Streams, slot0: dict[int, Opened | Sealed | None], newest: int) -> Iterator[Finding]:
    """Invariants 3, 5 and 25: links between the OPENs of history, and the SEAL at each recorded end."""
    storage, names = streams.storage, streams.names
    epoch = newest
    while isinstance(opened := slot0.get(epoch), Opened):
        previous, epoch = opened.payload.previous_epoch, opened.payload.previous_epoch
        if previous and not isinstance(slot0.get(previous), Opened):
            yield Finding(3, "error", opened.object, 0, f"its predecessor {previous} never opened")
        for between in range(previous + 1, opened.epoch):
            if not isinstance(slot0.get(between), Sealed):
                yield Finding(3, "error", opened.object, 0, f"epoch {between}, before it, is not void")
        if not previous:
            continue
        end = opened.payload.end_index
        if streams.mode == "slot":
            try:
                record = streams.read_slot(previous, end)
                if record.header.kind != RecordKind.SEAL:
                    yield Finding(5, "error", names.slot(previous, end), 0, "not a SEAL where the stream ends")
            except ChunkNotFound:
                yield Finding(25, "error", names.slot(previous, end), 0, "the SEAL that ends the stream is missing")
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
            yield Finding(30, "error", name, position, message)
        self._time_ms = max(self._time_ms, header.time_ms)
        for what, head in self._heads.items():
            if header.lsn == head.position.lsn and record.hash != head.position.hash:
                yield Finding(12, "error", what, 0, f"it holds another lsn {header.lsn} than history")

    def end(self, streams: Streams, epoch: int, end: StreamEnd) -> Iterator[Finding]:
        if self._time_ms > runtime.now_ms() + FUTURE_MS:
            message = f"lsn {end.lsn} has the time {moment_text(self._time_ms)}, after now: a clock is or was wrong; name moments by lsn"
            yield Finding(30, "warning", streams.names.epoch(epoch), 0, message)
        for what, head in self._heads.items():
            if head.position.lsn > end.lsn:
                message = f"it is at lsn {head.position.lsn}, but history ends at {end.lsn}"
                yield Finding(12, "error", what, 0, message)
        last = Position(end.lsn, end.hash, epoch, end.index, end.byte)
        if self._lease is not None and contradicts(self._lease, last):
            name = streams.names.log(epoch) if streams.mode == "append" else streams.names.slot(epoch, end.index)
            message = f"epoch {epoch} was closed at lsn {self._lease.lsn} according to the lease: {missing(last, self._lease.lsn)}"
            yield Finding(5, "error", name, end.byte, message)


def _check_records(
    streams: Streams, newest: int, heads: Mapping[str, Head], lease: LeaseInfo | None
) -> Iterator[Finding]:
    """Invariants 4 to 6, 12 and 30: indexes, ends, lsns, hashes and labels of time over everything that is still stored."""
    pool = runtime.pool("journal-inspect", _WORKERS)
    gone_max = collected_max(streams, newest)
    walk = _Walk(heads, lease)
    epoch, end = 0, StreamEnd(0, 0, 0, ZERO_HASH)
    try:
        for leg in legs_of_history(streams, newest):
            opened = leg.opened
            before = opened.before_embedded
            if opened.founded_on is not None:
                end = opened.previous_end
            if (before.lsn, before.hash) != (end.lsn, end.hash):
                yield Finding(
                    6, "error", opened.object, 0, f"it continues from lsn {before.lsn}, history is at {end.lsn}"
                )
            try:
                kept_from = first_kept(streams, leg)
                if kept_from.index > 1 and kept_from.lsn > gone_max:
                    message = f"records up to lsn {kept_from.lsn} are missing, but no snapshot is after {gone_max}"
                    yield Finding(4, "error", streams.names.stream(opened.epoch), 0, message)
                holes: list[str] = []
                for record, _, name, position in stored_records(streams, leg, pool, gone_max, holes):
                    yield from walk.look_at(record, name, position)
                for name in holes:
                    yield Finding(
                        4, "warning", name, 0, "missing, though an earlier record exists; a snapshot replaces it"
                    )
            except Damaged as damage:
                yield Finding(6, "error", damage.object, damage.position, damage.message)
            except ChunkNotFound as missing:
                yield Finding(4, "error", missing.chunk, 0, "a record inside history is missing")
            epoch, end = opened.epoch, leg.end
        yield from walk.end(streams, epoch, end)
    except Damaged as damage:
        yield Finding(6, "error", damage.object, damage.position, damage.message)
    finally:
        pool.close()


def _listed_snapshot(streams: Streams) -> str | None:
    """A snapshot that only a list shows and that can be read to its end, as an opener will find it, too."""
    for stored in reversed(list_snapshots(streams.storage, streams.names)):
        with suppress(ChunkstoreError):
            verify_snapshot(streams.storage, stored.name, container=streams.container)
            return stored.name
    return None


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
            reader = verify_snapshot(streams.storage, streams.snapshot(link), container=streams.container)
            if reader.header.link(link.name) != link:
                yield Finding(11, "error", link.name, 0, "the snapshot is not at its link's position")
                continue
            usable += 1
            holds = (
                streams.holds(Position(link.lsn, link.hash, link.epoch, link.index, link.end)) if link.index else None
            )
            if holds is False:
                yield Finding(11, "error", link.name, 0, f"lsn {link.lsn} of history has another hash")
            elif holds is None and _is_beyond(streams, link):
                yield Finding(11, "error", link.name, 0, f"it is at lsn {link.lsn}, after its epoch's end in history")
        except ChunkNotFound:
            yield Finding(11, "warning", link.name, 0, "a named snapshot is missing")
        except ChunkstoreError as error:
            yield Finding(11, "error", link.name, getattr(error, "position", 0), error.message)
    try:
        reachable = bool(usable) or has_beginning(streams)
    except Damaged:
        return  # reported with invariant 2 or 6; where history begins is unknown
    if not reachable:
        listed = _listed_snapshot(streams)
        if listed is None:
            yield Finding(
                11, "error", streams.names.snapshot_prefix(), 0, "no usable snapshot, and lsn 1 was collected"
            )
        else:
            yield Finding(
                11, "warning", listed, 0, "no snapshot is named, and only a list shows this one; write another"
            )


def _is_beyond(streams: Streams, link: SnapshotLink) -> bool:
    """Whether a snapshot follows the point where history leaves the snapshot's stream."""
    legs = [*legs_of_history(streams, find_last_claim(streams))]
    for leg, following in zip(legs, [*legs[1:], None], strict=True):
        if leg.opened.epoch == link.epoch:
            adopted = following.opened.before_open if following is not None else None
            return link.index > leg.end.index and (adopted is None or (link.lsn, link.hash) != adopted[:2])
    return False
