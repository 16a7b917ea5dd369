"""Checking: do metadata, index and storage say what they must (protocol section 4)?

Promises: read-only (but for a damaged cache, which is made anew), from one consistent view; bounded memory, but for a set of the chunks
that lists name in another order than that of their ids; every problem becomes a ``Finding`` and none stops the walk. ``quick`` reads
metadata only; ``exists`` adds a stat of every chunk that is referenced or that a pin keeps, and a listing of all chunks for orphans;
``deep`` adds comparing every block of them with the CRCs at its borders. The journal checks its own invariants.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.errors import CacheDamaged, ChunkNotFound, Damaged, SegmentNotFound
from chunkstore.metadata.codec import decode_chunk, decode_garbage, decode_segment
from chunkstore.metadata.index import IndexComparison, check_index
from chunkstore.metadata.keys import CHUNK, GARBAGE, INLINE, SEGMENT, all_blocks_range, chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import find_borders
from chunkstore.metadata.retained import oldest_inline_record, pinned_lsn, pins_at, scan_pins
from chunkstore.operations.orphans import IdSet, orphan_findings
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.operations.read import ReadContext, find_segment
from chunkstore.records.arguments import moment_text
from chunkstore.records.blocks import Borders
from chunkstore.records.invariants import ABSENT, FUTURE_MS, PINNED, CheckLevel, Finding, of_bytes, segment_findings
from chunkstore.records.names import CHUNK_ID_BYTES, Address, ContainerNames, confined, journal_position
from chunkstore.records.segments import KIND_INLINE, ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["Fault", "check", "check_cache", "chunk_faults", "is_still_wanted", "of_error"]

_REMEDY = "the journal that holds it could be collected; delete the metadata cache and open again"
_READ_BYTES = 4 * MIB
Count: TypeAlias = Callable[[int], None]


def check(
    context: ReadContext, view: MetadataView, level: CheckLevel, *, epoch: int, orphans: Count, progress: Count
) -> Iterator[Finding]:
    """Findings about what ``view`` shows, in no promised order. ``orphans`` gets the bytes of orphans, ``progress`` those of each chunk."""
    yield from _Check(context, view, level, epoch, progress).findings()
    if level != "quick":
        yield from orphan_findings(context, epoch=epoch, found=orphans)


def check_cache(context: ReadContext) -> Iterator[Finding]:
    """Read the whole metadata cache; a damaged one is made anew, and reported."""
    try:
        context.store().audit()
    except CacheDamaged as damage:
        context.rebuild(damage)
        yield Finding(12, "warning", "", "", damage.object, 0, damage.message)


def of_error(segment: str, error: Damaged) -> Finding:
    """Rows that cannot be read, as a finding."""
    return Finding(14, "damage", segment, "", error.object, error.position, error.message)


class _Rows:
    """The chunk rows of a view, and which of them the lists have named. Lists mostly go in the order of their chunks' ids: so far as they
    do, one scan gives their rows and tells what was named; what is out of turn is looked up and remembered."""

    def __init__(self, names: ContainerNames, view: MetadataView) -> None:
        self._names, self._get = names, view.get
        self._scan = view.scan(CHUNK, bytes((CHUNK[0] + 1,)))
        self._identity: bytes | None = None  # of the first row that was not named; None: all were
        self._raw = b""
        self._ahead: IdSet | None = None  # what was named after that
        self.met = set[int]()  # kinds of chunks
        self.latest_ms = 0
        self._step()

    def _step(self) -> None:
        """On to the next row that was not named."""
        for key, raw in self._scan:
            self._identity, self._raw = key[1:], raw
            if self._ahead is None or self._identity not in self._ahead:
                return
        self._identity = None

    def find(self, identity: bytes) -> ChunkRecord | None:
        """The chunk's record; None if it is missing. Raises ``Damaged`` if it cannot be read."""
        raw = self._raw if identity == self._identity else self._get(chunk_key(identity))
        try:
            record = None if raw is None else decode_chunk(identity, raw)
        except Damaged:
            record = decode_chunk(self._names.chunk(identity), raw or b"")  # raises it, by a name
        self.met.add(0 if record is None else record.kind)
        self.latest_ms = max(self.latest_ms, 0 if record is None else record.created_ms)
        return record

    def take(self, identity: bytes) -> bool:
        """Name a chunk that has a row; whether it had not been named."""
        if identity == self._identity:
            self._step()
            return True
        if self._identity is None or identity < self._identity:
            return False
        self._ahead = self._ahead or IdSet()
        return self._ahead.add(identity)

    def never_named(self) -> Iterator[tuple[bytes, bytes]]:
        """All others, and their rows, at the end."""
        while self._identity is not None:
            yield self._identity, self._raw
            self._step()


