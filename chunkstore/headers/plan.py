"""What the segments of header files are, planned without I/O: from a header and the lengths of its files to the bytes that can be read,
and from a segment of ours to the header that says the same.

Promises: no byte is read that the header does not give to its segment, and no segment is planned with a hole in it: what the files do not
bear out is a finding, and of severity "damage" wherever bytes would be missing. Leaves out: reading and writing files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from chunkstore.codec.rolling_header import (
    HEADER_SUFFIX,
    NUMBER_MAX,
    ChunkEntry,
    Header,
    HeaderEntry,
    MaxSizeEntry,
)
from chunkstore.config import RollingPolicy
from chunkstore.errors import InvalidArgument
from chunkstore.invariants import Finding
from chunkstore.names import check_object_name
from chunkstore.records import LayoutChunk, SegmentInfo

__all__ = [
    "NO_LIMIT",
    "HeaderPlan",
    "ImportPlan",
    "PlannedChunk",
    "check_file_name",
    "is_copy",
    "plan_export",
    "plan_import",
    "rolling_of",
]

NO_LIMIT: Final = 1 << 53
"""What ``RollingPolicy`` has for chunks that grow without end."""
_FILE_NAME_BYTES_MAX: Final = 255
_OFFSET: Final = "$offset."


class PlannedChunk(NamedTuple):
    """A file whose first ``length`` bytes are the segment's from ``offset`` on."""

    name: str
    offset: int
    length: int


class ImportPlan(NamedTuple):
    """A segment of header files: ``chunks`` cover ``[start_offset, length)`` without holes, if no finding is damage."""

    segment: str
    chunks: tuple[PlannedChunk, ...]
    start_offset: int
    length: int
    sealed: bool
    size_bytes_max: int | None
    findings: tuple[Finding, ...]

    @property
    def damage(self) -> Finding | None:
        """The first finding because of which this cannot be imported."""
        return next((item for item in self.findings if item.severity == "damage"), None)


class HeaderPlan(NamedTuple):
    """The header that says what a segment is, and what has to be copied into files of its own for it."""

    entries: tuple[HeaderEntry, ...]
    copies: tuple[PlannedChunk, ...]


def plan_import(segment: str, header: Header, lengths: Mapping[str, int], *, sealed: bool = False) -> ImportPlan:
    """What a header and the lengths of its files (in bytes; those that are gone are left out) make of a segment.

    A file ends where the next one begins, the last one at its own end. Files at the beginning that are gone were truncated away: the
    segment starts with the first one that is there. Findings, each with the file and a position in it: "damage", a file that is gone
    behind that, or is too short; "warning", one that is longer than what is the segment's; "info", what was truncated away.
    """
    entries = header.chunks
    gone = 0
    while gone < len(entries) - 1 and (not _own(entries, gone) or entries[gone].name not in lengths):
        gone += 1
    findings: list[Finding] = []
    if missing := sum(1 for at in range(gone) if _own(entries, at)):
        text = f"{missing} files at the beginning are missing: the segment starts at {entries[gone].offset}"
        findings.append(Finding(0, "info", segment, "", segment + HEADER_SUFFIX, 0, text))
    chunks: list[PlannedChunk] = []
    end = start = entries[gone].offset if entries else 0
    for at in range(gone, len(entries)):
        last = at == len(entries) - 1
        length, fault = _judge(entries[at], None if last else _own(entries, at), lengths.get(entries[at].name))
        end = entries[at].offset + length
        if fault is not None:
            severity, position, text = fault
            findings.append(Finding(0, severity, segment, "", entries[at].name, position, text))
        if length:
            chunks.append(PlannedChunk(entries[at].name, entries[at].offset, length))
    return ImportPlan(segment, tuple(chunks), start, end, sealed, header.size_bytes_max, tuple(findings))


