"""A history with lazy lengths as one with exact ones: appends that seem to have arrived in part as appends of that part.

Promises: the calls of the result are those of the history, but that some appends whose outcome is unknown have less data; those are
told, as they were made. An order of these calls in which the model keeps only a part of each of them (``history_model.step``: nobody of
the same owner appends behind it, no writer's event is recorded) explains the history, so that nobody has to try every part of
every append. Leaves out: appends within commits, parts that two calls may have made (``history_order`` tries them all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from chunkstore.testing.events import Event
from chunkstore.testing.history_contents import Contents

__all__ = ["Parted", "with_parts"]


class Parted(NamedTuple):
    """``events`` with parts only; ``halves`` are the calls that left them, whole, by their numbers."""

    events: list[Event]
    halves: dict[int, Event]


def with_parts(events: Sequence[Event]) -> Parted | None:
    """The history with the parts that stand in its segments; None where there are none, or it cannot be said who made them."""
    torn = Contents(events, lazy=False).torn
    if not torn:
        return None
    changed, halves = list(events), {}
    for segment, part in torn:
        index = _maker(changed, segment, part)
        if index is None:
            return None
        halves[index] = events[index]
        changed[index] = replace(events[index], args=(part, *events[index].args[1:]))
    return Parted(changed, halves)


def _maker(events: Sequence[Event], segment: str, part: bytes) -> int | None:
    """The only append that may have left this part; of several, the only one that was never answered."""
    found = [
        index
        for index, event in enumerate(events)
        if event.kind == "append"
        and event.segment == segment
        and event.outcome == "unknown"
        and len(part) < len(event.args[0])
        and bytes(event.args[0]).startswith(part)
    ]
    if len(found) > 1:
        found = [index for index in found if events[index].returned is None]
    return found[0] if len(found) == 1 else None
