"""Committing a change set: locks, data writes, entering the queue and the wait, the same for one change or many.

Promises: all segments named are locked in name order (no deadlocks) and have nothing undecided while the change set is planned,
so the committed view is the pending state; it becomes one record or nothing. When planning or a data write fails, nothing
was changed. Raises what planning raises, and the errors of commits (see ``commit_queue``).
Leaves out: which changes (the verbs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TypeVar

from chunkstore import runtime
from chunkstore.deadline import Deadline, until
from chunkstore.errors import ChunkExists, ChunkNotFound, InvalidOffset
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.container import REPLANNED, OwnedContainer, unexpected
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import NOT_LOADED, PendingOp, PendingSegment, Stale
from chunkstore.operations.write_pieces import write_pieces

__all__ = ["commit_changes"]

T = TypeVar("T")


def commit_changes(
    container: OwnedContainer, names: Iterable[str], plan: Callable[[ChangeSet], T], *, tables: bool = False
) -> T:
    """Plan and commit changes of ``names`` (segments) and, with ``tables``, of table rows. Returns what ``plan`` returned.

    ``plan`` may be called several times; it must not have effects of its own.
    """
    deadline = container.deadline()
    ordered = sorted(set(names))
    while True:
        owned = container.serving(deadline)
        try:
            with runtime.defer_interrupt():
                op, result = _attempt(container, owned, ordered, plan, deadline, tables=tables)
        except REPLANNED as reason:
            container.before_retry(owned, reason, deadline)
            continue
        if op is None:
            # "Nothing to do" is an answer about the present state: a deposed owner must not give it.
            container.check_fence()
        else:
            owned.queue.wait(op, deadline)
        return result


def _attempt(
    container: OwnedContainer,
    owned: OwnedEpoch,
    names: list[str],
    plan: Callable[[ChangeSet], T],
    deadline: Deadline,
    *,
    tables: bool,
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
                undecided = next((op for state in states.values() if (op := state.last) and not op.decided), None)
                if undecided is None:
                    if tables:
                        _take(locks, owned.tables.lock, deadline, "the tables")
                    with until(deadline.end_s) if container.remote else nullcontext():
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
    with owned.store.view() as view:
        changes = ChangeSet(owned, view, states)
        result = plan(changes)
        if not changes.headers:
            return None, result
        sync_names: list[str] = []
        for state in states.values():
            if changes.appends:
                state.generation, state.writing = NOT_LOADED, changes.rows
        for planned, data in changes.appends:
            try:
                write_pieces(container, planned, data, deadline)
            except (InvalidOffset, ChunkNotFound, ChunkExists) as error:
                # The tail differs from its record: it is closed for ever; plan again, with a new chunk.
                raise Stale from error
            sync_names.extend(planned.targets)
        segments = tuple(states.values())
        op = PendingOp(
            changes.headers, changes.rows, segments, tuple(sync_names) if owned.appendable else (), generation
        )
        op.garbage = changes.garbage
        op.table_keys = tuple(changes.table_keys)
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
