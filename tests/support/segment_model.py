"""What a container is to its users, as plain Python: dictionaries of segments, rows and sessions, and what each change does.

Promises: ``apply`` says for every change of ``chunkstore.changes`` either what it leads to or which error it must raise, in the
order in which a store checks; states are plain values, so that a copy is a point of history.
Leaves out: chunks, epochs, threads, and everything that goes wrong with the storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st

from chunkstore.changes import (
    Append,
    Attach,
    Change,
    Concat,
    Create,
    Delete,
    EndSession,
    Replace,
    Seal,
    TableDelete,
    TablePut,
    Truncate,
    Unseal,
    UpdateAttributes,
)
from chunkstore.config import RollingPolicy
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Conflict,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
)
from chunkstore.records import AttributeValue
from chunkstore.sessions import SessionChunk

__all__ = [
    "KEYS", "NAMES", "TABLE", "Failure", "SegmentModel", "State", "append_event", "apply", "apply_all", "changes", "names",
    "pieces", "refused_at_once",
]  # fmt: skip

NAMES = ("a", "b", "c", "d", "e")
KEYS = (b"k", b"l", b"m")
TABLE = "t"
Failure = type[ChunkstoreError] | None

_births = itertools.count(1)


class SegmentModel(NamedTuple):
    """One segment: all its bytes from 0 on, those truncated away included."""

    born: int
    """Tells it from others of the same name."""
    data: bytes = b""
    start: int = 0
    sealed: bool = False
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    events: tuple[tuple[bytes, int, int | None, bytes], ...] = ()
    """Each writer with its last event number, and the offset recorded for it (None where batching chose it) and its bytes."""

    def event(self, writer: bytes) -> tuple[int, int | None] | None:
        """Number and offset of a writer's last event."""
        return next(((number, offset) for known, number, offset, _ in self.events if known == writer), None)


@dataclass
class State:
    """A container. ``sessions`` maps the open ones to the chunks they have written and nobody has attached."""

    segments: dict[str, SegmentModel] = field(default_factory=dict)
    rows: dict[bytes, bytes] = field(default_factory=dict)
    sessions: dict[int, dict[SessionChunk, bytes]] = field(default_factory=dict)

    def copy(self) -> State:
        """A state that later changes leave alone."""
        return State(dict(self.segments), dict(self.rows), {key: dict(chunks) for key, chunks in self.sessions.items()})


def apply(state: State, change: Change) -> Failure:
    """What the change does to the state; or the error it must raise, and then nothing is done."""
    match change:
        case Create(name, _, attributes):
            if name in state.segments:
                return SegmentExists
            state.segments[name] = SegmentModel(next(_births), attributes=tuple(sorted(attributes.items())))
        case TablePut(_, key, value, expected):
            if expected == 0 and key in state.rows:
                return Conflict
            state.rows[key] = value
        case TableDelete(_, key):
            state.rows.pop(key, None)
        case EndSession(session):
            if state.sessions.pop(session, None) is None:
                return Conflict
        case Concat(target, source, offset):
            return _concat(state.segments, target, source, offset)
        case Replace():
            pass  # the same bytes
        case _:
            return _change_one(state, change)
    return None


def _change_one(state: State, change: Change) -> Failure:
    assert not isinstance(change, (Create, TablePut, TableDelete, Concat, EndSession))
    name, segments = change.name, state.segments
    model = segments.get(name)
    if model is None:
        return SegmentNotFound
    match change:
        case Append(_, data, expected):
            if model.sealed:
                return SegmentSealed
            if expected is not None and expected != len(model.data):
                return BadOffset
            segments[name] = model._replace(data=model.data + bytes(data))
        case Attach():
            return _attach(state, change, model)
        case Seal():
            segments[name] = model._replace(sealed=True)
        case Unseal():
            if not model.sealed:
                return SegmentNotSealed
            segments[name] = model._replace(sealed=False)
        case Truncate(_, offset):
            if offset > len(model.data):
                return BadOffset
            segments[name] = model._replace(start=max(model.start, offset))
        case Delete():
            del segments[name]
        case UpdateAttributes(_, updates, wanted):
            have = dict(model.attributes)
            if any(have.get(key) != value for key, value in wanted.items()):
                return Conflict
            have.update({key: value for key, value in updates.items() if value is not None})
            for key, value in updates.items():
                if value is None:
                    have.pop(key, None)
            segments[name] = model._replace(attributes=tuple(sorted(have.items())))
    return None


