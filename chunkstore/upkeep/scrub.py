"""Scrubbing: reading what is stored before somebody needs it, and putting back from a copy what is damaged.

Promises: every chunk of every segment, but for one that may still grow, is there, is as long as its record, and has the CRCs at the
borders of its blocks; what is not so is a finding with the range of the segment that cannot be read, and stops nothing. Bytes of a
first chunk that are below the start offset, in blocks of their own, are no longer looked at. What was truncated, deleted or replaced
meanwhile is no finding. A step reads about as much as asked, holds no view while it reads, and can be repeated. A repair takes, block
by block, the bytes that have the CRC that our own metadata say, from our chunk or from the one of the same name in the copy, into new
chunks of the present epoch, and replaces the damaged one, which is garbage then; where one block is sound in neither, nothing is
changed. The position is a row that commits once a minute at most.
Leaves out: garbage that pins keep, journal and snapshots (``check``), when to scrub (the caller).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.changes import NewChunk, Replace
from chunkstore.config import MIB
from chunkstore.errors import Conflict, Damaged, InvalidArgument, SegmentNotFound
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import SCRUB_NAMESPACE, SEGMENT, VISIBLE_SEGMENTS, chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import BEGINNING, ScrubMark, ScrubPosition, encode_mark, find_borders, find_mark
from chunkstore.operations.attach import deleted_unless_committed
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.check import Fault, chunk_faults, is_still_wanted, of_error
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.copy_ranges import write_chunk
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.operations.read import ReadContext, find_segment
from chunkstore.operations.read_slices import NOWHERE, WINDOW_BYTES, Places, places_of, sound_blocks, whole_blocks
from chunkstore.operations.replace import replace
from chunkstore.operations.tables import plan_put_row
from chunkstore.records.blocks import Borders
from chunkstore.records.invariants import Finding, of_bytes
from chunkstore.records.names import Address, ContainerNames
from chunkstore.records.reports import ScrubFinding, ScrubReport
from chunkstore.records.segments import CLOSED, SegmentRecord
from chunkstore.storage import ChunkStorage
from chunkstore.upkeep.jobs import Step

__all__ = [
    "SCRUB_INTERVAL_S",
    "ScrubFinding",
    "ScrubJob",
    "ScrubPart",
    "ScrubPlan",
    "ScrubReport",
    "ScrubStep",
    "check_limits",
    "plan_step",
    "scrub",
    "scrub_step",
]

_STEP_BYTES: Final = 8 * MIB
SCRUB_INTERVAL_S: Final = 10.0
"""Between two passes of the job."""
_REST_S: Final = 86_400.0
_PARTS_MAX: Final = 256
"""Chunks of one step: each is a request or two, however short it is."""
_SEGMENTS_MAX: Final = 1_000
"""Segments of one step, most of them empty."""
_SAVE_S: Final = 60.0
"""Between two records of the position: what a crash makes us look at again."""
_PAUSE_S: Final = 0.25
"""How long at most no one notices that the store was closed."""
_NEW_CHUNK_BYTES: Final = 128 * MIB
"""A new chunk is held in memory: a longer one is replaced by several."""


class ScrubStep(NamedTuple):
    """What a step looked at (``chunks``: to their ends) and found. ``repaired`` chunks were replaced. At ``BEGINNING`` the pass is over."""

    chunks: int
    size_bytes: int
    findings: tuple[ScrubFinding, ...]
    repaired: int
    position: ScrubPosition


class ScrubPart(NamedTuple):
    """Bytes ``[low, high)`` of a chunk, whole blocks, whose first byte is at ``offset`` of the segment."""

    segment: SegmentRecord
    identity: bytes
    address: Address
    offset: int
    length: int
    low: int
    high: int
    borders: Borders | None


class ScrubPlan(NamedTuple):
    """What is to be read next, what the rows themselves show, and where it goes on."""

    parts: list[ScrubPart]
    findings: list[ScrubFinding]
    position: ScrubPosition


def check_limits(
    rate_bytes_s: float | None, bytes_max: int | None, rate: str = "rate_bytes_s", most: str = "bytes_max"
) -> None:
    """Check the limits of a scrub, which the caller knows by the names ``rate`` and ``most``. Raises ``InvalidArgument``."""
    if rate_bytes_s is not None and not (type(rate_bytes_s) in (int, float) and 0 < rate_bytes_s < math.inf):
        raise InvalidArgument(f"{rate} must be a number of bytes above 0, not {rate_bytes_s!r}", argument=rate)
    if bytes_max is not None and not (type(bytes_max) is int and bytes_max > 0):
        raise InvalidArgument(f"{most} must be a whole number of bytes above 0, not {bytes_max!r}", argument=most)


def scrub(
    container: OwnedContainer,
    context: ReadContext,
    *,
    rate_bytes_s: float | None,
    bytes_max: int | None,
    copy: ChunkStorage | None,
    progress: Callable[[int], object] | None,
) -> ScrubReport:
    """Steps from the stored position, or with a ``copy`` from the beginning, to the end or to ``bytes_max``. Raises as ``scrub_step``."""
    scrubber = _Scrubber(container, context, copy)
    findings = list[ScrubFinding]()
    chunks = size_bytes = repaired = 0
    while True:
        began_s = runtime.monotonic_s()
        step = scrubber.step(_STEP_BYTES if bytes_max is None else min(_STEP_BYTES, bytes_max - size_bytes))
        findings += step.findings
        chunks, size_bytes, repaired = chunks + step.chunks, size_bytes + step.size_bytes, repaired + step.repaired
        if progress is not None:
            progress(step.size_bytes)
        done = step.position == BEGINNING
        if done or (bytes_max is not None and size_bytes >= bytes_max):
            scrubber.save()
            where = None if done else step.position
            return ScrubReport(chunks, size_bytes, tuple(findings), repaired, where, done, scrubber.began_ms)
        if rate_bytes_s is not None:
            _pause(container, began_s + step.size_bytes / rate_bytes_s)


class _Scrubber:
    """One pass, from the stored position on, or with a ``copy`` from the beginning."""

    def __init__(self, container: OwnedContainer, context: ReadContext, copy: ChunkStorage | None = None) -> None:
        self._container = container
        self._context = context
        self._copy = copy
        mark = container.look(find_mark) if copy is None else None
        if mark is None or mark.position == BEGINNING:
            mark = ScrubMark(BEGINNING, runtime.now_ms())
        self._position, self.began_ms = mark
        self._saved_s = runtime.monotonic_s()

    def step(self, bytes_max: int) -> ScrubStep:
        """As ``scrub_step``. Once a minute it stores the position."""
        found = scrub_step(self._container, self._context, self._position, bytes_max, self._copy)
        self._position = found.position
        if runtime.monotonic_s() - self._saved_s >= _SAVE_S:
            self.save()
        return found

    def save(self) -> None:
        """Commit how far the pass has come. Raises the errors of commits."""
        mark = encode_mark(ScrubMark(self._position, self.began_ms))

        def plan(changes: ChangeSet) -> None:
            plan_put_row(changes, SCRUB_NAMESPACE, b"", mark, None)

        commit_changes(self._container, (), plan, tables=True)
        self._saved_s = runtime.monotonic_s()


class ScrubJob:
    """Every closed chunk is read and compared, over and over, at most once a day: ``bytes_pass`` in a pass of the optimiser."""

    name = "scrub"
    pressing = False

    def __init__(self, container: OwnedContainer, context: ReadContext, bytes_pass: int) -> None:
        self._container = container
        self._context = context
        self._bytes_pass = bytes_pass
        self._scrubber: _Scrubber | None = None
        self._left = 0
        self._rests_until_s = -math.inf

    def step(self, step: Step) -> bool:
        now_s = runtime.monotonic_s()
        if step.dry_run or now_s < self._rests_until_s:
            return False
        scrubber = self._scrubber = self._scrubber or _Scrubber(self._container, self._context)
        if self._left <= 0:
            self._left = self._bytes_pass
        found = scrubber.step(min(_STEP_BYTES, self._left))
        step.did(found.chunks + 1, moved_bytes=found.size_bytes)
        step.count(chunks=found.chunks, read_bytes=found.size_bytes, findings=len(found.findings))
        step.findings += [
            f"{item.object}: {item.message} (segment {item.segment!r}, [{item.start}, {item.stop}))"
            for item in found.findings
        ]
        self._left -= max(1, found.size_bytes)
        if found.position == BEGINNING:
            scrubber.save()
            self._scrubber, self._rests_until_s, self._left = None, now_s + _REST_S, 0
        return self._left > 0


def _pause(container: OwnedContainer, until_s: float) -> None:
    while (left_s := until_s - runtime.monotonic_s()) > 0:
        container.check_owner()
        runtime.sleep_s(min(left_s, _PAUSE_S))


def scrub_step(
    container: OwnedContainer,
    context: ReadContext,
    position: ScrubPosition,
    bytes_max: int,
    copy: ChunkStorage | None = None,
) -> ScrubStep:
    """Look at the next ``bytes_max`` bytes after ``position``, to the end of a block; repair what is damaged if there is a ``copy``.

    A chunk without borders is read at once. Changes nothing without a ``copy``. Raises ``Closed``, ``NotOwner``,
    ``DeadlineExceeded``, ``StorageUnavailable``, and with a ``copy`` the errors of commits. Retry: safe.
    """
    epoch = container.serving(container.deadline()).epoch
    plan = context.look(partial(plan_step, context.names, epoch, position, bytes_max))
    calls = [partial(_joint_faults, context.storage, part) for part in plan.parts]
    with container.bounded(container.deadline()):
        found = context.pool.run_all(calls) if container.remote and calls else [call() for call in calls]
    findings, repaired, position = list(plan.findings), 0, plan.position
    for part, faults in zip(plan.parts, found, strict=True):
        if not faults or not is_still_wanted(context, part.segment, part.identity, part.offset + part.high):
            continue
        refusal = None if copy is None else _repair(container, context, copy, part)
        repaired += refusal == ""
        findings += (_finding_of(part, fault, refusal) for fault in faults)
        if faults[-1].high > part.high:
            # The last part, and all to the end of its chunk has been told.
            position = position._replace(offset=part.offset + faults[-1].high)
    chunks = sum(part.high == part.length for part in plan.parts)
    size_bytes = sum(part.high - part.low for part in plan.parts if part.borders is not None)
    return ScrubStep(chunks, size_bytes, tuple(findings), repaired, position)


def plan_step(
    names: ContainerNames, epoch: int, position: ScrubPosition, bytes_max: int, view: MetadataView
) -> ScrubPlan:
    """What the next step reads. From one view, which is not needed any more then.

    ``epoch``: chunks that it has made may still grow, and are left out. At ``BEGINNING`` the plan's position says that this is all."""
    plan = ScrubPlan([], [], BEGINNING)
    size_bytes = 0
    start = max(VISIBLE_SEGMENTS, SEGMENT + position.segment.encode())
    for count, (key, raw) in enumerate(view.scan(start, bytes((SEGMENT[0] + 1,)))):
        name = key[1:].decode("utf-8", "replace")
        if count == _SEGMENTS_MAX:
            # Its bytes are still to be looked at; those before it have been.
            return plan._replace(position=ScrubPosition(name, 0))
        try:
            segment = decode_segment(name, raw)
            begin = position.offset if name == position.segment else 0
            for part in _parts(view, names, segment, max(begin, segment.start_offset), epoch, bytes_max - size_bytes):
                plan.parts.append(part)
                size_bytes += part.high - part.low
                if size_bytes >= bytes_max or len(plan.parts) == _PARTS_MAX:
                    return plan._replace(position=ScrubPosition(name, part.offset + part.high))
        except Damaged as error:
            view.audit()  # a cache that does not hold what was written is no finding
            plan.findings.append(ScrubFinding(*of_error(name, error), 0, 0, False))
    return plan