class _Check:
    """One check of one view."""

    def __init__(
        self, context: ReadContext, view: MetadataView, level: CheckLevel, epoch: int, progress: Count
    ) -> None:
        self._context, self._names, self._view = context, context.names, view
        self._level = level
        self._epoch = epoch
        self._progress = progress
        self._rows = _Rows(context.names, view)

    def findings(self) -> Iterator[Finding]:
        for key, raw in self._view.scan(SEGMENT, bytes((SEGMENT[0] + 1,))):
            name = key[1:].decode("utf-8", "replace")
            try:
                segment = decode_segment(name, raw)
            except Damaged as error:
                yield of_error(name, error)
                continue
            if segment.name != name:
                yield Finding(14, "damage", name, "", f"segment {name!r}", 0, f"its row is that of {segment.name!r}")
            yield from self._segment(segment)
        latest_ms = self._rows.latest_ms
        if latest_ms > runtime.now_ms() + FUTURE_MS:
            text = f"a chunk has the time {moment_text(latest_ms)}, after now: a clock is or was wrong, and retention by age stops there"
            yield Finding(0, "warning", "", "", "", 0, f"{text}; see 'retention apply --ignore-times-after'")
        yield from self._pins()
        yield from self._garbage()
        yield from self._strays()
        if KIND_INLINE in self._rows.met:
            yield from self._extents()
        if self._level == "deep":
            yield from self._stray_borders()

    def _segment(self, segment: SegmentRecord) -> Iterator[Finding]:
        rows, index = self._rows, IndexComparison(self._view, segment)

        def find(identity: bytes) -> ChunkRecord | None:
            record = rows.find(identity)
            if record is not None:
                index.meet(identity, record.length)
            return record

        broken = False
        for finding in segment_findings(segment, find, self._names, epoch=self._epoch, take=rows.take):
            broken = True
            yield finding
        if broken:
            return
        if not index.agrees():
            for offset, message in check_index(self._view, segment):
                yield Finding(15, "damage", segment.name, "", "offset index", offset, message)
        if self._level == "quick":
            return
        identity, offset = segment.first_chunk, segment.start_offset - segment.first_chunk_skip
        while identity:
            record = rows.find(identity)
            if record is None:
                return
            offset += record.length
            for finding in self._object(segment, identity, record):
                if is_still_wanted(self._context, segment, identity, offset):
                    yield finding
            self._progress(record.length)
            identity = record.next

    def _object(self, segment: SegmentRecord, identity: bytes, record: ChunkRecord) -> Iterator[Finding]:
        borders = None
        try:
            address = self._names.address(identity, record)
            name = address.object
            if self._level == "deep" and record.length:
                borders = find_borders(self._view, identity, record, 0, record.length)
            for fault in chunk_faults(self._context.storage, address, 0, record.length, borders):
                yield Finding(of_bytes(address), "damage", segment.name, name, name, fault.position, fault.message)
        except Damaged as error:
            yield of_error(segment.name, error)

    def _pins(self) -> Iterator[Finding]:
        head_lsn = self._view.head.position.lsn
        for name, found in scan_pins(self._view):
            if isinstance(found, Damaged):
                yield Finding(PINNED, "damage", "", "", found.object, found.position, found.message)
            elif found.lsn > head_lsn:
                what = f"pin {name!r} is at lsn {found.lsn}, but history ends at {head_lsn}"
                yield Finding(PINNED, "damage", "", "", "pins", 0, what)

    def _pinned_chunk(self, key: bytes, lsn: int, name: str) -> Iterator[Finding]:
        """The chunk of a garbage range, removed at ``lsn``, after a pin."""
        if self._context.storage.exists(name):
            return
        self._context.recheck()
        with self._context.store().view() as view:
            lowest = pinned_lsn(view)
            if lowest is not None and lsn > lowest and view.get(key) is not None:
                what = f"removed at lsn {lsn}, pinned at {lowest} by {pins_at(view, lowest)}, and absent"
                yield Finding(PINNED, "damage", "", name, name, 0, what)

    def _garbage(self) -> Iterator[Finding]:
        head_lsn = self._view.head.position.lsn
        lowest = pinned_lsn(self._view) if self._level != "quick" else None
        for key, raw in self._view.scan(GARBAGE, bytes((GARBAGE[0] + 1,))):
            try:
                garbage = decode_garbage(repr(key), raw)
            except Damaged as error:
                yield of_error("", error)
                continue
            if garbage.lsn > head_lsn:
                yield _of_garbage("damage", f"removed at lsn {garbage.lsn}, but history ends at {head_lsn}")
            is_pinned = lowest is not None and garbage.lsn > lowest
            identity = garbage.first
            for number in range(garbage.count):
                try:
                    record = self._rows.find(identity) if identity else None
                except Damaged as error:
                    self._rows.take(identity)
                    yield _of_garbage("damage", error.message, self._names.chunk(identity))
                    break
                if record is None:
                    yield _of_garbage("leak", f"a garbage range ends after {number} of {garbage.count} chunks")
                    break
                if not self._rows.take(identity):
                    name = self._names.chunk(identity)
                    yield Finding(22, "damage", "", name, name, 0, "a garbage chunk is also live, or garbage twice")
                    break
                try:
                    confined(self._names, identity, record)
                except Damaged as error:
                    yield _of_garbage("damage", error.message, error.object)
                if is_pinned:
                    yield from self._pinned_chunk(key, garbage.lsn, self._names.address(identity, record).object)
                if number == garbage.count - 1 and identity != garbage.last:
                    yield _of_garbage("damage", "a garbage range does not end at its last chunk")
                identity = record.next

    def _strays(self) -> Iterator[Finding]:
        for identity, raw in self._rows.never_named():
            try:
                decode_found_chunk(self._names, identity, raw)
            except Damaged as error:
                yield of_error("", error)
                continue
            name = self._names.chunk(identity)
            what = "a chunk record that neither a segment nor garbage refers to"
            yield Finding(17, "leak", "", name, name, 0, what)

    def _extents(self) -> Iterator[Finding]:
        """By the index of extents the journal's collector knows what holds bytes of segments: one that is not in it could be lost."""
        known = {identity for _, identity in self._view.scan(INLINE, bytes((INLINE[0] + 1,)))}
        held = oldest_inline_record(self._view)
        for key, raw in self._view.scan(CHUNK, bytes((CHUNK[0] + 1,))):
            with suppress(Damaged):  # the walk of the lists reports it
                identity, what = key[1:], ""
                record = confined(self._names, identity, decode_chunk(key, raw))
                if record.kind != KIND_INLINE:
                    continue
                if identity not in known:
                    what = "the index of extents has no entry for it"
                elif held is None or held > journal_position(record):
                    what = "the index of extents has a younger one for the oldest"
                if what:
                    name = self._names.address(identity, record).object
                    yield Finding(15, "damage", "", name, "index of extents", 0, f"{what}, and {_REMEDY}")

    def _stray_borders(self) -> Iterator[Finding]:
        prefix, stop = all_blocks_range()
        for identity, rows in groupby(self._view.scan(prefix, stop), lambda row: row[0][len(prefix) : -8]):
            if self._view.get(chunk_key(identity)) is None:
                name = self._names.chunk(identity) if len(identity) == CHUNK_ID_BYTES else repr(identity)
                what = f"{sum(1 for _ in rows)} rows of block borders of a chunk that is not there"
                yield Finding(17, "leak", "", name, name, 0, what)


