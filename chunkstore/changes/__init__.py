"""Changes for ``store.commit``: several of them become one record, all or nothing.

Promises: plain frozen data; order matters (later changes see earlier ones); every change checks what its single verb checks.
Leaves out: ``put`` to a table with an expected version *and* a second change of the same key in one commit (refused).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias, get_args

from chunkstore.changes.sessions import SessionChunk, check_session_chunks, check_session_id, staged_session
from chunkstore.checksum import BytesLike, check_data
from chunkstore.config import LIMITS, RollingPolicy
from chunkstore.errors import InvalidArgument
from chunkstore.records.arguments import (
    check_attribute_changes,
    check_attributes,
    check_key,
    check_namespace,
    check_not_itself,
    check_number,
    check_value,
    check_version,
)
from chunkstore.records.blocks import Borders
from chunkstore.records.names import CHUNK_ID_BYTES, check_segment_name, chunk_session
from chunkstore.records.segments import AttributeValue

__all__ = [
    "Append",
    "Attach",
    "Change",
    "Concat",
    "Create",
    "Delete",
    "EndSession",
    "NewChunk",
    "Replace",
    "Seal",
    "TableDelete",
    "TablePut",
    "Truncate",
    "Unseal",
    "UpdateAttributes",
    "check_changes",
    "concerns_tables",
    "segment_names",
]


@dataclass(frozen=True, slots=True)
class Create:
    """Create a segment. ``rolling`` None takes the store's default. ``start_offset``: as if what is below had been truncated away."""

    name: str
    rolling: RollingPolicy | None = None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    start_offset: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """Append bytes; with ``expected_offset`` only at that length."""

    name: str
    data: BytesLike
    expected_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Attach:
    """Append chunks that an open session has written."""

    name: str
    session_id: int
    chunks: tuple[SessionChunk, ...]
    expected_offset: int | None = None


class NewChunk(NamedTuple):
    """A chunk that the owner has written for a segment, in its present epoch and under a fresh id. ``borders``: from 0 to its length,
    with the CRCs there (``chunkstore.records.blocks``)."""

    id: bytes
    borders: Borders


@dataclass(frozen=True, slots=True)
class Replace:
    """Let other chunks hold the bytes ``[start, stop)`` of a segment, if these are still the chunks ``old``, whole and in this order.

    ``new`` hold the same bytes: of the owner's present epoch, or of the open session ``session_id``. Where ``old`` begins with the
    segment's first chunk, ``start`` may be the segment's start offset: what is below it is left out. Else ``Conflict``, as with an
    active chunk in ``old``, a first new chunk that ends below the start offset, and new ones of another epoch or segment.
    """

    name: str
    start: int
    stop: int
    old: tuple[bytes, ...]
    new: tuple[NewChunk, ...] | tuple[SessionChunk, ...]
    session_id: int | None = None


@dataclass(frozen=True, slots=True)
class Seal:
    """Seal a segment (no change if it is sealed)."""

    name: str


@dataclass(frozen=True, slots=True)
class Unseal:
    """Unseal a sealed segment."""

    name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """Move the start offset up to ``offset``."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Concat:
    """Splice a sealed segment after another; it ceases to exist. ``offset`` None takes the target's length. ``source`` may be a staged
    segment (``chunkstore.engine.owner``), while its session is open."""

    target: str
    source: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a segment."""

    name: str