def _judge(entry: ChunkEntry, own: int | None, have: int | None) -> tuple[int, tuple[str, int, str] | None]:
    """How many bytes of a file are the segment's, and what is wrong: severity, position, text. ``own`` None: it is the last."""
    if have is None and own == 0:
        return 0, None
    if have is None:
        ends = "; the end of the segment is unknown without it" if own is None else ""
        return 0, ("damage", 0, f"the file with the bytes from {entry.offset} is missing{ends}")
    length = have if own is None else own
    if entry.offset + length > NUMBER_MAX:
        return 0, ("damage", have, "with it the segment would end beyond 2^63 - 1")
    if have < length:
        return 0, ("damage", have, f"{have} bytes long, and the next file begins {length} bytes after its beginning")
    if have > length:
        return length, ("warning", length, f"{have} bytes long, of which {length} are the segment's")
    return length, None


def _own(entries: tuple[ChunkEntry, ...], at: int) -> int:
    """How many bytes the header gives to a file that is not the last."""
    return entries[at + 1].offset - entries[at].offset


def rolling_of(size_bytes_max: int | None) -> RollingPolicy:
    """How long chunks of a segment grow whose header says this; None: without end."""
    return RollingPolicy(chunk_size_bytes_max=min(size_bytes_max or NO_LIMIT, NO_LIMIT))


def plan_export(
    info: SegmentInfo, size_bytes_max: int, chunks: Sequence[LayoutChunk], last_length: int, token: str
) -> HeaderPlan:
    """The header of a segment of ours, which lists its chunks by their own names. ``last_length``: how long the last one's object is.

    Copied is only what a header cannot say: the live part of a first chunk that begins below the start offset, a last chunk whose object
    is longer than its record, bytes in records of the journal, and no bytes at all where nothing else would say the start
    offset. Copies are named by ``token``.
    """
    entries: list[HeaderEntry] = [MaxSizeEntry(NUMBER_MAX if size_bytes_max >= NO_LIMIT else size_bytes_max)]
    copies: list[PlannedChunk] = []
    own = [chunk.name if chunk.kind == "object" else "" for chunk in chunks]
    ranges = [(name, chunk.offset, chunk.offset + chunk.length) for name, chunk in zip(own, chunks, strict=True)]
    if not ranges and info.start_offset:
        ranges = [("", info.start_offset, info.start_offset)]
    for at, (name, offset, end) in enumerate(ranges):
        begin = max(offset, info.start_offset)
        if begin > offset or not name or (at == len(chunks) - 1 and last_length > end - offset):
            name = f"{info.name}{_OFFSET}{begin}.{token}"
            copies.append(PlannedChunk(name, begin, end - begin))
        entries.append(ChunkEntry(begin, name))
    return HeaderPlan(tuple(entries), tuple(copies))


_COPY = re.compile(r"[0-9]{1,19}\.[0-9a-f]{8}")


def is_copy(segment: str, name: str) -> bool:
    """Whether only exports of this segment name files so."""
    prefix = segment + _OFFSET
    return name.startswith(prefix) and _COPY.fullmatch(name, len(prefix)) is not None


def check_file_name(segment: str) -> None:
    """Raise ``InvalidArgument`` unless a header of this segment's name can be stored next to others, and be found by its name alone.

    Slashes make folders. Refused are names with empty parts, with ``.`` or ``..`` as a part, with ``&``, and those that leave no room for
    the names of chunk files: nothing is escaped, because what reads header files would find another name.
    """
    longest = f"{segment}{_OFFSET}{NUMBER_MAX}.00000000"
    try:
        check_object_name(longest)
        good = "&" not in segment and len(segment.rpartition("/")[2]) > 0
    except InvalidArgument:
        good = False
    if not good or max(len(part.encode()) for part in longest.split("/")) > _FILE_NAME_BYTES_MAX:
        text = (
            f"segment {segment!r} has no name that header files can have (a relative path without '&', whose last part has at most "
            f"{_FILE_NAME_BYTES_MAX - len(longest.encode()) + len(segment.encode())} bytes); export the other segments by name"
        )
        raise InvalidArgument(text, argument="segments")
