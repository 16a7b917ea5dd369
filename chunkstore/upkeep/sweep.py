"""The sweep of orphans: deleting chunks that nothing refers to and no one can refer to any more (protocol 3.14.4, A9).

Promises: LIST first, the rows after it, the fence after them, and only then a deletion. What may go is of an epoch, or of a
session that began, strictly below the epoch that the sweeper had before its LIST (``orphans.judge``): so a sweeper that was deposed
meanwhile, or a LIST that lags, harms nothing at any delay, and what an undecided commit may refer to stays. Ages are a margin only.
A cache that does not hold what was written, rows that contradict each other, and a chunk of a segment that is absent stop it before
anything is deleted. It can be stopped anywhere and begun again.
Leaves out: the journal's own objects, which ``collect`` deletes: an unfinished snapshot goes as soon as newer ones follow it,
and the log of an epoch that never opened is empty, for records follow its OPEN. Temporaries of files and HDFS, which their
bindings delete after a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final

from chunkstore import runtime
from chunkstore.deadline import until
from chunkstore.errors import ChunkExists, ChunkNotFound, ChunkstoreError, Damaged, InvalidArgument
from chunkstore.metadata.codec import decode_garbage, decode_segment
from chunkstore.metadata.index import walk
from chunkstore.metadata.keys import GARBAGE, SEGMENT
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.retained import pinned_lsn
from chunkstore.operations.check import check
from chunkstore.operations.collect import delete_objects
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.orphans import IdSet, judge, list_suspects
from chunkstore.operations.read import ReadContext
from chunkstore.records.arguments import check_kept_folder
from chunkstore.records.names import chunk_session
from chunkstore.records.reports import Found, Orphan, SweepReport, SweptKind
from chunkstore.records.segments import KIND_OBJECT, SegmentRecord
from chunkstore.storage import ChunkInfo, ChunkRange, ChunkStorage, iter_listing

__all__ = ["Found", "Orphan", "SweepReport", "SweptKind", "check_age", "count_garbage", "find_orphans", "sweep"]

_STEP: Final = 256
"""Objects between two looks at the fence."""
_NO_CHUNKS: Final = ("temporary", "request")
_TEMPORARY_MS: Final = 24 * 3_600_000
"""These belong to no epoch: they go at this age, whatever is asked for, or a caller that wrote them may still need them."""


def check_age(age_s_min: object) -> float:
    """Seconds that an orphan must be old. Raises ``InvalidArgument``."""
    if not isinstance(age_s_min, (int, float)) or isinstance(age_s_min, bool) or not 0 <= age_s_min <= 1e9:
        raise InvalidArgument(f"age_s_min must be from 0 to 1e9 seconds, not {age_s_min!r}", argument="age_s_min")
    return float(age_s_min)


def sweep(
    container: OwnedContainer,
    context: ReadContext,
    unfinished: Callable[[], int],
    *,
    delete: bool,
    keep_in: str | None,
    age_s_min: float,
) -> SweepReport:
    """Find orphans, and delete them if told to; one sweep or collection at a time. ``unfinished`` aborts what never became an object.

    Raises ``DeadlineExceeded`` (another one is under way), ``NotOwner``, ``Damaged`` (nothing was deleted), and what the storage raises.
    """
    if keep_in is not None:
        check_kept_folder(keep_in)

    def begin() -> SweepReport:
        epoch = container.serving(container.deadline()).epoch
        try:
            found = find_orphans(context, epoch, age_s_min, strict=delete)
        except Damaged:
            container.check_fence()  # what a successor has removed and collected is absent by our rows
            raise
        if not delete:
            return found.report()
        deleted: list[Orphan] = []
        for step in _steps(found.orphans):
            _delete_step(container, context, step, keep_in)
            deleted += step
        return found.report(deleted, _aborted(unfinished))

    return container.alone(container.collecting, "collection or sweep", begin)


def _delete_step(container: OwnedContainer, context: ReadContext, step: list[Orphan], keep_in: str | None) -> None:
    if keep_in is not None:
        for item in step:
            with container.bounded(container.deadline()):
                _keep(context, item, keep_in)
    # After everything that was looked at; a deletion that is late all the same meets nothing of a successor's.
    container.check_fence()
    delete_objects(container, [item.info.name for item in step])


def _aborted(unfinished: Callable[[], int]) -> int | None:
    # They cost money, not safety; a server may not list them, or not for us.
    try:
        return unfinished()
    except ChunkstoreError:
        return None


def find_orphans(context: ReadContext, epoch: int, age_s_min: float, *, strict: bool = False) -> Found:
    """LIST, then look. ``epoch``: the present one, known before. ``strict``: something is deleted by it.

    Raises what the storage raises; where ``strict``, ``Damaged`` for metadata by which nothing should be deleted.
    """
    listed = IdSet() if strict else None
    suspects, strangers = list_suspects(context, listed)
    found = [Orphan("temporary", b"", info) for info in iter_listing(context.storage, context.names.temporary(""))]
    asks = iter_listing(context.storage, context.names.ask_prefix())
    found += [Orphan("request", b"", info) for info in asks if context.names.parse_ask(info.name) is not None]
    context.recheck()

    def decide(view: MetadataView) -> dict[bytes, str]:
        if listed is not None:
            _require_sound(context, view, listed)
        return {**judge(view, context.names, suspects, epoch=epoch)}

    standings = context.look(decide) if suspects else {}
    candidates = found
    waiting: list[ChunkInfo] = []
    for identity, info in suspects:
        standing = standings[identity]
        if standing == "orphan":
            kind = "chunk" if chunk_session(identity) is None else "session chunk"
            candidates.append(Orphan(kind, identity, info))
        elif standing != "wanted":
            waiting.append(info)
    orphans: list[Orphan] = []
    now_ms = runtime.now_ms()
    for item in _present(context, candidates):
        if _is_old(item, now_ms, age_s_min):
            orphans.append(item)
        else:
            waiting.append(item.info)
    return Found(orphans, waiting, len(strangers))


def count_garbage(view: MetadataView) -> SweptKind:
    """What garbage rows say of chunks and bytes; those that cannot be read, or that pins keep, are left out."""
    chunks = size_bytes = 0
    lowest = pinned_lsn(view)
    for key, raw in view.scan(GARBAGE, bytes((GARBAGE[0] + 1,))):
        with suppress(Damaged):
            garbage = decode_garbage(repr(key), raw)
            if lowest is None or garbage.lsn <= lowest:
                chunks, size_bytes = chunks + garbage.count, size_bytes + garbage.size_bytes
    return SweptKind(chunks, size_bytes)


def _require_sound(context: ReadContext, view: MetadataView, listed: IdSet) -> None:
    """Rows that are hidden, cut off or not there yet make orphans of what is wanted; and where a chunk is gone that a segment names, what
    nothing names may hold its bytes: a merge that an accepted rollback left out. Raises ``CacheDamaged``, ``Damaged``."""
    view.audit()
    epoch = view.head.position.epoch
    for finding in check(context, view, "quick", epoch=epoch, orphans=lambda _: None, progress=lambda _: None):
        if finding.severity == "damage":
            what = f"nothing is swept, because metadata are damaged ({finding.message}); run check"
            raise Damaged(what, object=finding.object, position=finding.position)
    for segment in _segments(view):
        for offset, identity, record in walk(view.get, segment):
            # What came after the LIST is not in it.
            if record.length and record.kind == KIND_OBJECT and identity not in listed:
                chunk = context.names.chunk(identity)
                if not context.storage.exists(chunk):
                    what = f"a chunk of segment {segment.name!r} is absent, and an orphan may be all that is left of its bytes"
                    raise Damaged(f"nothing is swept: {what}; run check --exists", object=chunk, position=offset)


def _segments(view: MetadataView) -> Iterator[SegmentRecord]:
    """Every segment. Raises ``Damaged``."""
    for key, raw in view.scan(SEGMENT, bytes((SEGMENT[0] + 1,))):
        yield decode_segment(key[1:].decode("utf-8", "replace"), raw)


def _is_old(item: Orphan, now_ms: int, age_s_min: float) -> bool:
    modified_ms = item.info.modified_ms
    if item.kind in _NO_CHUNKS:
        return modified_ms is not None and now_ms - modified_ms >= max(_TEMPORARY_MS, age_s_min * 1000)
    if modified_ms is None:
        return age_s_min == 0
    return max(0, now_ms - modified_ms) >= age_s_min * 1000


def _steps(items: list[Orphan]) -> Iterator[list[Orphan]]:
    for begin in range(0, len(items), _STEP):
        yield items[begin : begin + _STEP]


def _present(context: ReadContext, items: list[Orphan]) -> Iterator[Orphan]:
    """Those that are there, as they are now: a LIST may show what was deleted, or the length that something had."""
    for step in _steps(items):
        remote = context.storage.capabilities.remote
        with until(runtime.monotonic_s() + context.op_deadline_s) if remote else nullcontext():
            infos = context.pool.run_all([partial(_stat, context.storage, item.info.name) for item in step])
        for item, info in zip(step, infos, strict=True):
            if info is not None:
                yield item._replace(info=info)


def _stat(storage: ChunkStorage, name: str) -> ChunkInfo | None:
    try:
        return storage.stat(name)
    except ChunkNotFound:
        return None


def _keep(context: ReadContext, item: Orphan, folder: str) -> None:
    """Copy a chunk that has bytes into ``folder`` of the container, unless it is there."""
    if not item.identity or not item.info.length:
        return
    kept = context.names.kept(folder, item.identity)
    # Chunks never change, and their names are never used again: what is there is the copy that was made before a crash.
    with suppress(ChunkNotFound, ChunkExists):
        context.storage.compose(kept, [ChunkRange(item.info.name, 0, item.info.length)])
