"""Segments of ours as header files of PDP-34's old layout, so that they can be found without our metadata.

Promises: a header lists the chunks where they are; nothing is copied but what a header cannot say (``plan_export``). An owner first makes
chunks of what lies in records of the journal; what a replica finds there is copied. A header
appears whole, and behind the copies that it names. All names are looked at before anything is written.
Leaves out: keeping the chunks that headers name (a pin does), following changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.backup.header_plan import plan_export
from chunkstore.backup.header_source import read_header
from chunkstore.backup.header_writer import HeaderWriter
from chunkstore.codec.rolling_header import HEADER_SUFFIX, decode_entries
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Damaged, InvalidArgument, SegmentNotFound
from chunkstore.names import check_segment_name
from chunkstore.registry import open_storage
from chunkstore.replica import Replica

__all__ = ["HeadersReport", "export_headers", "folder_url"]


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
        old = None
        if isinstance(store, ChunkedSegmentStorage):
            old = store.old_layout
            store.spill(segments)
        mark = no_mark if old is None or target.address != store.read_context.storage.address else old.mark
        return _export_all(store, HeaderWriter(store, target), list(dict.fromkeys(segments)), replace, mark)
    finally:
        target.close()


def _export_all(
    store: ChunkedSegmentStorage | Replica,
    writer: HeaderWriter,
    segments: list[str],
    replace: bool,
    mark: Callable[[str], int],
) -> HeadersReport:
    names = segments or [info.name for info in store.segments()]
    for name in names:
        writer.check_place(name)
        store.info(name)
        if not replace and writer.target.exists(name + HEADER_SUFFIX):
            text = f"{name + HEADER_SUFFIX!r} is there already: replace it (replace=True), or export to another place"
            raise InvalidArgument(text, argument="directory")
    report = HeadersReport(0, 0, 0, 0, 0)
    for name in names:
        report = HeadersReport(*map(sum, zip(report, _export(writer, name, mark(name)), strict=True)))
    return report


def no_mark(_name: str) -> int:
    """For headers that do not follow anything."""
    return 0


def _export(writer: HeaderWriter, name: str, mark: int) -> tuple[int, int, int, int, int]:
    seen = writer.look(name)
    if seen is None:
        raise SegmentNotFound(name)
    plan = plan_export(
        seen.info,
        seen.size_bytes_max,
        seen.chunks,
        writer.last_length(seen.chunks),
        runtime.token(4).hex(),
        tag=mark,
    )
    try:
        data = read_header(writer.target, name)
        former = decode_entries(data, object=name + HEADER_SUFFIX) if data else ()
    except Damaged:
        former = ()
    says_sealed = writer.write(seen, plan, former)
    copied = sum(copy.length for copy in plan.copies)
    return 1, len(seen.chunks) or len(plan.copies), len(plan.copies), copied, int(seen.info.sealed and not says_sealed)
