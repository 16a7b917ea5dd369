"""Materialising the state: a store is brought to a point of history by jumps and verified replay (protocol T4, 3.11, 3.12).

Promises
* Whatever a store holds at first, it ends at the asked point of H or is thrown away: every replayed record must follow the one before it
  by lsn and hash, and its state digest is recomputed. The digest of the next record proves a jump over streams that changed nothing.
* Never merges: a store that is not on H is discarded, and the next source is tried: cache, snapshots newest first,
  replay from the beginning where it still exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from chunkstore.errors import CacheDamaged, ChunkNotFound, Damaged, StorageFull
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Commit, Head, MetadataCache, MetadataStore, Position
from chunkstore_journal.claim import read_latest
from chunkstore_journal.extents import check_moved, extents_of, lines_of
from chunkstore_journal.history import Leg, Opened, Streams, position_after
from chunkstore_journal.payloads import SnapshotLink, decode_note, decode_ops
from chunkstore_journal.record import Record
from chunkstore_journal.snapshot import list_snapshots, load_snapshot
from chunkstore_journal.snapshot_reader import read_snapshot_header

__all__ = [
    "Materialised",
    "Mismatch",
    "NothingLeads",
    "Progress",
    "commit_of",
    "commits_of_open",
    "materialise",
    "records_between",
    "replay_to",
    "route",
]

_BATCH_RECORDS = 512
_BATCH_BYTES = 8 << 20
_RESTARTS_MAX = 5
_SOURCES = {"cache": "the local cache", "journal": "replay from the beginning"}
_RESTARTS_PAST_MAX = 2
"""What was collected of the past does not come back."""


Taken: TypeAlias = Callable[[Commit, bytes], None]
"""Takes note of a record of a stream that was applied, and of its payload."""


class Mismatch(Exception):
    """The store does not stand on this history; throw it away."""


class NothingLeads(Damaged):
    """No snapshot that is left leads to the asked point, and what is before it was collected. Nothing that was read is damaged."""


@dataclass(slots=True)
class Progress:
    """What replay did, and the snapshots that it met notes of."""

    records: int = 0
    bytes: int = 0
    time_ms: int = 0
    notes: list[SnapshotLink] = field(default_factory=list)

    def count(self, records: int, size_bytes: int, time_ms: int) -> None:
        """Some more records, the last of them with this label of time (labels never go backwards along history)."""
        self.records += records
        self.bytes += size_bytes
        self.time_ms = max(self.time_ms, time_ms)


class Materialised(NamedTuple):
    """A store at the asked point, and how it got there.

    ``snapshot``: where it began, if a note or an OPEN names it; ``damaged`` names snapshots that must not be relied on.
    """

    store: MetadataStore
    source: Literal["genesis", "cache", "snapshot", "journal"]
    progress: Progress
    snapshot: SnapshotLink | None
    damaged: frozenset[str]
    findings: tuple[str, ...]


class _Step(NamedTuple):
    """Jump (if any), apply the embedded record and the OPEN (if any), then records from ``start`` to the leg's end."""

    leg: Leg
    jump: Position | None
    embedded: bool
    opening: bool
    start: Position


def route(streams: Streams, head: Head, leg: Leg) -> list[_Step]:
    """The steps that lead from ``head`` to the end of ``leg``, oldest first. Raises ``Mismatch``, ``Damaged``."""
    at = head.position
    steps: list[_Step] = []
    while True:
        opened = leg.opened
        if at.lsn >= opened.header.lsn:
            steps.append(_inside(at, leg))
            break
        if (at.lsn, at.hash) == (opened.before_open.lsn, opened.before_open.hash):
            steps.append(_Step(leg, None, False, True, opened.position))
            break
        first = opened.before_embedded
        whole = _Step(leg, first, opened.embedded is not None, True, opened.position)
        if (at.lsn, at.hash) == (first.lsn, first.hash):
            steps.append(whole)
            break
        if head.digest == opened.header.digest and opened.is_quiet:
            # Equal digests are equal states, and this OPEN changes none: whatever is between changed nothing in sum.
            steps.append(_Step(leg, opened.position, False, False, opened.position))
            break
        base = opened.payload.base
        if base.lsn < at.lsn < first.lsn and base.epoch != opened.payload.previous_epoch:
            # Inside the streams that changed nothing in sum: that says what their ends have in common, not what is
            # between. Where the rows are not those, all of it has to be followed.
            previous = streams.opened(opened.payload.previous_epoch)
            if opened.is_quiet or head.digest != previous.header.digest:
                steps.append(whole)
                leg = Leg(previous, opened.previous_end)
                continue
        if at.lsn > base.lsn or (at.lsn, at.hash) == (base.lsn, base.hash) or (base.epoch == 0 and head.digest == 0):
            # Nothing between base and this OPEN changed a row. Should ``at`` not be on H after all, the digest of the
            # next record that is applied says so.
            if at.lsn > first.lsn or opened.is_quiet:
                raise Mismatch(f"its state at lsn {at.lsn} is not that of history")
            steps.append(whole)
            break
        if at.lsn == base.lsn or base.epoch == 0:
            raise Mismatch(f"its record with lsn {at.lsn} is not that of history")
        steps.append(whole)
        leg = Leg(streams.opened(base.epoch), base)
    steps.reverse()
    return steps


