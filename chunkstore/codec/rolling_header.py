"""The header file of the layout before PDP-34 (RollingStorage): which files hold a segment, and where each begins.

Promises: what the old code writes is read as the old code reads it, and ``encode_header`` gives back the same bytes; everything is checked
before it is believed, and a hostile header costs memory in proportion to its own length, which is bounded. Bytes: ROLLING_HEADER.md
next to this file. Leaves out: how long the files are, and whether they are there (``chunkstore.headers.importing``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from chunkstore.checksum import BytesLike
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.records.names import check_object_name, utf8_bytes

__all__ = [
    "HEADER_BYTES_MAX",
    "HEADER_ENTRIES_MAX",
    "HEADER_SUFFIX",
    "NAME_BYTES_MAX",
    "NUMBER_MAX",
    "ChunkEntry",
    "ConcatEntry",
    "Header",
    "HeaderEntry",
    "MaxSizeEntry",
    "decode_header",
    "encode_header",
]

HEADER_SUFFIX: Final = "$header"
"""The header of a segment is the file of this name after the segment's own."""
HEADER_BYTES_MAX: Final = 64 * MIB
HEADER_ENTRIES_MAX: Final = 1_000_000
NAME_BYTES_MAX: Final = 900
NUMBER_MAX: Final = (1 << 63) - 1

_NUMBER = re.compile(rb"[0-9]{1,19}\Z")
_MAX_SIZE: Final = b"maxsize"
_CONCAT: Final = b"concat"


class MaxSizeEntry(NamedTuple):
    """``maxsize=N``: how long a file may grow."""

    size_bytes: int


class ConcatEntry(NamedTuple):
    """``concat=N@L``: the next ``chunk_count`` files were a segment's that was put after this one's first ``length`` bytes."""

    chunk_count: int
    length: int


class ChunkEntry(NamedTuple):
    """``offset=name``: a file, and the offset of its first byte in the segment."""

    offset: int
    name: str


HeaderEntry: TypeAlias = MaxSizeEntry | ConcatEntry | ChunkEntry


class Header(NamedTuple):
    """What a header says. ``size_bytes_max`` None: files grow without end. ``chunks``: offsets do not descend, no name comes twice."""

    size_bytes_max: int | None
    chunks: tuple[ChunkEntry, ...]


def encode_header(entries: Iterable[HeaderEntry]) -> bytes:
    """The bytes of a header, or those that are put after one.

    Raises ``InvalidArgument`` for what ``decode_header`` would refuse in an entry.
    """
    parts: list[bytes] = []
    for entry in entries:
        if isinstance(entry, MaxSizeEntry):
            _check_numbers(entry, low=1)
            parts.append(b"maxsize=%d&" % entry)
        elif isinstance(entry, ConcatEntry):
            _check_numbers(entry)
            parts.append(b"concat=%d@%d&" % entry)
        else:
            _check_numbers(entry[:1])
            _check_name(entry.name)
            parts.append(b"%d=%s&" % (entry.offset, entry.name.encode()))
    data = b"".join(parts)
    if len(parts) > HEADER_ENTRIES_MAX or len(data) > HEADER_BYTES_MAX:
        text = f"{len(parts)} entries of {len(data)} bytes; a header has at most {HEADER_ENTRIES_MAX} of {HEADER_BYTES_MAX}: merge chunks"
        raise InvalidArgument(text, argument="entries")
    return data


def decode_header(data: BytesLike, *, object: str = "header") -> Header:
    """What the header ``data`` says: markers are applied, or dropped where the concat they announce did not happen. ``object`` names it in
    errors.

    Raises ``Damaged`` with the position of the first entry that is wrong: no ``=``, an empty half, a number that is none, a name that
    cannot be a chunk's, no ``&`` at the end, an offset that descends or is too large, a name that comes twice; and for a header that is
    empty (its segment was never created) or too long.
    """
    return _resolved(_decoded(data, object), object)


