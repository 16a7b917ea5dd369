"""What reads have found in the rows, kept while the rows stay as they are: the next read of the same bytes plans nothing.

Promises: a plan is used only at the very point of history (lsn and hash) that its view showed, so no truncation, concat, deletion,
re-creation, defrag or collection is missed; a read that found its chunk absent or damaged asks the rows. Bounded, thread-safe, without a
lock where a plan is found. Leaves out: what is read after the plan (``read``), where the rows stand (``MetadataStore.position``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.metadata.port import Position
from chunkstore.metadata.tail_cache import TailCache
from chunkstore.operations.extents import ExtentRun
from chunkstore.records.blocks import Borders
from chunkstore.records.layout import ReadSlice
from chunkstore.records.names import Address
from chunkstore.records.segments import SegmentRecord

__all__ = ["PLANS_MAX", "WINDOW_BYTES", "Asked", "KeptPlans", "ReadPlan", "Window"]

WINDOW_BYTES: Final = 4 * MIB
"""Reads within one such stretch of a segment and within one chunk share a plan."""
PLANS_MAX: Final = 1024
"""About 5 KB each."""

Asked: TypeAlias = tuple[str, int | None, int, int]
"""Segment name, its id (None: of any), offset and length."""


class Window(NamedTuple):
    """What the rows say of ``segment`` at ``position``: bytes ``[low, high)`` are in the chunk at ``address``, which begins at
    ``chunk_offset`` of the segment and has these borders there. ``high`` 0: of no chunk."""

    position: Position
    segment: SegmentRecord
    low: int
    high: int
    address: Address
    chunk_offset: int
    borders: Borders | None

    def slice(self, offset: int, stop: int) -> ReadSlice:
        """For bytes ``[offset, stop)`` of the segment, which are among these."""
        inside, borders = offset - self.chunk_offset, self.borders
        if borders is not None:
            borders = borders.between(inside, stop - self.chunk_offset)
        return ReadSlice(self.address, self.chunk_offset, inside, stop - offset, 0, borders)


class ReadPlan(NamedTuple):
    """Slices and runs of extents that cover ``[offset, offset + length)`` of segment ``name``, or the bytes themselves (``held``).
    ``inside``: all that was asked for, before the segment's end. ``window``: what other reads may use."""

    name: str
    slices: Sequence[ReadSlice]
    length: int
    inside: bool
    offset: int = 0
    runs: Sequence[ExtentRun] = ()
    held: Sequence[bytes] = ()
    window: Window | None = None


class KeptPlans:
    """See the module. One per store; the plans that were made longest ago go first."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._windows: OrderedDict[tuple[str, int], Window] = OrderedDict()
        self._position: Position | None = None

    def rests(self, position: Position | None) -> bool:
        """Whether the rows stand where they stood when this was called last."""
        rests = position is not None and position == self._position
        self._position = position
        return rests

    def keep(self, plan: ReadPlan) -> None:
        """Keep the window of a plan, if it has one."""
        if plan.window is None:
            return
        key = plan.name, plan.offset // WINDOW_BYTES
        with self._lock:
            self._windows[key] = plan.window
            self._windows.move_to_end(key)
            if len(self._windows) > PLANS_MAX:
                self._windows.popitem(last=False)

    def find(self, position: Position | None, asked: Asked, tail: TailCache | None) -> ReadPlan | None:
        """The plan of what is asked for at ``position``; None: it has to be made."""
        name, identity, offset, length = asked
        window = self._windows.get((name, offset // WINDOW_BYTES))
        if window is None or window.position != position:
            return None
        segment, stop = window.segment, offset + length
        inside = stop < segment.length
        if not inside:
            stop = segment.length
        if not segment.start_offset <= offset < stop or (identity is not None and identity != segment.id):
            return None
        held = None if tail is None else tail.find(segment.id, offset, stop - offset)
        if held is not None:
            return ReadPlan(name, (), stop - offset, inside, offset, (), held)
        if offset < window.low or stop > window.high:
            return None
        return ReadPlan(name, (window.slice(offset, stop),), stop - offset, inside, offset)