def _attach(state: State, change: Attach, model: SegmentModel) -> Failure:
    if model.sealed:
        return SegmentSealed
    if change.expected_offset is not None and change.expected_offset != len(model.data):
        return BadOffset
    loose = state.sessions.get(change.session_id)
    if loose is None:
        return Conflict
    if any(chunk not in loose for chunk in change.chunks):
        return InvalidArgument
    added = b"".join([loose.pop(chunk) for chunk in change.chunks])
    state.segments[change.name] = model._replace(data=model.data + added)
    return None


def _concat(segments: dict[str, SegmentModel], target_name: str, source_name: str, offset: int | None) -> Failure:
    if target_name == source_name:
        return InvalidArgument
    target = segments.get(target_name)
    if target is None:
        return SegmentNotFound
    if target.sealed:
        return SegmentSealed
    source = segments.get(source_name)
    if source is None:
        return SegmentNotFound
    if not source.sealed:
        return SegmentNotSealed
    if source.start:
        return SegmentTruncated
    if offset is not None and offset != len(target.data):
        return BadOffset
    segments[target_name] = target._replace(data=target.data + source.data)
    del segments[source_name]
    return None


def append_event(
    state: State, name: str, writer: bytes, number: int, data: bytes, expected: int | None
) -> int | type[ChunkstoreError] | None:
    """An append as a writer's event: the offset to answer (None: any), or the error. A known event changes nothing."""
    model = state.segments.get(name)
    if model is None:
        return SegmentNotFound
    known = model.event(writer)
    if known is not None and number <= known[0]:
        (stored,) = (item[3] for item in model.events if item[0] == writer)
        return Conflict if number == known[0] and len(data) >= len(stored) and data != stored else known[1]
    failure = apply(state, Append(name, data, expected))
    if failure is not None:
        return failure
    offset = len(model.data)
    if data:
        others = tuple(item for item in model.events if item[0] != writer)
        state.segments[name] = state.segments[name]._replace(events=(*others, (writer, number, offset, data)))
    return offset


def refused_at_once(program: Sequence[Change]) -> bool:
    """Whether a commit of these is refused for its arguments, before anything is looked at."""
    versions: dict[bytes, list[int | None]] = {}
    for change in program:
        if isinstance(change, (TablePut, TableDelete)):
            versions.setdefault(change.key, []).append(change.expected_version)
    twice = any(len(item) > 1 and item != [None] * len(item) for item in versions.values())
    return twice or any(isinstance(change, Concat) and change.target == change.source for change in program)


def apply_all(state: State, program: Sequence[Change]) -> tuple[State, Failure]:
    """The state after all changes; or the one before them and the first error."""
    planned = state.copy()
    for change in program:
        failure = apply(planned, change)
        if failure is not None:
            return state, failure
    return planned, None


names = st.sampled_from(NAMES)
pieces = st.binary(max_size=12)


def changes() -> st.SearchStrategy[Change]:
    """Any change but those of sessions, whose ids are not known beforehand."""
    offsets = st.none() | st.integers(0, 40)
    rolling = st.sampled_from((None, *(RollingPolicy(chunk_size_bytes_max=size) for size in (1, 3, 7))))
    attributes = st.dictionaries(st.sampled_from(("x", "y")), st.integers(0, 3) | st.text(max_size=3), max_size=2)
    return st.one_of(
        st.builds(Create, names, rolling, attributes),
        st.builds(Append, names, pieces),
        st.builds(Append, names, pieces),
        st.builds(Append, names, pieces, offsets),
        st.builds(Seal, names),
        st.builds(Unseal, names),
        st.builds(Truncate, names, st.integers(0, 40)),
        st.builds(Concat, names, names, offsets),
        st.builds(Concat, names, names),
        st.builds(Delete, names),
        st.builds(UpdateAttributes, names, attributes, st.sampled_from(({}, {"x": 1}))),
        st.builds(TablePut, st.just(TABLE), st.sampled_from(KEYS), pieces, st.sampled_from((None, None, 0))),
        st.builds(TableDelete, st.just(TABLE), st.sampled_from(KEYS)),
    )
