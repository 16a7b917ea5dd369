"""Where events are: the growing segments piece by piece as the run goes on, and the parts that exist at the moment.

Promises: what was verified once must read the same as long as it is there; every event is in one place only; the numbered
events of each exactly-once writer follow each other without a hole; in each growing segment the order of events agrees with
the order of calls, and with the epochs that were told they had written them.
Leaves out: whether everything acknowledged is here (``verdict``).
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from chunkstore.testing.chaos.ledger import Attempt
from chunkstore.testing.chaos.plan import GROWING, PART_PREFIX, WRITERS, EventAt, Torn, parse
from chunkstore.testing.chaos.survey import Piece, SegmentSeen, Survey

__all__ = ["Call", "GrowingSegment", "Places", "call_of_attempts"]

Report = Callable[[str], None]


class Call(NamedTuple):
    """The call that put an event where it is: when it began, when it was answered (infinity: never with success), and between
    which epochs; ``exact`` says that the epochs are those of the writing itself."""

    began_s: float
    answered_s: float
    epoch_low: int
    epoch_high: int
    exact: bool


class GrowingSegment:
    """One long-lived segment, verified up to ``verified``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.verified = 0
        self._pieces: list[tuple[int, int, int]] = []
        self._stops: list[int] = []
        self._latest_began: list[float] = []
        self._epoch = 0

    def compare_old(self, seen: SegmentSeen, report: Report) -> None:
        """What was verified before, and is still there, must not have changed."""
        if seen.length < self.verified:
            report(f"{self.name} has shrunk from {self.verified} to {seen.length} bytes")
        if seen.start > self.verified:
            report(f"{self.name} begins at {seen.start}, behind everything that was to be truncated ({self.verified})")
        self._pieces = [piece for piece in self._pieces if piece[0] >= seen.start]
        for start, stop, crc in self._pieces:
            if zlib.crc32(seen.data[start - seen.start : stop - seen.start]) != crc:
                report(f"{self.name}: bytes [{start}, {stop}) changed after they had been verified")

    def new_events(self, seen: SegmentSeen) -> list[EventAt | Torn]:
        """What was added since."""
        start = max(self.verified, seen.start)
        data = seen.data[start - seen.start :]
        if data:
            self._pieces.append((start, start + len(data), zlib.crc32(data)))
        self.verified = max(self.verified, seen.length)
        return list(parse(data, start))

    def put(self, event: EventAt, call: Call, epoch: int, report: Report) -> None:
        """The next event: called after everything in front of it."""
        latest = self._latest_began[-1] if self._latest_began else 0.0
        if latest > call.answered_s:
            report(f"{self.name}: {event.tag} at {event.offset} was acknowledged before an event in front of it began")
        self._stops.append(event.offset + event.length)
        self._latest_began.append(max(latest, call.began_s))
        if call.exact and not call.epoch_low <= epoch <= call.epoch_high:
            report(
                f"{self.name}: {event.tag} at {event.offset} lies in a chunk of epoch {epoch}, acknowledged by epochs "
                f"{call.epoch_low} to {call.epoch_high}"
            )

    def latest_began_below(self, length: int) -> float:
        """When the last call began whose event lies below ``length``."""
        place = bisect_right(self._stops, length)
        return self._latest_began[place - 1] if place else 0.0


class Places:
    """Every event's place; see the module."""

    def __init__(self, *, torn_allowed: bool) -> None:
        self.growing = {name: GrowingSegment(name) for name in GROWING}
        self.placed: dict[str, tuple[str, int]] = {}
        self.in_parts: dict[str, tuple[str, int]] = {}
        self.torn_bytes = 0
        self._torn_allowed = torn_allowed
        self._last_number = dict.fromkeys(WRITERS, 0)

    def take(self, survey: Survey, call_of: Callable[[str, str], Call | None], report: Report) -> None:
        """Take in what a survey has found."""
        for name, segment in self.growing.items():
            seen = survey.segments.get(name)
            if seen is None:
                report(f"{name} is gone")
                continue
            segment.compare_old(seen, report)
            chunk_of = _Chunks(seen.chunks)
            for event in segment.new_events(seen):
                if isinstance(event, Torn):
                    self._torn(name, event, report)
                    continue
                if event.tag in self.placed:
                    report(f"{event.tag} is in {name} at {event.offset} and in {self.placed[event.tag]}, too")
                self.placed[event.tag] = name, event.offset
                self._number(event, name, report)
                call = call_of(event.tag, name)
                if call is None:
                    report(f"{event.tag} is in {name} at {event.offset}, and nobody has tried to put it there")
                else:
                    segment.put(event, call, chunk_of(event.offset), report)
        self._take_parts(survey, report)

    def _take_parts(self, survey: Survey, report: Report) -> None:
        self.in_parts = {}
        for name, seen in survey.segments.items():
            if name in self.growing:
                continue
            if not name.startswith(PART_PREFIX):
                report(f"a segment {name} that nobody created")
            for event in parse(seen.data, seen.start):
                if isinstance(event, Torn):
                    self._torn(name, event, report)
                    continue
                for other in (self.placed.get(event.tag), self.in_parts.get(event.tag)):
                    if other is not None:
                        report(f"{event.tag} is in {name} at {event.offset} and in {other}, too")
                self.in_parts[event.tag] = name, event.offset

    def _torn(self, name: str, torn: Torn, report: Report) -> None:
        self.torn_bytes += torn.length
        if not self._torn_allowed:
            report(f"{name}: bytes [{torn.offset}, {torn.offset + torn.length}) are no whole event")

    def _number(self, event: EventAt, name: str, report: Report) -> None:
        writer, _, number = event.tag.partition("-")
        if writer in self._last_number:
            if int(number) != self._last_number[writer] + 1:
                report(f"{name}: event {number} of {writer} follows event {self._last_number[writer]}")
            self._last_number[writer] = int(number)

    def recorded(self, writer: str) -> int:
        """The last event of a writer that was found."""
        return self._last_number[writer]

    def verified(self) -> dict[str, int]:
        """How far each growing segment has been verified."""
        return {name: segment.verified for name, segment in self.growing.items()}


class _Chunks:
    """The epoch of the chunk that holds an offset."""

    def __init__(self, chunks: Iterable[Piece]) -> None:
        self._chunks = list(chunks)
        self._starts = [chunk.offset for chunk in self._chunks]

    def __call__(self, offset: int) -> int:
        return self._chunks[bisect_right(self._starts, offset) - 1].epoch


def call_of_attempts(attempts: Iterable[Attempt], *, exact: bool) -> Call:
    """One call made of all attempts at the same event (an exactly-once writer's are several)."""
    tried = list(attempts)
    answered = [attempt.answered_s for attempt in tried if attempt.outcome == "ok"]
    first = tried[0]
    return Call(
        began_s=min(attempt.tried_s for attempt in tried),
        answered_s=min(answered, default=float("inf")),
        epoch_low=first.tried_epoch,
        epoch_high=first.answered_epoch,
        exact=exact and len(tried) == 1 and first.outcome == "ok",
    )
