"""What replicas may say: anything that once was, never anything that was not, and never backwards (protocol 3.13, P9).

Promises: linear rules over ``replica_read``: a replica's position never goes back; at a higher position a
segment is never shorter; nothing is shown before somebody asked for it to be appended. (That the bytes are right is
``history_contents``.) Leaves out: freshness, which nobody promised.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from chunkstore.testing.events import Event
from chunkstore.testing.history_contents import Anomaly, Contents, appended_data_of

__all__ = ["replica_anomalies"]


def replica_anomalies(events: Sequence[Event], contents: Contents) -> Iterator[Anomaly]:
    """Everything that replicas said and that never was."""
    told = [
        (index, event) for index, event in enumerate(events) if event.kind == "replica_read" and event.outcome == "ok"
    ]
    yield from _positions(told)
    yield from _lengths(told)
    yield from _premature(told, contents)


def _lsn(event: Event) -> int:
    return int(event.args[3])


def _positions(told: Sequence[tuple[int, Event]]) -> Iterator[Anomaly]:
    last: dict[str, tuple[int, int]] = {}
    for index, event in sorted(told, key=lambda item: item[1].invoked):
        before = last.get(event.process)
        if before is not None and _lsn(event) < before[0]:
            yield Anomaly(
                "phantom",
                event.segment,
                f"{event.process} was at lsn {before[0]} and is at {_lsn(event)}",
                (index, before[1]),
            )
        last[event.process] = (_lsn(event), index)


def _lengths(told: Sequence[tuple[int, Event]]) -> Iterator[Anomaly]:
    groups: dict[tuple[str, int], list[tuple[int, int, int, bool]]] = defaultdict(list)
    for index, event in told:
        offset, length, identity = event.args[:3]
        exact = len(event.result) < length
        groups[event.segment, identity].append((_lsn(event), index, offset + len(event.result), exact))
    for (name, _), seen in groups.items():
        reached, by = 0, -1
        # At one position the longest comes first, so that exact lengths are compared with it.
        for lsn, index, length, exact in sorted(seen, key=lambda item: (item[0], -item[2])):
            if exact and length < reached:
                message = f"at lsn {lsn} a replica showed {length} bytes; {reached} had been shown at or before it"
                yield Anomaly("phantom", name, message, (index, by))
            if length > reached:
                reached, by = length, index


def _premature(told: Sequence[tuple[int, Event]], contents: Contents) -> Iterator[Anomaly]:
    ordered: dict[int, tuple[list[int], list[int]]] = {}
    # An event that is sent again, exactly once, may have been appended by the call that nobody answered.
    first_asked: dict[tuple[str, str, tuple[object, ...]], int] = {}
    for event in contents.events:
        key = (event.segment, event.kind, event.args)
        first_asked[key] = min(event.invoked, first_asked.get(key, event.invoked))
    for index, event in told:
        if event.returned is None:
            continue
        life = contents.life_of(event, event.segment, event.args[2])
        if life is None:
            continue
        if id(life) not in ordered:
            starts = sorted(
                (start, first_asked[asked_for.segment, asked_for.kind, asked_for.args])
                for start, _, number in life.told
                if appended_data_of(asked_for := contents.events[number])
            )
            asked = list(accumulate((invoked for _, invoked in starts), max))
            ordered[id(life)] = ([start for start, _ in starts], asked)
        offsets, asked = ordered[id(life)]
        count = bisect_left(offsets, event.args[0] + len(event.result))
        if count and event.result and asked[count - 1] > event.returned:
            message = f"a replica showed bytes before {event.args[0] + len(event.result)} that nobody had appended yet"
            yield Anomaly("phantom", event.segment, message, (index,))
