"""What a leader copies from, keeps and deletes of a partition's tier: Kafka's rules. All pure.

Promises: what is deleted is a prefix of the log's own lineage, or below its recorded start, or of epochs that are older than all
of it. Segments of other lineages are passed over. Leaves out: reading metadata, and deleting (``tasks``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from chunkstore.codec.kafka.batches import OFFSET_MAX
from chunkstore.kafka.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    check_int,
    require,
)

__all__ = [
    "Expiry", "LogState", "RemoteLogManagerConfig", "choose", "filtered_epochs", "find_copied_offset", "within_lineage",
]  # fmt: skip

_STARTED, _FINISHED, _DELETING, _DELETED = RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class RemoteLogManagerConfig:
    """Limits, as Kafka's; -1: none. ``on_leadership_lost``: "cancel" a copy that goes on, or "finish" it. Raises ``InvalidArgument``."""

    broker_id: int = 0
    retention_bytes: int = -1
    retention_ms: int = -1
    custom_metadata_bytes_max: int = 128
    on_leadership_lost: Literal["cancel", "finish"] = "cancel"
    interval_s: float = 30.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("retention_bytes", "retention_ms"):
            check_int(getattr(self, name), name, OFFSET_MAX, -1)
        require(self.on_leadership_lost in ("cancel", "finish"), "on_leadership_lost", "'cancel' or 'finish'")
        require(0 < self.backoff_s <= self.backoff_max_s, "backoff_s", "more than 0, at most backoff_max_s")
        require(self.interval_s > 0, "interval_s", "more than 0")


class LogState(NamedTuple):
    """A log: its ``filtered_epochs`` from ``start`` on, its recorded start, the offset after its last, bytes that are in no tier."""

    lineage: Mapping[int, int]
    start: int
    end: int
    local_bytes: int = 0


class Expiry(NamedTuple):
    """Segments to be deleted, in this order, and where the log starts then: to be recorded before."""

    deletions: tuple[RemoteLogSegmentMetadata, ...]
    log_start: int


def filtered_epochs(epochs: Iterable[tuple[int, int]], start: int = 0) -> dict[int, int]:
    """The epochs that have records at or past ``start``, each with the first offset of them."""
    rows = [*epochs, (0, OFFSET_MAX)]
    return {epoch: max(begin, start) for (epoch, begin), (_, stop) in pairwise(rows) if max(begin, start) < stop}


def within_lineage(item: RemoteLogSegmentMetadata, end: int, lineage: Mapping[int, int]) -> bool:
    """Whether the segment is part of the log of this ``lineage`` that ends before offset ``end``."""
    own, epochs = filtered_epochs(item.segment_leader_epochs.items()), list(lineage.items())
    kept = [pair for pair in own.items() if pair[0] >= min(lineage, default=0)]  # the log may begin within the segment
    if not kept or kept[0][0] not in lineage:
        return False
    at = epochs.index((kept[0][0], lineage[kept[0][0]]))
    if kept[1:] != epochs[at + 1 : at + len(kept)] or (at and kept[0][1] < epochs[at][1]):
        return False
    return item.end_offset < min(end, *(begin for _, begin in [*epochs[at + len(kept) :], (0, end)][:1]))


def find_copied_offset(epochs: Iterable[tuple[int, int]], end: int, highest: Callable[[int], int | None]) -> tuple[int, int]:  # fmt: skip
    """The last offset that is in the tier, and its epoch; (-1, -1): none. An unclean election may have cut what was copied.

    ``epochs``: the log's, ascending; ``end``: the offset after its last; ``highest``: of an epoch in the tier.
    """
    stop = end
    for epoch, begin in reversed([*epochs]):
        if (found := highest(epoch)) is not None:
            return min(stop - 1, found), epoch
        stop = begin
    return -1, -1


def choose(
    segments: Iterable[RemoteLogSegmentMetadata],
    log: LogState,
    config: RemoteLogManagerConfig,
    now_ms: int,
    copying: Collection[RemoteLogSegmentId] = (),
    *,
    fenced: bool = False,
) -> Expiry:
    """What retention deletes of the ``segments`` of a partition, in whichever state; ``copying``: what is being copied here;
    ``fenced``: no other copy can end, so that those that began and are not among these are deleted, too.

    Size counts finished segments of the lineage, and what is local only: not failed copies. Deletions that failed are retried.
    """
    held = sorted(segments, key=lambda item: (item.start_offset, item.end_offset))
    valid = {item.remote_log_segment_id for item in held if within_lineage(item, log.end, log.lineage)}
    finished = (item for item in held if item.state == _FINISHED and item.remote_log_segment_id in valid)
    over = log.local_bytes + sum(item.segment_size_in_bytes for item in finished) - config.retention_bytes
    over = over if config.retention_bytes >= 0 else 0
    ended = (_STARTED, _DELETING) if fenced else (_DELETING,)
    left = (item for item in held if item.state in ended and item.remote_log_segment_id not in copying)
    gone = {item.remote_log_segment_id: item for item in left}
    first, start = min(log.lineage, default=0), log.start
    known = [(min(epochs), item) for item in held if (epochs := log.lineage.keys() & item.segment_leader_epochs.keys())]
    for _, item in sorted(known, key=lambda pair: pair[0]):
        identity, stamp = item.remote_log_segment_id, item.max_timestamp_ms
        if identity in copying:
            break
        if identity in gone or item.state == _DELETED:
            continue
        if item.end_offset >= log.start or max(item.segment_leader_epochs) > first:
            if identity not in valid:
                continue
            # Without a timestamp of its records, a segment is as old as its copy.
            old = 0 <= config.retention_ms <= now_ms - (stamp if stamp >= 0 else item.event_timestamp_ms)
            if not (old or 0 < over >= item.segment_size_in_bytes):
                break
            over -= item.segment_size_in_bytes
            start = max(start, item.end_offset + 1)
        gone[identity] = item
    # A broker without a tier cuts its checkpoint: older epochs may be the log's unless the first one reaches its start.
    whole = log.lineage.get(first) == log.start
    older = (item for item in held if whole and item.state != _DELETED and max(item.segment_leader_epochs) < first)
    gone |= {item.remote_log_segment_id: item for item in older if item.remote_log_segment_id not in copying}
    return Expiry(tuple(gone.values()), start)
