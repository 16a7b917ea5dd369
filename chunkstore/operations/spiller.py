"""When extents become bytes of chunks: the keeper's task that spills them (protocol 3.10).

No append waits for it; ``backlog`` counts what waits. A segment is due when it has ``spill_bytes``, or has had any for ``spill_s``. The
oldest go first while the container has more than ``inline_rows_max``, or nearly more than memory holds: read from the journal, each extent
would be a request. Where spilling falls far back, appends go to chunks until it has caught up. Where nothing goes inline any more, all that
is left is due. Extents of earlier owners are looked up once, in the background. A damaged extent stays, and holds up no other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, SegmentNotFound, StorageFull
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.inline_index import inline_chunks, inline_runs, runs_of, size_of_extents
from chunkstore.metadata.keys import SEGMENT
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.backlog import Backlog
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.read import find_segment

__all__ = ["Spiller"]

_BYTES: Final = 1 * MIB
_REMOTE_BYTES: Final = 8 * MIB
_AGE_S: Final = 60.0
_REMOTE_AGE_S: Final = 300.0
_EXTENT_BYTES: Final = 128
"""About what keeping one in memory takes, besides its bytes."""
_NO_MEMORY: Final = 1 << 62
_TRIES: Final = 5
_PAUSE_S: Final = 5.0
"""After an error, before the next try."""


class Spiller:
    """One per container; the keeper calls ``tick``."""

    def __init__(self, container: OwnedContainer) -> None:
        settings, remote = container.settings, container.remote
        self._container = container
        self._backlog: Backlog = container.backlog
        given = settings.tuning.spill_bytes
        self._bytes = (_REMOTE_BYTES if remote else _BYTES) if given is None else given
        age = settings.tuning.spill_s
        self._age_s = (_REMOTE_AGE_S if remote else _AGE_S) if age is None else age
        if not container.inline_bytes:
            self._age_s = 0.0  # it was switched off: what is left goes at once
        self._rows_max = settings.tuning.inline_rows_max
        self._memory_bytes = container.tail.room_bytes or _NO_MEMORY
        self._task: runtime.Task | None = None
        self._stopped = False
        self._knows_all = False
        self._not_before_s = 0.0

    def tick(self, now_s: float) -> None:
        """Begin the task where something is due. Raises nothing of ours."""
        if self._stopped or now_s < self._not_before_s or (self._task is not None and self._task.is_alive()):
            return
        if not self._knows_all or self._due(now_s):
            self._task = runtime.spawn_if_possible(self._run, "chunkstore-spiller")

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    def join(self, wait_s: float) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            self._task.join(wait_s)

    def spill_all(self, name: str, *, background: bool = False) -> None:
        """Spill all that a segment has now, in the caller's thread: what comes meanwhile may stay. Raises as ``spill``, and after all else
        ``Damaged`` for extents that stay where they are."""
        with self._container.upkeep.run("spill") as done:
            self._spill_all(name, done, background=background)

    def _spill_all(self, name: str, counts: dict[str, int], *, background: bool) -> None:
        mark, damaged = self._backlog.mark(name), dict[bytes, ChunkstoreError]()
        try:
            self._spill_found(name, counts, damaged, background=background)
        except SegmentNotFound:
            self._backlog.settle(name, mark)
            raise
        self._backlog.settle(name, mark)
        if damaged:
            self._backlog.came(name, 0, len(damaged))  # for the next try
            raise next(iter(damaged.values()))

    def _spill_found(
        self, name: str, counts: dict[str, int], damaged: dict[bytes, ChunkstoreError], *, background: bool
    ) -> None:
        from chunkstore.operations.spill import spill

        tries, left = 0, self._container.look(partial(_count, name))
        while left > 0:
            try:
                done = spill(self._container, name, bytes_max=self._bytes, past=damaged, background=background)
            except Conflict:
                still = self._container.look(partial(_count, name))
                tries = tries + 1 if still >= left else 0  # another spill that succeeds leaves less
                if tries == _TRIES:
                    raise
                left = min(left, still)
                continue
            counts["chunks"] = counts.get("chunks", 0) + done.extents
            counts["moved_bytes"] = counts.get("moved_bytes", 0) + done.size_bytes
            damaged.update(done.damaged)
            found = done.extents + len(done.damaged)
            left = left - found if found else 0

    def spill_these(self, names: Sequence[str] = ()) -> None:
        """Spill all that these segments have (none: all that have any); those that are not there have nothing. Raises as ``spill_all``."""
        damages: list[Damaged] = []
        for name in names or [name for name, *_ in self._container.look(_waiting_extents)]:
            try:
                with suppress(SegmentNotFound):
                    self.spill_all(name)
            except Damaged as damage:
                damages.append(damage)
        if damages:
            raise damages[0]

    def make_way(self, needed_bytes: int) -> None:
        """On a full disk, for a collection: spill all that the journal holds of segments, so that it may go, where that and
        ``needed_bytes`` find room; a part would take room and give none back. Raises nothing of ours."""
        container = self._container
        with suppress(ChunkstoreError):
            if held := container.look(_waiting_extents):
                size_bytes = sum(size_bytes for _, size_bytes, _ in held)
                container.space.leave_room(size_bytes + needed_bytes, background=False)
                self.spill_these([name for name, *_ in held])

    def sealed(self, name: str) -> None:
        """Spill what a segment has that was just sealed. Raises nothing of ours: what fails is tried again, in the background."""
        if not self._knows_all or self._backlog.mark(name) is not None:
            with suppress(ChunkstoreError):
                self.spill_all(name)

    def _due(self, now_s: float) -> list[str]:
        """The segments that are due, those first whose extents are oldest."""
        backlog = self._backlog
        held = backlog.held()
        over = backlog.extents - self._rows_max
        over_bytes = sum(item.size_bytes + item.extents * _EXTENT_BYTES for item in held.values()) - self._memory_bytes
        due: list[str] = []
        for name, item in sorted(held.items(), key=lambda pair: pair[1].since_s):
            if over > 0 or over_bytes > 0 or item.size_bytes >= self._bytes or now_s - item.since_s >= self._age_s:
                due.append(name)
                over -= item.extents
                over_bytes -= item.size_bytes + item.extents * _EXTENT_BYTES
        return due

    def _run(self) -> None:
        container = self._container
        try:
            if not self._knows_all:
                for name, size_bytes, extents in container.look(_waiting_extents):
                    self._backlog.came(name, size_bytes, extents)
                self._knows_all = True
            for name in self._due(runtime.monotonic_s()):
                if self._stopped or container.closed or container.fence.error is not None:
                    return
                try:
                    with suppress(SegmentNotFound):
                        self.spill_all(name, background=True)
                except StorageFull as error:
                    if not container.space.disk_low:  # else safe mode has said so
                        self._failed(error)
                    self._not_before_s = runtime.monotonic_s() + _PAUSE_S
                    return
                except (Damaged, Conflict) as error:  # this segment's alone
                    self._failed(error)
        except Exception as error:  # noqa: BLE001  (a bug of a binding must not end it)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._not_before_s = runtime.monotonic_s() + _PAUSE_S
        if not isinstance(error, ChunkstoreError) or not self._container.closed:
            self._container.observer.failed(unexpected(error))


def _count(name: str, view: MetadataView) -> int:
    """How many extents a segment has. Raises ``SegmentNotFound``, ``Damaged``."""
    return sum(1 for _ in inline_chunks(view, find_segment(view, name, None)))


def _waiting_extents(view: MetadataView) -> list[tuple[str, int, int]]:
    """The segments that have extents, with their bytes and number."""
    runs = set(inline_runs(view))
    if not runs:
        return []
    holding = runs_of(view, runs)
    found: list[tuple[str, int, int]] = []
    for key, raw in view.scan(SEGMENT, bytes((SEGMENT[0] + 1,))):
        segment = decode_segment(key[1:].decode("utf-8", "replace"), raw)
        if segment.id in holding:
            extents, size_bytes = size_of_extents(view, (identity for _, identity in inline_chunks(view, segment)))
            if extents:
                found.append((segment.name, size_bytes, extents))
    return found
