"""A history with lazy lengths as one with exact ones: appends that seem to have arrived in part as appends of that part.

Promises: the calls of the result are those of the history, but that appends whose outcome is unknown may have less data. An
order that explains the result explains the history, so that nobody has to try every part of every append.
Leaves out: appends within commits, parts that two calls may have made (``history_order`` tries them all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chunkstore.testing.events import Event
from chunkstore.testing.history_contents import Contents
from chunkstore.testing.history_model import calls_of

__all__ = ["with_parts"]


def with_parts(events: Sequence[Event]) -> list[Event] | None:
    """The history with the parts that stand in its segments; None where there are none, or it cannot be said who made them."""
    torn = Contents(events, lazy=False).torn
    if not torn:
        return None
    changed = list(events)
    for segment, offset, part in torn:
        index = _maker(changed, segment, offset, part)
        if index is None:
            return None
        changed[index] = replace(changed[index], args=(part, *changed[index].args[1:]))
    return changed


def _maker(events: Sequence[Event], segment: str, offset: int, part: bytes) -> int | None:
    """The only append that may have left this part; of several, the only one that was never answered."""
    found = [
        index
        for index, event in enumerate(events)
        if event.kind == "append"
        and event.segment == segment
        and event.outcome == "unknown"
        and len(part) < len(event.args[0])
        and bytes(event.args[0]).startswith(part)
        and not _went_on(events, event, offset)
    ]
    if len(found) > 1:
        found = [index for index in found if events[index].returned is None]
    return found[0] if len(found) == 1 else None


def _went_on(events: Sequence[Event], event: Event, offset: int) -> bool:
    """Whether its owner appended behind this offset: nobody does behind a part."""
    return any(
        kind.startswith("append") and name == event.segment and result is not None and result > offset
        for other in events
        if other.outcome == "ok" and other.epoch == event.epoch
        for (kind, name, _), result in calls_of(other)
    )
