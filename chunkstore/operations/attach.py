"""Sessions at the owner (protocol A9): opening and ending them, attaching the chunks they wrote to a segment, and staging those that are
too many for one record.

Promises: a session is a committed record; attaching and ending are one record, so they are ordered by history, and an attach that names
an ended session is refused. Each staged run becomes a sealed segment whose name says which chunks of which session, so that to stage
the same again is no change. What no commit has taken when its session ends, a collection makes garbage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from chunkstore.errors import Damaged
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_segment, decode_session
from chunkstore.metadata.keys import SESSION, segment_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pending import ExistenceCheck
from chunkstore.operations.segments import plan_create, plan_delete, plan_seal
from chunkstore.operations.written_chunks import (
    chunks_of_session,
    existence_checked,
    hang_chunks,
    require_fresh,
    require_session,
)
from chunkstore.records.segments import OpenSession, SessionRecord
from chunkstore.sessions import SessionChunk, staged_name, staged_session

__all__ = [
    "drop_staged",
    "find_session",
    "list_sessions",
    "plan_attach",
    "plan_end_session",
    "plan_find_session",
    "plan_open_session",
    "stage",
]

_DROPPED_AT_ONCE: Final = 1_000


def stage(container: OwnedContainer, session_id: int, runs: Sequence[tuple[SessionChunk, ...]]) -> None:
    """Make a staged segment of each run that is not one already, in one record; the arguments have been checked (``check_ask``).

    Atomic, durable. Raises ``Conflict`` (the session is not open), ``InvalidArgument`` (a chunk is attached already, is not there or has
    another length; too many for a record), and the errors of commits. Retry: safe.
    """
    named = {staged_name(session_id, (item.id for item in run)): run for run in runs}
    with existence_checked(container, (item.id for run in runs for item in run)) as look:

        def plan(changes: ChangeSet) -> None:
            for name, run in named.items():
                if changes.find(name) is None:
                    plan_create(changes, name, container.settings.default_rolling, {})
                    plan_attach(look, changes, name, session_id, run, expected_offset=0)
                    plan_seal(changes, name)

        adds = sum(item.length for run in runs for item in run)
        commit_changes(container, named, plan, tables=True, adds=adds)


def drop_staged(container: OwnedContainer) -> None:
    """Make garbage of staged segments whose sessions have ended: a commit can take them no more. Raises the errors of commits."""
    while names := container.look(_left_over):

        def plan(changes: ChangeSet, names: Sequence[str] = names) -> None:
            for name in names:
                if changes.find(name) is not None:
                    plan_delete(changes, name)

        commit_changes(container, names, plan)


def _left_over(view: MetadataView) -> list[str]:
    # A session that has ended stays so, and segments of such names are made while it is open.
    found: list[str] = []
    for key, raw in view.scan(segment_key("\0staged/"), segment_key("\0staged0")):
        with suppress(Damaged):  # a check names it
            name = decode_segment(repr(key), raw).name
            session_id = staged_session(name)
            if session_id is not None and view.get(session_key(session_id)) is None:
                found.append(name)
        if len(found) == _DROPPED_AT_ONCE:
            break
    return found


def list_sessions(view: MetadataView) -> list[OpenSession]:
    """The open sessions, in the order of their ids. Raises ``Damaged``."""
    found = []
    for key, raw in view.scan(SESSION, bytes((SESSION[0] + 1,))):
        record = decode_session(f"session row {key!r}", raw)
        session_id = int.from_bytes(key[1:], "big")
        found.append(OpenSession(session_id, record.holder, record.opened_ms, record.expires_ms))
    return found


def plan_open_session(changes: ChangeSet, holder: str, ttl_s: float) -> int:
    """Plan the record of a new session; returns its id."""
    session_id, now_ms = changes.owned.new_id(), changes.now_ms
    changes.rows[session_key(session_id)] = SessionRecord(holder, now_ms, now_ms + int(ttl_s * 1000))
    changes.headers.append((int(OpCode.SESSION_OPEN), session_id))
    return session_id


def find_session(sessions: Iterable[OpenSession], holder: str) -> int | None:
    """The id of the first session of this holder."""
    return next((session.id for session in sessions if session.holder == holder), None)


def plan_find_session(changes: ChangeSet, holder: str, ttl_s: float) -> int:
    """As ``plan_open_session``, but for a holder that has one: then that one's id. Planned one at a time, with ``tables``: each sees
    what the one before came to. Raises ``Undecided``, ``Damaged``."""
    changes.owned.tables.check(SESSION)
    changes.table_keys.append(SESSION)
    with changes.owned.store.view() as view:
        found = find_session(list_sessions(view), holder)
    return plan_open_session(changes, holder, ttl_s) if found is None else found


def plan_end_session(changes: ChangeSet, session_id: int) -> None:
    """Plan the end of a session. Raises ``Conflict`` when it is not open."""
    require_session(changes, session_id)
    changes.rows[session_key(session_id)] = None
    changes.headers.append((int(OpCode.SESSION_END), session_id))


def plan_attach(
    look: ExistenceCheck,
    changes: ChangeSet,
    name: str,
    session_id: int,
    chunks: tuple[SessionChunk, ...],
    *,
    expected_offset: int | None,
    identity: int | None = None,
) -> int:
    """Plan appending chunks that a session wrote; returns their offset in the segment.

    Raises ``Conflict`` (session not open), ``SegmentSealed``, ``BadOffset``, ``InvalidArgument`` (a chunk is attached already, is
    not there, or has another length), ``Undecided``. ``check_session_chunks`` has seen them, and ``look`` (``existence_checked``).
    """
    segment = changes.open_segment(name, expected_offset, identity)
    require_session(changes, session_id)
    if not chunks:
        return segment.length
    new = chunks_of_session(chunks)
    require_fresh(look, changes, new, shared=True)
    hang_chunks(changes, segment, new, OpCode.ATTACH)
    return segment.length
