"""Planning the changes of ``store.commit`` in one draft.

Promises: every argument is checked before the first effect; results come back in the order of the changes: the offset of an
``Append`` or ``Attach``, None for the rest. Leaves out: commit (``transact``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from chunkstore.changes import (
    Append,
    Attach,
    Change,
    Concat,
    Create,
    Delete,
    EndSession,
    Seal,
    TableDelete,
    TablePut,
    Truncate,
    Unseal,
    UpdateAttributes,
)
from chunkstore.config import LIMITS, RollingPolicy
from chunkstore.errors import InvalidArgument
from chunkstore.names import check_segment_name
from chunkstore.operations.append import check_data
from chunkstore.operations.draft import Draft, check_attribute_changes, check_attributes, check_not_itself
from chunkstore.operations.read import check_range
from chunkstore.operations.session import check_session_chunks, check_session_id, plan_attach, plan_end
from chunkstore.operations.table import check_key, check_namespace, check_value, check_version, plan_delete, plan_put

__all__ = ["check_changes", "plan_changes", "segment_names"]

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


def check_changes(changes: Sequence[Change]) -> None:
    """Check arguments only. Raises ``InvalidArgument``."""
    if len(changes) > LIMITS.batch_ops_max:
        raise InvalidArgument(f"one commit takes at most {LIMITS.batch_ops_max} changes", argument="changes")
    for change in changes:
        if type(change) not in _KINDS:
            raise InvalidArgument(f"not a change: {type(change).__name__}; see chunkstore.changes", argument="changes")
        for name in segment_names(change):
            check_segment_name(name)
        if isinstance(change, (Append, Attach)):
            if type(change) is Append:
                check_data(change.data)
            if change.expected_offset is not None:
                check_range(change.expected_offset, 0)
            if isinstance(change, Attach):
                check_session_id(change.session_id)
                check_session_chunks(change.session_id, change.chunks)
        elif isinstance(change, Create):
            if change.rolling is not None and not isinstance(change.rolling, RollingPolicy):
                raise InvalidArgument("rolling must be a RollingPolicy", argument="rolling")
            check_attributes(change.attributes)
        elif isinstance(change, UpdateAttributes):
            check_attribute_changes(change.changes)
            check_attribute_changes(change.expected)
        elif isinstance(change, EndSession):
            check_session_id(change.session_id)
        elif isinstance(change, Truncate):
            check_range(change.offset, 0)
        elif isinstance(change, Concat):
            if change.offset is not None:
                check_range(change.offset, 0)
            check_not_itself(change.target, change.source)
        elif isinstance(change, _TABLE):
            check_namespace(change.namespace)
            check_key(change.key)
            check_version(change.expected_version)
            if isinstance(change, TablePut):
                check_value(change.value)


def plan_changes(draft: Draft, changes: Sequence[Change]) -> list[int | None]:
    """Plan all changes in order."""
    return [_plan(draft, change) for change in changes]


def _plan(draft: Draft, change: Change) -> int | None:
    if type(change) is Append:
        return draft.append(change.name, check_data(change.data), expected_offset=change.expected_offset)
    match change:
        case Create(name, rolling, attributes):
            draft.create(name, rolling or draft.core.settings.default_rolling, check_attributes(attributes))
        case Attach(name, session_id, chunks, expected_offset):
            return plan_attach(draft.core, draft, name, session_id, chunks, expected_offset=expected_offset)
        case Seal(name):
            draft.seal(name)
        case Unseal(name):
            draft.unseal(name)
        case Truncate(name, offset):
            draft.truncate(name, offset)
        case Concat(target, source, offset):
            draft.concat(target, offset, source)
        case Delete(name):
            draft.delete(name)
        case UpdateAttributes(name, updates, expected):
            draft.update_attributes(name, updates, expected)
        case TablePut(namespace, key, value, expected_version):
            plan_put(draft, namespace, key, value, expected_version)
        case TableDelete(namespace, key, expected_version):
            plan_delete(draft, namespace, key, expected_version)
        case EndSession(session_id):
            plan_end(draft, session_id)
    return None
