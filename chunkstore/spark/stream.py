"""A stream: where it begins, how far the next batch goes, what is read between two offsets. Plain Python in the planning process.

Offsets are positions (of segments by id, of topics by offload segment): the same (start, end) is the same rows. What is gone before it
was read is an error, or counted if that is allowed. A rolled-back container and another container's checkpoint are always errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from chunkstore import runtime
from chunkstore.engine.replica import Replica
from chunkstore.errors import ChunkstoreError, Conflict, RolledBack
from chunkstore.following import open_replica
from chunkstore.spark.errors import annotated
from chunkstore.spark.options import ReadOptions
from chunkstore.spark.positions import StreamOffset
from chunkstore.spark.runs import ReadTask
from chunkstore.spark.stream_segments import SegmentFollower
from chunkstore.spark.stream_topics import TopicFollower

__all__ = ["Stream"]

_IDLE_S: Final = 0.02
_IDLE_REMOTE_S: Final = 1.0
"""Spark asks again at once where there is nothing new; so often is the journal looked at then."""


class Stream:
    """See the module. One per query; its calls come one at a time."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._open: Replica | None = None
        self._follower = TopicFollower(options) if options.reads_topics else SegmentFollower(options)
        self._frozen = False
        self._latest: StreamOffset | None = None
        self._quiet: tuple[int, dict[str, Any]] | None = None
        """Up to which record of history there was nothing new after an offset."""
        self._initial: dict[str, Any] | None = None

    # ---- what Spark asks

    def initial(self) -> dict[str, Any]:
        """Where a new query begins. Raises ``SegmentNotFound``, ``SegmentTruncated``, ``BadOffset``, and as ``open_replica``.

        Spark keeps this nowhere: it asks again when it plans the first batch, and after a kill when it plans that anew."""
        with self._working() as replica:
            replica.refresh()
            self._latest = _stamped(self._follower.initial(replica), replica)
            self._initial = self._latest.to_json()
            return self._initial

    def latest(self, given: dict[str, Any] | None, size_bytes: int | None) -> dict[str, Any]:
        """How far the next batch goes, from ``given`` (None: from where the last one ended), of about so many bytes; ``given`` itself where
        nothing is new.

        Raises ``Conflict`` (another container), ``RolledBack``, ``SegmentTruncated`` and ``SegmentNotFound`` (data loss),
        ``InvalidArgument`` (a line is too long), and as ``Replica.refresh``.
        """
        with self._working() as replica:
            replica.refresh()
            start = self._latest if given is None else self._decoded(replica, given)
            if start is None:  # before Spark 4.2: a new query; one that goes on plans (end, end) first
                start = self._decoded(replica, self.initial())
            same = start.to_json()
            if self._quiet != (replica.lsn, same):
                quiet_lsn = replica.lsn
                end = self._follower.advance(replica, start, size_bytes)
                if not start.lsn or end.positions != start.positions:
                    first = end.beginning_at(start) if same == self._initial else end
                    self._latest = _stamped(first, replica)
                    return self._latest.to_json()
                self._quiet = quiet_lsn, same
            if not self._frozen:
                runtime.sleep_s(_IDLE_REMOTE_S if replica.storage.capabilities.remote else _IDLE_S)
            return same

    def report(self) -> dict[str, Any]:
        """What is there, as far as the journal was followed: what a batch without limits would reach. Raises as ``latest``."""
        with self._working() as replica:
            return _stamped(self._follower.ends(replica), replica).to_json()

    def freeze(self) -> None:
        """Go no further than what is there now. Raises as ``Replica.refresh``."""
        with self._working() as replica:
            replica.refresh()
            self._follower.freeze(replica)
            self._frozen = True

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        """What is read between two offsets: the same rows each time. Raises as ``latest``, and as ``plan_ranges``."""
        with self._working() as replica:
            first, last = self._decoded(replica, start), self._decoded(replica, end)
            if start == self._initial:
                first = first.began(last)
            self._latest = last
            return self._follower.tasks(replica, first, last)

    def close(self) -> None:
        """Release everything. Raises nothing. Safe to repeat."""
        self._release()

    # ---- one replica

    @contextmanager
    def _working(self) -> Iterator[Replica]:
        """The replica, opened if it is not; after an error the next call opens it anew."""
        options = self._options
        with annotated(container=options.container):
            try:
                if self._open is None:
                    self._open = open_replica(options.path, container=options.container, settings=options.settings)
                yield self._open
            except ChunkstoreError:
                self._release()
                raise

    def _release(self) -> None:
        held, self._open, self._quiet = self._open, None, None
        self._follower.forget()
        if held is not None:
            held.close()

    # ---- offsets

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
                f"{replica.container!r} (any more), perhaps after a restore. Begin with a new checkpoint",
                object="offset in the checkpoint",
                lsn_seen=offset.lsn,
                lsn_now=replica.lsn,
            )
        return offset


def _stamped(offset: StreamOffset, replica: Replica) -> StreamOffset:
    """With a point of history that has all of it."""
    return offset._replace(container=replica.uuid.hex(), epoch=replica.epoch, lsn=replica.lsn)
