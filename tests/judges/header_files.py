"""Header files judged by the journal: what each leads to is what history says of its segment, and what is not ours stays as it was.

Promises: reads headers with a parser of its own (the format is ``codec/ROLLING_HEADER.md``), and history by its stored rows; looks only.
Leaves out: when a header has to follow, and who may have written one late (``tests.simulator.layouts``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tests.judges.stored_history import StoredHistory
from tests.judges.stored_records import CHUNK_FIELDS, SEGMENT_FIELDS, decode_row

__all__ = ["HeaderFiles", "header_key", "segment_of", "segments_of"]

_SUFFIX: Final = "$header"
_LAYOUT: Final = b"T\x07!layout"
_MARKS_MIN: Final = 1 << 62


class _Read(NamedTuple):
    """What a header says: files and where they begin. ``ours``: a second ``maxsize`` marks it; ``whole``: it ends behind an entry."""

    files: list[tuple[int, str]]
    ours: bool
    whole: bool


def segment_of(file: str) -> str | None:
    """The segment that a file is the header of; None: it is none."""
    return file[: -len(_SUFFIX)] if file.endswith(_SUFFIX) and "/" not in file else None


def header_key(segment: str) -> bytes:
    """The key of the row that says that a header was imported."""
    return _LAYOUT + segment.encode()


class HeaderFiles:
    """Of one root. ``content``: the present bytes of a file; ``fails`` is told of what must not be."""

    def __init__(self, content: Callable[[str], bytes | None], fails: Callable[[str], None]) -> None:
        self._content = content
        self._fails = fails

    def files_of(self, segment: str) -> list[str]:
        """The files that a header lists which is marked as a container's."""
        found = self._read(segment)
        return [file for _, file in found.files] if found is not None and found.ours else []

    def judge(self, stored: StoredHistory, segment: str, when: str, *, exact: bool) -> None:
        """A header leads to what history says now. ``exact``: and to nothing behind it."""
        raw = stored.rows.get(b"S" + segment.encode())
        found = self._read(segment)
        if raw is None:
            if found is not None and found.ours:
                self._fails(f"history left-header: {when} a header lies there of {segment!r}, which is deleted")
            return
        if found is None or not found.whole or not found.ours:
            self._fails(f"history lost-header: {when} {segment!r} has no header that is whole: {found}")
            return
        start, data = self._journal(stored, raw)
        begin, shown = self._shown(found)
        if begin > start or shown is None:
            self._fails(
                f"history lost-header: {when} {segment!r} begins at {start}, its header at {begin}: {found.files}"
            )
            return
        seen = shown[start - begin :]
        if not seen.startswith(data) or (exact and seen != data):
            self._fails(f"history other-header: {when} {segment!r} holds {data!r}, its header leads to {seen!r}")

    def _read(self, segment: str) -> _Read | None:
        data = self._content(segment + _SUFFIX)
        if not data:
            return None
        *entries, rest = data.split(b"&")
        files: list[tuple[int, str]] = []
        sizes: list[int] = []
        for entry in entries:
            key, _, value = entry.partition(b"=")
            if key == b"maxsize":
                sizes.append(int(value))
            else:
                files.append((int(key), value.decode()))
        return _Read(files, len(sizes) > 1 and sizes[1] >= _MARKS_MIN, not rest)

    def _shown(self, header: _Read) -> tuple[int, bytes | None]:
        """Where it begins, and the bytes from there on: a file ends where the next begins. None: a file is gone, or too short."""
        begin, data = header.files[0][0] if header.files else 0, b""
        for at, (offset, file) in enumerate(header.files, 1):
            piece = self._content(file)
            length = None if at == len(header.files) else header.files[at][0] - offset
            if piece is None or (length is not None and len(piece) < length):
                return begin, None
            data += piece[:length]
        return begin, data

    def _journal(self, stored: StoredHistory, raw: bytes) -> tuple[int, bytes]:
        """The start offset of a segment, and its bytes, by the rows of its chunks."""
        _, _, _, start, _, identity, _, _, skip = decode_row(raw, SEGMENT_FIELDS)[:9]
        data = b""
        while identity:
            fields = decode_row(stored.rows[b"C" + identity], CHUNK_FIELDS)
            data += (stored.bytes_of(identity) or b"")[: fields[2]]
            identity = fields[5]
        return start, data[skip:]


def segments_of(rows: Mapping[bytes, bytes]) -> list[str]:
    """The names of the segments that everybody sees."""
    return [key[1:].decode() for key in rows if key[:1] == b"S" and key[1:2] != b"\0"]