def _parts(
    view: MetadataView, names: ContainerNames, segment: SegmentRecord, offset: int, epoch: int, bytes_max: int
) -> Iterator[ScrubPart]:
    """The parts of a segment from ``offset`` on, about ``bytes_max`` bytes of them. Raises ``Damaged`` where its list is broken."""
    if offset >= segment.length:
        return
    found = view.locate(segment.id, offset)
    if found is None:
        what = "the offset index has no entry; run check"
        raise Damaged(what, object=f"segment {segment.name}", position=offset)
    identity, begin = found
    while begin < segment.length:
        record = decode_found_chunk(names, identity, view.get(chunk_key(identity)))
        if record.length < 1:
            raise Damaged("a chunk without bytes", object=names.chunk(identity))
        if offset >= begin + record.length:
            what = "the index has another chunk for this offset than the list; run check"
            raise Damaged(what, object=f"segment {segment.name}", position=offset)
        if record.state != CLOSED and record.epoch == epoch and identity == segment.last_chunk:
            return
        low = max(0, offset - begin)
        stop = min(record.length, low + max(1, bytes_max))
        borders = find_borders(view, identity, record, low, stop) or find_borders(
            view, identity, record, 0, record.length
        )
        low, high = (borders.at[0], borders.at[-1]) if borders is not None else (0, record.length)
        yield ScrubPart(segment, identity, names.address(identity, record), begin, record.length, low, high, borders)
        bytes_max -= high - low
        begin += record.length
        offset = max(offset, begin)
        identity = record.next