def _inside(at: Position, leg: Leg) -> _Step:
    opened, end = leg.opened, leg.end
    good = at.epoch == opened.epoch and at.lsn <= end.lsn and at.index == at.lsn - opened.header.lsn + 1
    if good and at.lsn == opened.header.lsn:
        good = at.hash == opened.hash
    if good and at.lsn == end.lsn:
        good = at == end
    if not good:
        raise Mismatch(f"it is at lsn {at.lsn} of epoch {at.epoch}, which is not in history")
    return _Step(leg, None, False, False, at)


def commit_of(record: Record, position: Position, *, object: str, at: int, embedded: bool = False) -> Commit:
    """The commit that a record of any kind but OPEN and SEAL makes, which ends at ``position``, or is embedded. Raises ``Damaged``."""
    header = record.header
    begin = header.at if position.end or embedded else None
    lines = lines_of(record, begin, object=object, position=at)
    if lines is not None:
        return Commit(position, header.previous_hash, None, (), (), lines)
    ops, rows = decode_ops(record.payload, object=object, position=at)
    if not embedded:
        extents_of(record, ops, rows, begin=begin, object=object, position=at)
    return Commit(position, header.previous_hash, header.digest, ops, rows)


def commits_of_open(opened: Opened, *, embedded: bool) -> list[Commit]:
    """The commits an OPEN makes: the record it embeds, if that is wanted, and its own. Raises ``Damaged``."""
    commits = []
    inner, header = opened.embedded, opened.header
    if inner is not None:
        check_moved(opened.payload, inner, object=opened.object)
        if embedded:
            commits.append(commit_of(inner, opened.before_open, object=opened.object, at=0, embedded=True))
    commits.append(Commit(opened.position, header.previous_hash, header.digest, (), opened.payload.rows))
    return commits


Link: TypeAlias = tuple[Record, Position, Position]
"""A record, and the points before and after it."""


def records_between(streams: Streams, start: Position, end: Position) -> Iterator[Link]:
    """The records of a stream from ``start`` to where history leaves it.

    Raises: ``ChunkNotFound`` (collected), ``Damaged`` (shorter than the recorded end, forked, unreadable).
    """
    if start.index >= end.index:
        return
    epoch = start.epoch
    log = streams.names.log(epoch)  # made once: names cost as much as decoding a record
    reader = streams.log_reader(epoch, start.end, end.end) if streams.mode == "append" else None
    source = iter(reader) if reader is not None else streams.read_slots(epoch, start.index, end.index)
    last = start
    while last.index < end.index:
        name = log if reader is not None else streams.names.slot(epoch, last.index)
        record = next(source, None)
        if record is None:
            raise Damaged(
                f"lsn {end.lsn} was recorded as the end of epoch {epoch}, but only lsn {last.lsn} is stored: data was lost",
                object=name,
                position=last.end,
            )
        before = last
        last = position_after(record, before, object=name, end=reader.offset if reader is not None else 0)
        yield record, before, last
    if last != end:
        raise Damaged(f"epoch {epoch} does not end as its successor recorded", object=name, position=last.end)


def _apply_all(
    store: MetadataStore, commits: list[Commit], payloads: Sequence[bytes] = (), taken: Taken | None = None
) -> None:
    """Apply verified commits, and tell ``taken``. Raises ``Mismatch``, ``Damaged``."""
    if not store.apply(commits, verify=True):
        raise Mismatch(f"it is not directly before lsn {commits[0].position.lsn}")
    if taken is not None:
        for commit, payload in zip(commits, payloads, strict=True):
            taken(commit, payload)


