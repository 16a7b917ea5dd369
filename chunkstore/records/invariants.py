"""The invariants of a segment and its chunk list, named once (protocol section 4, numbers 14 to 19).

Promises: pure predicates over records; they never raise on bad data but report it. Used by ``check`` and by tests.
Leaves out: anything that needs storage I/O or the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

from chunkstore.errors import Damaged
from chunkstore.records.names import NO_CHUNK, Address, ContainerNames, chunk_epoch, confined
from chunkstore.records.segments import ACTIVE, CLOSED, KIND_INLINE, ChunkRecord, SegmentRecord

__all__ = [
    "ABSENT",
    "CHECK_LEVELS",
    "CUTS",
    "FUTURE_MS",
    "ORPHANED",
    "PINNED",
    "CheckLevel",
    "Finding",
    "of_bytes",
    "segment_findings",
]

CheckLevel: TypeAlias = Literal["quick", "exists", "deep"]
"""What ``check`` reads: metadata; also which chunks exist; also their bytes."""
CHECK_LEVELS: Final = ("quick", "exists", "deep")

ABSENT: Final = "absent from the storage"
"""What is said of a chunk without an object."""
ORPHANED: Final = 23
"""The number of the invariant that is about chunks without a row."""
CUTS: Final = 37
"""The number of the invariant that is about where extents are."""
PINNED: Final = 39
"""The number of the invariant that is about pins."""
FUTURE_MS: Final = 3_600_000
"""A time that is so much later than now comes from a wrong clock: theirs, or ours."""


class Finding(NamedTuple):
    """One violated invariant, or a remarkable fact.

    ``severity`` is "damage" (data or safety), "warning" (remarkable), "leak" (rows that only cost space) or "info" (nothing is
    wrong: objects that only cost space).
    """

    invariant: int
    severity: str
    segment: str
    chunk: str
    object: str
    position: int
    message: str


def of_bytes(address: Address) -> int:
    """The number of the invariant that says that the bytes at ``address`` are there: it is another for extents."""
    return 34 if address.offset else 20


def segment_findings(
    segment: SegmentRecord,
    find: Callable[[bytes], ChunkRecord | None],
    names: ContainerNames,
    *,
    epoch: int,
    take: Callable[[bytes], bool],
) -> Iterator[Finding]:
    """Walk one segment's list and report what is wrong. ``find`` may raise ``Damaged``; ``take`` receives each chunk that was found, and
    answers whether no list had it before (invariant 17)."""
    finding = _Findings(segment, names)
    if not 0 <= segment.start_offset <= segment.length:
        yield finding(16, f"start offset {segment.start_offset} is outside [0, {segment.length}]")
    if {segment.chunk_count == 0, segment.first_chunk == NO_CHUNK, segment.last_chunk == NO_CHUNK} == {True, False}:
        yield finding(14, "chunk count and first/last pointers disagree about being empty")
        return
    if segment.chunk_count == 0:
        if segment.start_offset != segment.length or segment.first_chunk_skip:
            yield finding(15, f"no chunks, but bytes [{segment.start_offset}, {segment.length}) should be there")
        return
    identity, previous, offset = segment.first_chunk, NO_CHUNK, segment.start_offset - segment.first_chunk_skip
    for number in range(segment.chunk_count):
        try:
            record = find(identity) if identity else None
        except Damaged as error:
            take(identity)
            yield finding(14, f"the row of chunk {number} cannot be read: {error.message}", identity, offset)
            return
        if record is None:
            yield finding(14, f"chunk {number} of {segment.chunk_count} has no record", identity, offset)
            return
        if not take(identity):
            yield finding(17, "the chunk belongs to two places", identity, offset)
            return
        try:
            confined(names, identity, record)
        except Damaged as error:
            yield finding(18, error.message, identity, offset)
        if record.previous != previous:
            yield finding(14, "the previous pointer is not the inverse of next", identity, offset)
        if record.length < 1:
            yield finding(15, f"a chunk of {record.length} bytes", identity, offset)
        if (text := _epoch_fault(identity, record, epoch)) is not None:
            yield finding(18, text, identity, offset)
        if record.state == ACTIVE and record.epoch == epoch and not _is_extent(find, record.next):
            if identity != segment.last_chunk:
                yield finding(18, "a growing chunk that is not the last one, nor in front of extents", identity, offset)
            elif segment.sealed:
                yield finding(19, "a sealed segment with a growing chunk", identity, offset)
        if number == 0 and not offset <= segment.start_offset < offset + record.length:
            yield finding(16, "the start offset is not inside the first chunk", identity, offset)
        if number == segment.chunk_count - 1:
            yield from _last_findings(finding, identity, record, offset)
        elif not record.next:
            yield finding(14, f"the list ends after {number + 1} of {segment.chunk_count} chunks", identity, offset)
            return
        identity, previous, offset = record.next, identity, offset + record.length


class _Findings(NamedTuple):
    """Makes the findings of one segment."""

    segment: SegmentRecord
    names: ContainerNames

    def __call__(self, number: int, message: str, identity: bytes = NO_CHUNK, position: int = 0) -> Finding:
        chunk = self.names.chunk(identity) if identity else ""
        return Finding(number, "damage", self.segment.name, chunk, chunk, position, message)


def _is_extent(find: Callable[[bytes], ChunkRecord | None], identity: bytes) -> bool:
    try:
        record = find(identity) if identity else None
    except Damaged:
        return False
    return record is not None and record.kind == KIND_INLINE


def _epoch_fault(identity: bytes, record: ChunkRecord, epoch: int) -> str | None:
    """What is wrong with a chunk's state and epoch."""
    if record.state not in (ACTIVE, CLOSED):
        return f"unknown state {record.state}"
    named = chunk_epoch(identity)
    if record.epoch > epoch or named not in (0, record.epoch):
        return f"epoch {record.epoch}, its name has {named}, the container has {epoch}"
    return None


def _last_findings(finding: _Findings, identity: bytes, record: ChunkRecord, offset: int) -> Iterator[Finding]:
    segment, end = finding.segment, offset + record.length
    if identity != segment.last_chunk:
        yield finding(14, "the list does not end at the last chunk", identity, offset)
    if record.next:
        yield finding(14, "the last chunk has a successor", identity, offset)
    if offset != segment.last_chunk_offset:
        yield finding(15, f"the last chunk begins at {offset}, recorded {segment.last_chunk_offset}", identity, offset)
    if end != segment.length:
        yield finding(15, f"the list ends at {end}, the segment at {segment.length}", identity, offset)
