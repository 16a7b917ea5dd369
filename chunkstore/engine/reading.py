"""Readable bytes of a container, shared by the owner and by replicas.

Promises: every method is thread-safe, reads one consistent point of history and never writes to the container.
A segment is named by its name or by a handle; a handle of a deleted segment gets ``SegmentNotFound`` even if the name
exists again. Where a stat may be stale (NFS) an owner's fenced look is a commit (protocol A13), and raises ``StorageFull``, too,
while there is no space for it. Leaves out: changing anything (``chunkstore.engine.store``), following (``chunkstore.engine.replica``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from typing import Self, TypeAlias, TypeVar

from chunkstore import runtime
from chunkstore.config import RetentionPolicy
from chunkstore.engine.parts import ContainerParts
from chunkstore.engine.reader import OnDamage, ReaderOptions, StorageReader
from chunkstore.engine.segment import SegmentView
from chunkstore.errors import InvalidArgument, SegmentNotFound
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.retained import pinned_lsn, pins_at, read_pins
from chunkstore.operations import inspect
from chunkstore.operations.attach import list_sessions
from chunkstore.operations.read import ReadContext, find_segment, read, read_into
from chunkstore.operations.tables import TableReader
from chunkstore.records.arguments import (
    SegmentHandle,
    SegmentRef,
    check_buffer,
    check_listing,
    check_number,
    check_range,
    check_timeout,
    resolve,
)
from chunkstore.records.invariants import CHECK_LEVELS, PINNED, CheckLevel, Finding
from chunkstore.records.segments import LayoutChunk, OpenSession, Pin, SegmentInfo, Usage
from chunkstore.upkeep.usage import Space, count_extents, segment_usage

__all__ = [
    "Awaited",
    "ReadableContainer",
    "WaitResult",
    "Watchers",
    "check_wait",
    "context_of",
    "read_view",
]

_ENDED_S = 0.5
_APPEARS_S = 0.05
T = TypeVar("T")


Awaited: TypeAlias = tuple[SegmentRef, int]
WaitResult: TypeAlias = SegmentInfo | SegmentNotFound


def check_wait(offset: object, timeout_s: float) -> None:
    """Check the arguments of ``wait``. Raises ``InvalidArgument``."""
    check_number(offset, "offset")
    check_timeout(timeout_s)


def _is_over(state: WaitResult, offset: int) -> bool:
    return isinstance(state, SegmentNotFound) or state.length > offset or state.sealed


class Watchers:
    """Who is called after each commit. Thread-safe."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._calls: set[Callable[[], None]] = set()

    def add(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` from now on, until the result is called."""
        with self._lock:
            self._calls.add(wake)
        return partial(self._remove, wake)

    def _remove(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._calls.discard(wake)

    def wake(self, _lsn: int) -> None:
        """Call all of them."""
        if self._calls:
            with self._lock:
                for wake in self._calls:
                    wake()


class ReadableContainer:
    """See the module. Subclasses set ``_context``, ``_parts`` and ``_space``."""

    _context: ReadContext
    _parts: ContainerParts
    _space: Space
    uuid: bytes
    """The container's, of 16 bytes."""
    _made_in: runtime.Runtime | None = None
    """While it is open, in the process that opened it."""

    def __del__(self) -> None:
        """Closed in a thread of its own, with a ``ResourceWarning``."""
        made_in, self._made_in = self._made_in, None
        if made_in is not None:
            made_in.forgotten(repr(self), self.close)

    def _leave_to_parent(self) -> None:
        """For ``processes.tell_in_child``: nothing here is this process's."""
        self._made_in = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything."""
        raise NotImplementedError

    @property
    def container(self) -> str:
        """The container's name."""
        return self._context.names.container

    def _present_epoch(self) -> int:
        raise NotImplementedError

    def _refresh(self, most_s: float | None = None) -> None:
        """Bring the view up to date before waiting on, for ``most_s`` at most; an owner is always up to date."""

    def __getitem__(self, name: SegmentRef) -> SegmentView:
        """The segment of this name. Raises as ``info``. Retry: safe."""
        return SegmentView(self, self.open_read(name))

    def __iter__(self) -> Iterator[str]:
        """The segments' names in order. Raises as ``segments``."""
        return (info.name for info in self.segments())

    def open_read(self, segment: SegmentRef) -> SegmentHandle:
        """A read handle. Never writes. Raises as ``info``."""
        info = self.info(segment)
        return SegmentHandle(info.name, info.id, False)

    def exists(self, segment: SegmentRef) -> bool:
        """Whether a segment of this name (or the handle's own) exists. Raises as ``info``, but for ``SegmentNotFound``."""
        try:
            self.info(segment)
        except SegmentNotFound:
            return False
        return True

    __contains__ = exists

    def info(self, segment: SegmentRef) -> SegmentInfo:
        """What is known about a segment.

        Raises ``InvalidArgument``, ``SegmentNotFound``, ``NotOwner``, ``Closed``, ``Damaged``, ``StorageUnavailable``,
        ``DeadlineExceeded``, and where a stat may be stale ``StorageFull``. Retry: safe.
        """
        name, identity = resolve(segment)
        return inspect.info_of(read_view(self, lambda view: find_segment(view, name, identity)))

    def segments(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None
    ) -> Iterator[SegmentInfo]:
        """Segments whose name begins with ``prefix``, in order of their UTF-8 bytes, those above ``after`` only.

        Pages of 1,000 are read at a time; each page is consistent. Raises as ``info`` but for ``SegmentNotFound``, also while
        iterating.
        """
        check_listing(prefix, after, limit)
        self._context.check_open()
        return inspect.list_segments(self._context, prefix, after, limit)

    def usage(self, name: SegmentRef | None = None) -> Usage:
        """What the container takes up, or one segment of it. No scan: rows are counted as they change; extents, which are bounded, now.

        The container's first answer lists journal and snapshots, as does the first one after ``collect``; a replica, which does not see
        what its owner writes, lists again after a minute. Raises as ``info`` (``SegmentNotFound`` of a segment). Retry: safe.
        """
        from chunkstore.metadata.reserved import find_quota

        if name is not None:
            key, identity = resolve(name, "name")
            return read_view(self, lambda view: segment_usage(view, find_segment(view, key, identity)))
        totals, extents, quota_bytes = read_view(
            self, lambda view: (view.totals, count_extents(view), find_quota(view))
        )
        used = self._space.usage(totals)._replace(**extents._asdict())
        return used if quota_bytes is None else used._replace(quota_bytes=quota_bytes)

    def retention(self) -> dict[str, RetentionPolicy]:
        """The policies by name, or by prefix and ``*``; see ``set_retention``. Raises as ``info``; ``Damaged``: a policy. Retry: safe."""
        from chunkstore.metadata.reserved import scan_policies

        return read_view(self, lambda view: dict(scan_policies(view)))

    def layout(self, segment: SegmentRef) -> Iterator[LayoutChunk]:
        """The chunks of a segment in order. Raises as ``info``, also while iterating. Retry: safe."""
        name, identity = resolve(segment)
        self.info(segment)
        return inspect.layout(self._context, name, identity, self._present_epoch())

    def read(self, segment: SegmentRef, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; short only at the segment's end, ``b""`` at it.

        Raises as ``info``, and ``SegmentTruncated`` (``start_offset`` is the first readable byte), ``BadOffset`` (beyond the
        length). ``Damaged`` names the first bad block of those that the range touches. Retry: safe.
        """
        name, identity = resolve(segment)
        check_range(offset, length)
        self._context.check_open()
        return read(self._context, name, identity, offset, length)

    def read_into(self, segment: SegmentRef, offset: int, buffer: bytearray | memoryview) -> int:
        """Fill ``buffer`` (writable, contiguous, of shape (n,)) from ``offset``; returns the count. Raises as ``read``; what the
        buffer holds is undefined then."""
        name, identity = resolve(segment)
        target = check_buffer(buffer)
        check_number(offset, "offset")
        self._context.check_open()
        return read_into(self._context, name, identity, offset, target)

    def offset_at(self, segment: SegmentRef, time_ms: int) -> int:
        """The start of the chunk that was growing at ``time_ms`` (milliseconds since 1970): no byte below it is younger.

        Chunk-granular and from labels of the owners' clocks. Raises as ``info``.
        """
        name, identity = resolve(segment)
        check_number(time_ms, "time_ms")
        self._context.check_open()
        return inspect.offset_at(self._context, name, identity, time_ms)

    def pins(self) -> list[Pin]:
        """What is pinned, in order of the names' UTF-8 bytes; expired pins, too, until a collection ends them.

        Raises ``NotOwner``, ``Closed``, ``Damaged``, ``StorageUnavailable``, ``DeadlineExceeded``, and where a stat may be stale
        ``StorageFull``. Retry: safe.
        """
        return read_view(self, read_pins)

    def table(self, namespace: str) -> TableReader:
        """The table of this namespace, to read. Raises ``InvalidArgument``."""
        return TableReader(self._context, namespace)

    def sessions(self) -> list[OpenSession]:
        """The sessions that are open, in the order in which they were opened. Raises and retry as ``pins``."""
        return read_view(self, list_sessions)

    def wait(self, segment: SegmentRef, offset: int, timeout_s: float) -> SegmentInfo:
        """Wait until the segment reaches beyond ``offset``, or is sealed, or ``timeout_s`` passed; returns its state then.

        A replica looks for news at once, and then at its pace (``Tuning.follow_s_max``).

        Raises as ``info`` (``SegmentNotFound`` also when it is deleted meanwhile), and at a replica as ``Replica.refresh``.
        """
        check_wait(offset, timeout_s)
        return self._wait(segment, offset, timeout_s, lambda: False, at_once=True)

    def _wait(
        self, segment: SegmentRef, offset: int, timeout_s: float, ended: Callable[[], bool], *, at_once: bool = False
    ) -> SegmentInfo:
        """As ``wait``. ``ended`` is asked twice a second, and ends it early. ``at_once``: without a pause before the first look."""
        deadline_s = runtime.monotonic_s() + timeout_s
        while True:
            waiter = runtime.event()
            unwatch = self._watch(waiter.set)
            try:
                info = self.info(segment)
                now_s = runtime.monotonic_s()
                if _is_over(info, offset) or now_s >= deadline_s or ended():
                    return info
                look_s = min(deadline_s, now_s + self._poll_s(at_once=at_once))
                while now_s < look_s and not waiter.wait(min(look_s - now_s, _ENDED_S)) and not ended():
                    now_s = runtime.monotonic_s()
            finally:
                unwatch()
            at_once = False
            self._refresh(max(0.0, deadline_s - runtime.monotonic_s()))

    def _poll_s(self, *, at_once: bool) -> float:
        """How long until the next look for news is due; ``at_once``: to a caller that has just come."""
        raise NotImplementedError

    def _watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` after each commit of this owner, and at its end; returns the call that ends that. A replica calls nothing.

        ``wake`` runs in the committing thread, with locks held: it must neither raise nor wait. Raises nothing. Retry: safe.
        """
        return lambda: None

    def _poll_waits(self, waits: Collection[Awaited], *, refresh: bool) -> tuple[dict[Awaited, WaitResult], float]:
        """Which of many ``wait`` calls, each a segment and an offset, are over now, by one look; and in how many seconds to ask again.

        A result is the segment's state, or ``SegmentNotFound``. ``refresh``: a replica catches up first if something is not over.
        ``_watch`` says when to ask earlier. Raises as ``read_view``, and at a replica as ``Replica.refresh``. Retry: safe.
        """
        over = self._over(waits)
        if refresh and len(over) < len(set(waits)):
            self._refresh()
            over = self._over(waits)
        return over, self._poll_s(at_once=False)

    def _over(self, waits: Collection[Awaited]) -> dict[Awaited, WaitResult]:
        def find(view: MetadataView) -> dict[SegmentRef, WaitResult]:
            found: dict[SegmentRef, WaitResult] = {}
            for segment in {segment for segment, _ in waits}:
                try:
                    found[segment] = inspect.info_of(find_segment(view, *resolve(segment)))
                except SegmentNotFound as error:
                    found[segment] = error
            return found

        states = read_view(self, find)
        return {wait: state for wait in waits if _is_over(state := states[wait[0]], wait[1])}

    def _poll_segment(self, segment: SegmentRef) -> tuple[SegmentInfo | None, float]:
        """The segment's state, or None where there is none, and in how many seconds to ask again. A replica catches up first. Raises as
        ``info`` but for ``SegmentNotFound``, and at a replica as ``Replica.refresh``. Retry: safe."""
        self._refresh()
        with suppress(SegmentNotFound):
            return self.info(segment), 0.0
        return None, 1.0 if self._context.remote else _APPEARS_S

    def reader(
        self,
        segment: SegmentRef,
        *,
        start: int | None = None,
        stop: int | None = None,
        prefetch_bytes: int = 8 << 20,
        follow: bool = False,
        piece_bytes: int = 1 << 20,
        on_damage: OnDamage = "raise",
        wait_for_segment_s: float = 0,
    ) -> StorageReader:
        """Iterate over a segment's bytes with read-ahead; see ``StorageReader``. With ``on_damage="skip"`` blocks that are damaged are
        left out, and named by the reader's ``skipped``. A segment that does not exist yet may appear within ``wait_for_segment_s``.
        Raises as ``read``. Retry: safe."""
        options = ReaderOptions(start, stop, prefetch_bytes, follow, piece_bytes, on_damage)
        options.check()
        end_s = runtime.monotonic_s() + check_timeout(wait_for_segment_s, "wait_for_segment_s")
        while (left_s := end_s - runtime.monotonic_s()) > 0:
            found, pause_s = self._poll_segment(segment)
            if found is not None:
                break
            runtime.sleep_s(min(pause_s, left_s))
        return StorageReader(self, self.info(segment), self._wait, options, remote=self._context.remote)

    def check(self, level: CheckLevel = "quick", *, progress: Callable[[int], None] | None = None) -> list[Finding]:
        """Compare journal, metadata, index and (``exists``, ``deep``) chunks; returns every violated invariant.
        ``progress`` gets the bytes of each chunk, once it is checked.

        Read-only, but for a damaged metadata cache, which is made anew (a warning says so). Raises ``InvalidArgument`` (level),
        ``NotOwner``, ``Closed``, ``StorageUnavailable``, ``DeadlineExceeded``, ``StorageFull`` (no room for a replay, or for a new
        cache). Retry: safe.
        """
        from chunkstore.operations.check import check, check_cache

        if level not in CHECK_LEVELS:
            raise InvalidArgument(f"level must be one of {', '.join(CHECK_LEVELS)}, not {level!r}", argument="level")
        self._context.check_open()
        context = self._context
        findings = list(check_cache(context))
        lowest = context.look(pinned_lsn)
        found = context.look(lambda view: self._parts.journal_findings(level, view, lowest))
        if any(item.invariant == PINNED for item in found):
            context.recheck()
            if context.look(pinned_lsn) != lowest:
                found = [item for item in found if item.invariant != PINNED]  # it has ended while we looked
            pins = context.look(lambda view: pins_at(view, lowest or 0))
            found = [
                item._replace(message=f"{item.message}; pins: {pins}") if item.invariant == PINNED else item
                for item in found
            ]
        findings += found
        epoch, orphans, count = self._present_epoch(), self._space.found_orphans, progress or (lambda _: None)
        findings += context.look(
            lambda view: list(check(context, view, level, epoch=epoch, orphans=orphans, progress=count))
        )
        context.check()
        return findings


def context_of(container: ReadableContainer) -> ReadContext:
    """What reads rows and chunks, for packages of ours that read them themselves."""
    return container._context  # noqa: SLF001  (this module's)


def read_view(container: ReadableContainer, call: Callable[[MetadataView], T]) -> T:
    """What ``call`` makes of one consistent view of the rows, for packages of ours that read them themselves.

    It may be called again. Raises what it raises, and as ``info`` but for ``SegmentNotFound``. Retry: safe.
    """
    context = context_of(container)
    context.check_open()
    try:
        return context.look(call)
    finally:
        # Also before an error: that there is no segment may be news of yesterday.
        context.check()
