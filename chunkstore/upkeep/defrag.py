"""Merging small chunks: what a step looks at, and carrying out one run (protocol 3.10).

Promises: bytes that can be read never change. A run is composed into a new chunk of our present epoch, whose CRCs follow from the
metadata of the old ones, never from bytes that nothing verified: rot that is copied stays visible. With ``verify`` the new chunk is
read back and compared before it takes their place. What happens to the segment meanwhile wins: the run is planned anew. A new chunk
whose commit certainly did not happen is deleted; after ``OutcomeUnknown`` never.
A step reads 20,000 chunk rows at most (some tenths of a second), and performs runs until ``run_bytes_max`` are moved or 64 runs are
done; it goes on from a position, so that nothing is walked twice.
Leaves out: which chunks (``defrag_plan``), when (the caller), deleting the old ones (the collector).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal, NamedTuple

from chunkstore import runtime
from chunkstore.changes import NewChunk, Replace
from chunkstore.checksum import crc32c_extend
from chunkstore.config import LIMITS, DefragPolicy
from chunkstore.deadline import Deadline
from chunkstore.errors import ChunkNotFound, Conflict, Damaged, InvalidArgument, SegmentNotFound
from chunkstore.metadata.keys import chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import find_borders
from chunkstore.operations.attach import deleted_unless_committed
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.copy_ranges import compose_chunk
from chunkstore.operations.inspect import info_of, list_segments
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.operations.read import ReadContext, find_segment
from chunkstore.operations.read_slices import SliceReader
from chunkstore.operations.replace import replace
from chunkstore.records.arguments import SegmentRef, resolve
from chunkstore.records.blocks import Borders, Piece, known_pieces, merged_borders
from chunkstore.records.layout import ReadSlice
from chunkstore.records.names import Address, ContainerNames
from chunkstore.records.reports import DefragAction, DefragReport
from chunkstore.records.segments import CLOSED, KIND_INLINE, ChunkRecord, SegmentInfo, SegmentRecord
from chunkstore.storage import ChunkHandle, ChunkRange
from chunkstore.upkeep.defrag_plan import READ_BACK_BYTES, DefragChunk, plan_runs, requests_of, undecided_from

__all__ = [
    "TRIES",
    "DefragAction",
    "DefragReport",
    "DefragStep",
    "check_policy",
    "defrag_all",
    "defrag_step",
    "plan_all",
    "plan_defrag_step",
]

_RUNS_OF_A_STEP = 64
TRIES = 5
"""At a segment that others change all the time."""
_READERS = 4
_SOURCES_OF_A_DEADLINE = 256
"""Composing may take ``op_deadline_s`` for each so many chunks."""
_UNVERIFIED_BYTES = 1 << 20
_CLOCKS_DIFFER_MS = 60_000
"""Before a pin counts as ended: by less the clocks of two machines may differ, and it is over soon."""


class DefragStep(NamedTuple):
    """What one step of a segment did, or would do. ``refused``: runs that are damaged, and stay as they are. ``carried_bytes``: of what was
    moved, what went through this client. ``position``: where the next step begins; None: after it there is nothing."""

    actions: tuple[DefragAction, ...]
    refused: tuple[DefragAction, ...]
    carried_bytes: int
    changed: bool
    """Whether something else changed the segment meanwhile: the step ended there, to be planned anew."""
    position: int | None
    ahead: bool = False
    """Whether chunks stay because their labels are later than our clock."""
    settled: int = 0
    """What is in front of this offset is merged with nothing that may come after it. After a step that ends the segment."""


class _Planned(NamedTuple):
    action: DefragAction
    ids: tuple[bytes, ...]
    dead: int
    """Bytes of the first chunk that were truncated: they are left out."""


class _Plan(NamedTuple):
    runs: tuple[_Planned, ...]
    following: int | None
    """Where the next step begins."""
    ahead: bool
    settled: int


class _Source(NamedTuple):
    """What one old chunk gives: a range of it, and its pieces; the chunk's first byte is byte ``chunk_offset`` of the segment."""

    address: Address
    chunk_offset: int
    start: int
    stop: int
    pieces: tuple[Piece, ...]
    around: tuple[Borders | None, ...]
    """For each piece whose CRC is not known the borders around it, which verify it."""


# ---- looking


