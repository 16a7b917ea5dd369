"""Handles: how a caller names a segment.

Promises: a handle binds a segment's id, so that another segment of the same name is never mistaken for it. Plain data.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from chunkstore.errors import InvalidArgument
from chunkstore.names import check_segment_name

__all__ = ["SegmentHandle", "SegmentRef", "resolve", "resolve_writable"]


class SegmentHandle(NamedTuple):
    """An opened segment: binds the segment's id, so that a re-created segment of the same name is not mistaken for it."""

    name: str
    segment_id: int
    writable: bool


SegmentRef: TypeAlias = str | SegmentHandle


def resolve(target: SegmentRef, argument: str = "segment") -> tuple[str, int | None]:
    """Name and (for a handle) id. Raises ``InvalidArgument`` of ``argument``."""
    if isinstance(target, SegmentHandle):
        check_segment_name(target.name, argument)
        if type(target.segment_id) is not int:
            raise InvalidArgument(f"the handle of {target.name!r} has no segment's id", argument=argument)
        return target.name, target.segment_id
    check_segment_name(target, argument)
    return target, None


def resolve_writable(target: SegmentRef, argument: str = "segment") -> tuple[str, int | None]:
    """As ``resolve``, for a change. Raises ``InvalidArgument`` for a read handle, too."""
    if type(target) is str:
        check_segment_name(target, argument)
        return target, None
    if isinstance(target, SegmentHandle) and not target.writable:
        raise InvalidArgument(f"the handle of {target.name!r} is read-only; use open_write", argument=argument)
    return resolve(target, argument)
