"""The history checker: could a correct store have given these answers, and if not, what went wrong (protocol 6.4, invariant 31)?

Promises
* ``check_history`` accepts a history if and only if its calls can be put into one order that respects real time, in which every
  answer is the one that the plain object of ``history_model`` gives; calls with an unknown outcome may have taken place, once, at
  any time after they were made, or not at all. Where lengths are lazy, the last append of an owner whose outcome is unknown may
  have arrived in part. Replicas may lag, but never show what was not.
* What is wrong has a name (``ANOMALIES``), and the calls that show it are pointed at.
* Near-linear in the number of events and in the bytes told. Where too many orders are possible to be looked at, ``undecided``
  says so instead of a guess.

Leaves out: attributes, sessions; liveness; what the storage holds (``step_invariants``, ``check``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from chunkstore.testing.events import Event
from chunkstore.testing.history_contents import Anomaly, Contents
from chunkstore.testing.history_model import OBSERVERS, Facts, SegmentState, State, calls_of, step
from chunkstore.testing.history_order import NoOrder, OrderSearch, Undecided
from chunkstore.testing.history_parts import Parted, with_one_more, with_parts
from chunkstore.testing.history_replicas import replica_anomalies

__all__ = ["ANOMALIES", "Anomaly", "Verdict", "check_history"]

ANOMALIES = {
    "lost-ack": "something was acknowledged, and is not there",
    "duplicate": "bytes of one call, or of one event of a writer, stand there twice",
    "reordered": "bytes stand in another order than their calls were answered in, or elsewhere than they were told",
    "stale-read": "a deposed owner, or an owner behind the times, answered from yesterday",
    "phantom": "something was shown that never was, or was gone later",
    "resurrected": "what was truncated, deleted or refused is there after all",
    "torn": "an append is there in part",
    "after-seal": "an append was acknowledged after the segment was sealed",
    "not-atomic": "one part of a concat, or of a commit, was seen without the other",
    "invented": "bytes that nobody appended",
    "wrong-refusal": "a call was refused for a reason that did not exist",
    "two-owners": "two processes were told that they own the same epoch",
    "reused-id": "two segments were given the same id",
    "no-order": "no order explains the answer, and no simpler name fits",
}


_STATES_MAX: Final = 5_000
_STATES_TIMES: Final = 20
_PARTS_UNREAD_MAX: Final = 9


class Verdict(NamedTuple):
    """``anomalies`` are proofs; ``undecided`` says why the history could not be judged whole (empty: it was).

    ``unexplained``: where that was so and lengths are lazy, what is wrong even with the parts that could be found; or without any, where
    with these, too, more orders were possible than could be looked at.
    """

    anomalies: tuple[Anomaly, ...]
    undecided: str
    unexplained: tuple[Anomaly, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the history was judged, and is sound."""
        return not self.anomalies and not self.undecided


def check_history(
    events: Sequence[Event],
    *,
    lengths: Literal["exact", "lazy"] = "exact",
    refusals: Literal["reads", "all", "none"] = "reads",
    states_max: int = _STATES_MAX,
) -> Verdict:
    """Judge a history of one container that began empty. Pure; raises nothing for histories of the kinds in ``events``.

    ``refusals``: whose errors have to be right ("there is no such segment"): those of "reads" (the default: a change may be
    refused because of one that is under way and fails later), of "all" calls, or of "none". ``states_max`` bounds the work per call;
    twenty times as much is done where lengths are lazy, up to nine times.
    """
    if lengths == "exact":
        return _judge(events, lazy=False, refusals=refusals, states_max=states_max, halves={})[0]
    verdict = _judge_with_parts(events, refusals, max(_STATES_MAX, _STATES_TIMES * states_max))
    # Bytes that the parts leave room for may be nobody's all the same: a part may look like the beginning of something else.
    if verdict.ok and not Contents(events, lazy=True).anomalies:
        return verdict
    whole = _judge(events, lazy=True, refusals=refusals, states_max=states_max, halves={})[0]
    if not whole.undecided:
        return whole
    if verdict.undecided:
        # What the parts explain nobody knows: then it counts what is wrong without any.
        verdict = _judge(events, lazy=False, refusals=refusals, states_max=states_max, halves={})[0]
    return whole._replace(unexplained=verdict.anomalies)


def _judge_with_parts(events: Sequence[Event], refusals: str, states_max: int) -> Verdict:
    """With the parts that can be found; only an ``ok`` says something about the history as it stands."""
    parted = with_parts(events) or Parted([*events], {})
    for _ in range(_PARTS_UNREAD_MAX):
        # Here each state is the beginning of few others.
        verdict, failure = _judge(
            parted.events, lazy=False, refusals=refusals, states_max=states_max, halves=parted.halves
        )
        more = None if failure is None else with_one_more(parted, failure.index, failure.states)
        if more is None:
            break
        parted = more
    return verdict


