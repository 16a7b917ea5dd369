"""Going back to a moment of the past in place: the container goes on behind it, and what came later is history no more.

Promises: what would be lost, and what of the moment is gone, is told before anything happens; one OPEN makes the moment the present, or
nothing changes. Leaves out: which chunks have to be copied (``operations.bring_back``), the take-over (``target``), copies of the container
(``restore``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import Final, NamedTuple, NoReturn

from chunkstore import parts, runtime
from chunkstore.arguments import check_flags
from chunkstore.assembly import open_replica_on
from chunkstore.backup.sources import Moment, lsn_of_pin
from chunkstore.backup.survey import MissingChunk
from chunkstore.backup.target import open_rewound
from chunkstore.config import Settings
from chunkstore.errors import ChunkNotFound, ChunksMissing, ChunkstoreError, InvalidArgument, Unsupported
from chunkstore.metadata.codec import decode_segment, decode_session
from chunkstore.metadata.keys import PIN, SEGMENT, SESSION, TABLE, WRITERS_NAMESPACE, table_prefix
from chunkstore.metadata.port import MetadataCache, MetadataView, Op, RowChange
from chunkstore.metadata.roots import find_root
from chunkstore.names import BackupNames, ContainerNames
from chunkstore.operations.bring_back import Removed, bring_back, plan_open, removed_chunks, require_whole, where_stored
from chunkstore.operations.exactly_once import decode_writer_row
from chunkstore.registry import routed
from chunkstore.storage import ChunkStorage

__all__ = ["InPlaceReport", "SegmentChange", "WriterChange", "restore_in_place"]

_NAMED_MAX: Final = 1_000
_STATS_AT_ONCE: Final = 256


class SegmentChange(NamedTuple):
    """A segment that was another one at the moment: its readable range ``[start, length)`` now and then; None where it is not there."""

    segment: str
    start: int | None
    length: int | None
    then_start: int | None
    then_length: int | None


class WriterChange(NamedTuple):
    """An exactly-once writer whose last event number goes back, as that of a sink: the number now and then; None where it is not known."""

    segment: str
    writer_id: bytes
    event_number: int | None
    then_event_number: int | None


class InPlaceReport(NamedTuple):
    """What going back to the record ``lsn`` in place does, or as a dry run would.

    The records behind it, up to ``last_lsn``, are cut off. ``epoch``: of the container since then; 0: nothing has changed, because it was a
    dry run or there is nothing to cut off. ``copied_chunks`` were removed behind the moment and come back as copies. ``segments``,
    ``writers`` and ``rows`` (of tables: namespace and key) are not then what they are now: the first thousand of each. ``sessions``: of
    writers outside the owner, which end: holders. ``pins``: placed behind the moment, and gone; ``pins_given_up``: given up behind it,
    and not back. ``missing``: of a dry run, the first thousand of the removed chunks that are gone (``missing_chunks``: all).
    """

    container: str
    lsn: int
    last_lsn: int
    dry_run: bool
    epoch: int = 0
    copied_chunks: int = 0
    copied_bytes: int = 0
    segments: tuple[SegmentChange, ...] = ()
    writers: tuple[WriterChange, ...] = ()
    rows: tuple[tuple[str, bytes], ...] = ()
    sessions: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    pins_given_up: tuple[str, ...] = ()
    missing: tuple[MissingChunk, ...] = ()
    missing_chunks: int = 0


def restore_in_place(
    root: str | ChunkStorage,
    *,
    lsn: int | None = None,
    time: datetime | int | None = None,
    snapshot: str | None = None,
    container: str = "default",
    settings: Settings | None = None,
    wait_s: float = 0,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
    caches: Callable[[str], MetadataCache] | None = None,
) -> InPlaceReport:
    """Make a moment of the past the present of the container again: **what was acknowledged behind it is lost**.

    The moment: ``lsn``, ``time`` (both as in ``open_replica``), or ``snapshot``, the name of a pin. Segments, tables, retention policies
    and the last events of exactly-once writers are then as they were; sessions of writers outside the owner end, and pins that were given
    up since stay so. Chunks that were removed behind the moment are copied, for a former owner may still delete them; the rest stays where
    it lies. ``wait_s``: as in ``open``; whoever owns the container is fenced, replicas and caches start again from the new history.
    ``dry_run``: only look. ``progress``: told the bytes of copies. ``root`` may be a storage of the caller's own, which stays open;
    ``caches`` makes its own metadata caches, by role.

    Atomic: history goes back and on with one record, or nothing has changed but the epoch. Durable.

    Raises ``InvalidArgument`` (the moment), before anything is claimed ``ChunksMissing`` (afterwards, too, where a live owner's collection
    was faster), ``PastCollected``, ``Unsupported`` (too much was removed for one record, or no container can go on from that moment:
    restore into another root), ``Conflict`` (meanwhile somebody else went back), ``Damaged``, ``ContainerNotFound``, ``ContainerBusy``,
    ``NotOwner``, ``StorageFull``, ``StorageUnavailable``, ``DeadlineExceeded``. Retry: the last three may have gone back: look at the epoch
    first, for whatever was written since would be lost, too.
    """
    chosen, names = parts.checked_settings(settings), ContainerNames(container)
    Moment(lsn, time, snapshot).check()
    check_flags(dry_run=dry_run)
    if lsn is None and time is None and snapshot is None:
        raise InvalidArgument("name the moment to go back to: lsn, time or snapshot", argument="lsn")

    def cache(role: str) -> MetadataCache | None:
        return None if caches is None else caches(role)

    with parts.storage_of(root, chosen) as storage:
        work = _Work(storage, names, chosen, progress or (lambda _: None))
        with open_replica_on(storage, container=names.container, settings=chosen, cache=cache("replica")) as present:
            if isinstance(present.read_context.names, BackupNames):
                raise Unsupported("backups lie here: restore one into another root", feature="backup")
            if snapshot is not None:
                lsn = lsn_of_pin(present, snapshot)
            with open_replica_on(
                storage, container=names.container, settings=chosen, cache=cache("past"), at_lsn=lsn, at_time=time
            ) as past:
                moment = past.look(lambda view: view.head).position
                present.refresh()
                report = past.look(lambda then: present.look(lambda now: work.look(then, now)))
        if dry_run or report.last_lsn == moment.lsn:
            return report._replace(dry_run=dry_run)
        if report.missing:
            _refuse(report.missing, report.missing_chunks, report.copied_chunks)
        with open_rewound(
            storage,
            container=names.container,
            lsn=moment.lsn,
            hash=moment.hash,
            amend=work.amend,
            settings=chosen,
            wait_s=wait_s,
            cache=cache("owner"),
        ) as store:
            assert work.report is not None
            report = work.report._replace(dry_run=False, epoch=store.epoch)
            # What others may start from lies behind the moment; and LATEST names none that was cut off.
            with suppress(ChunkstoreError):
                store.snapshot()
        return report


class _Work:
    """What is done with the two states: before the claim, to look, and behind it."""

    def __init__(
        self, storage: ChunkStorage, names: ContainerNames, settings: Settings, progress: Callable[[int], object]
    ) -> None:
        self._storage = storage
        self._names = names
        self._settings = settings
        self._progress = progress
        self.report: InPlaceReport | None = None

    def look(self, then: MetadataView, now: MetadataView) -> InPlaceReport:
        """Before the claim: what would be done, and what is missing."""
        require_whole(then)
        removed = removed_chunks(then, now, self._names)
        plan_open(then, now, removed, now.head.position.epoch + 1)
        pool = runtime.pool("chunkstore-survey", 16)
        missing: list[MissingChunk] = []
        door, close_roots = routed(self._storage, self._names, self._settings, partial(find_root, then))
        try:
            for first in range(0, len(removed), _STATS_AT_ONCE):
                calls = [partial(self._stat, door, item) for item in removed[first : first + _STATS_AT_ONCE]]
                missing += [item for item in pool.run_all(calls) if item is not None]
        finally:
            pool.close()
            close_roots()
        report = self._describe(then, now, removed)
        return report._replace(missing=tuple(missing[:_NAMED_MAX]), missing_chunks=len(missing))

    def amend(self, then: MetadataView, now: MetadataView, epoch: int) -> tuple[Sequence[Op], Sequence[RowChange]]:
        """Behind the claim: the copies, and what OPEN says."""
        removed = removed_chunks(then, now, self._names)
        self.report = self._describe(then, now, removed)

        def missing(gone: Sequence[Removed]) -> NoReturn:
            found = tuple(self._missing(item, "absent") for item in gone)
            _refuse(found, len(found), len(removed))

        door, close_roots = routed(self._storage, self._names, self._settings, partial(find_root, then))
        try:
            return bring_back(
                door,
                self._names,
                then,
                now,
                removed,
                epoch,
                deadline_s=self._settings.op_deadline_s,
                workers=self._settings.io_workers,
                progress=self._progress,
                missing=missing,
            )
        finally:
            close_roots()

    def _stat(self, door: ChunkStorage, item: Removed) -> MissingChunk | None:
        try:
            name, begin = where_stored(self._names, item)
            length = door.stat(name).length - begin
        except ChunkNotFound:
            return self._missing(item, "absent")
        wanted = item.record.length
        return None if length >= wanted else self._missing(item, f"{length} of {wanted} bytes")

    def _missing(self, item: Removed, reason: str) -> MissingChunk:
        name, stop = self._names.object_of(item.identity, item.record), item.offset + item.record.length
        return MissingChunk(item.segment.name, name, item.offset, stop, reason)

    def _describe(self, then: MetadataView, now: MetadataView, removed: Sequence[Removed]) -> InPlaceReport:
        segments = (_segment_change(*item) for item in _differing(then, now, SEGMENT))
        tables = (found for found in map(_user_row, _differing(then, now, TABLE)) if found is not None)
        pins = [(key[1:].decode(), old, new) for key, old, new in _differing(then, now, PIN)]
        return InPlaceReport(
            self._names.container,
            then.head.position.lsn,
            now.head.position.lsn,
            dry_run=True,
            copied_chunks=len(removed),
            copied_bytes=sum(item.record.length for item in removed),
            segments=tuple(islice(segments, _NAMED_MAX)),
            writers=_writers(then, now),
            rows=tuple(islice(tables, _NAMED_MAX)),
            sessions=tuple(sorted({*_holders(then), *_holders(now)})),
            pins=tuple(name for name, _, new in pins if new is not None),
            pins_given_up=tuple(name for name, _, new in pins if new is None),
        )


def _refuse(missing: Sequence[MissingChunk], count: int, chunks: int) -> NoReturn:
    raise ChunksMissing([item._asdict() for item in missing], count=count, chunks=chunks)


def _differing(
    then: MetadataView, now: MetadataView, prefix: bytes
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """The rows of a kind, or of a table, that are not the same in both: key, and the value in each."""
    stop = prefix[:-1] + bytes((prefix[-1] + 1,))
    both = merge(
        ((key, 0, raw) for key, raw in then.scan(prefix, stop)), ((key, 1, raw) for key, raw in now.scan(prefix, stop))
    )
    for key, items in groupby(both, key=lambda item: item[0]):
        values: list[bytes | None] = [None, None]
        for _, side, raw in items:
            values[side] = raw
        if values[0] != values[1]:
            yield key, values[0], values[1]


def _segment_change(key: bytes, old: bytes | None, new: bytes | None) -> SegmentChange:
    then = None if old is None else decode_segment(key, old)
    now = None if new is None else decode_segment(key, new)
    return SegmentChange(
        key[1:].decode(),
        None if now is None else now.start_offset,
        None if now is None else now.length,
        None if then is None else then.start_offset,
        None if then is None else then.length,
    )


def _user_row(item: tuple[bytes, bytes | None, bytes | None]) -> tuple[str, bytes] | None:
    key = item[0]
    namespace = key[2 : 2 + key[1]].decode()
    return None if namespace.startswith("!") else (namespace, key[2 + key[1] :])


def _writers(then: MetadataView, now: MetadataView) -> tuple[WriterChange, ...]:
    changed = list(islice(_differing(then, now, table_prefix(WRITERS_NAMESPACE)), _NAMED_MAX))
    if not changed:
        return ()
    names: dict[int, str] = {}
    for view in (then, now):
        for key, raw in view.scan(SEGMENT, bytes((SEGMENT[0] + 1,))):
            segment = decode_segment(key, raw)
            names[segment.id] = segment.name
    skip = len(table_prefix(WRITERS_NAMESPACE))

    def number(name: str, raw: bytes | None) -> int | None:
        return None if raw is None else decode_writer_row(name, raw)[0]

    found = []
    for key, old, new in changed:
        name = names.get(int.from_bytes(key[skip : skip + 8], "big"), "")
        found.append(WriterChange(name, key[skip + 8 :], number(name, new), number(name, old)))
    return tuple(found)


def _holders(view: MetadataView) -> Iterator[str]:
    for key, raw in view.scan(SESSION, bytes((SESSION[0] + 1,))):
        yield decode_session(key, raw).holder