def _decoded(data: BytesLike, object: str) -> list[tuple[int, HeaderEntry]]:
    """Entries and the positions where they begin."""
    raw = bytes(data)
    if len(raw) > HEADER_BYTES_MAX:
        raise Damaged(f"{len(raw)} bytes; a header has at most {HEADER_BYTES_MAX}", object=object)
    if not raw:
        raise Damaged("it is empty: the segment was never created", object=object)
    count = raw.count(b"&")
    if count > HEADER_ENTRIES_MAX:
        raise Damaged(f"{count} entries; a header has at most {HEADER_ENTRIES_MAX}", object=object)
    found: list[tuple[int, HeaderEntry]] = []
    at = 0
    while at < len(raw):
        text, ampersand, _ = raw[at : raw.find(b"&", at) + 1 or len(raw)].partition(b"&")
        try:
            if not ampersand:
                raise ValueError("it ends in the middle of an entry")
            found.append((at, _entry(text)))
        except ValueError as error:
            raise Damaged(f"{error}: {text[:100]!r}", object=object, position=at) from error
        at += len(text) + 1
    return found


def _entry(text: bytes) -> HeaderEntry:
    """Raises ``ValueError`` for what is none."""
    key, _, value = text.partition(b"=")
    if not key or not value:
        raise ValueError("an entry is key=value, neither of them empty")
    if key.lower() == _MAX_SIZE:
        size = _number(value)
        if not size:
            raise ValueError("a size is a whole number from 1 to 2^63 - 1")
        return MaxSizeEntry(size)
    if key.lower() == _CONCAT:
        count, _, length = value.partition(b"@")
        numbers = _number(count), _number(length)
        if numbers[0] is None or numbers[1] is None:
            raise ValueError("a marker is concat=count@length")
        return ConcatEntry(numbers[0], numbers[1])
    offset = _number(key)
    if offset is None:
        raise ValueError("an offset is a whole number from 0 to 2^63 - 1")
    try:
        name = value.decode()
        _check_name(name)
    except (UnicodeDecodeError, InvalidArgument) as error:
        raise ValueError("this cannot be the name of a chunk") from error
    return ChunkEntry(offset, name)


def _number(text: bytes) -> int | None:
    """What digits say, up to 2^63 - 1; None for anything else."""
    if _NUMBER.match(text) is None:
        return None
    number = int(text)
    return number if number <= NUMBER_MAX else None


def _resolved(entries: list[tuple[int, HeaderEntry]], object: str) -> Header:
    size: int | None = None
    chunks: list[ChunkEntry] = []
    names: set[str] = set()
    floor = 0
    marker, left = ConcatEntry(0, 0), 0
    for position, entry in entries:
        if isinstance(entry, MaxSizeEntry):
            size = entry.size_bytes if size is None else size
            continue
        if isinstance(entry, ConcatEntry):
            marker, left = entry, entry.chunk_count
            continue
        offset, name = entry
        if left and left == marker.chunk_count and offset:
            left = 0  # what was to come begins at 0: this is not it, and never came
        if left:
            left -= 1
            offset += marker.length
        if offset > NUMBER_MAX:
            raise Damaged(f"chunk {name!r:.200} begins beyond 2^63 - 1", object=object, position=position)
        if offset < floor:
            text = f"chunk {name!r:.200} begins at offset {offset}, below the one before it at {floor}"
            raise Damaged(text, object=object, position=position)
        if name in names:
            raise Damaged(f"chunk {name!r:.200} is listed twice", object=object, position=position)
        names.add(name)
        floor = offset
        chunks.append(ChunkEntry(offset, name))
    return Header(size, tuple(chunks))


def _check_numbers(numbers: tuple[object, ...], low: int = 0) -> None:
    for number in numbers:
        if type(number) is not int or not low <= number <= NUMBER_MAX:
            text = f"{number!r} is not a whole number from {low} to 2^63 - 1"
            raise InvalidArgument(text, argument="entries")


def _check_name(name: str) -> None:
    check_object_name(name)
    if "&" in name or not 0 <= utf8_bytes(name) <= NAME_BYTES_MAX:
        text = f"{name!r:.200}: a chunk of a header has a name of at most {NAME_BYTES_MAX} bytes of UTF-8 without '&'"
        raise InvalidArgument(text, argument="name")
