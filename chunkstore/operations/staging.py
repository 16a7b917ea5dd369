"""Staging: chunks of a session that are too many for one record get into metadata before the commit that shows them.

Promises: each run of chunks becomes a sealed segment without a name that anybody could say; its name says which chunks of which session,
so that to stage the same again is no change. What no commit has taken when its session ends, a collection makes garbage.
Leaves out: the commit that concats them (``chunkstore.engine.owner``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import segment_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.attach import plan_attach
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.looking import ExistenceCheck
from chunkstore.operations.segments import plan_create, plan_delete, plan_seal
from chunkstore.operations.written_chunks import existence_checked
from chunkstore.sessions import SessionChunk, staged_name, staged_session

__all__ = ["drop_staged", "stage"]

_DROPPED_AT_ONCE: Final = 1_000
_FIRST, _BEHIND = segment_key("\0staged/"), segment_key("\0staged0")


def stage(container: OwnedContainer, session_id: int, runs: Sequence[tuple[SessionChunk, ...]]) -> None:
    """Make a staged segment of each run that is not one already, in one record; the arguments have been checked (``check_ask``).

    Atomic, durable. Raises ``Conflict`` (the session is not open), ``InvalidArgument`` (a chunk is attached already, is not there or has
    another length; too many for a record), and the errors of commits. Retry: safe.
    """
    named = {staged_name(session_id, (item.id for item in run)): run for run in runs}
    adds = sum(item.length for run in runs for item in run)
    with existence_checked(container, (item.id for run in runs for item in run)) as look:
        plan = partial(_plan, container, look, session_id, named)
        commit_changes(container, named, plan, tables=True, adds=adds)


def _plan(
    container: OwnedContainer,
    look: ExistenceCheck,
    session_id: int,
    named: dict[str, tuple[SessionChunk, ...]],
    changes: ChangeSet,
) -> None:
    for name, run in named.items():
        if changes.find(name) is None:
            plan_create(changes, name, container.settings.default_rolling, {})
            plan_attach(look, changes, name, session_id, run, expected_offset=0)
            plan_seal(changes, name)


def drop_staged(container: OwnedContainer) -> None:
    """Make garbage of staged segments whose sessions have ended: a commit can take them no more. Raises the errors of commits."""
    while names := container.look(_left_over):
        commit_changes(container, names, partial(_plan_drop, names))


def _left_over(view: MetadataView) -> list[str]:
    """The next ones. A session that has ended stays so, and segments of such names are made while it is open."""
    found: list[str] = []
    for key, raw in view.scan(_FIRST, _BEHIND):
        with suppress(Damaged):  # a check names it
            name = decode_segment(repr(key), raw).name
            session_id = staged_session(name)
            if session_id is not None and view.get(session_key(session_id)) is None:
                found.append(name)
        if len(found) == _DROPPED_AT_ONCE:
            break
    return found


def _plan_drop(names: Sequence[str], changes: ChangeSet) -> None:
    for name in names:
        if changes.find(name) is not None:
            plan_delete(changes, name)
