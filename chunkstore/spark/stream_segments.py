"""A stream of raw segments: how far each can be read, and what a batch reads of them. Of lines only finished ones."""

from __future__ import annotations

from chunkstore.engine.reader import gone
from chunkstore.engine.replica import Replica
from chunkstore.errors import BadOffset, Conflict, SegmentNotFound, SegmentTruncated
from chunkstore.records.arguments import SegmentHandle
from chunkstore.records.segments import SegmentInfo
from chunkstore.spark.framing import line_end_before, line_too_long, pass_lines
from chunkstore.spark.options import EARLIEST, LATEST, ReadOptions
from chunkstore.spark.plan import Range, chosen_segments, is_chosen, plan_ranges, position_in, require_named
from chunkstore.spark.positions import Limit, Reached, Shares, StreamOffset, lose
from chunkstore.spark.runs import ROW_BYTES, ReadTask

__all__ = ["SegmentFollower"]


class SegmentFollower:
    """See the module. Of one stream; the replica is the stream's."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, SegmentInfo] | None = None

    def forget(self) -> None:
        """Another replica will be asked from now on."""

    def freeze(self, replica: Replica) -> None:
        """Go no further than what is there now."""
        self._target = chosen_segments(replica, self._options)

    def initial(self, replica: Replica) -> StreamOffset:
        """Where a new query begins."""
        segments = chosen_segments(replica, self._options)
        require_named(self._options, segments)
        return StreamOffset(
            {name: Reached(info.id, (0, self._first(replica, info))) for name, info in segments.items()}
        )

    def ends(self, replica: Replica) -> StreamOffset:
        """Where the segments end."""
        segments = chosen_segments(replica, self._options)
        return StreamOffset({name: Reached(info.id, (0, info.length)) for name, info in segments.items()})

    def advance(self, replica: Replica, start: StreamOffset, limit: Limit) -> StreamOffset:
        """How far the next batch goes."""
        there = self._visible(replica)
        begins: dict[str, int] = {}
        reached: dict[str, Reached] = {}
        lost_bytes, lost_segments = start.lost_bytes, start.lost_segments
        for name, before in start.reached.items():
            info, at = there.get(name), before.at[1]
            if info is not None and info.id == before.identity:
                if info.length < at:
                    raise BadOffset(name, expected=info.length, given=at)
                begins[name] = self._begin(info, at)
                lost_bytes += begins[name] - at
            elif not is_chosen(self._options, name):
                reached[name] = before._replace(begin=None)  # a caller that chooses it again goes on there
            elif not before.done:
                lost_segments += 1
                lose(self._options, gone(name, at))
        for name, info in there.items():
            if name not in begins and info.length:  # new, so it was promised from its first byte
                begins[name] = self._begin(info, 0)
                lost_bytes += begins[name]
        shares = Shares({name: there[name].length - begin for name, begin in begins.items()}, limit)
        for name, share in shares:
            info, begin, held = there[name], begins[name], start.reached.get(name)
            end, rows = self._end(replica, info, begin, share) if begin < info.length else (begin, 0)
            shares.take(end - begin, rows)
            follows = held is not None and (held.identity, held.at) == (info.id, (0, begin))
            if held is not None or end:  # else it has nothing yet
                done = info.sealed and end == info.length
                reached[name] = Reached(info.id, (0, end), done, None if follows else (0, begin))
        return start._replace(reached=reached, lost_bytes=lost_bytes, lost_segments=lost_segments)

    def _begin(self, info: SegmentInfo, at: int) -> int:
        """Where a segment goes on that is to be read from ``at``; what is gone between these is lost."""
        if info.start_offset > at:
            lose(self._options, SegmentTruncated(info.name, start_offset=info.start_offset, offset=at))
        return max(at, info.start_offset)

    def _visible(self, replica: Replica) -> dict[str, SegmentInfo]:
        """The segments as far as they may be read: to the target, if there is one."""
        there = chosen_segments(replica, self._options)
        if self._target is None:
            return there
        found: dict[str, SegmentInfo] = {}
        for name, info in there.items():
            target = self._target.get(name)
            if target is not None and target.id == info.id:
                length = max(info.start_offset, min(info.length, target.length))
                found[name] = info._replace(length=length, sealed=info.sealed and target.sealed)
        return found

    def _end(self, replica: Replica, info: SegmentInfo, begin: int, limit: Limit) -> tuple[int, int]:
        """Where the batch ends in a segment that has something after ``begin``, and how many rows these are (of lines: if it matters)."""
        stop = info.length if limit.size_bytes is None else min(info.length, begin + limit.size_bytes)
        if self._options.lines:
            return self._end_of_lines(replica, info, begin, stop, limit.rows)
        if limit.rows is not None:
            stop = min(stop, (begin // ROW_BYTES + limit.rows) * ROW_BYTES)
        return stop, -(-stop // ROW_BYTES) - begin // ROW_BYTES

    def _end_of_lines(
        self, replica: Replica, info: SegmentInfo, begin: int, stop: int, rows: int | None
    ) -> tuple[int, int]:
        """``_end`` at or before ``stop``; after it only where not even the first line ends there."""
        segment, limit = _handle(info), self._options.line_bytes_max
        if rows is None:
            end, passed = line_end_before(replica, segment, begin, stop, limit) or begin, 0
        else:
            end, passed = pass_lines(replica, segment, begin, stop, rows, limit)
        if end == begin and stop < info.length:
            high = min(info.length, begin + limit + 1)
            found, passed = pass_lines(replica, segment, stop, high, 1, limit)
            end, stop = found if passed else begin, max(stop, high)
        if info.sealed and stop == info.length and passed != rows and info.length - end <= limit:
            return info.length, passed + (end < info.length)
        if end == begin and stop - begin > limit:
            line_too_long(info.name, begin, limit)
        return end, passed

    def _first(self, replica: Replica, info: SegmentInfo) -> int:
        """``startingOffsets`` in this segment. What is latest of lines is after the last finished one."""
        starting, clip = self._options.starting, not self._options.fail_on_data_loss
        at = position_in(info, starting, "startingOffsets", EARLIEST, clip=clip)
        said = starting if isinstance(starting, int) else starting.get(info.name, EARLIEST)
        if said == LATEST and self._options.lines and not info.sealed:
            limit = self._options.line_bytes_max
            return line_end_before(replica, _handle(info), info.start_offset, at, limit) or info.start_offset
        return at

    def tasks(self, replica: Replica, first: StreamOffset, last: StreamOffset) -> list[ReadTask]:
        """What is read between two offsets: the same rows each time."""
        ranges: list[Range] = []
        for name, reached in last.reached.items():
            before, stop = first.reached.get(name), reached.at[1]
            at = reached.begin
            if before is not None and before.identity == reached.identity:
                at = max(before.at, at or (0, 0))
            if at is None:
                raise Conflict(f"the start of a batch, of segment {name!r}", expected=reached.identity, found=before)
            start = self._start(replica, name, reached, at[1])
            if start < stop:
                ranges.append(Range(name, _id(reached), start, stop))
        return plan_ranges(replica, self._options, ranges)

    def _start(self, replica: Replica, name: str, reached: Reached, begin: int) -> int:
        """The first byte of a planned batch that is there; it is ``begin`` unless losing some is allowed."""
        stop = reached.at[1]
        try:
            info = replica.info(SegmentHandle(name, _id(reached), False))
        except SegmentNotFound as error:
            if begin < stop:
                lose(self._options, error)
            return stop
        if begin < min(info.start_offset, stop):
            lose(self._options, SegmentTruncated(name, start_offset=info.start_offset, offset=begin))
        return max(begin, info.start_offset)


def _id(reached: Reached) -> int:
    return reached.identity if isinstance(reached.identity, int) else 0  # a topic's: no segment has it


def _handle(info: SegmentInfo) -> SegmentHandle:
    return SegmentHandle(info.name, info.id, False)
