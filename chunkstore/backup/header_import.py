"""Segments of PDP-34's old layout into a container, by copying their bytes through ordinary appends.

Promises: all that is to be imported is looked at before anything is changed, and what the files do not bear out is refused. A segment
appears under its name whole, with its start offset, and sealed if it was; or not at all. Sources are only read.
Leaves out: CRCs, which the old layout does not have: bytes are taken as they are read, and verified from then on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from hashlib import blake2b
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.header_plan import ImportPlan, rolling_of
from chunkstore.backup.header_source import PIECE_BYTES, HeaderSource
from chunkstore.backup.headers import folder_url
from chunkstore.changes import Append, Change, Concat, Create, Seal, UpdateAttributes
from chunkstore.codec.rolling_header import HEADER_SUFFIX
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
)
from chunkstore.invariants import Finding
from chunkstore.metadata.keys import segment_key
from chunkstore.names import check_segment_name
from chunkstore.parts import checked_settings
from chunkstore.registry import open_storage

__all__ = ["HIDDEN_PREFIX", "HeaderImport", "hidden_name", "import_headers", "import_segment"]

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
    there = [name for name in names if _is_there(store, name)]
    if there and not resume:
        raise SegmentExists(there[0])
    done: list[str] = []
    length = 0
    for name in names:
        plan = _planned(source, name)
        if _is_there(store, name):
            _compare(store, source, plan)
        else:
            import_segment(store, source, plan)
            done.append(name)
            length += plan.length - plan.start_offset
    return HeaderImport(tuple(done), tuple(there), length, tuple(findings))


def _is_there(store: ChunkedSegmentStorage, name: str) -> bool:
    """Whether there is such a segment; what is asked of a store by other means imports what is not."""
    return store.look(lambda view: view.get(segment_key(name)) is not None)


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


HIDDEN_PREFIX: Final = "!import-"
"""Names of segments that an import is filling."""


def hidden_name(segment: str) -> str:
    """Under which name a segment is filled before it appears."""
    return f"{HIDDEN_PREFIX}{blake2b(segment.encode(), digest_size=16).hexdigest()}"


def import_segment(store: ChunkedSegmentStorage, source: HeaderSource, plan: ImportPlan, *, once: bool = False) -> None:
    """Bring one segment in, whole; with ``once`` not if its header was imported before.

    Raises ``SegmentExists``, ``Conflict`` (its files changed), ``Damaged``, and as ``commit``."""
    rolling = rolling_of(plan.size_bytes_max)
    changes: list[Change] = [Create(plan.segment, rolling, start_offset=plan.start_offset)]
    sealing: list[Change] = [Seal(plan.segment)] if plan.sealed else []
    if plan.length - plan.start_offset <= PIECE_BYTES:
        data = b"".join(buffer for _, buffers in source.read(plan) for buffer in buffers)
        _planned(source, plan.segment, plan)
        _commit(store, source, plan, once, [*changes, *([Append(plan.segment, data)] if data else []), *sealing])
        return
    hidden, token = hidden_name(plan.segment), runtime.token(8)
    _remove_left(store, hidden)
    handle = store.create(hidden, rolling=rolling, attributes={_IMPORTING: token})
    try:
        for offset, buffers in source.read(plan):
            store.append_many(handle, buffers, expected_offset=offset - plan.start_offset)
        _planned(source, plan.segment, plan)
        mine = UpdateAttributes(hidden, {_IMPORTING: None}, expected={_IMPORTING: token})
        _commit(store, source, plan, once, [mine, Seal(hidden), *changes, Concat(plan.segment, hidden), *sealing])
    except BaseException:
        with suppress(ChunkstoreError):
            store.delete(handle)  # gone, if the commit has happened after all
        raise


def _commit(
    store: ChunkedSegmentStorage, source: HeaderSource, plan: ImportPlan, once: bool, changes: list[Change]
) -> None:
    """By which the segment appears; where the header lies at the store's own root, it says besides that this one is imported."""
    if source.address == store.read_context.storage.address:
        store.commit_imported(plan.segment, changes, once=once)
    else:
        store.commit(changes)


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