def _judge(
    events: Sequence[Event], *, lazy: bool, refusals: str, states_max: int, halves: Mapping[int, Event]
) -> tuple[Verdict, NoOrder | None]:
    contents = Contents(events, lazy=lazy)
    anomalies = [*contents.anomalies, *replica_anomalies(events, contents), *_identities(events)]
    undecided, found = "", None
    if not anomalies:
        search = OrderSearch(events, contents, lazy=lazy, refusals=refusals, states_max=states_max, halves=halves)
        try:
            search.run()
        except NoOrder as failure:
            found = failure
            anomalies.append(_name(events, failure))
        except Undecided as failure:
            undecided = str(failure)
    return Verdict(tuple(anomalies), undecided), found


def _identities(events: Sequence[Event]) -> list[Anomaly]:
    """What must be unique: the owner of an epoch, the id of a segment."""
    found: list[Anomaly] = []
    owners: dict[int, int] = {}
    segments: dict[int, tuple[int, str]] = {}
    for index, event in enumerate(events):
        if event.outcome != "ok":
            continue
        if event.kind == "open" and event.result:
            other = owners.setdefault(event.result, index)
            if other != index:
                message = f"epoch {event.result} was won by {events[other].process} and by {event.process}"
                found.append(Anomaly("two-owners", "", message, (index, other)))
        for (kind, name, _), result in calls_of(event):
            if kind == "create" and result is not None and segments.setdefault(result, (index, name)) != (index, name):
                other, other_name = segments[result]
                message = f"id {result} was given to {other_name!r} as well"
                found.append(Anomaly("reused-id", name, message, (index, other)))
    return found


def _name(events: Sequence[Event], failure: NoOrder) -> Anomaly:
    """Why no order explains the answer of this call: the simplest reason that holds in every state that was possible."""
    event = events[failure.index]
    if event.kind == "list":
        name, message = _name_listing(events, failure)
    elif event.kind in OBSERVERS:
        name, message = _name_reading(events, event, failure.states)
    elif event.kind == "commit":
        name, message = _name_commit(events, failure)
    else:
        name, message = _name_change(events, event, failure.states)
    return Anomaly(name, event.segment, f"{event.kind} by {event.process}: {message}", (failure.index,))


def _name_listing(events: Sequence[Event], failure: NoOrder) -> tuple[str, str]:
    """A listing that is wrong about one segment, or about several only together."""
    event = events[failure.index]
    told = {item[0]: item[1:] for item in event.result}
    prefix = event.args[0] if event.args else ""
    names = {name for state in failure.states for name in state.segments if name.startswith(prefix)} | told.keys()
    for name in sorted(names):
        kind, result = ("info", tuple(told[name])) if name in told else ("exists", False)
        single = replace(event, kind=kind, segment=name, args=(), result=result)
        if not any(_explains(state, single) for state in failure.states):
            return _name_reading(events, single, failure.states)
    return "not-atomic", "each segment alone could have been so, but not all of them at one moment"


def _explains(state: State, event: Event) -> bool:
    segment = state.segments.get(event.segment)
    if event.kind == "exists":
        return bool(event.result) == (segment is not None)
    return segment is not None and bool(event.result[1:] == (segment.start, segment.content.length, segment.sealed))


def _old_or_lost(events: Sequence[Event], event: Event) -> str:
    """Whether an answer from the past is a deposed owner's (it is known elsewhere) or the loss of what was acknowledged."""
    answered = (e.epoch for e in events if e.outcome == "ok" and e.returned is not None and e.returned < event.invoked)
    if event.epoch and any(epoch > event.epoch for epoch in answered):
        return "stale-read"
    if event.kind == "final":
        return "lost-ack"
    later = any(e.kind == "final" and e.invoked > (event.returned or 0) for e in events)
    # Finals were laid onto the canvas first: had something acknowledged not been in them, it would have been named there.
    return "stale-read" if later else "lost-ack"


def _name_reading(events: Sequence[Event], event: Event, states: Sequence[State]) -> tuple[str, str]:
    segments = [state.segments.get(event.segment) for state in states]
    present = [segment for segment in segments if segment is not None]
    if event.kind == "table_get":
        return _old_or_lost(events, event), f"the row had been {event.result!r} at no time that the call can be about"
    if event.outcome == "failed" or (event.kind == "exists" and not event.result):
        missing = event.result == "SegmentNotFound" or event.kind == "exists"
        if missing and len(present) == len(segments):
            return _old_or_lost(events, event), "the segment exists, and was not found"
        return "wrong-refusal", f"it was refused with {event.result}"
    if not present:
        return _gone(events, event), "there is no such segment"
    if event.kind == "exists":
        return "no-order", "the segment exists in no order that explains the rest"
    return _name_view(events, event, present)