def plan_defrag_step(context: ReadContext, name: str, policy: DefragPolicy, position: int, *, wait: bool) -> _Plan:
    """Plan the runs of the next chunks of a segment from offset ``position`` on.

    ``wait``: what is to come may still fill the last chunk. Raises ``SegmentNotFound``, ``Damaged``, and what looking raises.
    """
    now_ms = runtime.now_ms()
    return context.look(lambda view: _plan(view, context.names, name, policy, position, now_ms, wait))


def _plan(
    view: MetadataView,
    names: ContainerNames,
    name: str,
    policy: DefragPolicy,
    position: int,
    now_ms: int,
    wait: bool,
) -> _Plan:
    segment = find_segment(view, name, None)
    chunks, following, newest_ms = _window(view, names, segment, position, now_ms - round(policy.age_s_min * 1000))
    target = min(segment.chunk_size_bytes_max, policy.run_bytes_max)
    if following is None:
        while chunks and not chunks[-1].free:
            chunks.pop()  # nothing is merged after it, until it is
        runs = plan_runs(chunks, policy, target, growing=wait and not segment.sealed)
    else:
        runs = plan_runs(chunks, policy, target, growing=True)
        again = undecided_from(chunks, runs, policy, target)
        if again is not None and again < len(chunks):
            runs = [run for run in runs if run.last <= again]
            following = chunks[again].offset
    planned = []
    for first, last in runs:
        start, final = chunks[first].offset, chunks[last - 1]
        stop = final.offset + final.length
        requests = requests_of(last - first, stop - start, policy)
        kind: Literal["merge", "relocate"] = "merge" if last - first > 1 else "relocate"
        action = DefragAction(kind, name, start, stop, last - first, requests)
        planned.append(_Planned(action, tuple(chunk.id for chunk in chunks[first:last]), chunks[first].dead))
    settled = position
    if chunks:
        again = undecided_from(chunks, (), policy, target) or 0
        settled = chunks[again].offset if again < len(chunks) else chunks[-1].offset + chunks[-1].length
    return _Plan(tuple(planned), following, newest_ms > now_ms + _CLOCKS_DIFFER_MS, settled)


def _window(
    view: MetadataView, names: ContainerNames, segment: SegmentRecord, position: int, made_before_ms: int
) -> tuple[list[DefragChunk], int | None, int]:
    """The chunks from ``position`` on, as many as a step reads, the offset after them (None: they are the last), and the latest
    label of those that are closed."""
    begin, identity = segment.start_offset - segment.first_chunk_skip, segment.first_chunk
    if position > segment.start_offset:
        found = view.locate(segment.id, position) if position < segment.length else None
        if found is None:
            return [], None, 0
        identity, begin = found
    epoch, chunks, newest_ms = view.head.position.epoch, list[DefragChunk](), 0
    while identity:
        if len(chunks) == LIMITS.defrag_chunks_max:
            return chunks, begin, newest_ms
        record = decode_found_chunk(names, identity, view.get(chunk_key(identity)))
        dead = max(0, segment.start_offset - begin)
        free = record.state == CLOSED or record.epoch != epoch
        newest_ms = max(newest_ms, record.created_ms) if free else newest_ms
        # A head that nothing verifies apart from the rest is not left out, and so its chunk stays.
        free = free and record.created_ms <= made_before_ms and record.length > dead
        free = free and record.kind != KIND_INLINE  # spills make chunks of them
        free = free and not (dead and find_borders(view, identity, record, dead, record.length) is None)
        chunks.append(DefragChunk(identity, begin + dead, record.length - dead, dead, free))
        begin, identity = begin + record.length, record.next
    return chunks, None, newest_ms


# ---- doing


