"""What a stream of raw segments reads next. Plain Python in the planning process; ``stream_source`` hands it to Spark.

Promises
* Offsets are positions of segments, by their ids: merges and take-overs do not change them. The same (start, end) is the same rows.
* Every byte (with lines: every finished line) comes once. What is gone before it was read is an error; or it is counted, if that is
  allowed. So are a container that was restored to before an offset, and a checkpoint of another container.
* One replica, opened when it is needed, and anew after an error. It follows the journal where ``latest`` is asked.

Leaves out: reading, which tasks do. Assumes: nobody changes the checkpoint, and history is not cut off between planning and reading.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.asker import Asker
from chunkstore.assembly import open_asker, open_replica
from chunkstore.errors import BadOffset, ChunkstoreError, Conflict, RolledBack, SegmentNotFound, SegmentTruncated
from chunkstore.handles import SegmentHandle
from chunkstore.records import SegmentInfo
from chunkstore.replica import Replica
from chunkstore.spark.errors import annotated
from chunkstore.spark.line_ends import line_end_before, line_too_long, pass_lines
from chunkstore.spark.options import EARLIEST, LATEST, ReadOptions
from chunkstore.spark.plan import ROW_BYTES, ReadTask, plan_ranges
from chunkstore.spark.positions import Reached, StreamOffset
from chunkstore.spark.progress_pins import ProgressPins
from chunkstore.spark.ranges import Range, chosen_segments, is_chosen, position_in, require_named

__all__ = ["Limit", "SegmentStream"]

_IDLE_S: Final = 0.02
_IDLE_REMOTE_S: Final = 1.0
"""Spark asks again at once where there is nothing new; so often is the journal looked at then."""
_CONSUMER_BYTES: Final = 8
_LOG = logging.getLogger("chunkstore.spark")


class Limit(NamedTuple):
    """Of one batch; None: none. A segment that has something new gives one row at least."""

    size_bytes: int | None = None
    rows: int | None = None


class SegmentStream:
    """See the module. One per query; its calls come one at a time."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._open: tuple[Replica, Asker | None] | None = None
        self._target: dict[str, SegmentInfo] | None = None
        self._latest: StreamOffset | None = None
        self._quiet: tuple[int, dict[str, Any]] | None = None
        """Up to which record of history there was nothing new behind an offset."""
        self._unfinished: dict[int, tuple[int, int]] = {}
        """By segment id, bytes known to hold no newline."""
        self._pinned = self._planned = False
        self._born = ""

    # ---- what Spark asks

    def initial(self) -> dict[str, Any]:
        """Where a new query begins. Raises ``SegmentNotFound``, ``SegmentTruncated``, ``BadOffset``, and as ``open_replica``."""
        with self._working() as replica:
            replica.refresh()
            segments = chosen_segments(replica, self._options)
            require_named(self._options, segments)
            reached = {name: Reached(info.id, self._first(replica, info)) for name, info in segments.items()}
            if self._options.pin_progress:
                self._born = runtime.token(_CONSUMER_BYTES).hex()
            self._latest = self._offset(replica, reached, StreamOffset("", 0, 0, {}, consumer=self._born))
            return self._latest.to_json()

    def latest(self, given: dict[str, Any] | None, limit: Limit) -> dict[str, Any]:
        """How far the next batch goes, from ``given`` (None: from where the last one ended); ``given`` itself where nothing is new.

        Raises ``Conflict`` (another container), ``RolledBack``, ``SegmentTruncated`` and ``SegmentNotFound`` (data loss),
        ``InvalidArgument`` (a line is too long), and as ``Replica.refresh``.
        """
        with self._working() as replica:
            replica.refresh()
            start = self._latest if given is None else self._decoded(replica, given)
            if start is None:  # before Spark 4.2, behind a restart
                start = StreamOffset(replica.uuid.hex(), 0, 0, {})
            self._require_pin(replica, start)
            same = start.to_json()
            if self._quiet != (replica.lsn, same):
                quiet_lsn = replica.lsn
                end = self._advance(replica, start, limit)
                if not start.lsn or _positions(end) != _positions(start):
                    self._latest = end
                    return end.to_json()
                self._quiet = quiet_lsn, same
            if self._target is None:
                runtime.sleep_s(_IDLE_REMOTE_S if replica.storage.capabilities.remote else _IDLE_S)
            return same

    def report(self) -> dict[str, Any]:
        """Where the segments end, as far as the journal was followed: what a batch without limits would reach. Raises as ``latest``."""
        with self._working() as replica:
            segments = chosen_segments(replica, self._options)
            reached = {name: Reached(info.id, info.length) for name, info in segments.items()}
            return self._offset(replica, reached, StreamOffset("", 0, 0, {})).to_json()

    def freeze(self) -> None:
        """Go no further than what is there now. Raises as ``Replica.refresh``."""
        with self._working() as replica:
            replica.refresh()
            self._target = chosen_segments(replica, self._options)

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        """What is read between two offsets: the same rows each time. Raises as ``latest``, and as ``plan_ranges``."""
        with self._working() as replica:
            first, last = self._decoded(replica, start), self._decoded(replica, end)
            self._planned, self._latest = True, last
            self._require_pin(replica, first)
            ranges: list[Range] = []
            for name, reached in last.segments.items():
                before = first.segments.get(name)
                begin = reached.begin
                if before is not None and before.identity == reached.identity:
                    begin = max(before.at, begin or 0)
                if begin is None:
                    raise Conflict(
                        f"the start of a batch, of segment {name!r}", expected=reached.identity, found=before
                    )
                found = self._whole_range(replica, name, reached, begin)
                if found is not None and found.start < found.stop:
                    ranges.append(found)
            return plan_ranges(replica, self._options, ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """All before ``end`` has been dealt with: the pin goes there. Raises ``Damaged`` of what is no offset."""
        if not self._options.pin_progress:
            return
        with self._working() as replica:
            reached = StreamOffset.from_json(end)
            replica.refresh()
            self._pins(reached).move(self._pin_offsets(replica, reached))

    def close(self) -> None:
        """Release everything; a stream that never planned a batch gives up its pin. Raises nothing. Safe to repeat."""
        if self._born and self._pinned and not self._planned and self._open is not None:
            ProgressPins(self._asker(), self._born).drop()
        self._release()

    # ---- one replica

    @contextmanager
    def _working(self) -> Iterator[Replica]:
        """The replica, opened if it is not; after an error the next call opens it anew."""
        options = self._options
        with annotated(container=options.container):
            try:
                if self._open is None and options.pin_progress:
                    asker = open_asker(options.path, container=options.container)
                    self._open = asker.replica, asker
                elif self._open is None:
                    self._open = open_replica(options.path, container=options.container), None
                yield self._open[0]
            except ChunkstoreError:
                self._release()
                raise

    def _release(self) -> None:
        held, self._open, self._quiet = self._open, None, None
        if held is not None:
            replica, asker = held
            (asker or replica).close()

    def _asker(self) -> Asker:
        asker = self._open[1] if self._open is not None else None
        assert asker is not None
        return asker

    # ---- offsets

    def _offset(self, replica: Replica, segments: Mapping[str, Reached], like: StreamOffset) -> StreamOffset:
        return like._replace(
            container=replica.uuid.hex(), epoch=replica.epoch, lsn=replica.lsn, segments=dict(sorted(segments.items()))
        )

    def _decoded(self, replica: Replica, given: dict[str, Any]) -> StreamOffset:
        """An offset of this container, on the history that is there."""
        offset = StreamOffset.from_json(given)
        if offset.container != replica.uuid.hex():
            raise Conflict("the container of the checkpoint", expected=offset.container, found=replica.uuid.hex())
        if replica.lsn < offset.lsn:
            replica.refresh()
        if not replica.passes(offset.epoch, offset.lsn):
            raise RolledBack(
                f"the checkpoint has seen record {offset.lsn} of epoch {offset.epoch}, which is not in the history of container "
                f"{replica.container!r} (any more): was it restored to before that? Begin with a new checkpoint",
                object="offset in the checkpoint",
                lsn_seen=offset.lsn,
                lsn_now=replica.lsn,
            )
        return offset

    def _first(self, replica: Replica, info: SegmentInfo) -> int:
        """``startingOffsets`` in this segment. What is latest of lines is behind the last finished one."""
        starting, clip = self._options.starting, not self._options.fail_on_data_loss
        at = position_in(info, starting, "startingOffsets", EARLIEST, clip=clip)
        said = starting if isinstance(starting, int) else starting.get(info.name, EARLIEST)
        if said == LATEST and self._options.lines and not info.sealed:
            limit = self._options.record_bytes_max
            return line_end_before(replica, _handle(info), info.start_offset, at, limit) or info.start_offset
        return at

    # ---- the next batch

    def _advance(self, replica: Replica, start: StreamOffset, limit: Limit) -> StreamOffset:
        there = self._visible(replica)
        begins: dict[str, int] = {}
        lost_bytes, lost_segments = start.lost_bytes, start.lost_segments
        for name, before in start.segments.items():
            info = there.get(name)
            if info is not None and info.id == before.identity:
                if info.length < before.at:
                    raise BadOffset(name, expected=info.length, given=before.at)
                begins[name] = max(before.at, info.start_offset)
                lost_bytes += begins[name] - before.at
                if begins[name] > before.at:
                    self._lose(SegmentTruncated(name, start_offset=info.start_offset, offset=before.at))
            elif not before.done and is_chosen(self._options, name):
                lost_segments += 1
                self._lose(SegmentNotFound(name))
        for name, info in there.items():
            if info.length > info.start_offset:
                begins.setdefault(name, info.start_offset)
        reached: dict[str, Reached] = {}
        left = limit
        backlog = sorted((there[name].length - begin, name) for name, begin in begins.items())
        busy = sum(size > 0 for size, _ in backlog)
        for size, name in backlog:
            info, begin = there[name], begins[name]
            end = begin
            if size > 0:
                share = Limit(*(None if most is None else max(1, most // busy) for most in left))
                end, rows = self._end(replica, info, begin, share)
                used = (end - begin, rows)
                left = Limit(*(None if most is None else max(0, most - used[n]) for n, most in enumerate(left)))
                busy -= 1
            held = start.segments.get(name)
            follows = held is not None and held.identity == info.id and held.at == begin
            done = info.sealed and end == info.length
            if held is None and end == begin:
                continue  # it has nothing yet
            reached[name] = Reached(info.id, end, done, None if follows else begin)
        end_offset = self._offset(replica, reached, start)
        return end_offset._replace(lost_bytes=lost_bytes, lost_segments=lost_segments)

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
        """Where the batch ends in a segment that has something behind ``begin``, and how many rows that are (counted if it matters)."""
        size, rows = limit
        stop = info.length if size is None else min(info.length, begin + size)
        if not self._options.lines:
            if rows is not None:
                stop = min(stop, (begin // ROW_BYTES + rows) * ROW_BYTES)
            return stop, -(-stop // ROW_BYTES) - begin // ROW_BYTES
        return self._end_of_lines(replica, info, begin, stop, rows)

    def _end_of_lines(
        self, replica: Replica, info: SegmentInfo, begin: int, stop: int, rows: int | None
    ) -> tuple[int, int]:
        """``_end`` at or before ``stop``; behind it only where not even the first line ends there."""
        segment, limit = _handle(info), self._options.record_bytes_max
        known = self._unfinished.get(info.id)
        low = known[1] if known is not None and known[0] == begin else begin
        passed, found = 0, None
        if rows is None:
            found = line_end_before(replica, segment, low, stop, limit)
        else:
            found, passed = pass_lines(replica, segment, low, stop, rows)
        end = found if found is not None and found > low else begin
        if end == begin and stop < info.length:
            high = min(info.length, begin + limit + 1)
            found, passed = pass_lines(replica, segment, max(low, stop), high, 1)
            end, stop = (found if passed else begin), max(stop, high)
        if info.sealed and stop == info.length and passed != rows and info.length - end <= limit:
            return info.length, passed + (end < info.length)
        if end == begin and stop - begin > limit:
            line_too_long(info.name, begin, limit)
        if end == begin:
            self._unfinished[info.id] = begin, stop
        return end, passed

    # ---- what is gone

    def _lose(self, error: ChunkstoreError) -> None:
        """Data that nobody has read is gone."""
        if self._options.fail_on_data_loss:
            error.add_note(
                "The stream had not read all of it. Option failOnDataLoss=false goes on, and counts what is lost."
            )
            raise error
        _LOG.warning("a stream goes on without what is lost: %s", error.message)

    def _whole_range(self, replica: Replica, name: str, reached: Reached, begin: int) -> Range | None:
        """The bytes of a planned batch as far as they are there; all of them unless losing some is allowed."""
        try:
            info = replica.info(SegmentHandle(name, reached.identity, False))
        except SegmentNotFound as error:
            if begin < reached.at:
                self._lose(error)
            return None
        if begin < min(info.start_offset, reached.at):
            self._lose(SegmentTruncated(name, start_offset=info.start_offset, offset=begin))
        return Range(name, reached.identity, max(begin, info.start_offset), reached.at)

    # ---- the pin

    def _pins(self, offset: StreamOffset) -> ProgressPins:
        return ProgressPins(self._asker(), offset.consumer or self._born)

    def _require_pin(self, replica: Replica, start: StreamOffset) -> None:
        if self._options.pin_progress and not self._pinned:
            self._pins(start).require(self._pin_offsets(replica, start))
            self._pinned = True

    def _pin_offsets(self, replica: Replica, offset: StreamOffset) -> dict[str, int]:
        """Where segments that are there and not finished were read to."""
        found: dict[str, int] = {}
        there = chosen_segments(replica, self._options)
        for name, reached in offset.segments.items():
            info = there.get(name)
            if info is not None and info.id == reached.identity and not reached.done:
                found[name] = min(max(reached.at, info.start_offset), info.length)
        return found


def _handle(info: SegmentInfo) -> SegmentHandle:
    return SegmentHandle(info.name, info.id, False)


def _positions(offset: StreamOffset) -> tuple[object, ...]:
    """What makes another batch."""
    segments = {name: reached._replace(begin=None) for name, reached in offset.segments.items()}
    return segments, offset.lost_bytes, offset.lost_segments