def _gone(events: Sequence[Event], event: Event) -> str:
    removed = any(
        other.outcome == "ok" and (other.returned or 0) < event.invoked and event.segment in _removed(other)
        for other in events
    )
    if removed and event.epoch and _old_or_lost(events, event) == "stale-read":
        return "stale-read"
    return "resurrected" if removed else "phantom"


def _removed(event: Event) -> list[str]:
    calls = [call for call, _ in calls_of(event)]
    return [name if kind == "delete" else args[1] for kind, name, args in calls if kind in ("delete", "concat")]


def _name_view(events: Sequence[Event], event: Event, present: Sequence[SegmentState]) -> tuple[str, str]:
    """``read``, ``final`` and ``info`` of a segment that exists."""
    shortest = min(segment.content.length for segment in present)
    longest = max(segment.content.length for segment in present)
    lowest = min(segment.start for segment in present)
    if event.kind == "info":
        _, start, length, sealed = event.result
        exact = True
    else:
        start, length = event.args[0], event.args[0] + len(event.result)
        exact, sealed = len(event.result) < event.args[1], None
    if length > longest:
        return "phantom", f"it showed {length} bytes, and there cannot be more than {longest}"
    if exact and length < shortest:
        return _old_or_lost(events, event), f"it showed {length} bytes, and {shortest} had been acknowledged"
    if start < lowest:
        old = _old_or_lost(events, event) == "stale-read" and bool(event.epoch)
        return "stale-read" if old else "resurrected", f"it began at {start}, truncated to {lowest} before"
    if sealed is not None and all(segment.sealed != sealed for segment in present):
        word = "sealed" if sealed else "not sealed"
        return _old_or_lost(events, event), f"it was said to be {word}"
    return "no-order", "no order explains what it showed"


def _name_change(events: Sequence[Event], event: Event, states: Sequence[State]) -> tuple[str, str]:
    segments = [state.segments.get(event.segment) for state in states]
    present = [segment for segment in segments if segment is not None]
    if event.outcome == "failed":
        return "wrong-refusal", f"it was refused with {event.result}"
    if event.kind == "create":
        return "lost-ack", "it was created although it existed: what was created before is gone"
    if event.kind in ("table_put", "table_delete"):
        return "lost-ack", "the version it expected was not there"
    if not present:
        return _gone(events, event), "there is no such segment"
    if event.kind in ("append", "append_many"):
        return _name_append(events, event, present)
    if event.kind == "unseal":
        return "lost-ack", "it was not sealed any more"
    if event.kind == "truncate":
        return "lost-ack", f"the segment cannot have reached {event.args[0]}"
    if event.kind == "concat":
        sources = [state.segments.get(event.args[1]) for state in states]
        if not any(sources):
            return "not-atomic", f"its source {event.args[1]!r} was gone already"
        if all(segment.sealed for segment in present):
            return "after-seal", "the target had been sealed"
    return "no-order", "no order explains that it was acknowledged"


def _name_append(events: Sequence[Event], event: Event, present: Sequence[SegmentState]) -> tuple[str, str]:
    if all(segment.sealed for segment in present):
        return "after-seal", f"acknowledged at {event.result}, and the segment had been sealed"
    reached = max(segment.content.length for segment in present)
    if reached < event.result:
        # Whose bytes are between? If they were asked for only after this answer, they overtook it.
        between = [
            other
            for other in events
            if other.kind in ("append", "append_many") and other.outcome == "ok" and other.segment == event.segment
            if reached <= other.result < event.result and other.invoked > (event.returned or 0)
        ]
        if between:
            return "reordered", f"it stands at {event.result}, behind bytes that were appended after it"
        return "invented", f"acknowledged at {event.result}, and nobody appended what is before that"
    if min(segment.content.length for segment in present) > event.result:
        return "lost-ack", f"acknowledged at {event.result}, where other bytes had been acknowledged"
    return "no-order", "no order explains that it was acknowledged"


def _name_commit(events: Sequence[Event], failure: NoOrder) -> tuple[str, str]:
    """A commit of which each change alone, or some beginning, is possible, and the whole is not."""
    event = events[failure.index]
    singles = [
        replace(event, kind=kind, segment=name, args=args, result=result)
        for (kind, name, args), result in calls_of(event)
    ]
    for single in singles:
        if not any(_possible(state, single) for state in failure.states):
            return _name_change(events, single, failure.states)
    return "not-atomic", "each change alone could have taken place, but not all at one moment"


def _possible(state: State, event: Event) -> bool:
    return step(state, -1, event, Facts.of([event])) is not None
