"""A history with lazy lengths as one with exact ones: appends that seem to have arrived in part as appends of that part.

Promises: the calls of the result are those of the history, but that some appends whose outcome is unknown have less data; those are
told, as they were made. An order of these calls in which the model keeps only a part of each of them (``history_model.step``: nobody of
the same owner appends behind it, no writer's event is recorded) explains the history, so that nobody has to try every part of
every append. What nobody has read shows in a later length only: such parts are added one by one. Leaves out: appends within commits, parts
that two calls may have made (``history_order`` tries them all).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from chunkstore.testing.events import Event
from chunkstore.testing.history_contents import Contents
from chunkstore.testing.history_model import Content, State

__all__ = ["Parted", "with_one_more", "with_parts"]

_NEVER: Final = 1 << 62


class Parted(NamedTuple):
    """``events`` with parts only; ``halves`` are the calls that left them, whole, by their numbers."""

    events: list[Event]
    halves: dict[int, Event]


def with_parts(events: Sequence[Event]) -> Parted | None:
    """The history with the parts that stand in its segments; None where it cannot be said who made them."""
    parted = Parted([*events], {})
    # What stands behind a part is seen when the part is known.
    while torn := Contents(parted.events, lazy=False).torn:
        for segment, offset, part in torn:
            index = _maker(parted, segment, offset, part)
            if index is None:
                return None
            parted = _with_part(parted, index, len(part))
    return parted


def _with_part(parted: Parted, index: int, size: int) -> Parted:
    event, changed = parted.events[index], [*parted.events]
    changed[index] = replace(event, args=(bytes(event.args[0])[:size], *event.args[1:]))
    return Parted(changed, {**parted.halves, index: event})


def with_one_more(parted: Parted, index: int, states: Iterable[State]) -> Parted | None:
    """Where call ``index`` was told of a longer segment than any of ``states`` explains: with a part that nobody has read, of the only
    append that may have left it. None where there is none."""
    events = parted.events
    for segment, stop in _lengths_told(events[index]):
        contents = {state.segments[segment].content for state in states if segment in state.segments}
        found: list[tuple[int, int]] = []
        for content in sorted(contents, key=lambda content: -content.length):
            gap = _Gap(segment, content.length, stop, index)
            if gap.start < stop and (maker := _maker_behind(parted, gap, content)) is not None:
                found.append((maker, stop - gap.start))
        if found:
            # Whoever never had an answer was stopped in the middle.
            return _with_part(parted, *min(found, key=lambda item: events[item[0]].returned is not None))
    return None


class _Gap(NamedTuple):
    """Where a part stands. ``seen``: the call that was told so, None where the bytes themselves show it."""

    segment: str
    start: int
    stop: int
    seen: int | None


def _lengths_told(event: Event) -> Iterator[tuple[str, int]]:
    """Segments, and the lengths that the call found, for an append before it."""
    if event.outcome != "ok":
        return
    if event.kind in ("append", "append_many"):
        yield event.segment, event.result
    elif event.kind == "info":
        yield event.segment, event.result[2]
    elif event.kind == "list":
        for name, _, _, length, _ in event.result:
            yield name, length
    elif event.kind in ("read", "final") and len(event.result) < event.args[1]:
        yield event.segment, event.args[0] + len(event.result)


def _maker(parted: Parted, segment: str, offset: int, part: bytes) -> int | None:
    """Who may have left these bytes."""
    events, gap = parted.events, _Gap(segment, offset, offset + len(part), None)
    found = [
        index
        for index in _unknown(events, gap)
        if index not in parted.halves and bytes(events[index].args[0]).startswith(part)
    ]
    return _only_one(events, gap, found)


def _maker_behind(parted: Parted, gap: _Gap, content: Content) -> int | None:
    """Who may have left a part behind ``content``. Of an append that is there whole already nothing more can come."""
    events, here = parted.events, content.slice(0, content.length)
    found = [
        index
        for index in _unknown(events, gap)
        if index not in parted.halves and bytes(events[index].args[0]) not in here
    ]
    return _only_one(events, gap, found)


def _unknown(events: Sequence[Event], gap: _Gap) -> Iterator[int]:
    """Appends without a known outcome that are too long for the gap, and were made in time."""
    until = None if gap.seen is None else events[gap.seen].returned
    for index, event in enumerate(events):
        meant = event.kind == "append" and event.segment == gap.segment and event.outcome == "unknown"
        if meant and len(event.args[0]) > gap.stop - gap.start and (until is None or event.invoked < until):
            yield index


def _only_one(events: Sequence[Event], gap: _Gap, found: list[int]) -> int | None:
    """The only one; of several the only one of an owner in time, of those the only one that was never answered."""
    if len(found) > 1:
        oldest, newest = _epochs_around(events, gap)
        found = [index for index in found if oldest <= events[index].epoch < newest]
    if len(found) > 1:
        found = [index for index in found if events[index].returned is None]
    return found[0] if len(found) == 1 else None


def _epochs_around(events: Sequence[Event], gap: _Gap) -> tuple[int, int]:
    """The epochs of answered appends before and behind a part: its owner is one of those between, and not the latter."""
    seen = None if gap.seen is None else events[gap.seen]
    answered = [
        event
        for event in events
        if event.kind == "append"
        and event.segment == gap.segment
        and event.outcome == "ok"
        and event.returned is not None
        and (seen is None or event.returned < seen.invoked)
    ]
    before = max(
        (event for event in answered if event.result < gap.start), key=lambda event: event.returned or 0, default=None
    )
    behind = min(
        (event for event in answered if event.result >= gap.stop), key=lambda event: event.result, default=None
    )
    if seen is not None and seen.epoch:
        # One that appends does so behind its own parts only in another epoch.
        newest = seen.epoch if seen.kind.startswith("append") else seen.epoch + 1
    else:
        newest = _NEVER if behind is None else behind.epoch
    return (0 if before is None else before.epoch), newest