@dataclass(frozen=True, slots=True)
class UpdateAttributes:
    """Set attributes (None removes one) if every expected one matches (None: absent)."""

    name: str
    changes: Mapping[str, AttributeValue | None]
    expected: Mapping[str, AttributeValue | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TablePut:
    """Put a table row; ``expected_version`` 0 means "must be absent"."""

    namespace: str
    key: bytes
    value: bytes
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class TableDelete:
    """Delete a table row."""

    namespace: str
    key: bytes
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class EndSession:
    """End a session; its unattached chunks become orphans."""

    session_id: int


Change: TypeAlias = (
    Create
    | Append
    | Attach
    | Replace
    | Seal
    | Unseal
    | Truncate
    | Concat
    | Delete
    | UpdateAttributes
    | TablePut
    | TableDelete
    | EndSession
)

ADDS_NOTHING: Final = -1
"""How many bytes an operation adds that is let in always. From 0 on it is refused in safe mode (``operations.space``)."""
_TABLE = (TablePut, TableDelete)
_KINDS: frozenset[type] = frozenset(get_args(Change))


def segment_names(change: Change) -> tuple[str, ...]:
    """The segments a change touches."""
    if type(change) is Append:
        return (change.name,)
    if isinstance(change, Concat):
        return (change.target, change.source)
    if isinstance(change, (*_TABLE, EndSession)):
        return ()
    return (change.name,)


def concerns_tables(change: Change) -> bool:
    """Whether it is about rows of tables or sessions, which no segment's lock protects."""
    if isinstance(change, Replace):
        return change.session_id is not None
    if isinstance(change, Concat):
        return staged_session(change.source) is not None
    return isinstance(change, (*_TABLE, Attach, EndSession))


def added_bytes(changes: Sequence[Change]) -> int:
    """How many bytes of chunks a commit adds; 0: rows alone; ``ADDS_NOTHING``: not even those, or while it removes something."""
    total = 0
    for change in changes:
        if isinstance(change, Append):
            total += len(change.data)
        elif isinstance(change, Attach):
            total += sum(item.length for item in change.chunks)
        elif isinstance(change, Replace):
            total += change.stop - change.start
    kinds = {type(change) for change in changes}
    return (
        total if total or (kinds & {Create, TablePut} and not kinds & {Truncate, Delete, EndSession}) else ADDS_NOTHING
    )


def check_changes(changes: Sequence[Change]) -> None:
    """Check arguments only. Raises ``InvalidArgument``."""
    if len(changes) > LIMITS.batch_ops_max:
        raise InvalidArgument(f"one commit takes at most {LIMITS.batch_ops_max} changes", argument="changes")
    for change in changes:
        if type(change) is Append:
            check_segment_name(change.name, "name")
            check_data(change.data)
            if change.expected_offset is not None:
                check_number(change.expected_offset, "expected_offset")
            continue
        if type(change) not in _KINDS:
            raise InvalidArgument(f"not a change: {type(change).__name__}; see chunkstore.changes", argument="changes")
        _check_names(change)
        if isinstance(change, Attach):
            if change.expected_offset is not None:
                check_number(change.expected_offset, "expected_offset")
            check_session_id(change.session_id)
            check_session_chunks(change.session_id, change.chunks)
        elif isinstance(change, Replace):
            _check_replace(change)
        elif isinstance(change, Create):
            if change.rolling is not None and not isinstance(change.rolling, RollingPolicy):
                raise InvalidArgument("rolling must be a RollingPolicy", argument="rolling")
            check_attributes(change.attributes)
            check_number(change.start_offset, "start_offset")
            if change.start_offset >> 63:
                raise InvalidArgument("start_offset must be below 2^63", argument="start_offset")
        elif isinstance(change, UpdateAttributes):
            check_attribute_changes(change.changes, "changes")
            check_attribute_changes(change.expected, "expected")
        elif isinstance(change, EndSession):
            check_session_id(change.session_id)
        elif isinstance(change, Truncate):
            check_number(change.offset, "offset")
        elif isinstance(change, Concat):
            if change.offset is not None:
                check_number(change.offset, "offset")
            check_not_itself(change.target, change.source)
        elif isinstance(change, _TABLE):
            check_namespace(change.namespace)
            check_key(change.key)
            check_version(change.expected_version)
            if isinstance(change, TablePut):
                check_value(change.value)


def _check_names(change: Change) -> None:
    if isinstance(change, Concat):
        check_segment_name(change.target, "target")
        if not isinstance(change.source, str) or staged_session(change.source) is None:
            check_segment_name(change.source, "source")
    elif not isinstance(change, (*_TABLE, EndSession)):
        check_segment_name(change.name, "name")


def _check_replace(change: Replace) -> None:
    check_number(change.start, "start")
    check_number(change.stop, "stop")
    for argument, items in (("old", change.old), ("new", change.new)):
        if type(items) is not tuple or not 1 <= len(items) <= LIMITS.commit_chunks_max:
            what = f"{argument} must be a tuple of 1 to {LIMITS.commit_chunks_max} chunks"
            raise InvalidArgument(what, argument=argument)
    if change.session_id is not None:
        check_session_id(change.session_id)
        check_session_chunks(change.session_id, change.new)
        lengths = [item.length for item in change.new if isinstance(item, SessionChunk)]
    else:
        lengths = [_check_new_chunk(position, item) for position, item in enumerate(change.new)]
    if sum(lengths) != change.stop - change.start:
        what = f"the new chunks have {sum(lengths)} bytes, the range {change.stop - change.start}"
        raise InvalidArgument(what, argument="new")
    ids = [*change.old, *(item.id for item in change.new)]
    if not all(type(item) is bytes and len(item) == CHUNK_ID_BYTES for item in change.old):
        raise InvalidArgument("old is a tuple of chunk ids", argument="old")
    if len(set(ids)) != len(ids):
        raise InvalidArgument("a chunk is named twice", argument="new")


def _are_borders(borders: object) -> bool:
    if not isinstance(borders, Borders):
        return False
    at, crcs = borders
    good = (
        len(at) == len(crcs) >= 2 and all(type(number) is int for number in (*at, *crcs)) and (at[0], crcs[0]) == (0, 0)
    )
    return good and all(low < high for low, high in pairwise(at)) and all(0 <= crc < 1 << 32 for crc in crcs)


def _check_new_chunk(position: int, item: object) -> int:
    """The length of a new chunk that can be one. Raises ``InvalidArgument``."""
    if not isinstance(item, NewChunk) or type(item.id) is not bytes or not isinstance(item.borders, Borders):
        raise InvalidArgument(f"chunk {position} is not a NewChunk", argument="new")
    at = item.borders.at
    if len(item.id) != CHUNK_ID_BYTES or chunk_session(item.id) is not None or not _are_borders(item.borders):
        raise InvalidArgument(f"chunk {position}: its id or its borders cannot be an owner's", argument="new")
    return at[-1]