def _take(streams: Streams, store: MetadataStore, step: _Step, progress: Progress, taken: Taken | None) -> None:
    opened = step.leg.opened
    if step.jump is not None and not store.jump(step.jump, store.head().digest):
        raise Mismatch(f"it is after lsn {step.jump.lsn}")
    if step.opening:
        commits = commits_of_open(opened, embedded=step.embedded)
        try:
            _apply_all(store, commits)
        except Damaged as damage:
            if step.jump is None:
                raise
            # The jump was a guess that this digest had to confirm.
            raise Mismatch(f"its state is not that of history at lsn {opened.header.lsn}") from damage
        progress.records += len(commits)
        if taken is not None and len(commits) > 1 and opened.embedded is not None:
            taken(commits[0], opened.embedded.payload)
    progress.time_ms = max(progress.time_ms, opened.header.time_ms)
    batch: list[Commit] = []
    payloads: list[bytes] = []
    size = 0
    log = streams.names.log(opened.epoch)
    for record, before, position in _following(streams, step):
        name, at = log if position.end else streams.names.slot(opened.epoch, before.index), before.end
        batch.append(commit_of(record, position, object=name, at=at))
        payloads.append(record.payload)
        if record.header.kind == RecordKind.SNAPSHOT_NOTE:
            note = decode_note(record.header.kind, record.payload, object=name, position=at)
            if isinstance(note, SnapshotLink):
                progress.notes.append(note)
        size += record.size
        if len(batch) >= _BATCH_RECORDS or size >= _BATCH_BYTES:
            progress.count(len(batch), size, record.header.time_ms)
            _apply_all(store, batch, payloads, taken)
            batch, payloads, size = [], [], 0
    if batch:
        progress.count(len(batch), size, record.header.time_ms)
        _apply_all(store, batch, payloads, taken)


def _following(streams: Streams, step: _Step) -> Iterator[Link]:
    """The records of a step. Raises ``Mismatch`` where the very first one does not follow its start, which is then what is wrong."""
    last = start = step.start
    try:
        for link in records_between(streams, start, step.leg.end):
            last = link[2]
            yield link
    except Damaged as damage:
        if last is start and start.index > 1:
            raise Mismatch(f"the record after lsn {start.lsn} does not follow it ({damage.message})") from damage
        raise


def replay_to(
    streams: Streams,
    store: MetadataStore,
    leg: Leg,
    progress: Progress,
    taken: Taken | None = None,
) -> None:
    """Bring ``store`` to the end of ``leg``. ``taken`` gets each record of a stream that was applied, with its payload.

    Raises: ``Mismatch`` (discard it), ``ChunkNotFound`` (records in between were collected), ``Damaged``,
    ``StorageFull``, ``StorageUnavailable``.
    """
    for step in route(streams, store.head(), leg):
        _take(streams, store, step, progress, taken)


