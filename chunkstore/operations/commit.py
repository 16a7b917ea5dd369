"""``store.commit``: several changes planned in one change set.

Promises: results in the order of the changes. Leaves out: locks and commit (``commit_changes``).
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkstore.arguments import check_attributes
from chunkstore.changes import (
    Adopt,
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
from chunkstore.checksum import check_data
from chunkstore.operations.adopt import plan_adopt
from chunkstore.operations.append_plan import plan_on_tail
from chunkstore.operations.attach import plan_attach, plan_end_session
from chunkstore.operations.attributes import plan_attributes
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.concat import plan_concat
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.create import plan_create
from chunkstore.operations.delete import plan_delete
from chunkstore.operations.replace import plan_replace
from chunkstore.operations.seal import plan_seal, plan_unseal
from chunkstore.operations.tables import plan_delete_row, plan_put_row
from chunkstore.operations.truncate import plan_truncate

__all__ = ["plan_changes"]


def plan_changes(container: OwnedContainer, planned: ChangeSet, changes: Sequence[Change]) -> list[int | None]:
    """Plan all changes in order; returns the offset of each ``Append``, ``Attach`` or ``Adopt``, None for the rest."""
    return [_plan(container, planned, change) for change in changes]


def _plan(container: OwnedContainer, planned: ChangeSet, change: Change) -> int | None:
    match change:
        case Append():
            return _plan_append(planned, change)
        case Create(name, rolling, attributes, start_offset):
            policy = rolling or container.settings.default_rolling
            plan_create(planned, name, policy, check_attributes(attributes), start_offset)
        case Attach(name, session_id, chunks, expected_offset):
            return plan_attach(container, planned, name, session_id, chunks, expected_offset=expected_offset)
        case Adopt():
            return plan_adopt(container, planned, change)
        case Replace():
            plan_replace(container, planned, change)
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


def _plan_append(planned: ChangeSet, change: Append) -> int:
    """Plan an append; ``commit_changes`` writes the bytes. Raises ``SegmentSealed``, ``BadOffset``, ``InvalidArgument``."""
    data = check_data(change.data)
    segment = planned.open_segment(change.name, change.expected_offset)
    if len(data) == 0:
        return segment.length
    _, tail, tail_name, growing, open_row = planned.outcome(planned.states[change.name])
    planned.append(plan_on_tail(planned.owned, segment, tail, growing, tail_name, open_row, data, planned.now_ms), data)
    return segment.length
