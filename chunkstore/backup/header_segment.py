"""One segment of PDP-34's old layout into a container, by copying its bytes through ordinary appends.

Promises: it appears under its name whole, with its start offset, and sealed if it was; or not at all. Sources are only read.
Leaves out: which segments (``header_import``, ``header_keeper``).
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import Final

from chunkstore import runtime
from chunkstore.backup.header_plan import ImportPlan, rolling_of
from chunkstore.backup.header_source import PIECE_BYTES, HeaderSource
from chunkstore.changes import Append, Change, Concat, Create, Seal, UpdateAttributes
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, SegmentExists, SegmentNotFound

__all__ = ["HIDDEN_PREFIX", "hidden_name", "import_segment", "plan_again"]

_IMPORTING: Final = "importing"
"""Attribute of a segment that an import is filling: by it the last commit knows that it is its own."""


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
        plan_again(source, plan.segment, plan)
        _commit(store, source, plan, once, [*changes, *([Append(plan.segment, data)] if data else []), *sealing])
        return
    hidden, token = hidden_name(plan.segment), runtime.token(8)
    _remove_left(store, hidden)
    handle = store.create(hidden, rolling=rolling, attributes={_IMPORTING: token})
    try:
        for offset, buffers in source.read(plan):
            store.append_many(handle, buffers, expected_offset=offset - plan.start_offset)
        plan_again(source, plan.segment, plan)
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


def plan_again(source: HeaderSource, name: str, *former: ImportPlan) -> ImportPlan:
    """The plan of a segment that had one. Raises ``Conflict`` where it changes, ``Damaged``."""
    plan = source.plan(name, named=False)
    if plan is None or (former and plan != former[0]):
        raise Conflict(
            f"the files of segment {name!r}", expected="no change while it is imported", found="another state"
        )
    if plan.damage is not None:
        raise Damaged(plan.damage.message, object=plan.damage.object, position=plan.damage.position)
    return plan
