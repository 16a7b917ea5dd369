"""One segment of ours as a header file of the old layout.

Promises: a header appears whole, and behind the copies that it names; or it grows by entries that are written behind it. Leaves out: what
it says (``header_plan``), which segments, and when (``headers``, ``header_keeper``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from chunkstore.backup.header_plan import ChunkCopy, HeaderPlan, check_file_name, is_copy
from chunkstore.backup.header_source import PIECE_BYTES
from chunkstore.codec.rolling_header import HEADER_SUFFIX, ChunkEntry, HeaderEntry, encode_header
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument
from chunkstore.handles import SegmentHandle
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import imported_key, segment_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.inspect import info_of, walk_chunks
from chunkstore.records import LayoutChunk, SegmentInfo
from chunkstore.replica import Replica
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = ["HeaderWriter", "SeenSegment"]

_FOLDERS_MAX: Final = 10_000


class SeenSegment(NamedTuple):
    """A segment at one point of history."""

    info: SegmentInfo
    size_bytes_max: int
    chunks: list[LayoutChunk]


class HeaderWriter:
    """Writes headers of ``store``'s segments to ``target``."""

    def __init__(self, store: ChunkedSegmentStorage | Replica, target: ChunkStorage) -> None:
        self.target = target
        self._store = store
        self._folders: dict[str, bool] = {}

    def check_place(self, name: str) -> None:
        """Raise ``InvalidArgument`` unless a segment of this name can have a header."""
        check_file_name(name)
        folder, slash, _ = name.partition("/")
        if not slash:
            return
        if len(self._folders) > _FOLDERS_MAX:
            self._folders.clear()
        if folder not in self._folders:
            self._folders[folder] = self.target.exists(f"{folder}/FORMAT")
        if self._folders[folder]:
            text = f"the header of segment {name!r} would lie in the container {folder!r}: export to another place"
            raise InvalidArgument(text, argument="directory")

    def look(self, name: str) -> SeenSegment | None:
        """A segment; None: there is none."""
        context = self._store.read_context

        def seen(view: MetadataView) -> SeenSegment | None:
            raw = view.get(segment_key(name))
            if raw is None:
                return None
            record = decode_segment(name, raw)
            return SeenSegment(
                info_of(record), record.chunk_size_bytes_max, list(walk_chunks(view, context.names, record, 0))
            )

        found = context.look(seen)
        context.check()
        return found

    def is_imported(self, name: str) -> bool:
        """Whether the header of this name is known to be imported."""
        return self._store.read_context.look(lambda view: view.get(imported_key(name)) is not None)

    def last_length(self, chunks: Sequence[LayoutChunk]) -> int:
        """How long the object of the last chunk is. Raises ``Damaged`` where it is too short."""
        if not chunks:
            return 0
        last = chunks[-1]
        length = self._store.read_context.storage.stat(last.name).length
        if length < last.length:
            text = f"{length} bytes long, its record says {last.length}; run check"
            raise Damaged(text, object=last.name, position=length)
        return length

    def write(self, seen: SeenSegment, plan: HeaderPlan, former: Iterable[HeaderEntry]) -> bool:
        """Write a header anew in the place of one with the entries ``former``; whether it says that a sealed segment is sealed."""
        info, header = seen.info, seen.info.name + HEADER_SUFFIX
        data = encode_header(plan.entries)
        try:
            for copy in plan.copies:
                self._copy(SegmentHandle(info.name, info.id, False), copy)
            self.target.put(header, data)
        except ChunkstoreError:
            self.delete([copy.name for copy in plan.copies])
            raise
        says_sealed = self.seal(seen)
        self.delete(sorted(_copies(info.name, former) - _copies(info.name, plan.entries)))
        return says_sealed

    def seal(self, seen: SeenSegment) -> bool:
        """Make the header read-only if the segment is sealed, and else writable; whether the storage can."""
        if not self.target.capabilities.set_read_only:
            return False
        header = seen.info.name + HEADER_SUFFIX
        if self.target.open_write(header).writable == seen.info.sealed:
            self.target.set_read_only(ChunkHandle(header, True), seen.info.sealed)
        return True

    def remove(self, name: str, former: Iterable[HeaderEntry], *, for_good: bool = False) -> None:
        """Delete a header, then the copies that it lists. ``for_good``: not even a power cut brings its bytes back, which a deletion alone
        does not promise: first it is put empty, which is nobody's segment."""
        if for_good:
            self.target.put(name + HEADER_SUFFIX, b"")
        self.target.delete(name + HEADER_SUFFIX)
        self.delete(sorted(_copies(name, former)))

    def delete(self, names: Iterable[str]) -> None:
        """Delete copies as far as that works."""
        for name in names:
            with suppress(ChunkstoreError):
                self.target.delete(name)

    def _copy(self, segment: SegmentHandle, copy: ChunkCopy) -> None:
        """Through the store, which verifies what it reads; in memory a piece at a time."""
        read = partial(self._store.read, segment)
        if copy.length <= PIECE_BYTES:
            self.target.create_if_absent(copy.name, read(copy.offset, copy.length) if copy.length else b"")
            return
        pieces: list[ChunkRange] = []
        try:
            while (done := sum(piece.length for piece in pieces)) < copy.length:
                data = read(copy.offset + done, min(PIECE_BYTES, copy.length - done))
                pieces.append(ChunkRange(f"{copy.name}.{len(pieces)}", 0, len(data)))
                self.target.create_if_absent(pieces[-1].name, data)
            self.target.compose(copy.name, pieces)
        finally:
            self.delete([piece.name for piece in pieces])


def _copies(segment: str, entries: Iterable[HeaderEntry]) -> set[str]:
    return {entry.name for entry in entries if isinstance(entry, ChunkEntry) and is_copy(segment, entry.name)}
