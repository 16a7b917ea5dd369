"""What a history says about bytes, whatever the order: each byte of a segment is written once, for ever (protocol 6.4).

Promises: for each life of a segment (from one creation to its end) the bytes that calls were told about are laid onto one
canvas; linear in the bytes told. Everything reported here is wrong in every order: two answers that differ in a byte, bytes
that nobody appended, that a failed call brought, that stand there twice or in part, acknowledged bytes that are not there.
Leaves out: whether an order exists (``history_order``). Where two lives of a name cannot be told apart, nothing is concluded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from chunkstore.testing.events import Event
from chunkstore.testing.history_model import appended_data, calls_of

__all__ = ["Anomaly", "Canvas", "Contents", "Life", "answer_of"]

_FOREVER = 1 << 100
_KEY_BYTES = 16
_PARTS_SHOWN = 40


class Anomaly(NamedTuple):
    """One thing that no correct store does. ``events``: indexes of the calls that show it, the accused one first."""

    name: str
    segment: str
    message: str
    events: tuple[int, ...]


class Canvas:
    """Bytes known by offset, with gaps."""

    __slots__ = ("_data", "_starts", "_stops")

    def __init__(self) -> None:
        self._data = bytearray()
        self._starts: list[int] = []
        self._stops: list[int] = []

    @property
    def extent(self) -> int:
        """Where the last known byte ends."""
        return self._stops[-1] if self._stops else 0

    def spans(self) -> Iterator[tuple[int, int]]:
        """The known ranges, in order."""
        return zip(self._starts, self._stops, strict=True)

    def _known(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The known parts of a range."""
        at = max(0, bisect_right(self._starts, start) - 1)
        while at < len(self._starts) and self._starts[at] < stop:
            low, high = max(start, self._starts[at]), min(stop, self._stops[at])
            if low < high:
                yield low, high
            at += 1

    def differs(self, offset: int, data: bytes) -> int | None:
        """The first offset where ``data`` contradicts what is known; None if it fits."""
        for low, high in self._known(offset, offset + len(data)):
            mine, theirs = self._data[low:high], data[low - offset : high - offset]
            if mine != theirs:
                return low + next(
                    number for number, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]
                )
        return None

    def slice(self, start: int, stop: int) -> bytes | None:
        """The bytes of a range if all are known."""
        if start >= stop:
            return b""
        at = bisect_right(self._starts, start) - 1
        return bytes(self._data[start:stop]) if at >= 0 and self._stops[at] >= stop else None

    def span_end(self, offset: int) -> int:
        """Where the known range that holds ``offset`` ends; ``offset`` itself if it is not known."""
        at = bisect_right(self._starts, offset) - 1
        return max(offset, self._stops[at]) if at >= 0 else offset

    def places(self, data: bytes) -> Iterator[int]:
        """Where ``data`` stands within the known ranges."""
        at = self._data.find(data)
        while at >= 0:
            if self.slice(at, at + len(data)) is not None:
                yield at
            at = self._data.find(data, at + 1)

    def find(self, data: bytes) -> int:
        """Where ``data`` stands first within the known ranges, or -1."""
        return next(self.places(data), -1)

    def lay(self, offset: int, data: bytes) -> None:
        """Make ``data`` known; what was known before stays."""
        if not data:
            return
        stop = offset + len(data)
        if len(self._data) < stop:
            self._data += bytes(stop - len(self._data))
        position = offset
        for low, high in [*self._known(offset, stop), (stop, stop)]:
            self._data[position:low] = data[position - offset : low - offset]
            position = high
        left = bisect_right(self._starts, offset) - 1
        if left < 0 or self._stops[left] < offset:
            left += 1
        right = bisect_right(self._starts, stop)
        if left < right:
            offset, stop = min(offset, self._starts[left]), max(stop, self._stops[right - 1])
        self._starts[left:right] = [offset]
        self._stops[left:right] = [stop]


class Life:
    """One segment from its creation (call ``birth``) to its end.

    ``final``: (length, when the call began) of a last read that found the segment's end.
    """

    __slots__ = ("birth", "canvas", "closes", "final", "id", "name", "opens", "sure", "told")

    def __init__(self, name: str, birth: int, identity: int | None, opens: int) -> None:
        self.name = name
        self.birth = birth
        self.id = identity
        self.opens = opens
        self.closes = _FOREVER
        self.sure = (_FOREVER, 0)
        """Between these times the name certainly means this life: it had been created, and nobody had begun to end it."""
        self.canvas = Canvas()
        self.final: tuple[int, int] | None = None
        self.told: list[tuple[int, int, int]] = []
        """(offset, stop, event) of everything laid, to say who said what."""


