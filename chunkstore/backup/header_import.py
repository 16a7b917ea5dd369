"""Segments of PDP-34's old layout into a container, by copying their bytes through ordinary appends.

Promises: all that is to be imported is looked at before anything is changed, and what the files do not bear out is refused. A segment
appears under its name whole, with its start offset, and sealed if it was; or not at all. Sources are only read.
Leaves out: CRCs, which the old layout does not have: bytes are taken as they are read, and verified from then on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from chunkstore.backup.header_plan import ImportPlan
from chunkstore.backup.header_segment import import_segment, plan_again
from chunkstore.backup.header_source import HeaderSource
from chunkstore.backup.headers import folder_url
from chunkstore.codec.rolling_header import HEADER_SUFFIX
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentExists,
)
from chunkstore.invariants import Finding
from chunkstore.metadata.keys import segment_key
from chunkstore.names import check_segment_name
from chunkstore.parts import checked_settings
from chunkstore.registry import open_storage

__all__ = ["HeaderImport", "import_headers"]


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
        plan = plan_again(source, name)
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
