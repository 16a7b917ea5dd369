"""Which bytes of which raw segments a read is about, from one point of history. Plain Python, without Spark.

Promises: names come in the order they are given in, those that match a pattern in name order; a position outside a segment is refused,
never moved in silence. Leaves out: tasks (``plan``), ends of lines (``line_ends``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from chunkstore.errors import BadOffset, InvalidArgument, SegmentNotFound, SegmentTruncated
from chunkstore.reading import ReadableContainer
from chunkstore.records import SegmentInfo
from chunkstore.replica import Replica
from chunkstore.spark.options import EARLIEST, LATEST, Positions, ReadOptions

__all__ = [
    "Range",
    "chosen_ranges",
    "chosen_segments",
    "chosen_topics",
    "is_chosen",
    "position_in",
    "require_match",
    "require_named",
]


class Range(NamedTuple):
    """Bytes ``[start, stop)`` of a segment."""

    segment: str
    identity: int
    start: int
    stop: int


def is_chosen(options: ReadOptions, name: str) -> bool:
    """Whether a read is about a segment of this name."""
    if options.segments_pattern is None:
        return name in options.segments
    return re.fullmatch(options.segments_pattern, name) is not None


def chosen_segments(replica: ReadableContainer, options: ReadOptions) -> dict[str, SegmentInfo]:
    """The segments that are there. Raises as ``ReadableContainer.segments``."""
    if options.segments_pattern is not None:
        matches = re.compile(options.segments_pattern).fullmatch
        return {info.name: info for info in replica.segments() if matches(info.name)}
    found: dict[str, SegmentInfo] = {}
    for name in options.segments:
        if replica.exists(name):
            found[name] = replica.info(name)
    return found


def is_chosen_topic(options: ReadOptions, topic: str) -> bool:
    """Whether a read is about this topic."""
    if options.topics_pattern is None:
        return topic == options.topic
    return re.fullmatch(options.topics_pattern, topic) is not None


def chosen_topics(replica: Replica, options: ReadOptions) -> list[str]:
    """The topic that is named, whether it is there or not; or those that are there and match. Raises as ``ReadableContainer.table``."""
    if options.topics_pattern is None:
        return [options.topic] if options.topic is not None else []
    from chunkstore.pulsar.contexts import iter_topics  # raw segments need no codec

    matches = re.compile(options.topics_pattern).fullmatch
    return [topic for topic in iter_topics(replica) if matches(topic)]


def chosen_ranges(replica: Replica, options: ReadOptions) -> list[Range]:
    """What a batch reads. Raises ``SegmentNotFound``, ``SegmentTruncated``, ``BadOffset``, ``InvalidArgument``."""
    segments = chosen_segments(replica, options)
    require_match(options.segments_pattern, segments, "segmentsPattern")
    require_named(options, segments)
    ranges: list[Range] = []
    for name, info in segments.items():
        clip = not options.fail_on_data_loss
        start = position_in(info, options.starting, "startingOffsets", EARLIEST, clip=clip)
        stop = position_in(info, options.ending, "endingOffsets", LATEST, clip=clip)
        if stop < start:
            raise InvalidArgument(
                f"segment {name!r} would be read from {start} to {stop}, which is before that",
                argument="endingOffsets",
            )
        ranges.append(Range(name, info.id, start, stop))
    return ranges


def require_named(options: ReadOptions, there: Mapping[str, object]) -> None:
    """Raise ``SegmentNotFound`` unless all segments that are named, by whatever option, are ``there``."""
    for positions in (options.segments, options.starting, options.ending):
        for name in () if isinstance(positions, int) else positions:
            if name not in there:
                raise SegmentNotFound(name)


def require_match(pattern: str | None, found: Collection[object], option: str) -> None:
    """Raise ``InvalidArgument`` for a pattern without a match, which a batch cannot wait for."""
    if pattern is not None and not found:
        text = f"option {option!r}: {pattern!r} matches none that is there; a pattern matches whole names, and a stream waits for one"
        raise InvalidArgument(text, argument=option)


def position_in(info: SegmentInfo, positions: Positions, option: str, default: int, *, clip: bool) -> int:
    """The offset in this segment; ``default`` is that of segments which are not named. ``clip``: what was truncated away is passed over.

    Raises ``SegmentTruncated`` and ``BadOffset`` that name the option.
    """
    at = positions if isinstance(positions, int) else positions.get(info.name, default)
    if at == EARLIEST:
        return info.start_offset
    if at == LATEST:
        return info.length
    error: SegmentTruncated | BadOffset
    if at < info.start_offset:
        if clip:
            return info.start_offset
        error = SegmentTruncated(info.name, start_offset=info.start_offset, offset=at)
    elif at > info.length:
        error = BadOffset(info.name, expected=info.length, given=at)
    else:
        return at
    error.add_note(f"Option {option!r} is set so.")
    raise error
