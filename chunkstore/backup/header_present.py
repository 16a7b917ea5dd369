"""A header file that is there already, and whose it is: before it is replaced, deleted or imported.

Promises: a header that cannot be read is refused by position, unless its beginning shows that it is ours, which are derived anew.
Leaves out: what becomes of it (``header_keeper``).
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import Final, NamedTuple

from chunkstore.backup.header_plan import is_copy
from chunkstore.backup.header_source import read_header
from chunkstore.codec.rolling_header import (
    HEADER_SUFFIX,
    ChunkEntry,
    ConcatEntry,
    HeaderEntry,
    MaxSizeEntry,
    decode_entries,
    encode_header,
)
from chunkstore.errors import Conflict, Damaged
from chunkstore.names import ContainerNames
from chunkstore.storage import ChunkStorage

__all__ = ["PresentHeader", "find_header", "mark_of", "others_went_on"]


MARKS_MIN: Final = 1 << 62
"""No chunk is to grow as long as this, so what says so behind another ``maxsize`` is a mark."""


class PresentHeader(NamedTuple):
    """``is_whole``: it can be read to its end. ``marked``: as this container's, of this segment, wherever else it may have been copied to;
    ``ours``: that, or it lists chunks of this container, or follows another one: none to import; ``strange``: it lists files of others,
    too, or follows another container."""

    size_bytes: int
    entries: tuple[HeaderEntry, ...]
    is_whole: bool
    marked: bool
    ours: bool
    strange: bool


def mark_of(container: bytes, segment: str) -> int:
    """What says that a header is of this segment of this container: from 2^62 to 2^63 - 1."""
    return MARKS_MIN | int.from_bytes(blake2b(container + segment.encode(), digest_size=7).digest(), "big")


def find_header(storage: ChunkStorage, names: ContainerNames, segment: str, mark: int) -> PresentHeader | None:
    """The header of a segment; None: there is none. ``mark``: as its second ``maxsize`` it makes a header ours.

    Raises ``Damaged`` for one that is not ours and cannot be read.
    """
    data = read_header(storage, segment)
    if data is None:
        return None
    entries: tuple[HeaderEntry, ...] = ()
    is_whole = True
    if data:
        try:
            entries = decode_entries(data, object=segment + HEADER_SUFFIX)
        except Damaged:
            # Ours ends where its writer was killed, or what is behind its mark rots.
            entries, is_whole = _marked_start(data, mark), False
            if not entries:
                raise
    files = [entry.name for entry in entries if isinstance(entry, ChunkEntry)]
    own = [names.parse_chunk(file) is not None for file in files]
    strange = any(isinstance(entry, ConcatEntry) for entry in entries) or any(
        not mine and not is_copy(segment, file) for mine, file in zip(own, files, strict=True)
    )
    seen = next((entry.size_bytes for entry in entries[1:2] if isinstance(entry, MaxSizeEntry)), 0)
    followed = seen >= MARKS_MIN and seen != mark
    return PresentHeader(len(data), entries, is_whole, seen == mark, seen >= MARKS_MIN or any(own), strange or followed)


def _marked_start(data: bytes, mark: int) -> tuple[HeaderEntry, ...]:
    """The first two entries, if they are those of a header that is marked."""
    parts = data.split(b"&", 2)
    if len(parts) == 3 and parts[1] + b"&" == encode_header([MaxSizeEntry(mark)]):
        with suppress(Damaged):
            return decode_entries(b"&".join((*parts[:2], b"")))
    return ()


def others_went_on(segment: str) -> Conflict:
    """What is raised where a header is not ours to replace."""
    return Conflict(
        f"header file {segment + HEADER_SUFFIX!r}",
        expected="what the journal says of the segment, or a header that was imported",
        found="files of others: what wrote the old layout has gone on. Import it into another container, or move this header away",
    )