def _joint_faults(storage: ChunkStorage, part: ScrubPart) -> list[Fault]:
    """The faults of a part; what is side by side is one."""
    joint = list[Fault]()
    for fault in chunk_faults(storage, part.address, part.low, part.length, part.borders):
        if joint and joint[-1].high == fault.low:
            joint[-1] = joint[-1]._replace(high=fault.high)
        else:
            joint.append(fault)
    return joint


def _finding_of(part: ScrubPart, fault: Fault, refusal: str | None = None) -> ScrubFinding:
    """What a fault says about the segment. ``refusal``: why it was not repaired; empty: it was."""
    name = part.address.object
    start, stop = max(part.segment.start_offset, part.offset + fault.low), part.offset + fault.high
    message = f"{fault.message}: bytes [{start}, {stop}) of the segment"
    if refusal:
        message += f"; not repaired: {refusal}"
    found = Finding(of_bytes(part.address), "damage", part.segment.name, name, name, fault.position, message)
    return ScrubFinding(*found, start, stop, refusal == "")


# ---- repairing


def _repair(container: OwnedContainer, context: ReadContext, copy: ChunkStorage, part: ScrubPart) -> str:
    """Replace the part's chunk by new ones with the bytes that its record says; why not, or nothing where that is done."""
    names, storage = context.names, container.storage
    places = places_of(storage, part.address, names, part.identity, copy)
    owned = container.current

    def wanted(view: MetadataView) -> Borders | None:
        segment = find_segment(view, part.segment.name, part.segment.id)
        record = decode_found_chunk(names, part.identity, view.get(chunk_key(part.identity)))
        return find_borders(view, part.identity, record, max(0, segment.start_offset - part.offset), record.length)

    ids, new = list[bytes](), list[NewChunk]()
    try:
        borders = context.look(wanted)
        if borders is None:
            return "the CRC32C of its bytes is not known"
        start, stop = part.offset + borders.at[0], part.offset + borders.at[-1]
        with deleted_unless_committed(container, ids):
            for stretch in whole_blocks(borders, _NEW_CHUNK_BYTES):
                ids.append(owned.new_chunk(part.segment.id))
                windows = (_sound(places, window) for window in whole_blocks(stretch, WINDOW_BYTES))
                written = write_chunk(storage, names.chunk(ids[-1]), windows, bounded=container.step)
                new.append(NewChunk(ids[-1], written.borders()))
            replace(container, Replace(part.segment.name, start, stop, (part.identity,), tuple(new)))
    except _NowhereSound:
        return "bytes of it are sound neither here nor in the copy"
    except (Conflict, SegmentNotFound):
        return "the segment changed during the scrub; scrub again"
    return ""


class _NowhereSound(Damaged):
    """A block that neither side has."""


def _sound(places: Places, borders: Borders) -> bytearray:
    data, found = sound_blocks(places, borders)
    if NOWHERE in found:
        raise _NowhereSound("a block is sound nowhere", object=places[0][1].object, position=borders.at[0])
    return data
