"""Committing a draft: locks, data writes, reservation and the wait, the same for one change or many.

Promises: all segments named are locked in name order (no deadlocks) and have nothing undecided while the draft is planned, so
the committed view is the pending state; the draft becomes one record or nothing. When planning or a data write fails,
nothing was changed. Raises what planning raises, and the errors of commit (see ``committer``).
Leaves out: which changes (``draft``, ``engine``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from chunkstore import runtime
from chunkstore.deadline import until
from chunkstore.errors import ChunkExists, ChunkNotFound, Damaged, InvalidOffset
from chunkstore.operations.append import write_pieces
from chunkstore.operations.core import Core, Outdated, Undecided
from chunkstore.operations.draft import Draft
from chunkstore.operations.lazy import close_tails
from chunkstore.operations.pending import PendingOp, SegmentState
from chunkstore.operations.table import KeyBusy

__all__ = ["transact"]

T = TypeVar("T")


def transact(core: Core, names: Iterable[str], plan: Callable[[Draft], T], *, tables: bool = False) -> T:
    """Plan and commit changes of ``names`` (segments) and, with ``tables``, of table rows. Returns what ``plan`` returned.

    ``plan`` may be called several times; it must not have effects of its own.
    """
    deadline_s = core.deadline_s()
    ordered = sorted(set(names))
    while True:
        core.pass_gate(deadline_s)
        states = [core.states.acquire(name) for name in ordered]
        op: PendingOp | None = None
        try:
            with runtime.whole():
                op, result = _attempt(core, states, plan, deadline_s, tables=tables)
        except KeyboardInterrupt:
            if op is not None:
                core.committer.leave(op)
            raise
        except Outdated:
            continue
        except Damaged as damage:
            if core.rows_moved_on(damage):
                continue
            raise
        except Undecided as earlier:
            core.wait_for(earlier.op, deadline_s)
            continue
        except KeyBusy as busy:
            if not core.committer.wait_decided(busy.op, deadline_s):
                core.raise_deadline("waiting for an earlier change of the same table row")
            continue
        finally:
            for state in states:
                core.states.release(state)
        if op is not None:
            core.committer.wait(op, deadline_s)
        else:
            # "Nothing to do" is an answer about the present state: a deposed owner must not give it.
            core.check_fence()
        return result


def _attempt(
    core: Core, states: list[SegmentState], plan: Callable[[Draft], T], deadline_s: float, *, tables: bool
) -> tuple[PendingOp | None, T]:
    turns: list[SegmentState] = []
    try:
        for state in states:
            core.acquire_within(state.turn, deadline_s, f"segment {state.name!r}")
            turns.append(state)
        while True:
            undecided = _lock_settled(core, states, deadline_s)
            # Without any lock: whoever recovers a broken journal needs them all.
            if undecided is not None:
                core.wait_for(undecided, deadline_s)
            elif not _close_tails(core, states, deadline_s):
                break
        try:
            if not tables:
                return _plan_within(core, states, plan, deadline_s)
            core.acquire_within(core.tables.lock, deadline_s, "the tables")
            try:
                return _plan_within(core, states, plan, deadline_s)
            finally:
                core.tables.lock.release()
        finally:
            for state in states:
                state.lock.release()
    finally:
        for state in turns:
            state.turn.release()


def _lock_settled(core: Core, states: list[SegmentState], deadline_s: float) -> PendingOp | None:
    """Lock all states; if something is undecided, unlock them again and return it.

    The pending fields need not be loaded, because the draft reads committed rows; but the states must still be the ones in use.
    """
    held: list[SegmentState] = []
    try:
        for state in states:
            core.acquire_within(state.lock, deadline_s, f"segment {state.name!r}")
            held.append(state)
        undecided = next((op for op in (state.undecided() for state in states) if op is not None), None)
        if undecided is None:
            if not core.gate.is_open() or any(core.states_outdated(state) for state in states):
                raise Outdated
            held.clear()
        return undecided
    finally:
        for state in held:
            state.lock.release()


def _close_tails(core: Core, states: list[SegmentState], deadline_s: float) -> bool:
    """Lazy lengths: whether tails had to be closed; then the locks are given back, and nothing is undecided about them."""
    closing: list[PendingOp] = []
    done = False
    try:
        closing = close_tails(core, states)
        done = not closing
    finally:
        if not done:
            for state in states:
                state.lock.release()
    try:
        for op in closing:
            core.committer.wait(op, deadline_s)
    finally:
        for op in closing:
            if not op.decided:
                core.committer.leave(op)
    return bool(closing)


def _plan_within(
    core: Core, states: list[SegmentState], plan: Callable[[Draft], T], deadline_s: float
) -> tuple[PendingOp | None, T]:
    """A remote storage is told when what happens under these locks has to be over."""
    if not core.remote:
        return _plan_and_enter(core, states, plan, deadline_s)
    with until(deadline_s):
        return _plan_and_enter(core, states, plan, deadline_s)


def _plan_and_enter(
    core: Core, states: list[SegmentState], plan: Callable[[Draft], T], deadline_s: float
) -> tuple[PendingOp | None, T]:
    # Before the view: what is planned on the rows of one epoch is not for the journal of another.
    epoch = core.epoch
    with core.store.view() as view:
        draft = Draft(core, view, {state.name: state for state in states})
        result = plan(draft)
        if not draft.headers:
            return None, result
        op = _write_and_enter(core, states, draft, epoch, deadline_s)
    return op, result


def _write_and_enter(core: Core, states: list[SegmentState], draft: Draft, epoch: int, deadline_s: float) -> PendingOp:
    sync_names: list[str] = []
    op: PendingOp | None = None
    core.committer.reserve()
    if not core.gate.is_open() or core.epoch != epoch:
        # Reserved first, looked second: who shuts the gate looks at what is reserved afterwards.
        core.committer.give_up()
        raise Outdated
    try:
        for state in states:
            state.writing = draft.rows
        for planned, data in draft.appends:
            write_pieces(core, planned, data, deadline_s)
            sync_names.extend(planned.targets)
        for state in states:
            draft.hand_over(state)
            state.writers.clear()
        op = PendingOp(draft.headers, draft.rows, tuple(states), tuple(sync_names) if core.appendable else (), epoch)
        op.garbage = draft.garbage
        if draft.table_keys:
            op.table_keys = tuple(draft.table_keys)
            core.tables.remember(op)
        entered = core.committer.enter(op)
    except BaseException as error:
        if op is not None:
            if op.entered:
                raise  # interrupted right behind it: it is committed like any other
            core.tables.forget(op)
        core.committer.give_up()
        written = draft.changed_chunks()
        for state in states:
            state.poisoned = written if state.poisoned is None else state.poisoned | written
            state.dead = True
        if isinstance(error, (InvalidOffset, ChunkNotFound, ChunkExists)):
            # The tail differs from its record: it is closed for ever; plan again, with a new chunk.
            raise Outdated from error
        raise
    if not entered:
        core.tables.forget(op)
        core.committer.give_up()
        raise core.leave_behind(op)
    return op