def defrag_step(
    container: OwnedContainer,
    context: ReadContext,
    name: str,
    policy: DefragPolicy,
    position: int = 0,
    *,
    wait: bool = True,
) -> DefragStep:
    """Plan the next runs of a segment from offset ``position`` on, and carry them out: see the module for the bounds.

    Each run is a commit of its own, atomic and durable. ``wait``: what is to come may still fill the last chunk; for callers that come
    again. Raises as ``plan_defrag_step``, and the errors of commits and of the storage. Retry: safe.
    """
    planned, following, ahead, settled = plan_defrag_step(context, name, policy, position, wait=wait)
    done: list[DefragAction] = []
    refused: list[DefragAction] = []
    moved = carried = 0
    for number, run in enumerate(planned):
        if number == _RUNS_OF_A_STEP or moved >= policy.run_bytes_max:
            return DefragStep(tuple(done), tuple(refused), carried, False, run.action.start, ahead)
        container.check_owner()
        try:
            carried += _merge(container, run, policy)
        except (Conflict, ChunkNotFound) as error:
            start = run.action.start
            if isinstance(error, Conflict) or run not in plan_defrag_step(context, name, policy, start, wait=wait).runs:
                return DefragStep(tuple(done), tuple(refused), carried, True, start, ahead)
            refused.append(run.action)  # a chunk is lost that the newest metadata name
        except Damaged:
            refused.append(run.action)
        else:
            done.append(run.action)
        moved += run.action.size_bytes
    return DefragStep(tuple(done), tuple(refused), carried, False, following, ahead, settled)