class _Append(NamedTuple):
    index: int  # type: ignore[assignment]
    name: str
    data: bytes
    offset: int | None
    outcome: str
    writer: tuple[Any, Any] | None


def answer_of(event: Event) -> int:
    """When the call had its answer at the latest: never, for one whose outcome is unknown."""
    return event.returned if event.returned is not None and event.outcome != "unknown" else _FOREVER


class Contents:
    """The lives of a history and their canvases; ``anomalies`` is what is wrong with them.

    ``torn``: parts of appends that stand where lengths are exact, each as its segment, the offset and the bytes.
    """

    def __init__(self, events: Sequence[Event], *, lazy: bool) -> None:
        self.events = events
        self.lazy = lazy
        self.anomalies: list[Anomaly] = []
        self.torn: list[tuple[str, int, bytes]] = []
        self.lives: dict[str, list[Life]] = defaultdict(list)
        self.by_birth: dict[tuple[str, int], Life] = {}
        self.appends: list[_Append] = []
        self._events_of_writers: dict[tuple[str, Any], list[tuple[int, int]]] = defaultdict(list)
        self._find_lives()
        self._collect_appends()
        self._lay_everything()
        self._read_pieces()

    def life_of(self, event: Event, name: str, identity: int | None = None) -> Life | None:
        """The one life of ``name`` that the event can be about; None when there are several, or none."""
        found, several = None, False
        stop = answer_of(event)
        if identity is None:
            for life in self.lives.get(name, ()):
                if life.sure[0] < event.invoked and stop < life.sure[1]:
                    return life
        for life in self.lives.get(name, ()):
            if identity is not None and life.id is not None:
                if life.id == identity:
                    return life
                continue
            if life.opens <= stop and event.invoked <= life.closes:
                several = found is not None
                found = life
        return None if several else found

    # Lives

    def _find_lives(self) -> None:
        ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
        attempts: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, event in enumerate(self.events):
            if event.outcome == "failed":
                continue
            for (kind, name, args), result in calls_of(event):
                if kind == "create":
                    life = Life(name, index, result if event.outcome == "ok" else None, event.invoked)
                    self.lives[name].append(life)
                    self.by_birth[name, index] = life
                gone = name if kind in ("create", "delete") else args[1] if kind == "concat" else None
                if kind in ("delete", "concat") and gone is not None:
                    attempts[gone].append((event.invoked, answer_of(event)))
                if gone is not None and event.outcome == "ok" and event.returned is not None:
                    ends[gone].append((event.invoked, event.returned))
        for name, lives in self.lives.items():
            for life in lives:
                born = answer_of(self.events[life.birth])
                life.closes = min((stop for start, stop in ends[name] if start > born), default=_FOREVER)
                if self.events[life.birth].kind == "create" and born < _FOREVER:
                    until = min((start for start, stop in attempts[name] if stop >= life.opens), default=_FOREVER)
                    life.sure = (born, until)

    # Bytes

    def _collect_appends(self) -> None:
        for index, event in enumerate(self.events):
            for (kind, name, args), result in calls_of(event):
                data = appended_data(kind, args)
                if not data:
                    continue
                writer = (args[2], args[3]) if kind == "append" and len(args) > 3 and args[2] is not None else None
                if writer is not None and event.outcome != "failed":
                    self._events_of_writers[name, writer[0]].append((event.invoked, writer[1]))
                offset = result if event.outcome == "ok" else None
                self.appends.append(_Append(index, name, data, offset, event.outcome, writer))

    def _offset_is_its_own(self, item: _Append) -> bool:
        """Whether the answered offset is that of these bytes: a late retry is told the offset of its writer's last event."""
        if item.writer is None:
            return True
        answered = answer_of(self.events[item.index])
        number = item.writer[1]
        others = self._events_of_writers[item.name, item.writer[0]]
        return all(other <= number or invoked > answered for invoked, other in others)

    def _lay_everything(self) -> None:
        order = {"final": 0, "read": 2, "replica_read": 3}
        told: list[tuple[int, int, str, int, bytes, int | None]] = [
            (1, item.index, item.name, item.offset, item.data, None)
            for item in self.appends
            if item.offset is not None and self._offset_is_its_own(item)
        ]
        for index, event in enumerate(self.events):
            if event.kind in order and event.outcome == "ok":
                identity = event.args[2] if len(event.args) > 2 else None
                told.append((order[event.kind], index, event.segment, event.args[0], event.result, identity))
        told.sort(key=lambda item: item[:2])
        for _, index, name, offset, data, identity in told:
            event = self.events[index]
            life = self.life_of(event, name, identity)
            if life is not None:
                self._lay(life, index, event, offset, data)

    def _lay(self, life: Life, index: int, event: Event, offset: int, data: bytes) -> None:
        stop = offset + len(data)
        if event.kind == "final" and len(data) < event.args[1]:
            life.final = (stop, event.invoked)
        elif life.final is not None and stop > life.final[0] and answer_of(event) < life.final[1]:
            self._beyond_the_end(life, index, event, stop, life.final[0])
            return
        wrong = life.canvas.differs(offset, data)
        if wrong is not None:
            self._contradiction(life, index, event, offset, data, wrong)
            return
        life.canvas.lay(offset, data)
        life.told.append((offset, stop, index))

    def _beyond_the_end(self, life: Life, index: int, event: Event, stop: int, length: int) -> None:
        end = f"in the end the segment has {length} bytes"
        if event.kind in ("read", "replica_read"):
            self._found("phantom", life, f"bytes up to {stop} were read, {end}", (index,))
        else:
            self._found("lost-ack", life, f"bytes up to {stop} were acknowledged, {end}", (index,))

    def _contradiction(self, life: Life, index: int, event: Event, offset: int, data: bytes, at: int) -> None:
        other = next(number for start, stop, number in life.told if start <= at < stop)
        accused, kind = index, event.kind
        an_append = self.events[other].kind not in ("read", "final", "replica_read")
        if an_append and kind == "read" and answer_of(self.events[other]) < event.invoked:
            # What was acknowledged before the read began is lost; the read is not to blame.
            accused, kind = other, "append"
        if kind in ("read", "replica_read", "final"):
            shown = "a replica" if kind == "replica_read" else "a read"
            message = f"{shown} showed a byte at {at} that is another one for somebody else"
            self._found("phantom", life, message, (index, other))
            return
        lost = data if accused == index else self._data_of(other, life.name)
        elsewhere = life.canvas.find(lost)
        if elsewhere >= 0:
            message = f"bytes acknowledged at {offset} stand at {elsewhere}"
            self._found("reordered", life, message, (accused, other if accused == index else index))
        else:
            message = f"bytes acknowledged at {offset} are not there: others are, from {at} on"
            self._found("lost-ack", life, message, (accused, other if accused == index else index))

    def _data_of(self, index: int, name: str) -> bytes:
        return next((item.data for item in self.appends if item.index == index and item.name == name), b"\0")

    def _found(self, name: str, life: Life, message: str, events: Iterable[int]) -> None:
        self.anomalies.append(Anomaly(name, life.name, message, tuple(events)))

    # Pieces: who appended what stands there

    def _read_pieces(self) -> None:
        """Cut each canvas into appends. Only where no appended bytes begin with others': else cutting proves nothing."""
        distinct = sorted({item.data for item in self.appends})
        if any(after.startswith(before) for before, after in pairwise(distinct)):
            return
        table: dict[bytes, list[bytes]] = defaultdict(list)
        size = min([_KEY_BYTES, *map(len, distinct)]) if distinct else 0
        for data in distinct:
            table[data[:size]].append(data)
        owners: dict[bytes, list[_Append]] = defaultdict(list)
        for item in self.appends:
            owners[item.data].append(item)
        for lives in self.lives.values():
            for life in lives:
                self._read_canvas(life, table, size, owners)

    def _read_canvas(
        self, life: Life, table: dict[bytes, list[bytes]], size: int, owners: dict[bytes, list[_Append]]
    ) -> None:
        anchors = sorted(offset for offset, _, index in life.told if appended_data_of(self.events[index]))
        places: dict[bytes, list[int]] = defaultdict(list)
        for low, high in life.canvas.spans():
            position = low
            if low:  # a range may begin in the middle of something: begin at the first offset that somebody was told
                position = next((anchor for anchor in anchors if low <= anchor < high), high)
            while position < high:
                piece = self._piece_at(life, position, high, table, size)
                if piece is None:
                    position = self._begin_again(life, position, high, table, size, anchors)
                    continue
                if life.canvas.slice(position, position + len(piece)) is not None:
                    places[piece].append(position)
                    self._check_owner(life, position, owners[piece])
                position += len(piece)
        for data, found in places.items():
            if len(found) > self._times(owners[data]):
                message = f"{_shown(data)} stands there {len(found)} times: at {', '.join(map(str, found))}"
                self._found("duplicate", life, message, [item.index for item in owners[data]])

    def _begin_again(
        self, life: Life, position: int, high: int, table: dict[bytes, list[bytes]], size: int, anchors: list[int]
    ) -> int:
        """Where to go on after bytes that are no whole append: behind a part, if one begins there, or where somebody was told that his
        bytes begin."""
        if self.torn and self.torn[-1][:2] == (life.name, position):
            behind = position + len(self.torn[-1][2])
            if behind < high and self._whole_at(life, behind, high, table, size) is not None:
                return behind
        return next((anchor for anchor in anchors if position < anchor < high), high)

    def _times(self, owners: Sequence[_Append]) -> int:
        """How often these bytes may stand in a segment: once for each call, once for all retries of one event of a writer.

        Events are known by segment and forgotten with it; a concat may bring bytes of several segments together.
        """
        lives = {item.name: len(self.lives.get(item.name, ())) for item in owners}
        calls = [item for item in owners if item.outcome != "failed"]
        once = {(item.name, item.writer) for item in calls if item.writer is not None and lives[item.name] == 1}
        return max(1, len(once) + sum(1 for item in calls if item.writer is None or lives[item.name] > 1))

    def _piece_at(
        self, life: Life, position: int, high: int, table: dict[bytes, list[bytes]], size: int
    ) -> bytes | None:
        """The append that begins there, or None where that cannot be said (the reason is reported)."""
        if (whole := self._whole_at(life, position, high, table, size)) is not None:
            return whole
        best, longest = None, 0
        known = life.canvas.slice(position, high) or b""
        for data in (data for group in table.values() for data in group):
            common = _common(known, data)
            if common > longest:
                best, longest = data, common
        if len(known) < size and longest == len(known) and not (best and self._cut(life, position, best)):
            return None  # the known range ends within a piece
        readers = tuple(index for start, stop, index in life.told if start <= position < stop)[:3]
        if best is None:
            message = f"nobody appended {_shown(known)} that stands at {position}"
            self._found("invented", life, message, readers)
            return None
        if not self.lazy:
            self.torn.append((life.name, position, known[:longest]))
            message = f"only {longest} of the {len(best)} bytes of {_shown(best)} stand at {position}"
            self._found("torn", life, message, readers)
        return None

    def _whole_at(
        self, life: Life, position: int, high: int, table: dict[bytes, list[bytes]], size: int
    ) -> bytes | None:
        """The append whose bytes stand there, as far as they are known."""
        head = life.canvas.slice(position, min(position + size, high)) or b""
        for data in table.get(head, ()) if len(head) == size else ():
            stop = min(position + len(data), high)
            if life.canvas.slice(position, stop) == data[: stop - position] and not self._cut(life, position, data):
                return data
        return None

    def _cut(self, life: Life, position: int, data: bytes) -> bool:
        """Whether the segment is known to end within the piece."""
        return life.final is not None and position < life.final[0] < position + len(data)

    def _check_owner(self, life: Life, position: int, owners: Sequence[_Append]) -> None:
        if all(item.outcome == "failed" for item in owners):
            message = f"{_shown(owners[0].data)} stands at {position}, but its call was told that nothing had happened"
            self._found("resurrected", life, message, [item.index for item in owners])


def appended_data_of(event: Event) -> bool:
    """Whether the event appends at all."""
    return any(appended_data(kind, args) for (kind, _, args), _ in calls_of(event))


def _common(left: bytes, right: bytes) -> int:
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    return next(number for number in range(size) if left[number] != right[number])


def _shown(data: bytes) -> str:
    return repr(data if len(data) <= _PARTS_SHOWN else data[:_PARTS_SHOWN] + b"...")
