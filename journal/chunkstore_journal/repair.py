"""What a repair finds in a journal that no replay accepts: the last good record, and what lies behind it (protocol 3.15).

Promises: reads only. The last good record ends the longest beginning of history that replays, record by record and digest by digest,
from the newest snapshot that can be read and lies on it, or from the beginning. A record of which nothing but bytes of appends is damaged
is good, if one behind it names its hash. What lies behind it is handed out record by record
where it can be read, whether or not it applies, and place by place where it cannot.
Leaves out: going on behind the last good record (``mend``); what can be kept of what lies behind it (``chunkstore.operations.regain``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Commit, MetadataCache, MetadataStore, Position
from chunkstore.storage import iter_listing
from chunkstore_journal.append_stream import judge_tail
from chunkstore_journal.claim import ClosedStream, read_latest
from chunkstore_journal.history import ZERO_HASH, Opened, StreamEnd, Streams, check_link
from chunkstore_journal.payloads import SnapshotLink, decode_note
from chunkstore_journal.record import Record, encode_record
from chunkstore_journal.recovery import Progress, commit_of, commits_of_open
from chunkstore_journal.snapshot import list_snapshots, load_snapshot, read_snapshot_header
from chunkstore_journal.spoilt import spoilt_record

__all__ = ["Diagnosis", "diagnose", "has_records", "list_slots", "streams_of"]

_BATCH_RECORDS = 256
_WORKERS = 16


class _Stretch(NamedTuple):
    """A stream, and where its successor cuts it; None: nothing that can be read says so."""

    opened: Opened
    end: StreamEnd | None


@dataclass(slots=True)
class Diagnosis:
    """``store`` stands at the last good record. ``cause`` is why history does not go on behind it; None: it does to its end.

    ``previous`` and ``closed``: the stream and the cut that an OPEN behind the last good record has to name. ``spoilt``: of good records,
    bytes of appends that are damaged.
    """

    store: MetadataStore
    cause: Damaged | None
    previous: Opened | None
    closed: ClosedStream
    snapshot: SnapshotLink | None
    progress: Progress
    damaged: frozenset[str]
    findings: tuple[str, ...]
    top: int
    spoilt: tuple[Damaged, ...]

    @property
    def damage(self) -> Damaged | None:
        """Why a replay does not get by, whether or not the history that it was to replay goes on behind it."""
        return self.cause or next(iter(self.spoilt), None)


def list_slots(streams: Streams, epoch: int) -> list[int]:
    """The indexes of a stream's slots that a LIST shows, ascending."""
    names = streams.names
    found = (names.parse_slot(info.name) for info in iter_listing(streams.storage, names.stream(epoch)))
    return sorted(slot[1] for slot in found if slot is not None)


def streams_of(streams: Streams, top: int) -> tuple[list[list[_Stretch]], list[Damaged]]:
    """The streams of history up to claim ``top``, oldest first, in groups that hang together; and what keeps them apart."""
    groups: list[list[_Stretch]] = [[]]
    breaks: list[Damaged] = []
    following: Opened | None = None
    epoch = top
    while epoch > 0:
        try:
            found = streams.slot0(epoch)
            if not isinstance(found, Opened) and (
                following is not None or (found is None and has_records(streams, epoch))
            ):
                raise Damaged("this stream was opened, but its OPEN is missing", object=streams.names.slot(epoch, 0))
        except Damaged as damage:
            breaks.append(damage)
            groups.append([])
            following = None
            epoch -= 1
            continue
        if isinstance(found, Opened):
            groups[-1].append(_Stretch(found, None if following is None else following.previous_end))
            following, epoch = found, found.payload.previous_epoch
        else:
            epoch -= 1
    return [group[::-1] for group in reversed(groups)], breaks


def has_records(streams: Streams, epoch: int) -> bool:
    """Whether a stream holds more than its slot 0, which is missing, a SEAL, or unreadable."""
    try:
        if streams.mode == "append":
            return streams.storage.stat(streams.names.log(epoch)).length > 0
    except ChunkNotFound:
        return False
    return any(list_slots(streams, epoch))  # but for slot 0


