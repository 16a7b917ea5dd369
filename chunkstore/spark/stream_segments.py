"""A stream of raw segments: how far each can be read, and what a batch reads of them. Of lines only finished ones."""

from __future__ import annotations

from chunkstore.engine.reader import gone
from chunkstore.engine.replica import Replica
from chunkstore.errors import BadOffset, Conflict, SegmentNotFound, SegmentTruncated
from chunkstore.records.arguments import SegmentHandle
from chunkstore.records.segments import SegmentInfo
from chunkstore.spark.framing import first_line_end, line_end_before, line_too_long
from chunkstore.spark.options import EARLIEST, LATEST, ReadOptions
from chunkstore.spark.plan import Range, chosen_segments, is_chosen, plan_ranges, position_in, require_named
from chunkstore.spark.positions import Limit, Reached, StreamOffset, lose, share_out
from chunkstore.spark.runs import ReadTask

__all__ = ["SegmentFollower"]


class SegmentFollower:
    """See the module. Of one stream; the replica is the stream's."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: dict[str, SegmentInfo] | None = None
        self._unfinished: dict[int, tuple[int, int]] = {}
        """By segment id, bytes known to hold no newline."""

    def forget(self) -> None:
        """Another replica will be asked from now on."""

    def freeze(self, replica: Replica) -> None:
        """Go no further than what is there now."""
        self._target = chosen_segments(replica, self._options)

    def initial(self, replica: Replica) -> StreamOffset:
        """Where a new query begins."""
        segments = chosen_segments(replica, self._options)
        require_named(self._options, segments)
        return StreamOffset({name: Reached(info.id, self._first(replica, info)) for name, info in segments.items()})

    def ends(self, replica: Replica) -> StreamOffset:
        """Where the segments end."""
        segments = chosen_segments(replica, self._options)
        return StreamOffset({name: Reached(info.id, info.length) for name, info in segments.items()})

    def advance(self, replica: Replica, start: StreamOffset, limit: Limit) -> StreamOffset:
        there = self._visible(replica)
        begins: dict[str, int] = {}
        reached: dict[str, Reached] = {}
        lost_bytes, lost_segments = start.lost_bytes, start.lost_segments
        for name, before in start.segments.items():
            info = there.get(name)
            if info is not None and info.id == before.identity:
                if info.length < before.at:
                    raise BadOffset(name, expected=info.length, given=before.at)
                begins[name] = self._begin(info, before.at)
                lost_bytes += begins[name] - before.at
            elif not is_chosen(self._options, name):
                reached[name] = before._replace(begin=None)  # a caller that chooses it again goes on there
            elif not before.done:
                lost_segments += 1
                lose(self._options, gone(name, before.at))
        for name, info in there.items():
            if name not in begins and info.length:  # new, so it was promised from its first byte
                begins[name] = self._begin(info, 0)
                lost_bytes += begins[name]

        def go_on(name: str, share: Limit) -> int:
            info, begin = there[name], begins[name]
            end = self._end(replica, info, begin, share.size_bytes) if begin < info.length else begin
            held = start.segments.get(name)
            follows = held is not None and held.identity == info.id and held.at == begin
            if held is not None or end:  # else it has nothing yet
                done = info.sealed and end == info.length
                reached[name] = Reached(info.id, end, done, None if follows else begin)
            return end - begin

        share_out({name: there[name].length - begin for name, begin in begins.items()}, limit, go_on)
        return start._replace(segments=reached, lost_bytes=lost_bytes, lost_segments=lost_segments)

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

    def _end(self, replica: Replica, info: SegmentInfo, begin: int, size_bytes: int | None) -> int:
        """Where the batch ends in a segment that has something after ``begin``."""
        stop = info.length if size_bytes is None else min(info.length, begin + size_bytes)
        return self._end_of_lines(replica, info, begin, stop) if self._options.lines else stop

    def _end_of_lines(self, replica: Replica, info: SegmentInfo, begin: int, stop: int) -> int:
        """``_end`` at or before ``stop``; after it only where not even the first line ends there."""
        segment, limit = _handle(info), self._options.line_bytes_max
        known = self._unfinished.get(info.id)
        low = known[1] if known is not None and known[0] == begin else begin
        end = line_end_before(replica, segment, low, stop, limit) or begin
        if end == begin and stop < info.length:
            high = min(info.length, begin + limit + 1)
            end, stop = first_line_end(replica, segment, max(low, stop), high) or begin, max(stop, high)
        if info.sealed and stop == info.length and info.length - end <= limit:
            return info.length
        if end == begin and stop - begin > limit:
            line_too_long(info.name, begin, limit)
        if end == begin:
            self._unfinished[info.id] = begin, stop
        return end

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
        for name, reached in last.segments.items():
            before = first.segments.get(name)
            begin = reached.begin
            if before is not None and before.identity == reached.identity:
                begin = max(before.at, begin or 0)
            if begin is None:
                raise Conflict(f"the start of a batch, of segment {name!r}", expected=reached.identity, found=before)
            found = self._whole_range(replica, name, reached, begin)
            if found is not None and found.start < found.stop:
                ranges.append(found)
        return plan_ranges(replica, self._options, ranges)

    def _whole_range(self, replica: Replica, name: str, reached: Reached, begin: int) -> Range | None:
        """The bytes of a planned batch as far as they are there; all of them unless losing some is allowed."""
        try:
            info = replica.info(SegmentHandle(name, reached.identity, False))
        except SegmentNotFound as error:
            if begin < reached.at:
                lose(self._options, error)
            return None
        if begin < min(info.start_offset, reached.at):
            lose(self._options, SegmentTruncated(name, start_offset=info.start_offset, offset=begin))
        return Range(name, reached.identity, max(begin, info.start_offset), reached.at)


def _handle(info: SegmentInfo) -> SegmentHandle:
    return SegmentHandle(info.name, info.id, False)
