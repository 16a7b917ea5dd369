"""Segments of ours as header files, so that they can be found without our metadata.

A header lists the chunks where they are; only what a header cannot say is copied (``plan_export``). A header appears whole, and after the
copies that it names. Chunks that headers name are not kept: a pin does that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.codec.rolling_header import HEADER_SUFFIX, ChunkEntry, decode_header, encode_header
from chunkstore.config import Settings
from chunkstore.engine.reading import context_of
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument, SegmentNotFound
from chunkstore.headers.importing import (
    PIECE_BYTES,
    PlannedChunk,
    check_file_name,
    check_names,
    is_copy,
    plan_export,
    read_header,
)
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import segment_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.inspect import info_of, walk_chunks
from chunkstore.records.arguments import SegmentHandle
from chunkstore.records.segments import LayoutChunk, SegmentInfo
from chunkstore.registry import Root, open_storage, root_url
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = ["HeadersReport", "export_headers"]


class HeadersReport(NamedTuple):
    """What was exported: ``copied`` chunks of ``copied_bytes`` are next to the headers, all others were not moved. ``unsealed``: sealed
    segments whose headers do not say so, because the storage has no read-only files."""

    segments: int
    chunks: int
    copied: int
    copied_bytes: int
    unsealed: int


def export_headers(
    store: ChunkedSegmentStorage | Replica,
    directory: Root,
    segments: Sequence[str] = (),
    *,
    replace: bool = False,
    settings: Settings | None = None,
) -> HeadersReport:
    """Write a header file ``<segment>$header`` for each of ``segments`` (none: for all) into ``directory``, a path or a URL.

    Names of chunks in it are relative to the container's root: where ``directory`` is that root, or is laid over it, the files are
    complete. ``replace``: headers that are there are replaced, and copies that an export made for them deleted.
    Atomic: each header for itself (that a segment is sealed is said a moment later, by making it read-only). Durable. Chunks that are
    removed or merged in the container, and collected, are missing then: export under a pin (``store.pin``), or from an idle container.

    Raises ``InvalidArgument`` (a header is there and not ``replace``; a name that header files cannot have; a segment of more than
    1,000,000 chunks: merge them first), ``SegmentNotFound``, ``ChunkNotFound`` (collected meanwhile), ``Damaged`` (a last chunk that is
    too short), ``StorageFull``, ``StorageUnavailable``, and what reading raises. Retry: safe, with ``replace``.
    """
    wanted = check_names(segments)
    target = open_storage(root_url(directory, "directory"), settings or store.settings)
    try:
        if isinstance(store, ChunkedSegmentStorage):
            store.spill(wanted)
        names = wanted or [info.name for info in store.segments()]
        for name in names:
            _check_place(target, name)
            store.info(name)
            if not replace and target.exists(name + HEADER_SUFFIX):
                text = (
                    f"{name + HEADER_SUFFIX!r} exists already; replace it (replace=True), or export to another folder"
                )
                raise InvalidArgument(text, argument="directory")
        report = HeadersReport(0, 0, 0, 0, 0)
        for name in names:
            report = HeadersReport(*map(sum, zip(report, _export(store, target, name), strict=True)))
        return report
    finally:
        target.close()


def _check_place(target: ChunkStorage, name: str) -> None:
    check_file_name(name)
    folder, slash, _ = name.partition("/")
    if slash and target.exists(f"{folder}/FORMAT"):
        text = f"the header of segment {name!r} would be inside the container {folder!r}; export to another folder"
        raise InvalidArgument(text, argument="directory")


def _export(store: ChunkedSegmentStorage | Replica, target: ChunkStorage, name: str) -> tuple[int, int, int, int, int]:
    """Write one header; what ``HeadersReport`` says of it."""
    header, (info, size_bytes_max, chunks) = name + HEADER_SUFFIX, _look(store, name)
    last_length = _last_length(context_of(store).storage, chunks)
    plan = plan_export(info, size_bytes_max, chunks, last_length, runtime.token(4).hex())
    former: set[str] = set()
    with suppress(Damaged):  # copies of a header that cannot be read stay
        data = read_header(target, name)
        files = decode_header(data, object=header).chunks if data else ()
        former = {entry.name for entry in files if is_copy(name, entry.name)}
    try:
        for copy in plan.copies:
            _copy(store, target, SegmentHandle(name, info.id, False), copy)
        target.put(header, encode_header(plan.entries))
    except ChunkstoreError:
        _delete(target, [copy.name for copy in plan.copies])
        raise
    can_seal = target.capabilities.set_read_only
    if can_seal and target.open_write(header).writable == info.sealed:
        target.set_read_only(ChunkHandle(header, True), info.sealed)
    _delete(target, sorted(former - {entry.name for entry in plan.entries if isinstance(entry, ChunkEntry)}))
    copied_bytes = sum(copy.length for copy in plan.copies)
    return 1, len(chunks) or len(plan.copies), len(plan.copies), copied_bytes, int(info.sealed and not can_seal)


def _look(store: ChunkedSegmentStorage | Replica, name: str) -> tuple[SegmentInfo, int, list[LayoutChunk]]:
    """A segment at one point of history: what is known of it, how long its chunks grow, its chunks."""
    context = context_of(store)

    def seen(view: MetadataView) -> tuple[SegmentInfo, int, list[LayoutChunk]]:
        raw = view.get(segment_key(name))
        if raw is None:
            raise SegmentNotFound(name)
        record = decode_segment(name, raw)
        return info_of(record), record.chunk_size_bytes_max, list(walk_chunks(view, context.names, record, 0))

    found = context.look(seen)
    context.check()
    return found


def _last_length(storage: ChunkStorage, chunks: Sequence[LayoutChunk]) -> int:
    """How long the object of the last chunk is. Raises ``Damaged`` where it is too short."""
    if not chunks:
        return 0
    last = chunks[-1]
    length = max(0, storage.stat(last.name).length - last.object_offset)
    if length < last.length:
        text = f"{length} bytes long, but {last.length} are recorded; run check"
        raise Damaged(text, object=last.name, position=last.object_offset + length)
    return length


def _copy(
    store: ChunkedSegmentStorage | Replica, target: ChunkStorage, segment: SegmentHandle, copy: PlannedChunk
) -> None:
    """Through the store, which verifies what it reads; in memory a piece at a time."""
    read = partial(store.read, segment)
    if copy.length <= PIECE_BYTES:
        target.create_if_absent(copy.name, read(copy.offset, copy.length) if copy.length else b"")
        return
    pieces: list[ChunkRange] = []
    try:
        while (done := sum(piece.length for piece in pieces)) < copy.length:
            data = read(copy.offset + done, min(PIECE_BYTES, copy.length - done))
            pieces.append(ChunkRange(f"{copy.name}.{len(pieces)}", 0, len(data)))
            target.create_if_absent(pieces[-1].name, data)
        target.compose(copy.name, pieces)
    finally:
        _delete(target, [piece.name for piece in pieces])


def _delete(target: ChunkStorage, names: Iterable[str]) -> None:
    for name in names:
        with suppress(ChunkstoreError):
            target.delete(name)
