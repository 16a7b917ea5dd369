"""Segments of ours as header files of PDP-34's old layout, so that they can be found without our metadata.

Promises: a header lists the chunks where they are; nothing is copied but what a header cannot say (``plan_export``). A header
appears whole, and behind the copies that it names. All names are looked at before anything is written.
Leaves out: keeping the chunks that headers name (a pin does), following changes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.header_plan import ChunkCopy, HeaderPlan, check_file_name, copy_prefix, plan_export
from chunkstore.codec.rolling_header import (
    HEADER_BYTES_MAX,
    HEADER_SUFFIX,
    ChunkEntry,
    decode_entries,
    encode_header,
)
from chunkstore.config import MIB, Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, InvalidArgument
from chunkstore.handles import SegmentHandle
from chunkstore.metadata.port import MetadataView
from chunkstore.names import check_segment_name
from chunkstore.operations.inspect import info_of, walk_chunks
from chunkstore.operations.read import find_segment
from chunkstore.records import LayoutChunk, SegmentInfo
from chunkstore.registry import open_storage
from chunkstore.replica import Replica
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = ["PIECE_BYTES", "HeadersReport", "export_headers", "folder_url"]

PIECE_BYTES: Final = 16 * MIB
_TOKEN_DIGITS: Final = 8


class HeadersReport(NamedTuple):
    """What was exported: ``copied`` chunks of ``copied_bytes`` lie beside the headers, all others where they were. ``unsealed``: sealed
    segments whose headers do not say so, because the storage has no read-only files."""

    segments: int
    chunks: int
    copied: int
    copied_bytes: int
    unsealed: int


def folder_url(directory: str | os.PathLike[str]) -> str:
    """The URL of a folder that is named by one, or by a path. Raises ``InvalidArgument``."""
    text = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument(f"directory must be a path or a URL, not {text!r}", argument="directory")
    return text if "://" in text else Path(text).absolute().as_uri()


def export_headers(
    store: ChunkedSegmentStorage | Replica,
    directory: str | os.PathLike[str],
    segments: Sequence[str] = (),
    *,
    replace: bool = False,
    settings: Settings | None = None,
) -> HeadersReport:
    """Write a header file ``<segment>$header`` for each of ``segments`` (none: for all) into ``directory``, a path or a URL.

    Names of chunks in it are relative to the container's root: where ``directory`` is that root, or is laid over it, the old layout is
    complete. ``replace``: headers that are there are replaced, and copies that an export made for them deleted.
    Atomic: each header for itself (that a segment is sealed is said a moment later, by making it read-only). Durable. Chunks that are
    removed or merged in the container, and collected, are missing then: export under a pin (``store.pin``), or from a container at rest.

    Raises ``InvalidArgument`` (a header is there and not ``replace``; a name that header files cannot have; a segment of more than
    1,000,000 chunks: merge them first), ``SegmentNotFound``, ``ChunkNotFound`` (collected meanwhile), ``Damaged`` (a last chunk that is
    too short), ``StorageFull``, ``StorageUnavailable``, and what reading raises. Retry: safe, with ``replace``.
    """
    if isinstance(segments, str) or not all(isinstance(name, str) for name in segments):
        raise InvalidArgument("segments is a sequence of names", argument="segments")
    for name in segments:
        check_segment_name(name, "segments")
    target = open_storage(folder_url(directory), settings or store.settings)
    try:
        return _Exporter(store, target).run(list(dict.fromkeys(segments)), replace)
    finally:
        target.close()


class _Exporter:
    def __init__(self, store: ChunkedSegmentStorage | Replica, target: ChunkStorage) -> None:
        self._store = store
        self._target = target
        self._folders: dict[str, bool] = {}

    def run(self, segments: list[str], replace: bool) -> HeadersReport:
        names = segments or [info.name for info in self._store.segments()]
        for name in names:
            self._check(name, replace)
        report = HeadersReport(0, 0, 0, 0, 0)
        for name in names:
            report = HeadersReport(*map(sum, zip(report, self._export(name), strict=True)))
        return report

    def _check(self, name: str, replace: bool) -> None:
        """Raise ``InvalidArgument`` unless the header can be written; ``SegmentNotFound``."""
        check_file_name(name)
        self._store.info(name)
        folder, slash, _ = name.partition("/")
        if slash:
            if folder not in self._folders:
                self._folders[folder] = self._target.exists(f"{folder}/FORMAT")
            if self._folders[folder]:
                text = f"the header of segment {name!r} would lie in the container {folder!r}: export to another place"
                raise InvalidArgument(text, argument="directory")
        if not replace and self._target.exists(name + HEADER_SUFFIX):
            text = f"{name + HEADER_SUFFIX!r} is there already: replace it (replace=True), or export to another place"
            raise InvalidArgument(text, argument="directory")

    def _export(self, name: str) -> tuple[int, int, int, int, int]:
        info, size_bytes_max, chunks = self._look(name)
        token = runtime.token(_TOKEN_DIGITS // 2).hex()
        plan = plan_export(info, size_bytes_max, chunks, self._last_length(chunks), token)
        data = encode_header(plan.entries)
        header = name + HEADER_SUFFIX
        former = self._former_copies(name)
        try:
            for copy in plan.copies:
                self._copy(SegmentHandle(name, info.id, False), copy)
            self._target.put(header, data)
        except ChunkstoreError:
            self._delete([copy.name for copy in plan.copies])
            raise
        unsealed = info.sealed and not self._target.capabilities.set_read_only
        if info.sealed and not unsealed:
            self._target.set_read_only(ChunkHandle(header, True), True)
        self._delete(former)
        return _counts(plan, unsealed)

    def _look(self, name: str) -> tuple[SegmentInfo, int, list[LayoutChunk]]:
        """A segment at one point of history."""
        context = self._store.read_context

        def seen(view: MetadataView) -> tuple[SegmentInfo, int, list[LayoutChunk]]:
            record = find_segment(view, name, None)
            return info_of(record), record.chunk_size_bytes_max, list(walk_chunks(view, context.names, record, 0))

        found = context.look(seen)
        context.check()
        return found

    def _last_length(self, chunks: list[LayoutChunk]) -> int:
        if not chunks:
            return 0
        last = chunks[-1]
        length = self._store.read_context.storage.stat(last.name).length
        if length < last.length:
            text = f"{length} bytes long, its record says {last.length}; run check"
            raise Damaged(text, object=last.name, position=length)
        return length

    def _former_copies(self, name: str) -> list[str]:
        """The copies that the header lists which is there now: names that only exports make."""
        header, prefix = name + HEADER_SUFFIX, copy_prefix(name)
        try:
            length = self._target.stat(header).length
            if not length or length > HEADER_BYTES_MAX:
                return []
            entries = decode_entries(self._target.read(ChunkHandle(header, False), 0, length), object=header)
        except (ChunkNotFound, Damaged):
            return []
        listed = [entry.name for entry in entries if isinstance(entry, ChunkEntry) and entry.name.startswith(prefix)]
        return [
            item for item in listed if len(item.rpartition(".")[2]) == _TOKEN_DIGITS and item.count(".", len(prefix))
        ]

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(ChunkstoreError):
                self._target.delete(name)

    def _copy(self, segment: SegmentHandle, copy: ChunkCopy) -> None:
        """Through the store, which verifies what it reads; in memory a piece at a time."""
        read = partial(self._store.read, segment)
        if copy.length <= PIECE_BYTES:
            self._target.create_if_absent(copy.name, read(copy.offset, copy.length) if copy.length else b"")
            return
        pieces: list[ChunkRange] = []
        try:
            while (done := sum(piece.length for piece in pieces)) < copy.length:
                data = read(copy.offset + done, min(PIECE_BYTES, copy.length - done))
                pieces.append(ChunkRange(f"{copy.name}.{len(pieces)}", 0, len(data)))
                self._target.create_if_absent(pieces[-1].name, data)
            self._target.compose(copy.name, pieces)
        finally:
            self._delete([piece.name for piece in pieces])


def _counts(plan: HeaderPlan, unsealed: bool) -> tuple[int, int, int, int, int]:
    return 1, len(plan.entries) - 1, len(plan.copies), sum(copy.length for copy in plan.copies), int(unsealed)