class _Applied(NamedTuple):
    """One commit to try: its record (None for an OPEN), and where history is cut if it is the last one that is good."""

    commit: Commit
    record: Record | None
    previous: Opened
    cut: StreamEnd
    object: str
    position: int


@dataclass(slots=True)
class _Replay:
    """Replays one group of streams as far as it goes."""

    streams: Streams
    store: MetadataStore
    pool: runtime.Pool
    progress: Progress = field(default_factory=Progress)
    last: _Applied | None = None
    cause: Damaged | None = None
    spoilt: list[Damaged] = field(default_factory=list)

    def run(self, group: Sequence[_Stretch]) -> None:
        batch: list[_Applied] = []
        try:
            for applied in self._commits(group):
                batch.append(applied)
                if len(batch) >= _BATCH_RECORDS:
                    self._apply(batch)
                    batch = []
        except Damaged as damage:
            self.cause = damage
        except ChunkNotFound as missing:
            self.cause = Damaged("a record of history is missing", object=missing.chunk)
        try:
            self._apply(batch)
        except Damaged as damage:
            self.cause = damage

    def _apply(self, batch: list[_Applied]) -> None:
        if not batch:
            return
        try:
            self._put(batch)
        except Damaged:
            if len(batch) == 1:
                last = batch[0]
                text = f"the record with lsn {last.commit.position.lsn} does not lead to the state that it names"
                raise Damaged(text, object=last.object, position=last.position) from None
            for applied in batch:
                self._apply([applied])

    def _put(self, batch: list[_Applied]) -> None:
        if not self.store.apply([applied.commit for applied in batch], verify=True):
            first = batch[0]
            text = f"the record with lsn {first.commit.position.lsn} does not follow the one before it"
            raise Damaged(text, object=first.object, position=first.position)
        self.last = batch[-1]
        for applied in batch:
            record = applied.record
            if record is None:
                self.progress.count(1, 0, applied.previous.header.time_ms)
                continue
            self.progress.count(1, record.size, record.header.time_ms)
            if record.header.kind == RecordKind.SNAPSHOT_NOTE:
                note = decode_note(record.header.kind, record.payload, object=applied.object, position=applied.position)
                if isinstance(note, SnapshotLink):
                    self.progress.notes.append(note)

    def _commits(self, group: Sequence[_Stretch]) -> Iterator[_Applied]:
        at = self.store.head().position
        before: Opened | None = None
        for opened, end in group:
            if end is None or end.lsn > at.lsn:
                if at.lsn < opened.header.lsn:
                    yield from self._opening(opened, before, at.lsn)
                    at = opened.position
                for applied in self._records(opened, at, end):
                    yield applied
                    at = applied.commit.position
            before = opened

    def _opening(self, opened: Opened, before: Opened | None, lsn: int) -> Iterator[_Applied]:
        commits = commits_of_open(opened, embedded=True)
        if len(commits) == 2 and lsn < commits[0].position.lsn:
            inner = opened.embedded
            assert inner is not None
            assert before is not None
            yield _Applied(commits[0], inner, before, opened.previous_end, opened.object, 0)
        at = opened.position
        yield _Applied(commits[-1], None, opened, StreamEnd(at.index, at.end, at.lsn, at.hash), opened.object, 0)

    def _records(self, opened: Opened, start: Position, end: StreamEnd | None) -> Iterator[_Applied]:
        streams, epoch = self.streams, opened.epoch
        append = streams.mode == "append"
        last = start
        for record, position in _readable(streams, opened, start, end, self.pool, self.spoilt):
            name = streams.names.log(epoch) if append else streams.names.slot(epoch, record.header.index)
            # In front of the record, which the next OPEN embeds, where streams are files; else behind it.
            cut = (
                StreamEnd(last.index, last.end, last.lsn, last.hash)
                if append
                else StreamEnd(position.index, 0, *position[:2])
            )
            commit = commit_of(record, position, object=name, at=last.end)
            yield _Applied(commit, record, opened, cut, name, last.end)
            last = position


_Found: TypeAlias = tuple[Record, str, int, Damaged | None]
"""A record, its object, the byte of the log behind it, and what is damaged of it."""


