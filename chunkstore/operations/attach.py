"""Chunks that were written before the commit that takes them into a list: by sessions (protocol A9), or to replace others.

Promises
* A session is a committed record; attaching and ending are one record, so they are ordered by history, and an attach that names an
  ended session is refused.
* A chunk enters metadata once, and only if the storage has it in its length. The storage is looked at before any lock is held; under the
  locks only rows are, and whether a collection has deleted one since.
* Chunks that are too many for one record are staged: each run becomes a sealed segment whose name says which chunks of which session, so
  that to stage the same again is no change. What no commit has taken when its session ends, a collection makes garbage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from chunkstore.changes import NewChunk
from chunkstore.changes.sessions import SessionChunk, staged_name, staged_session
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Closed,
    Damaged,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
)
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_segment, decode_session
from chunkstore.metadata.keys import SESSION, chunk_key, segment_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import border_rows
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pending import ExistenceCheck
from chunkstore.operations.segments import plan_create, plan_delete, plan_seal
from chunkstore.records.blocks import Borders, borders_inside
from chunkstore.records.names import NO_CHUNK
from chunkstore.records.segments import CLOSED, KIND_OBJECT, ChunkRecord, OpenSession, SessionRecord

__all__ = [
    "chunks_of_session",
    "deleted_unless_committed",
    "drop_staged",
    "existence_checked",
    "find_session",
    "link_chunks",
    "list_sessions",
    "plan_attach",
    "plan_end_session",
    "plan_find_session",
    "plan_open_session",
    "require_fresh",
    "stage",
]

_DROPPED_AT_ONCE: Final = 1_000
_BYTES_LIKE_A_CHUNK: Final = 150
"""So many bytes of block rows count as one chunk more in a commit."""


def chunks_of_session(chunks: Sequence[SessionChunk]) -> list[NewChunk]:
    """The same with the places of their borders."""
    found = []
    for item in chunks:
        inside = borders_inside(item.length) if item.border_crcs else ()
        found.append(NewChunk(item.id, Borders([0, *inside, item.length], [0, *item.border_crcs, item.crc32c])))
    return found


@contextmanager
def existence_checked(container: OwnedContainer, ids: Iterable[bytes]) -> Iterator[ExistenceCheck]:
    """Look at chunks in the storage, without a lock, for a commit that is planned and entered inside.

    Each step of the look has ``op_deadline_s``. Raises ``Closed``, ``NotOwner``, and what the storage raises.

    Why that still holds when the commit is planned: what a chunk's object can be deleted by is a sweep, which leaves alone what an open
    session has written, and whether it is open is asked then; and a collection, which says so here before it deletes, and drops rows
    after that. A collection that had said so before this look was there either had dropped the row, then the object was gone when it
    was looked at; or the row was there, and what has a row is not looked at.
    """
    look = ExistenceCheck(dict.fromkeys(ids))
    if not look.lengths:
        yield look
        return
    container.check_owner()
    container.looks.append(look)
    try:

        def without_rows(view: MetadataView) -> list[bytes]:
            return [identity for identity in look.lengths if view.get(chunk_key(identity)) is None]

        found = container.look(without_rows)
        step = container.settings.tuning.io_workers * 4
        for begin in range(0, len(found), step):
            container.check_open()  # close does not wait for all of them
            some = found[begin : begin + step]
            with container.bounded(container.deadline()):
                lengths = container.pool.run_all([partial(_stored_length, container, identity) for identity in some])
            look.lengths.update(zip(some, lengths, strict=True))
        yield look
    finally:
        container.looks.remove(look)


@contextmanager
def deleted_unless_committed(container: OwnedContainer, ids: Collection[bytes]) -> Iterator[None]:
    """Write the chunks ``ids`` and commit them inside. They are deleted where their commit certainly did not happen, and after
    ``OutcomeUnknown`` never."""
    try:
        yield
    except (OutcomeUnknown, NotOwner, Closed):
        raise  # a commit may name them, or a newer owner decides that: the sweep finds them
    except ChunkstoreError:
        for identity in ids:
            with suppress(ChunkstoreError), container.bounded(container.deadline()):
                container.storage.delete(container.names.chunk(identity))
        raise


def require_fresh(look: ExistenceCheck, changes: ChangeSet, chunks: Sequence[NewChunk], *, shared: bool) -> None:
    """Check that no chunk is in the metadata, and that the storage had every one in its length when it was looked at: one without a row
    may have been taken in, removed and collected before, and its object was deleted before its row.

    ``shared``: others than the holder of the segment's lock may take them in. Raises ``InvalidArgument``, ``Undecided``.
    """
    for position, item in enumerate(chunks):
        key = chunk_key(item.id)
        known = changes.settled(key) if shared else changes.view.get(key)
        if known is not None or key in changes.rows:
            raise InvalidArgument(f"chunk {position} is attached already", argument="chunks")
    for position, item in enumerate(chunks):
        length = look.lengths[item.id]
        if length is None or item.id in look.collected:
            raise InvalidArgument(
                f"chunk {position} is not in the storage: it was never written here, or was attached, removed and collected",
                argument="chunks",
            )
        if length != item.borders.at[-1]:
            what = f"chunk {position} has {length} bytes in the storage, not {item.borders.at[-1]}"
            raise InvalidArgument(what, argument="chunks")


def _stored_length(container: OwnedContainer, identity: bytes) -> int | None:
    try:
        return container.storage.stat(container.names.chunk(identity)).length
    except ChunkNotFound:
        return None


def link_chunks(
    changes: ChangeSet, segment_id: int, chunks: Sequence[NewChunk], offset: int, before: bytes, after: bytes
) -> tuple[tuple[int, bytes], ...]:
    """Plan the rows of ``chunks`` from ``offset`` on, between the chunks ``before`` and ``after``, whose rows are the caller's matter.

    Returns the offset and id of each. Raises ``InvalidArgument`` where they are too many for one commit.
    """
    added: list[tuple[int, bytes]] = []
    following = [*(item.id for item in chunks[1:]), after]
    for (identity, borders), follower in zip(chunks, following, strict=True):
        length = borders.at[-1]
        changes.rows[chunk_key(identity)] = ChunkRecord(
            "",
            0,
            length,
            borders.crcs[-1],
            before,
            follower,
            segment_id,
            changes.owned.epoch,
            CLOSED,
            KIND_OBJECT,
            changes.now_ms,
        )
        rows = border_rows(identity, borders)
        changes.rows.update(rows)
        changes.count_chunks(1 + sum(len(key) + len(row.value) for key, row in rows.items()) // _BYTES_LIKE_A_CHUNK)
        added.append((offset, identity))
        before, offset = identity, offset + length
    return tuple(added)


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
    changes.require_session(session_id)
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
    changes.require_session(session_id)
    if not chunks:
        return segment.length
    new = chunks_of_session(chunks)
    require_fresh(look, changes, new, shared=True)
    added = link_chunks(changes, segment.id, new, segment.length, segment.last_chunk, NO_CHUNK)
    if segment.last_chunk:
        last = changes.chunk(segment.last_chunk)
        changes.rows[chunk_key(segment.last_chunk)] = last._replace(next=new[0].id, state=CLOSED)
    length = sum(item.borders.at[-1] for item in new)
    changes.put(
        segment._replace(
            length=segment.length + length,
            first_chunk=segment.first_chunk or new[0].id,
            last_chunk=new[-1].id,
            last_chunk_offset=added[-1][0],
            chunk_count=segment.chunk_count + len(new),
            owner_epoch=changes.owned.epoch,
            modified_ms=changes.now_ms,
        )
    )
    changes.headers.append((int(OpCode.ATTACH), segment.id, segment.length, length, added))
    changes.restructure(segment.id)
    return segment.length