def _merge(container: OwnedContainer, run: _Planned, policy: DefragPolicy) -> int:
    """Make the new chunk and commit it; how many bytes went through this client.

    Raises ``Conflict``, ``ChunkNotFound`` (both: the segment has changed), ``Damaged`` (what is stored is not what the metadata say), and
    the errors of commits and of the storage.
    """
    action = run.action
    segment_id, sources = container.look(partial(_sources, container.names, run))
    reader = SliceReader(container.storage, action.segment, remote=container.remote)
    with container.bounded(container.deadline()):
        borders = merged_borders([piece for source in sources for piece in _pieces(container, reader, source)])
    # Of the epoch that is to commit it: if another has begun by then, that is a conflict.
    identity = container.serving(container.deadline()).new_chunk(segment_id)
    chunk = container.names.chunk(identity)
    ranges = [ChunkRange(source.address.object, source.start, source.stop - source.start) for source in sources]
    limit_s = container.settings.op_deadline_s * (1 + len(ranges) // _SOURCES_OF_A_DEADLINE)
    with deleted_unless_committed(container, (identity,)):
        with container.bounded(Deadline(limit_s)):
            carried_bytes = compose_chunk(container.storage, chunk, ranges)
        if policy.verify:
            _read_back(container, reader, chunk, action.start, borders)
        new = (NewChunk(identity, borders),)
        replace(container, Replace(action.segment, action.start, action.stop, run.ids, new))
    return carried_bytes


def _sources(names: ContainerNames, run: _Planned, view: MetadataView) -> tuple[int, list[_Source]]:
    """The segment's id, and what each chunk of a run gives. Raises ``SegmentNotFound``, ``Conflict``, ``Damaged``."""
    segment = find_segment(view, run.action.segment, None)
    offset, sources = run.action.start, list[_Source]()
    for identity in run.ids:
        raw = view.get(chunk_key(identity))
        if raw is None:
            where = f"chunks of segment {segment.name!r} in [{run.action.start}, {run.action.stop})"
            raise Conflict(where, expected=identity.hex(), found="removed and collected")
        record = decode_found_chunk(names, identity, raw)
        start = 0 if sources else run.dead
        sources.append(_source(view, names, identity, record, offset - start, start))
        offset += record.length - start
    if offset != run.action.stop:
        where = f"chunks of segment {segment.name!r} in [{run.action.start}, {run.action.stop})"
        raise Conflict(where, expected=run.action.stop, found=offset)
    return segment.id, sources


def _source(
    view: MetadataView, names: ContainerNames, identity: bytes, chunk: ChunkRecord, chunk_offset: int, start: int
) -> _Source:
    """The bytes of a chunk from ``start`` on."""
    stop = chunk.length
    borders = find_borders(view, identity, chunk, start, stop)
    pieces = tuple(known_pieces(Piece(start, stop, borders)))
    around = tuple(
        None if piece.borders is not None else find_borders(view, identity, chunk, piece.start, piece.stop)
        for piece in pieces
    )
    return _Source(names.address(identity, chunk), chunk_offset, start, stop, pieces, around)


def _pieces(container: OwnedContainer, reader: SliceReader, source: _Source) -> Iterator[Piece]:
    """The pieces of a source with their CRCs: most are known; the rest is read, verified where anything verifies it.

    Raises ``Damaged``, and what the storage raises.
    """
    for piece, around in zip(source.pieces, source.around, strict=True):
        if piece.borders is not None:
            yield piece
            continue
        start, stop, _ = piece
        at, crcs = [start], [0]
        step = stop - start if around is not None else _UNVERIFIED_BYTES
        while at[-1] < stop:
            length = min(step, stop - at[-1])
            if around is not None:
                data = reader.read(ReadSlice(source.address, source.chunk_offset, at[-1], length, 0, around))
            else:
                # A chunk that never had a CRC: from now on it has one.
                data = container.storage.read(ChunkHandle(source.address.object, False), at[-1], length)
                if len(data) != length:
                    raise Damaged("the chunk is shorter than its record", object=source.address.object, position=at[-1])
            crcs.append(crc32c_extend(crcs[-1], data))
            at.append(at[-1] + length)
        yield Piece(start, stop, Borders(at, crcs))


def _read_back(container: OwnedContainer, reader: SliceReader, chunk: str, offset: int, borders: Borders) -> None:
    """Compare a new chunk, whose first byte is byte ``offset`` of its segment. Raises ``Damaged``, and what the storage raises."""
    calls: list[Callable[[], None]] = []
    low, length = 0, borders.at[-1]
    while low < length:
        part = borders.between(low, min(length, low + READ_BACK_BYTES))
        calls.append(partial(_compare, reader, ReadSlice(Address(chunk, 0), offset, low, part.at[-1] - low, 0, part)))
        low = part.at[-1]
    for begin in range(0, len(calls), _READERS):
        with container.bounded(container.deadline()):
            container.pool.run_all(calls[begin : begin + _READERS])


def _compare(reader: SliceReader, piece: ReadSlice) -> None:
    reader.read(piece)


# ---- all of it


def check_policy(policy: DefragPolicy | None) -> DefragPolicy:
    """The policy, or the default one. Raises ``InvalidArgument``."""
    if policy is not None and not isinstance(policy, DefragPolicy):
        raise InvalidArgument(f"policy must be a DefragPolicy or None, not {policy!r}", argument="policy")
    return policy or DefragPolicy()


def plan_all(context: ReadContext, name: SegmentRef | None, policy: DefragPolicy) -> DefragReport:
    """What ``defrag_all`` would do by what the view shows. Raises as ``defrag_all``."""

    def step(key: str, position: int) -> DefragStep:
        planned, following, ahead, _ = plan_defrag_step(context, key, policy, position, wait=False)
        return DefragStep(tuple(run.action for run in planned), (), 0, False, following, ahead)

    return defrag_all(context, name, step)


def defrag_all(
    context: ReadContext,
    name: SegmentRef | None,
    step: Callable[[str, int], DefragStep],
    done: Callable[[DefragAction], None] | None = None,
) -> DefragReport:
    """Do steps of each segment to its end. ``done`` is called after each new chunk. A segment of which something
    else changes every run meanwhile is left after 5 tries. Raises ``SegmentNotFound`` (of ``name``), and what
    ``step`` raises, but for ``Damaged``."""
    segments: Iterable[SegmentInfo]
    if name is None:
        segments = list_segments(context, "", None, None)
    else:
        key, identity = resolve(name, "name")
        segments = [info_of(context.look(lambda view: find_segment(view, key, identity)))]
    actions: list[DefragAction] = []
    refused: dict[str, None] = {}
    ahead: dict[str, None] = {}
    looked = chunks = carried = 0
    for segment in segments:
        looked, chunks = looked + 1, chunks + segment.chunk_count
        position: int | None = 0
        tries = 0
        while position is not None and tries < TRIES:
            try:
                found = step(segment.name, position)
            except SegmentNotFound:
                break  # deleted since, or now a part of another
            except Damaged:
                refused[segment.name] = None
                break
            actions += found.actions
            carried += found.carried_bytes
            if found.refused:
                refused[segment.name] = None
            if found.ahead:
                ahead[segment.name] = None
            tries = tries + 1 if found.changed and not found.actions else 0
            position = found.position
            if done is not None:
                for action in found.actions:
                    done(action)
    merged = sum(action.chunks - 1 for action in actions)
    moved = sum(action.size_bytes for action in actions)
    requests = sum(action.requests for action in actions)
    return DefragReport(
        looked, chunks, chunks - merged, moved, requests, carried, tuple(actions), tuple(refused), tuple(ahead)
    )
