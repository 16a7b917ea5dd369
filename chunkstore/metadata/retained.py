"""What has to stay: positions that pins keep restorable (protocol 3.14.7), and records of the journal that hold extents.

Promises: read from one view. What cannot be read keeps everything: a damaged pin may mean any position, a damaged row any record. Extents
are found by the derived index (``index``), without scans of rows: an extent that has a row, in a list or in garbage, has an entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is a class, and is used like one)
from typing import Final

from chunkstore import runtime
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_chunk, decode_extent, decode_garbage, decode_pin
from chunkstore.metadata.keys import EXTENT, GARBAGE, INLINE, PIN, RUN, chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.records.names import journal_position
from chunkstore.records.segments import Pin, PinRecord, SegmentRecord

__all__ = [
    "all_extents",
    "inline_chunks",
    "inline_runs",
    "oldest_inline_record",
    "pin_holder",
    "pin_of",
    "pinned_lsn",
    "pins_at",
    "read_pins",
    "runs_of",
    "scan_pins",
    "size_of_extents",
]

_KEY = Struct(">cQQ")
_TARGET = Struct(">QQ")
_U64_MAX = (1 << 64) - 1


def inline_runs(reader: MetadataView) -> Iterator[int]:
    """The runs in which extents are, or were until the last collection."""
    run = 0
    while (found := next(reader.scan(_KEY.pack(INLINE, run, 0), bytes((INLINE[0] + 1,))), None)) is not None:
        _, run, _ = _KEY.unpack(found[0])
        yield run
        run += 1


def runs_of(reader: MetadataView, runs: AbstractSet[int]) -> set[int]:
    """The ids of segments that have bytes in one of ``runs``."""
    found: set[int] = set()
    for key, value in reader.scan(RUN, bytes((RUN[0] + 1,))):
        if _TARGET.unpack(value)[0] in runs:
            found.add(_KEY.unpack(key)[1])
    return found


def oldest_inline_record(view: MetadataView) -> tuple[int, int] | None:
    """Epoch and index of the oldest record of the journal that holds an extent which has a row, or had one when a plan was made that may
    still be performed; None: no record does. What cannot be read holds everything."""
    places: list[tuple[int, int]] = []
    try:
        for run in inline_runs(view):
            for _, identity in view.scan(_KEY.pack(INLINE, run, 0), _KEY.pack(INLINE, run, _U64_MAX)):
                if (row := view.get(chunk_key(identity))) is not None:
                    places.append(journal_position(decode_chunk(f"chunk row {identity.hex()}", row)))
                    break
        for key, row in view.scan(GARBAGE, bytes((GARBAGE[0] + 1,))):
            garbage = decode_garbage(repr(key), row)
            if not garbage.first and len(garbage.extra) >= 2:
                # The oldest record that held extents which a spill has taken away.
                epoch, index = garbage.extra[:2]
                places.append((epoch, index) if type(epoch) is int and type(index) is int else (0, 0))
    except Damaged:
        return 0, 0
    return min(places, default=None)


def all_extents(reader: MetadataView) -> Iterator[bytes]:
    """The ids of all extents that are or were in the journal until the last collection, in no order."""
    for run in inline_runs(reader):
        for _, identity in reader.scan(_KEY.pack(INLINE, run, 0), _KEY.pack(INLINE, run, _U64_MAX)):
            yield identity


def size_of_extents(reader: MetadataView, identities: Iterable[bytes]) -> tuple[int, int]:
    """How many of these extents have a row, and their bytes."""
    count = size_bytes = 0
    for identity in identities:
        row = decode_extent(reader.get(chunk_key(identity)) or b"")
        if row is not None:
            count, size_bytes = count + 1, size_bytes + row[2]
    return count, size_bytes


def inline_chunks(reader: MetadataView, segment: SegmentRecord) -> Iterator[tuple[int, bytes]]:
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


_HOST_CHARACTERS_MAX: Final = 200


def scan_pins(view: MetadataView) -> Iterator[tuple[str, PinRecord | Damaged]]:
    """Every pin by its name, in order of the names' UTF-8 bytes: its record, or why its row cannot be read."""
    for key, raw in view.scan(PIN, bytes((PIN[0] + 1,))):
        name = key[1:].decode("utf-8", "replace")
        try:
            yield name, decode_pin(key, raw)
        except Damaged as damage:
            yield name, damage


def pinned_lsn(view: MetadataView) -> int | None:
    """The lowest lsn that a pin names; 0 where one cannot be read, None where there is none."""
    found = (record.lsn if isinstance(record, PinRecord) else 0 for _, record in scan_pins(view))
    return min(found, default=None)


def pins_at(view: MetadataView, lsn: int) -> str:
    """The names of the pins at ``lsn``, for a message."""
    found = (name for name, record in scan_pins(view) if isinstance(record, PinRecord) and record.lsn == lsn)
    return ", ".join(map(repr, islice(found, 3)))


def read_pins(view: MetadataView) -> list[Pin]:
    """Every pin, by name. Raises ``Damaged``."""
    pins = []
    for name, record in scan_pins(view):
        if isinstance(record, Damaged):
            raise record
        pins.append(pin_of(name, record))
    return pins


def pin_holder() -> str:
    """A new holder. The random part makes it ours: processes in containers share host names and process numbers."""
    who = runtime.identity()
    return f"{who.host[:_HOST_CHARACTERS_MAX]}:{who.pid} {runtime.token(8).hex()}"


def pin_of(name: str, record: PinRecord) -> Pin:
    """The public face of a pin's record."""
    expires_at = record.time_ms + record.lasts_ms if record.lasts_ms else None
    return Pin(name, record.lsn, record.holder, record.note, record.time_ms, expires_at)