def _readable(
    streams: Streams,
    opened: Opened,
    start: Position,
    end: StreamEnd | None,
    pool: runtime.Pool,
    spoilt: list[Damaged],
) -> Iterator[tuple[Record, Position]]:
    """The records of a stream, up to ``end`` where it is known. Raises ``Damaged`` behind the last one that is good.

    Without ``end`` they may end as those of a dead owner do. Those of which bytes of appends are damaged come with what proves
    their hashes: the next one that is whole, or ``end``. ``spoilt`` gets what to say of them.
    """
    epoch, last = opened.epoch, start
    unproven: list[tuple[Record, Position]] = []
    damages: list[Damaged] = []
    for record, name, stop, damage in (
        _log(streams, opened, start, end) if streams.mode == "append" else _slots(streams, opened, start, end, pool)
    ):
        try:
            check_link(record, last, object=name, position=last.end)
        except Damaged:
            if damages:
                raise damages[0] from None
            raise
        last = Position(record.header.lsn, record.hash, epoch, last.index + 1, stop)
        unproven.append((record, last))
        if damage is None:
            spoilt += damages
            yield from unproven
            unproven, damages = [], []
        else:
            damages.append(damage)
    if damages:
        if end is None or (last.lsn, last.hash) != (end.lsn, end.hash):
            raise damages[0]
        spoilt += damages
        yield from unproven
    if end is not None and (last.lsn, last.hash) != (end.lsn, end.hash):
        raise Damaged(f"epoch {epoch} does not end as its successor recorded", object=opened.object, position=last.end)


def _log(streams: Streams, opened: Opened, start: Position, end: StreamEnd | None) -> Iterator[_Found]:
    name = streams.names.log(opened.epoch)
    last = start
    while True:
        reader = streams.log_reader(opened.epoch, last.end, None if end is None else end.byte)
        for record in reader:
            last = Position(record.header.lsn, record.hash, opened.epoch, last.index + 1, reader.offset)
            yield record, name, reader.offset, None
        found = spoilt_record(streams, name, reader.offset) if reader.ended == "tail" else None
        if found is None:
            break
        record, damage = found
        last = Position(record.header.lsn, record.hash, opened.epoch, last.index + 1, reader.offset + record.size)
        yield record, name, last.end, damage
    if end is None:
        judge_tail(streams, opened, last, reader.tail_bytes if reader.ended == "tail" else 0, reader.reason)
    elif reader.offset < end.byte:
        text = f"epoch {opened.epoch} was recorded to end at byte {end.byte}: {reader.reason or 'the rest is missing'}"
        raise Damaged(text, object=name, position=reader.offset)


def _slots(
    streams: Streams, opened: Opened, start: Position, end: StreamEnd | None, pool: runtime.Pool
) -> Iterator[_Found]:
    epoch = opened.epoch
    stop = max(list_slots(streams, epoch), default=0) + 1 if end is None else end.index
    for first in range(start.index, stop, _WORKERS):
        indexes = range(first, min(stop, first + _WORKERS))
        # One that cannot be read must not hide those before it, which were asked for at the same time.
        for index, found in zip(
            indexes, pool.run_all([partial(_slot, streams, epoch, i) for i in indexes]), strict=True
        ):
            if isinstance(found, Damaged):
                raise found
            record, damage = found
            if record.header.kind == RecordKind.SEAL and end is None and index == stop - 1:
                return
            yield record, streams.names.slot(epoch, index), 0, damage


def _slot(streams: Streams, epoch: int, index: int) -> tuple[Record, Damaged | None] | Damaged:
    name = streams.names.slot(epoch, index)
    try:
        return streams.read_slot(epoch, index), None
    except Damaged as damage:
        return spoilt_record(streams, name, None) or damage
    except ChunkNotFound:
        return Damaged("a record of history is missing", object=name)


