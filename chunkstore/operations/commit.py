"""``store.commit``: several changes planned in one change set.

Promises: results in the order of the changes; chunks that were written before are looked at before the locks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    added_bytes,
    concerns_tables,
    segment_names,
)
from chunkstore.checksum import check_data
from chunkstore.config import LIMITS
from chunkstore.operations.append_plan import plan_on_tail
from chunkstore.operations.attach import existence_checked, plan_attach, plan_end_session
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pending import ExistenceCheck
from chunkstore.operations.replace import plan_replace
from chunkstore.operations.segments import (
    plan_attributes,
    plan_concat,
    plan_create,
    plan_delete,
    plan_seal,
    plan_truncate,
    plan_unseal,
)
from chunkstore.operations.tables import plan_delete_row, plan_put_row
from chunkstore.records.arguments import check_attributes

__all__ = ["commit"]


def commit(container: OwnedContainer, changes: Sequence[Change]) -> list[int | None]:
    """Commit all changes in order, whose arguments have been checked; returns the offset of each ``Append`` or ``Attach``, None
    for the rest. Raises and retry as ``Store.commit``."""
    names = [name for change in changes for name in segment_names(change)]
    tables = any(map(concerns_tables, changes))
    with existence_checked(container, _written(changes)) as look:

        def plan(planned: ChangeSet) -> list[int | None]:
            return [_plan(container, look, planned, change) for change in changes]

        return commit_changes(container, names, plan, tables=tables, adds=added_bytes(changes))


def _written(changes: Sequence[Change]) -> Iterator[bytes]:
    """The ids of the chunks that were written before."""
    for change in changes:
        if isinstance(change, Attach):
            yield from (item.id for item in change.chunks)
        elif isinstance(change, Replace):
            yield from (item.id for item in change.new)


def _plan(container: OwnedContainer, look: ExistenceCheck, planned: ChangeSet, change: Change) -> int | None:
    match change:
        case Append():
            return _plan_append(container, planned, change)
        case Create(name, rolling, attributes, start_offset):
            policy = rolling or container.settings.default_rolling
            plan_create(planned, name, policy, check_attributes(attributes), start_offset)
        case Attach(name, session_id, chunks, expected_offset):
            return plan_attach(look, planned, name, session_id, chunks, expected_offset=expected_offset)
        case Replace():
            plan_replace(look, planned, change)
        case Seal(name):
            plan_seal(planned, name)
        case Unseal(name):
            plan_unseal(planned, name)
        case Truncate(name, offset):
            plan_truncate(planned, name, offset)
        case Concat(target, source, offset):
            plan_concat(planned, target, offset, source)
        case Delete(name):
            plan_delete(planned, name)
        case UpdateAttributes(name, updates, expected):
            plan_attributes(planned, name, updates, expected)
        case TablePut(namespace, key, value, expected_version):
            plan_put_row(planned, namespace, key, value, expected_version)
        case TableDelete(namespace, key, expected_version):
            plan_delete_row(planned, namespace, key, expected_version)
        case EndSession(session_id):
            plan_end_session(planned, session_id)
    return None


def _plan_append(container: OwnedContainer, planned: ChangeSet, change: Append) -> int:
    """Plan an append; ``commit_changes`` writes bytes that do not go into the record."""
    data = check_data(change.data)
    segment = planned.open_segment(change.name, change.expected_offset)
    if len(data) == 0:
        return segment.length
    _, tail = planned.outcome(planned.states[change.name])
    if container.takes_inline(segment, tail, data) and planned.op.inline_bytes + len(data) <= LIMITS.batch_bytes_max:
        planned.append_inline(segment, tail, bytes(data))
        return segment.length
    planned.append(plan_on_tail(planned.owned, segment, tail, data, planned.now_ms), data)
    return segment.length
