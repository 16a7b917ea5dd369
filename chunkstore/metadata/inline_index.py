"""Which chunks are in the journal, and where the oldest of them does: looks at the derived index (``index``), no scans of rows.

    extent in the journal   i | run | offset in the run  ->  chunk id

An entry is put by the APPEND whose chunk is an extent, next to the offset index's own; it goes with the chunk's row, or later. Promises: an
extent that has a row, in a list or in garbage, has an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is a class, and is used like one)

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_chunk, decode_extent, decode_garbage
from chunkstore.metadata.index import RowReader
from chunkstore.metadata.keys import EXTENT, GARBAGE, INLINE, RUN, chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.records.names import journal_position
from chunkstore.records.segments import GarbageRecord, SegmentRecord

__all__ = [
    "all_extents",
    "inline_chunks",
    "inline_runs",
    "oldest_extents",
    "oldest_inline_record",
    "runs_of",
    "size_of_extents",
    "spilled_from",
]

_KEY = Struct(">cQQ")
_TARGET = Struct(">QQ")
_U64_MAX = (1 << 64) - 1


def inline_runs(reader: RowReader) -> Iterator[int]:
    """The runs in which extents are, or were until the last collection."""
    run = 0
    while (found := next(reader.scan(_KEY.pack(INLINE, run, 0), bytes((INLINE[0] + 1,))), None)) is not None:
        _, run, _ = _KEY.unpack(found[0])
        yield run
        run += 1


def runs_of(reader: RowReader, runs: AbstractSet[int]) -> set[int]:
    """The ids of segments that have bytes in one of ``runs``."""
    found: set[int] = set()
    for key, value in reader.scan(RUN, bytes((RUN[0] + 1,))):
        if _TARGET.unpack(value)[0] in runs:
            found.add(_KEY.unpack(key)[1])
    return found


def oldest_extents(reader: RowReader) -> Iterator[tuple[bytes, bytes]]:
    """The oldest extent of each run: (chunk id, its row), those of garbage included."""
    for run in inline_runs(reader):
        for _, identity in reader.scan(_KEY.pack(INLINE, run, 0), _KEY.pack(INLINE, run, _U64_MAX)):
            row = reader.get(chunk_key(identity))
            if row is not None:
                yield identity, row
                break


def oldest_inline_record(view: MetadataView) -> tuple[int, int] | None:
    """Epoch and index of the oldest record of the journal that holds an extent which has a row, or had one when a plan was made that may
    still be performed; None: no record does. What cannot be read holds everything."""
    places: list[tuple[int, int]] = []
    try:
        for identity, row in oldest_extents(view):
            places.append(journal_position(decode_chunk(f"chunk row {identity.hex()}", row)))
        for key, row in view.scan(GARBAGE, bytes((GARBAGE[0] + 1,))):
            places += spilled_from(decode_garbage(repr(key), row))
    except Damaged:
        return 0, 0
    return min(places, default=None)


def spilled_from(garbage: GarbageRecord) -> list[tuple[int, int]]:
    """Epoch and index of the oldest record that held extents which a spill has taken away; nothing for another kind of garbage."""
    if garbage.first or len(garbage.extra) < 2:
        return []
    epoch, index = garbage.extra[:2]
    return [(epoch, index)] if type(epoch) is int and type(index) is int else [(0, 0)]


def all_extents(reader: RowReader) -> Iterator[bytes]:
    """The ids of all extents that are or were in the journal until the last collection, in no order."""
    for run in inline_runs(reader):
        for _, identity in reader.scan(_KEY.pack(INLINE, run, 0), _KEY.pack(INLINE, run, _U64_MAX)):
            yield identity


def size_of_extents(reader: RowReader, identities: Iterable[bytes]) -> tuple[int, int]:
    """How many of these extents have a row, and their bytes."""
    count = size_bytes = 0
    for identity in identities:
        row = decode_extent(reader.get(chunk_key(identity)) or b"")
        if row is not None:
            count, size_bytes = count + 1, size_bytes + row[2]
    return count, size_bytes


def inline_chunks(reader: RowReader, segment: SegmentRecord) -> Iterator[tuple[int, bytes]]:
    """The segment's chunks that are in the journal: (segment offset, chunk id), in order. Those that others have replaced, and that are
    garbage by now, are none of them. Raises ``Damaged``."""
    begin = segment.start_offset - segment.first_chunk_skip
    rows = list(reader.scan(_KEY.pack(RUN, segment.id, 0), _KEY.pack(RUN, segment.id, _U64_MAX)))
    try:
        for number, (key, value) in enumerate(rows):
            start = _KEY.unpack(key)[2]
            stop = _KEY.unpack(rows[number + 1][0])[2] if number + 1 < len(rows) else segment.length
            run, base = _TARGET.unpack(value)
            shift = base - start
            low = max(start, begin) + shift
            for entry, identity in reader.scan(_KEY.pack(INLINE, run, low), _KEY.pack(INLINE, run, stop + shift)):
                offset = _KEY.unpack(entry)[2]
                if (
                    reader.get(_KEY.pack(EXTENT, run, offset)) == identity
                    and reader.get(chunk_key(identity)) is not None
                ):
                    yield offset - shift, identity
    except StructError as error:
        raise Damaged(
            "an entry has a wrong length; delete the metadata cache and open again",
            object=f"offset index of segment {segment.id}",
        ) from error