def diagnose(streams: Streams, cache: MetadataCache, top: int) -> Diagnosis:
    """The last good record of the history that was claimed up to ``top``, materialised in a new store of ``cache``.

    Raises ``Damaged`` where there is nothing to go on from: no snapshot can be read, and the beginning was collected.
    """
    groups, breaks = streams_of(streams, top)
    findings: list[str] = []
    damaged: set[str] = set()
    pool = runtime.pool("journal-repair", _WORKERS)
    try:
        for link in [*_snapshots(streams, findings, damaged), None]:
            group = _group_of(groups, link)
            if group is None:
                continue
            store = cache.create()
            try:
                if link is not None:
                    load_snapshot(streams.storage, link.name, store, container=streams.container, expected=link)
                    _require_on_stream(streams, link)
            except (Damaged, ChunkNotFound) as error:
                findings.append(f"snapshot {link.name if link else ''} is of no use: {error.message}")
                damaged.add(link.name if link else "")
                cache.discard(store)
                continue
            replay = _Replay(streams, store, pool)
            replay.run(group)
            if (
                link is None
                and replay.last is not None
                and replay.last.record is None
                and _was_collected(streams, group)
            ):
                cache.discard(store)
                break
            cause = replay.cause
            if cause is None and group is not groups[-1]:
                cause = breaks[-1 - groups.index(group)]
            return Diagnosis(
                store,
                cause,
                *_cut(replay, streams, link),
                link,
                replay.progress,
                frozenset(damaged),
                tuple(findings),
                top,
                tuple(replay.spoilt),
            )
    finally:
        pool.close()
    raise Damaged(
        "no snapshot can be read, and the beginning of history was collected, so nothing can be repaired. Restore the storage",
        object=streams.names.snapshot_prefix(),
    )


def _snapshots(streams: Streams, findings: list[str], damaged: set[str]) -> Iterator[SnapshotLink]:
    """Every snapshot whose header can be read, newest first."""
    for stored in reversed(list_snapshots(streams.storage, streams.names)):
        if not stored.has_main:
            continue
        try:
            header = read_snapshot_header(streams.storage, stored.name, container=streams.container)
        except (Damaged, ChunkNotFound) as error:
            findings.append(f"snapshot {stored.name} is of no use: {error.message}")
            damaged.add(stored.name)
            continue
        yield header.link(stored.name)


def _group_of(groups: list[list[_Stretch]], link: SnapshotLink | None) -> list[_Stretch] | None:
    """The streams to replay from a snapshot, or from the beginning; None where it does not lie on them."""
    first = groups[0]
    if link is None or not link.lsn:
        begins = not first or not first[0].opened.payload.previous_epoch
        founded_on = first[0].opened.founded_on if first else None
        return first if begins and founded_on == link else None
    for group in groups:
        for opened, end in group:
            if opened.epoch == link.epoch and (end is None or link.index <= end.index + 1):
                return group
    return None


def _require_on_stream(streams: Streams, link: SnapshotLink) -> None:
    if not link.lsn:
        return  # the first OPEN names it
    place = Position(link.lsn, link.hash, link.epoch, link.index, link.end)
    if streams.holds(place) is False:
        raise Damaged("its position is not that of the journal", object=link.name)


def _was_collected(streams: Streams, group: Sequence[_Stretch]) -> bool:
    """Whether the first stream has lost its records from the front on, as a collector takes them: behind a snapshot."""
    (opened, end), names = group[0], streams.names
    first = names.log(opened.epoch) if streams.mode == "append" else names.slot(opened.epoch, 1)
    if end is None or end.index <= 1 or streams.storage.exists(first):
        return False
    named = any(opened.payload.snapshot is not None for opened, _ in group)
    return named or read_latest(streams.storage, streams.names) is not None


def _cut(replay: _Replay, streams: Streams, link: SnapshotLink | None) -> tuple[Opened | None, ClosedStream]:
    last = replay.last
    if last is None:
        if link is None or not link.lsn:
            return None, ClosedStream(StreamEnd(0, 0, 0, ZERO_HASH if link is None else link.hash))
        return streams.opened(link.epoch), ClosedStream(StreamEnd(link.index, link.end, link.lsn, link.hash))
    if last.record is None or streams.mode == "slot":
        return last.previous, ClosedStream(last.cut)
    data, identity = encode_record(last.record.header, last.record.payload)
    if identity != last.record.hash:
        # Nothing that follows it applies, and no OPEN may embed it.
        raise Damaged(
            "bytes of appends are damaged in the last good record", object=last.object, position=last.position
        )
    return last.previous, ClosedStream(last.cut, last.record, data)
