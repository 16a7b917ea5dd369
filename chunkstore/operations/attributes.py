"""Attributes of a segment: bounded plain values, changed on conditions."""

from __future__ import annotations

from collections.abc import Mapping

from chunkstore.arguments import check_attributes
from chunkstore.errors import Conflict
from chunkstore.journal import OpCode
from chunkstore.operations.change_set import ChangeSet
from chunkstore.records import AttributeValue

__all__ = ["plan_attributes"]


def plan_attributes(
    changes: ChangeSet,
    name: str,
    updates: Mapping[str, AttributeValue | None],
    expected: Mapping[str, AttributeValue | None],
    identity: int | None = None,
) -> None:
    """Plan to set (or, with None, remove) attributes if every expected one has its value (None: absent). Raises ``Conflict``."""
    segment = changes.segment(name, identity)
    for key, value in expected.items():
        found = segment.attributes.get(key)
        if found != value or type(found) is not type(value):
            raise Conflict(f"attribute {key!r} of segment {name!r}", expected=value, found=found)
    merged: dict[str, AttributeValue] = dict(segment.attributes)
    for key, value in updates.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    changes.put(segment._replace(attributes=check_attributes(merged, "changes"), modified_ms=changes.now_ms))
    changes.headers.append((int(OpCode.ATTRIBUTES), segment.id))
