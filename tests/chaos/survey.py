"""Looking at a container while everybody else stands still: all live bytes, layouts, rows, and every check there is.

Promises: the container is opened as any successor would open it (so everybody else is deposed by this), once with the surveyor's own
old cache and once without any, and once by a replica without any; what the three show must be the same.
Leaves out: comparing it with what was promised (``verdict``).
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Final, NamedTuple

from chunkstore.assembly import open_store
from chunkstore.following import open_replica
from chunkstore.operations.tables import TableReader
from chunkstore.reading import ReadableContainer
from tests.chaos.plan import TABLE
from tests.support.settings import tuned

__all__ = ["SegmentSeen", "Survey", "survey"]

_SNAPSHOTS: Final = 11
"""The invariant of snapshots that are named."""


class SegmentSeen(NamedTuple):
    """A segment's live bytes; ``data`` begins at ``start``."""

    id: int
    start: int
    length: int
    sealed: bool
    data: bytes


class Survey(NamedTuple):
    """Everything that is there. ``problems`` are violations found on the way."""

    epoch: int
    segments: dict[str, SegmentSeen]
    rows: dict[str, tuple[bytes, int]]
    problems: list[str]


_State = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]


def survey(root: str, folder: str, settings: dict[str, Any]) -> Survey:
    """Open, check ``deep``, read everything; then again without a cache. Raises what opening and reading raise."""
    old, new = os.path.join(folder, "cache-judge"), os.path.join(folder, "cache-judge-new")
    problems: list[str] = []
    with open_store(root, settings=tuned(cache_dir=old, **settings), create=False) as store:
        findings = store.check("deep")
        hints = [finding for finding in findings if finding.invariant == _SNAPSHOTS and finding.severity == "warning"]
        problems += [f"check --deep: {item}" for item in findings if item.severity != "info" and item not in hints]
        segments = {info.name: _seen(store, info.name) for info in store.segments()}
        rows = {row.key.decode(): (row.value, row.version) for row in store.table(TABLE).scan()}
        state = _state(store, store.table(TABLE))
        epoch = store.epoch
    try:
        with open_replica(root, settings=tuned(cache_dir=new, **settings)) as replica:
            problems += _differences("a replica without a cache", state, _state(replica, replica.table(TABLE)))
        shutil.rmtree(new, ignore_errors=True)
        with open_store(root, settings=tuned(cache_dir=new, **settings), create=False) as store:
            problems += _differences("an owner without a cache", state, _state(store, store.table(TABLE)))
            if hints:
                # A zombie may have named a snapshot of long ago when it woke (schedule 16): the next one is named over it.
                store.snapshot()
                findings = store.check("deep")
                problems += [f"check --deep, again: {item}" for item in findings if item.severity != "info"]
            epoch = store.epoch
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return Survey(epoch, segments, rows, problems)


def _seen(store: ReadableContainer, name: str) -> SegmentSeen:
    info = store.info(name)
    data = store.read(name, info.start_offset, info.length - info.start_offset)
    return SegmentSeen(info.id, info.start_offset, info.length, info.sealed, data)


def _state(store: ReadableContainer, table: TableReader) -> _State:
    described: list[tuple[Any, ...]] = []
    for info in store.segments():
        chunks = [(chunk.name, chunk.offset, chunk.length, chunk.crc32c) for chunk in store.layout(info.name)]
        described.append((*info, chunks))
    return described, [tuple(row) for row in table.scan()]


def _differences(what: str, expected: _State, found: _State) -> list[str]:
    problems = []
    for one, other in zip(expected, found, strict=True):
        left, right = {item[0]: item for item in one}, {item[0]: item for item in other}
        problems += [
            f"{what} shows {right.get(key)!r} where the owner shows {left.get(key)!r}"[:1500]
            for key in sorted(left.keys() | right.keys(), key=repr)
            if left.get(key) != right.get(key)
        ]
    return problems
