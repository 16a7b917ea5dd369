"""Committing a change set: locks, data writes, entering the queue and the wait, the same for one change or many.

Promises: all segments named are locked in name order (no deadlocks) and have nothing undecided while the change set is planned,
so the committed view is the pending state; it becomes one record or nothing.
Leaves out: which changes (the verbs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from typing import TypeVar

from chunkstore import runtime
from chunkstore.changes import ADDS_NOTHING
from chunkstore.deadline import Deadline
from chunkstore.errors import ChunkExists, ChunkNotFound, InvalidOffset
from chunkstore.journal import RecordKind
from chunkstore.operations.append_plan import write_pieces
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import NOT_LOADED, PendingOp, PendingSegment, Stale

__all__ = ["commit_changes"]

T = TypeVar("T")


def commit_changes(
    container: OwnedContainer,
    names: Iterable[str],
    plan: Callable[[ChangeSet], T],
    *,
    tables: bool = False,
    adds: int = ADDS_NOTHING,
) -> T:
    """Plan and commit changes of ``names`` (segments) and, with ``tables``, of table rows. Returns what ``plan`` returned, which may
    be called several times. ``adds``: bytes of chunks, or 0 for rows alone, that safe mode refuses. Raises what planning raises, and the
    errors of commits."""
    deadline = container.deadline()
    attempt = partial(_attempt, container, sorted(set(names)), plan, deadline, tables)
    return container.run(attempt, deadline, adds)


def _attempt(
    container: OwnedContainer,
    names: list[str],
    plan: Callable[[ChangeSet], T],
    deadline: Deadline,
    tables: bool,
    owned: OwnedEpoch,
) -> tuple[PendingOp | None, T]:
    by_name = owned.segments.by_name
    states = {name: by_name.get(name) or owned.segments.find(name) for name in names}
    turns: list[runtime.Lock] = []
    try:
        for state in states.values():
            _take(turns, state.turn, deadline, state.name)
        while True:
            locks: list[runtime.Lock] = []
            try:
                for state in states.values():
                    _take(locks, state.lock, deadline, state.name)
                    if by_name.get(state.name) is not state:
                        raise Stale
                undecided = next((op for state in states.values() if (op := state.undecided())), None)
                if undecided is None:
                    if tables:
                        _take(locks, owned.tables.lock, deadline, "the tables")
                    with container.bounded(deadline):
                        return _plan_and_enter(container, owned, states, plan, deadline)
            finally:
                for lock in locks:
                    lock.release()
            # Without the locks, which others need, but with the turns: no later operation overtakes.
            if not owned.queue.wait_decided(undecided, deadline):
                deadline.fail("waiting for an earlier operation")
    finally:
        for lock in turns:
            lock.release()


def _take(taken: list[runtime.Lock], lock: runtime.Lock, deadline: Deadline, name: str) -> None:
    if not lock.acquire(False):
        deadline.acquire(lock, f"the lock of {name!r}")
    taken.append(lock)


def _plan_and_enter(
    container: OwnedContainer,
    owned: OwnedEpoch,
    states: dict[str, PendingSegment],
    plan: Callable[[ChangeSet], T],
    deadline: Deadline,
) -> tuple[PendingOp | None, T]:
    if container.draining or owned.queue.ended:
        raise Stale  # before anything is written
    generation = owned.queue.generation
    for state in states.values():
        state.settle_write()
    with closing(ChangeSet(owned, states)) as changes:
        result = plan(changes)
        if not changes.headers and changes.kind is RecordKind.OPS:
            return None, result
        segments, sync_names = tuple(states.values()), changes.sync_names
        if changes.appends:
            for state in segments:
                state.generation, state.writing = NOT_LOADED, changes.rows
        for planned, data in changes.appends:
            try:
                write_pieces(container, planned, data, deadline)
            except (InvalidOffset, ChunkNotFound, ChunkExists) as error:
                # The tail differs from its record: it is closed for ever; plan again, with a new chunk.
                raise Stale from error
            if owned.appendable:
                sync_names.extend(planned.targets)
        headers, rows = changes.headers, changes.rows
        op = PendingOp(headers, rows, segments, tuple(sync_names), generation, changes.kind, changes.notes)
        op.garbage, op.table_keys, op.reshapes = changes.garbage, tuple(changes.table_keys), True
        op.inline, op.inline_bytes, op.counts = changes.inline, changes.inline_bytes, changes.counts
        outcomes = [changes.outcome(state) for state in segments]
        for state in segments:
            state.unload()
        try:
            owned.tables.remember(op)
            owned.queue.enter(op)
        except Stale:
            op.decided = True
            raise
        except BaseException as error:
            # Interrupted: whether it is queued is unknown, and what depends on it must not wait for ever.
            owned.end(unexpected(error))
            raise
        for state, outcome in zip(segments, outcomes, strict=True):
            state.advance(*outcome, generation)
    return op, result