def _of_garbage(severity: str, message: str, object: str = "garbage") -> Finding:
    return Finding(22, severity, "", "", object, 0, message)


def is_still_wanted(context: ReadContext, segment: SegmentRecord, identity: bytes, stop: int) -> bool:
    """Whether the present list of the segment names the chunk, which ends at ``stop``: it may have been truncated away or replaced,
    and collected."""
    context.recheck()
    with context.store().view() as view:
        try:
            present = find_segment(view, segment.name, segment.id)
        except SegmentNotFound:
            return False
        if not present.start_offset < stop <= present.length:
            return False
        found = view.locate(present.id, stop - 1)
        return found is None or found[0] == identity


class Fault(NamedTuple):
    """Bytes ``[low, high)`` of a chunk that cannot be read as they were written, and where in the object that shows."""

    low: int
    high: int
    position: int
    message: str


def chunk_faults(
    storage: ChunkStorage, address: Address, low: int, length: int, borders: Borders | None
) -> Iterator[Fault]:
    """What is wrong with the bytes from ``low`` on of a chunk of ``length`` bytes: it is absent or too short, which concerns all to its
    end, or blocks do not have the CRCs at ``borders``, which begin at ``low`` (None: nothing is read). Raises what the storage raises."""
    try:
        stored = max(0, storage.stat(address.object).length - address.offset)
        if stored < length:
            begin = max(low, stored)
            if borders is not None and begin < borders.at[-1]:
                begin = borders.at[bisect_right(borders.at, begin) - 1]
            yield Fault(begin, length, address.offset + stored, f"{stored} bytes long, the record needs {length}")
        elif borders is not None:
            for first, stop in _bad_blocks(storage, address, borders):
                message = f"the block of {stop - first} bytes does not have the recorded CRC32C"
                yield Fault(first, stop, address.offset + first, message)
    except ChunkNotFound:
        yield Fault(low, length, address.offset, ABSENT)


def _bad_blocks(storage: ChunkStorage, address: Address, borders: Borders) -> Iterator[tuple[int, int]]:
    """The blocks of a chunk that do not have the CRCs of their borders. Raises ``ChunkNotFound``, ``StorageUnavailable``."""
    at, crcs = borders
    name, base = address
    position, crc, passed = at[0], crcs[0], 0
    while position < at[-1]:
        data = storage.read(ChunkHandle(name, False), base + position, min(_READ_BYTES, at[-1] - position))
        view, begin = memoryview(data), 0
        while passed + 1 < len(at) and at[passed + 1] <= position + len(data):
            end = at[passed + 1] - position
            if crc32c_extend(crc, view[begin:end]) != crcs[passed + 1]:
                yield at[passed], at[passed + 1]
            begin, passed = end, passed + 1
            crc = crcs[passed]
        if not data:
            yield at[passed], at[-1]  # it ends while it is read
            return
        crc = crc32c_extend(crc, view[begin:])
        position += len(data)