class _Search:
    """One search for a source of the state. ``blame`` is the damage to report if nothing works; ``past``: history goes on after the end, so
    snapshots that are there say nothing, and no store is the current one."""

    def __init__(
        self, streams: Streams, cache: MetadataCache, leg: Leg, ahead: tuple[int, bytes] | None, past: bool
    ) -> None:
        self._streams = streams
        self._cache = cache
        self._leg = leg
        self._ahead = ahead
        self._past = past
        self._findings: list[str] = []
        self._damaged: set[str] = set()
        self._blame: Damaged | None = None

    def bring(
        self,
        store: MetadataStore,
        source: Literal["cache", "snapshot", "journal"],
        link: SnapshotLink | None = None,
        *,
        named: bool = True,
        taken: Taken | None = None,
    ) -> Materialised | None:
        """Bring ``store`` (first loaded from the snapshot ``link``) to the end; None: it does not lead there.

        ``named``: a record names the snapshot; else its writer may have died, and nothing is lost with it. An error that says
        nothing about the store (the storage does not answer) passes through; the store is at some point of history then.
        """
        progress = Progress()
        what = f"snapshot {link.name!r}" if link is not None else _SOURCES[source]
        try:
            if link is not None:
                name = self._streams.snapshot(link)
                load_snapshot(self._streams.storage, name, store, container=self._streams.container, expected=link)
                named = True
            if store.head().position[:2] != self._ahead:
                replay_to(self._streams, store, self._leg, progress, taken)
            return Materialised(store, source, progress, link, frozenset(self._damaged), tuple(self._findings))
        except CacheDamaged as rot:
            self._findings.append(f"{what} was discarded: {rot.message}")
        except (Mismatch, Damaged) as error:
            if isinstance(error, Damaged) and self._blame is None and named:
                self._blame = error
            self._note(f"{what} was discarded: {error.message if isinstance(error, Damaged) else error}", link)
        except ChunkNotFound as missing:
            self._findings.append(f"{what} is too old: {missing.chunk} was collected")
        return None

    def another(self) -> Materialised:
        """A new store, from a snapshot or the beginning."""
        for _ in range(_RESTARTS_PAST_MAX if self._past else _RESTARTS_MAX):
            # Replay from the beginning works only while the first records still exist: otherwise one is missing.
            found = self._from_snapshots() or self._new("journal")
            if found is not None:
                return found
        raise self._blame or NothingLeads(
            "no snapshot connects to the end of history, and its beginning was collected: "
            + "; ".join(dict.fromkeys(self._findings)),
            object=self._streams.names.snapshot_prefix(),
        )

    def _new(
        self, source: Literal["snapshot", "journal"], link: SnapshotLink | None = None, *, named: bool = True
    ) -> Materialised | None:
        """A new store at the end, current unless it is of the past; discarded if it does not get there."""
        store = self._cache.create()
        found: Materialised | None = None
        try:
            found = self.bring(store, source, link, named=named)
        finally:
            if found is None:
                self._cache.discard(store)
        if found is not None and not self._past:
            self._cache.make_current(store)
        return found

    def _note(self, finding: str, link: SnapshotLink | None) -> None:
        self._findings.append(finding)
        if link is not None:
            self._damaged.add(link.name)

    def _from_snapshots(self) -> Materialised | None:
        latest = read_latest(self._streams.storage, self._streams.names)
        links = [latest.snapshot if latest is not None else None, self._leg.opened.payload.snapshot]
        named = {link.name: link for link in links if link is not None}
        if self._past:
            # The newest that is there is after the asked point, as a rule; and which is the nearest, only a list says.
            return self._first_usable(_newest_first((*named.values(), *self._listed(set(named)))))
        found = self._first_usable(_newest_first(named.values()))
        if found is None:
            # Only now: a LIST is slow, may lag, and shows snapshots that no record names.
            # What died before it was synced may be read back today and be gone tomorrow: a good start, and never to be relied on.
            found = self._first_usable(self._listed(set(named)), named=False)
            found = None if found is None else found._replace(snapshot=None)
        return found

    def _first_usable(self, links: Iterable[SnapshotLink], *, named: bool = True) -> Materialised | None:
        for link in links:
            if link.name in self._damaged:
                continue
            if link.lsn > self._leg.end.lsn and (link.lsn, link.hash) != self._ahead:
                if not self._past:
                    self._note(f"snapshot {link.name!r} claims lsn {link.lsn}, after the end of history", link)
                continue
            if (found := self._new("snapshot", link, named=named)) is not None:
                return found
        return None

    def _listed(self, named: set[str]) -> Iterator[SnapshotLink]:
        storage, names = self._streams.storage, self._streams.names
        for stored in reversed(list_snapshots(storage, names)):
            name = stored.name
            if name in named or not stored.has_main:
                continue
            if self._past and stored.lsn > self._leg.end.lsn + (self._ahead is not None):
                continue
            try:
                yield read_snapshot_header(storage, name, container=self._streams.container).link(name)
            except (Damaged, ChunkNotFound) as error:
                self._findings.append(f"snapshot {name} was skipped: {error.message}")


def _newest_first(links: Iterable[SnapshotLink]) -> list[SnapshotLink]:
    return sorted(links, key=lambda link: -link.lsn)


def materialise(
    streams: Streams,
    cache: MetadataCache,
    leg: Leg,
    *,
    current: MetadataStore | None,
    ahead: tuple[int, bytes] | None = None,
    discard: Callable[[MetadataStore], None] | None = None,
    past: bool = False,
    taken: Taken | None = None,
) -> Materialised:
    """T4: a store at the end of ``leg``, made current in the cache; with ``past``, for which history goes on after that end, not current.

    ``ahead`` (lsn, hash) is the one record after that end that the caller is about to embed: a snapshot its owner took
    there is as good, and the store then is one record further. ``taken``: as of ``replay_to``, for what is applied to ``current``.

    ``current`` is what ``cache.open_current`` gave, or None. If it is of no use, ``discard`` (default: the cache's) gets it once another
    store has taken its place, or there is none, or no room for both; it is kept, as far as it got, if the storage fails. A collector of
    the old owner may delete under us, which looks like something missing: then LATEST is asked anew, a bounded number of times.

    Raises: ``Damaged`` when no source leads there (``NothingLeads``: because it was collected); ``StorageFull``, ``StorageUnavailable``.
    """
    search = _Search(streams, cache, leg, ahead, past)
    if current is None:
        return search.another()
    found = search.bring(current, "cache", taken=taken)
    if found is not None:
        return found
    try:
        found = search.another()
    except (Damaged, StorageFull):
        (discard or cache.discard)(current)
        raise
    (discard or cache.discard)(current)
    return found
