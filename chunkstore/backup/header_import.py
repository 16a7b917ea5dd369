"""Segments of PDP-34's old layout into a container, by copying their bytes through ordinary appends.

Promises: all that is to be imported is looked at before anything is changed, and what the files do not bear out is refused. A segment
appears under its name whole, with its start offset, and sealed if it was; or not at all. Sources are only read.
Leaves out: CRCs, which the old layout does not have: bytes are taken as they are read, and verified from then on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from hashlib import blake2b
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.header_plan import ImportPlan, plan_import, rolling_of
from chunkstore.backup.headers import PIECE_BYTES, folder_url
from chunkstore.changes import Append, Change, Concat, Create, Seal, UpdateAttributes
from chunkstore.codec.rolling_header import HEADER_BYTES_MAX, HEADER_SUFFIX, ChunkEntry, Header, decode_header
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
)
from chunkstore.invariants import Finding
from chunkstore.names import check_segment_name
from chunkstore.parts import checked_settings
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing

__all__ = ["HeaderImport", "HeaderSource", "hidden_name", "import_headers"]

_IMPORTING: Final = "importing"
"""Attribute of a segment that an import is filling: by it the last commit knows that it is its own."""


class HeaderImport(NamedTuple):
    """``segments`` of ``length`` bytes were imported, ``there`` were there already; ``findings``: what is remarkable about the sources."""

    segments: tuple[str, ...]
    there: tuple[str, ...]
    length: int
    findings: tuple[Finding, ...]


def import_headers(
    target: str | ChunkedSegmentStorage,
    directory: str | os.PathLike[str],
    segments: Sequence[str] = (),
    *,
    chunks: str | os.PathLike[str] | None = None,
    container: str = "default",
    settings: Settings | None = None,
    wait_s: float = 0,
    dry_run: bool = False,
    resume: bool = False,
) -> HeaderImport:
    """Copy segments of the old layout into a container: ``target`` is its root, which is claimed, or an owner.

    ``directory``: where the header files lie, a path or a URL; ``chunks``: where chunk files lie that are not there, too.
    ``segments``: their names, also of segments without a header, which are one file of that name; none: all that have a header.
    ``resume``: go on with an import that was interrupted; a segment that is there is compared, byte for byte. ``dry_run``: look at
    the sources only; damage is in the findings, and the target is not opened. Whoever writes the old layout must have stopped.

    Atomic and durable: each segment for itself. Before any change ``Damaged`` (a header, or files that do not bear it out; in how many
    segments is told), ``SegmentNotFound`` (no header and no file), ``SegmentExists`` (without ``resume``), ``InvalidArgument``; then
    also ``Conflict`` (the source changed meanwhile; with ``resume``, the segment that is there is another one), and what opening,
    reading and appending raise. Retry: safe, with ``resume``.
    """
    from chunkstore.assembly import open_store  # noqa: PLC0415  (it loads this package)

    if isinstance(segments, str) or not all(isinstance(name, str) for name in segments):
        raise InvalidArgument("segments is a sequence of names", argument="segments")
    for name in segments:
        check_segment_name(name, "segments")
    chosen = checked_settings(settings)
    with ExitStack() as stack:
        folders = [directory] if chunks is None else [directory, chunks]
        opened = [open_storage(folder_url(folder), chosen) for folder in folders]
        for storage in opened:
            stack.callback(storage.close)
        source = HeaderSource(opened[0], opened[-1])
        names, findings = _survey(source, list(dict.fromkeys(segments)))
        damage = [item for item in findings if item.severity == "damage"]
        if dry_run:
            return HeaderImport(tuple(names), (), 0, tuple(findings))
        if damage:
            text = f"{damage[0].message} (segment {damage[0].segment!r}; {len({item.segment for item in damage})} cannot be imported)"
            raise Damaged(text, object=damage[0].object, position=damage[0].position)
        if isinstance(target, str):
            store = stack.enter_context(open_store(target, container=container, settings=chosen, wait_s=wait_s))
        else:
            store = target
        return _import_all(store, source, names, findings, resume)


class HeaderSource:
    """Files of the old layout: headers in ``directory``, chunks there or in ``chunks``."""

    def __init__(self, directory: ChunkStorage, chunks: ChunkStorage) -> None:
        self._directory = directory
        self._chunks = chunks

    def names(self) -> list[str]:
        """The segments that have a header. Raises ``InvalidArgument`` where its name is none of a segment, or there is none."""
        ends = HEADER_SUFFIX
        found = [item.name[: -len(ends)] for item in iter_listing(self._directory) if item.name.endswith(ends)]
        for name in found:
            check_segment_name(name, "directory")
        if not found:
            text = f"no file in {self._directory.url} has a name that ends with {ends!r}: name segments that have no header"
            raise InvalidArgument(text, argument="directory")
        return found

    def plan(self, segment: str, *, named: bool = True) -> ImportPlan | None:
        """What is to be imported of a segment; None where its creation did not finish. Raises ``SegmentNotFound``, ``Damaged``."""
        name = segment + HEADER_SUFFIX
        try:
            length = self._directory.stat(name).length
        except ChunkNotFound:
            name, length = segment, -1
        if length < 0:
            header = Header(None, (ChunkEntry(0, segment),))
        elif length == 0 and not named:
            return None
        elif length == 0:
            raise SegmentNotFound(segment, f"the creation of segment {segment!r} did not finish: {name!r} is empty")
        elif length > HEADER_BYTES_MAX:
            raise Damaged(f"{length} bytes; a header has at most {HEADER_BYTES_MAX}", object=name)
        else:
            header = decode_header(self._directory.read(ChunkHandle(name, False), 0, length), object=name)
        found = {entry.name: have for entry in header.chunks if (have := self._length(entry.name)) is not None}
        if length < 0 and not found:
            raise SegmentNotFound(
                segment, f"neither {segment + HEADER_SUFFIX!r} nor {segment!r} is in {self._directory.url}"
            )
        sealed = not self._of(name).open_write(name).writable
        return plan_import(segment, header, found, sealed=sealed)

    def read(self, plan: ImportPlan) -> Iterator[tuple[int, list[bytes]]]:
        """The bytes of a segment: offsets, and buffers of ``PIECE_BYTES`` together at most. Raises ``Damaged``, ``ChunkNotFound``."""
        held: list[bytes] = []
        size, offset = 0, plan.start_offset
        for chunk in plan.chunks:
            handle, done = ChunkHandle(chunk.name, False), 0
            storage = self._of(chunk.name)
            while done < chunk.length:
                wanted = min(PIECE_BYTES - size, chunk.length - done)
                data = storage.read(handle, done, wanted)
                done += len(data)
                if len(data) != wanted:
                    raise Damaged(f"it ends here; {chunk.length} bytes belong to it", object=chunk.name, position=done)
                held.append(data)
                size += wanted
                if size == PIECE_BYTES:
                    yield offset, held
                    offset, held, size = offset + size, [], 0
        if held:
            yield offset, held

    def _length(self, name: str) -> int | None:
        for storage in (self._directory, self._chunks):
            with suppress(ChunkNotFound):
                return storage.stat(name).length
        return None

    def _of(self, name: str) -> ChunkStorage:
        if self._directory is self._chunks or self._directory.exists(name):
            return self._directory
        return self._chunks


def _survey(source: HeaderSource, segments: list[str]) -> tuple[list[str], list[Finding]]:
    """The segments that are to be imported, and all findings. One plan at a time is held."""
    names: list[str] = []
    findings: list[Finding] = []
    for name in segments or source.names():
        try:
            plan = source.plan(name, named=bool(segments))
        except Damaged as error:
            text = error.message.partition(": ")[2]
            findings.append(Finding(0, "damage", name, "", error.object, error.position, text))
            continue
        if plan is None:
            text = "it is empty: the segment's creation did not finish"
            findings.append(Finding(0, "info", name, "", name + HEADER_SUFFIX, 0, text))
            continue
        names.append(name)
        findings.extend(plan.findings)
    return names, findings


def _import_all(
    store: ChunkedSegmentStorage, source: HeaderSource, names: list[str], findings: list[Finding], resume: bool
) -> HeaderImport:
    there = [name for name in names if store.exists(name)]
    if there and not resume:
        raise SegmentExists(there[0])
    done: list[str] = []
    length = 0
    for name in names:
        plan = _planned(source, name)
        if store.exists(name):
            _compare(store, source, plan)
        else:
            _import(store, source, plan)
            done.append(name)
            length += plan.length - plan.start_offset
    return HeaderImport(tuple(done), tuple(there), length, tuple(findings))


def _planned(source: HeaderSource, name: str, *former: ImportPlan) -> ImportPlan:
    """The plan of a segment that had one. Raises ``Conflict`` where it changes, ``Damaged``."""
    plan = source.plan(name, named=False)
    if plan is None or (former and plan != former[0]):
        raise Conflict(
            f"the files of segment {name!r}", expected="no change while it is imported", found="another state"
        )
    if plan.damage is not None:
        raise Damaged(plan.damage.message, object=plan.damage.object, position=plan.damage.position)
    return plan


def hidden_name(segment: str) -> str:
    """Under which name a segment is filled before it appears."""
    return f"!import-{blake2b(segment.encode(), digest_size=16).hexdigest()}"


def _import(store: ChunkedSegmentStorage, source: HeaderSource, plan: ImportPlan) -> None:
    rolling = rolling_of(plan.size_bytes_max)
    changes: list[Change] = [Create(plan.segment, rolling, start_offset=plan.start_offset)]
    sealing: list[Change] = [Seal(plan.segment)] if plan.sealed else []
    if plan.length - plan.start_offset <= PIECE_BYTES:
        data = b"".join(buffer for _, buffers in source.read(plan) for buffer in buffers)
        _planned(source, plan.segment, plan)
        store.commit([*changes, *([Append(plan.segment, data)] if data else []), *sealing])
        return
    hidden, token = hidden_name(plan.segment), runtime.token(8)
    _remove_left(store, hidden)
    handle = store.create(hidden, rolling=rolling, attributes={_IMPORTING: token})
    try:
        for offset, buffers in source.read(plan):
            store.append_many(handle, buffers, expected_offset=offset - plan.start_offset)
        _planned(source, plan.segment, plan)
        mine = UpdateAttributes(hidden, {_IMPORTING: None}, expected={_IMPORTING: token})
        store.commit([mine, Seal(hidden), *changes, Concat(plan.segment, hidden), *sealing])
    except BaseException:
        with suppress(ChunkstoreError):
            store.delete(handle)  # gone, if the commit has happened after all
        raise


def _remove_left(store: ChunkedSegmentStorage, hidden: str) -> None:
    """Remove what an import left that was killed. Raises ``SegmentExists`` for a segment that is none of ours."""
    try:
        handle = store.open_write(hidden)
    except SegmentNotFound:
        return
    if _IMPORTING not in store.info(handle).attributes:
        raise SegmentExists(hidden)
    store.delete(handle)


def _compare(store: ChunkedSegmentStorage, source: HeaderSource, plan: ImportPlan) -> None:
    """Raise ``Conflict`` unless the segment that is there is the one that would be imported."""
    info = store.info(plan.segment)
    wanted = (plan.start_offset, plan.length, plan.sealed)
    found: tuple[object, ...] = (info.start_offset, info.length, info.sealed)
    if found != wanted:
        raise Conflict(f"start, length and seal of segment {plan.segment!r}", expected=wanted, found=found)
    for offset, buffers in source.read(plan):
        data = b"".join(buffers)
        if store.read(plan.segment, offset, len(data)) != data:
            what = f"bytes {offset} to {offset + len(data)} of segment {plan.segment!r}"
            raise Conflict(what, expected="those of its chunk files", found="others")
