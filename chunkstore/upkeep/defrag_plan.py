"""Which neighbouring chunks of a segment become one: size-tiered, and pure.

A chunk's *rank* is how often it may still grow by ``fanout`` without passing the target: ``floor(log(target / length, fanout))``. At
least ``fanout`` neighbours of rank ``r`` or more become one chunk of a lower rank than ``r``, as long as can be, and never longer than
the target. Chunks of rank 0, longer than a ``fanout``-th of the target, stay as they are.

Promises: a byte that was appended in a chunk of ``a`` bytes is written at most ``1 + floor(log(target / a, fanout))`` times, the append
included. For every merge makes the rank of each chunk in it less by 1 or more: the new one's is below ``r``, theirs are not; a rank never
grows while nothing is truncated, is that floor at first, and at 0 no merge takes the chunk. (A truncation makes the first chunk
shorter. Moving that alone, where half of it is dead, writes no more bytes than it frees.) What a plan leaves is planned no more until
something changes. Of neighbours of one rank at most ``fanout - 1`` stay, but those of rank 1 where the segment grows on: they wait
until they fill a chunk.
Leaves out: rows and bytes (``defrag``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chunkstore.config import MIB, DefragPolicy

__all__ = ["READ_BACK_BYTES", "DefragChunk", "DefragRun", "plan_runs", "rank", "requests_of", "undecided_from"]

RELOCATE_BYTES_MIN = 8 * MIB
READ_BACK_BYTES = 4 * MIB
"""One read of a new chunk that is compared, about."""


class DefragChunk(NamedTuple):
    """One chunk of a list: its bytes ``[offset, offset + length)`` of the segment; below them ``dead`` bytes, which are truncated.

    ``free``: it may be merged: it is closed, and old enough.
    """

    id: bytes
    offset: int
    length: int
    dead: int
    free: bool


class DefragRun(NamedTuple):
    """Chunks ``[first, last)`` of those that were looked at, which become one."""

    first: int
    last: int


def rank(length: int, target: int, fanout: int) -> int:
    """How often ``length`` may grow by ``fanout`` without passing ``target``; 0 where it is no matter of merging."""
    found = 0
    while 0 < (length := length * fanout) <= target:
        found += 1
    return found


def plan_runs(chunks: Sequence[DefragChunk], policy: DefragPolicy, target: int, *, growing: bool) -> list[DefragRun]:
    """The runs to merge, ascending, and the first chunk alone where it is worth while to leave its dead head out. Pure.

    ``growing``: others will follow after the last chunk; what they may still fill a chunk with waits for them.
    """
    planner = _Planner(chunks, policy, target, growing)
    runs = list(planner.merges(1, 0, len(chunks)))
    if chunks and (not runs or runs[0].first > 0):
        first = chunks[0]
        if first.free and first.dead >= max(RELOCATE_BYTES_MIN, first.length) and first.length:
            runs.insert(0, DefragRun(0, 1))
    return runs


def undecided_from(
    chunks: Sequence[DefragChunk], runs: Sequence[DefragRun], policy: DefragPolicy, target: int
) -> int | None:
    """Where planning is to begin again when more chunks are known: at the first of those at the end that they may be merged with.

    None: that would be from the very beginning, which gets no one further.
    """
    first = len(chunks)
    stop = max((run.last for run in runs if run.last < first), default=0)
    while first > stop and chunks[first - 1].free and rank(chunks[first - 1].length, target, policy.fanout):
        first -= 1
    return first or None


def requests_of(chunks: int, size_bytes: int, policy: DefragPolicy) -> int:
    """Requests of one run, about: one for each chunk, three to make the new one and to look at it, and its reads where it is compared."""
    return chunks + 3 + (-(-size_bytes // READ_BACK_BYTES) if policy.verify else 0)


class _Planner:
    def __init__(self, chunks: Sequence[DefragChunk], policy: DefragPolicy, target: int, growing: bool) -> None:
        self._chunks = chunks
        self._policy = policy
        self._target = target
        self._growing = growing
        self._ranks = [rank(chunk.length, target, policy.fanout) if chunk.free else 0 for chunk in chunks]

    def merges(self, least: int, low: int, high: int) -> Iterator[DefragRun]:
        """Of chunks ``[low, high)``: first what may be merged of rank ``least`` and more, and in what that leaves of the next rank."""
        if low == high or max(self._ranks[low:high]) < least:
            return
        for first, last, size in self._groups(least, low, high):
            waits = least == 1 and self._growing and last == len(self._chunks) and size < self._target
            enough = last - first >= self._policy.fanout and rank(size, self._target, self._policy.fanout) < least
            if enough and not waits:
                yield DefragRun(first, last)
            else:
                yield from self.merges(least + 1, first, last)

    def _groups(self, least: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Neighbours of rank ``least`` and more, as many as make one chunk; and their bytes."""
        first, size = low, 0
        for at in range(low, high):
            length = self._chunks[at].length
            ends = self._ranks[at] < least
            if first < at and (ends or size + length > self._target or at - first == self._policy.run_chunks_max):
                yield first, at, size
                first, size = at, 0
            if ends:
                first, size = at + 1, 0
            else:
                size += length
        if first < high:
            yield first, high, size
