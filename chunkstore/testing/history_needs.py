"""What a call with an unknown outcome could explain: only what somebody will be told need have happened (protocol 6.4).

Promises: ``is_useful`` says no only to calls that no explanation needs from now on: leaving such a call out of an order leaves an
order. What was answered before ``now`` has been explained; calls with unknown outcomes may need something for ever. This is what
keeps the fast search near-linear, for such calls stay possible for ever.
Leaves out: the bytes of appends, which canvases know (``history_contents``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from chunkstore.testing.events import Event
from chunkstore.testing.history_contents import Contents, Life, answer_of
from chunkstore.testing.history_model import Facts, State, appended_data, calls_of, table_name

__all__ = ["Needs"]

_NEVER = -1
_Call = tuple[str, str, tuple[Any, ...]]


class _Reach:
    """Offsets that will be told: the highest of those whose time is still to come."""

    __slots__ = ("_highest", "_times", "told")

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self._times: list[int] | None = None
        self._highest: list[int] = []

    def after(self, now: int) -> int:
        if self._times is None:
            self.told.sort()
            self._times = [when for when, _ in self.told]
            self._highest = list(accumulate((offset for _, offset in reversed(self.told)), max))[::-1]
        at = bisect_left(self._times, now)
        return self._highest[at] if at < len(self._highest) else _NEVER


class Needs:
    """What the answers of a history presuppose. ``now`` is moved on by the search; it only grows."""

    def __init__(self, events: Sequence[Event], contents: Contents, facts: Facts, *, refusals: str) -> None:
        self.now = _NEVER
        self._events = events
        self._contents = contents
        self._facts = facts
        self._refusals = refusals
        self._names = {name for event in events for (kind, name, _), _ in calls_of(event) if kind == "create"}
        self._reach: dict[tuple[str, int], _Reach] = defaultdict(_Reach)
        # The last time at which something is needed.
        self._starts: dict[tuple[str, int, int], int] = {}
        self._values: dict[tuple[str, Any], int] = {}
        self._unseen: dict[str, int] = {}
        self._emptied: dict[str, int] = {}
        self._sealed: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._there: dict[str, int] = {}
        self._absent: dict[str, int] = {}
        self.sources: set[str] = set()
        """Segments that may have been spliced behind others: anything of them may be needed there."""
        self.offsets: dict[str, set[int]] = defaultdict(set)
        """Where something of a segment begins or ends: an append that arrived in part may have ended there."""
        for event in events:
            if event.outcome != "failed":
                for call, result in calls_of(event):
                    self._learn(event, call, result)
            elif refusals != "none":
                self._learn_refusal(event)
        if contents.lazy:
            self._learn_beginnings()

    # Learning

    def _note(self, needs: dict[Any, int], key: Any, event: Event) -> None:
        needs[key] = max(needs.get(key, _NEVER), answer_of(event))

    def _learn(self, event: Event, call: _Call, result: Any) -> None:
        kind, name, args = call
        known = event.outcome == "ok"
        if kind.startswith("table_"):
            self._learn_row(event, call, result)
        elif kind == "list":
            if known:
                self._learn_list(event, args, result)
        elif kind == "exists":
            if known:
                self._note(self._there if result else self._absent, name, event)
        elif kind == "create":
            self._note(self._absent, name, event)
        elif known or kind not in ("read", "info", "final"):
            self._note(self._there, name, event)
            self._learn_change(event, call, result, known=known)

    def _learn_change(self, event: Event, call: _Call, result: Any, *, known: bool) -> None:
        kind, name, args = call
        data = appended_data(kind, args)
        if data is not None:
            self._note(self._open, name, event)
            expected = args[1] if len(args) > 1 else None
            told = result if known else expected
            if told is not None:
                self._tell_offset(event, name, told)
        elif kind == "concat":
            self._note(self._open, name, event)
            self._note(self._sealed, args[1], event)
            self._note(self._there, args[1], event)
            self.sources.add(args[1])
            if args[0] is not None:
                self._tell_offset(event, name, args[0])
        elif kind == "unseal":
            self._note(self._sealed, name, event)
        elif kind == "truncate" and known:
            self._tell_offset(event, name, args[0])
        elif kind in ("read", "final") and known:
            self._tell_offset(event, name, args[0] + len(result), args[2] if len(args) > 2 else None)
        elif kind == "info" and known:
            self._learn_info(event, name, result)

    def _learn_info(self, event: Event, name: str, told: Sequence[Any]) -> None:
        identity, start, length, sealed = told
        self._tell_offset(event, name, length, identity)
        for life in self._lives(event, name, identity):
            self._note(self._starts, (name, life.birth, start), event)
        self._note(self._sealed if sealed else self._open, name, event)

    def _learn_list(self, event: Event, args: tuple[Any, ...], result: Any) -> None:
        told = {item[0] for item in result}
        for item in result:
            self._note(self._there, item[0], event)
            self._learn_info(event, item[0], item[1:])
        prefix = args[0] if args else ""
        for name in self._names - told:
            if name.startswith(prefix):
                self._note(self._absent, name, event)

    def _learn_row(self, event: Event, call: _Call, result: Any) -> None:
        kind, _, args = call
        name = table_name(args)
        if kind == "table_get":
            if event.outcome == "ok":
                if result is None:
                    self._note(self._emptied, name, event)
                else:
                    self._note(self._values, (name, result[0]), event)
            return
        at = 3 if kind == "table_put" else 2
        expected = args[at] if len(args) > at else None
        if expected == 0:
            self._note(self._emptied, name, event)
        elif expected is not None:
            if (name, expected) in self._facts.versions:
                self._note(self._values, (name, self._facts.versions[name, expected]), event)
            else:
                self._note(self._unseen, name, event)

    def _learn_refusal(self, event: Event) -> None:
        name, error = event.segment, event.result
        if error == "SegmentTruncated":
            # Something lay above: any truncation may be the one.
            cut = event.args[1] if event.kind == "concat" else name
            changes = [call for other in self._events for call, _ in calls_of(other)]
            for offset in {args[0] for kind, segment, args in changes if kind == "truncate" and segment == cut}:
                for life in self._contents.lives.get(cut, ()):
                    self._note(self._starts, (cut, life.birth, offset), event)
        for needs, errors in (
            (self._sealed, ("SegmentSealed",)),
            (self._open, ("SegmentNotSealed",)),
            (self._absent, ("SegmentNotFound",)),
            (self._there, ("SegmentExists", "SegmentSealed", "SegmentNotSealed", "SegmentTruncated", "BadOffset")),
        ):
            if error in errors:
                self._note(needs, name, event)
                if event.kind == "concat":
                    self._note(needs, event.args[1], event)

    def _learn_beginnings(self) -> None:
        """Where bytes stand whose place nobody was told: what is before them may have arrived in part."""
        for item in self._contents.appends:
            if item.outcome == "unknown":
                for life in self._contents.lives.get(item.name, ()):
                    self.offsets[item.name].update(life.canvas.places(item.data))

    def _lives(self, event: Event, name: str, identity: int | None = None) -> Iterator[Life]:
        """The lives that the event can be about."""
        life = self._contents.life_of(event, name, identity)
        if life is not None:
            yield life
            return
        for other in self._contents.lives.get(name, ()):
            if other.opens <= answer_of(event):
                yield other

    def _tell_offset(self, event: Event, name: str, offset: int, identity: int | None = None) -> None:
        self.offsets[name].add(offset)
        for life in self._lives(event, name, identity):
            self._reach[name, life.birth].told.append((answer_of(event), offset))

    # Answering

    def is_useful(self, event: Event, state: State) -> bool:
        """Whether a call with an unknown outcome could explain anything that is answered from now on."""
        if self._refusals == "all":
            return True
        return any(self._helps(call, state) for call, _ in calls_of(event))

    def _helps(self, call: _Call, state: State) -> bool:
        kind, name, args = call
        if kind == "table_put":
            row = table_name(args)
            return self._values.get((row, args[2]), _NEVER) >= self.now or self._unseen.get(row, _NEVER) >= self.now
        if kind == "table_delete":
            return self._emptied.get(table_name(args), _NEVER) >= self.now
        if name in self.sources or kind == "concat":
            return True
        needs = {"seal": self._sealed, "unseal": self._open, "create": self._there, "delete": self._absent}.get(kind)
        if needs is not None:
            return needs.get(name, _NEVER) >= self.now
        segment = state.segments.get(name)
        if segment is None:
            return True
        if kind == "truncate":
            return self._starts.get((name, segment.birth, args[0]), _NEVER) >= self.now
        length = segment.content.length
        if length < self._reach[name, segment.birth].after(self.now):
            return True
        # Bytes that only a replica has shown: a commit that appends behind them, and removes the segment, needs them in front.
        life = self._contents.by_birth.get((name, segment.birth))
        return life is not None and life.canvas.span_end(length) > length
