"""Orphans: chunk objects on the storage that no metadata speaks of (invariant 23, protocol 3.14.4, A9). What is one is decided here.

Promises: reads only. ``judge`` looks at rows only, which have to be read after the listing: what is under way is distinguished from what
no one will ever refer to by epochs, never by ages. A chunk is referenced when a row names it, by its id or in its ``object`` field,
whatever else is wrong with that row. ``orphan_findings`` says it for a check: orphans cost space and nothing else ("info"); a chunk
of an epoch that no one has claimed is "damage". One that was claimed may be a successor's, whose rows are not seen here.
``IdSet`` is for passes over all chunks: some 20 bytes for each, a fifth of what a ``set`` takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_chunk, decode_garbage, decode_segment
from chunkstore.metadata.keys import CHUNK, GARBAGE, SEGMENT, chunk_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.read import ReadContext
from chunkstore.records.invariants import ORPHANED, Finding
from chunkstore.records.names import ContainerNames, chunk_epoch, chunk_session, named_chunks, session_epoch
from chunkstore.storage import ChunkInfo, iter_listing

__all__ = ["IdSet", "Standing", "Suspect", "judge", "list_suspects", "orphan_findings"]


_SHOWN_MAX = 100
_IN_FLIGHT_MS = 24 * 3_600_000
"""A check reports what may be on its way when it has been for so long."""
_PAGE: Final = 1000

Standing: TypeAlias = Literal["orphan", "wanted", "under way", "never opened"]
"""An orphan is referenced by nothing, and no one can refer to it any more. What is under way may still be: it is of the present epoch,
or of a session of that epoch or of a later one. "never opened": no owner whose OPEN is seen can have written it."""


class Suspect(NamedTuple):
    """A chunk that a LIST shows and that had no row then."""

    identity: bytes
    info: ChunkInfo

    @property
    def age_ms(self) -> int | None:
        """How long ago the storage says it was written; None if it does not."""
        return None if self.info.modified_ms is None else max(0, runtime.now_ms() - self.info.modified_ms)


def list_suspects(context: ReadContext, listed: IdSet | None = None) -> tuple[list[Suspect], list[str]]:
    """The chunks of a LIST that have no row, and the names there that are not those of a chunk. ``listed`` gets the ids of all
    chunks. Raises what the storage raises."""
    suspects: list[Suspect] = []
    strangers: list[str] = []
    page: list[Suspect] = []

    def without_rows(view: MetadataView) -> list[Suspect]:
        return [item for item in page if view.get(chunk_key(item.identity)) is None]

    for info in iter_listing(context.storage, context.names.data_prefix()):
        identity = context.names.parse_chunk(info.name)
        if identity is None:
            strangers.append(info.name)
            continue
        if listed is not None:
            listed.add(identity)
        page.append(Suspect(identity, info))
        if len(page) == _PAGE:
            context.check_open()  # a long listing does not hold up a close
            suspects += context.look(without_rows)
            page = []
    return suspects + (context.look(without_rows) if page else []), strangers


def judge(view: MetadataView, names: ContainerNames, suspects: list[Suspect], *, epoch: int) -> dict[bytes, Standing]:
    """What each suspect is, by the rows of ``view``, which was opened after the LIST. ``epoch``: that of the judge, known before it.

    Everything that epochs below have left is decided by our OPEN, and is in the rows. A session's id is a position of history: one that
    began below our epoch and has no row has ended, and what it did not attach it never will; of one that began later, an old
    state knows nothing.
    """
    wanted = {item.identity for item in suspects}
    referenced = (
        {identity for named in _named(view, names) for identity in named if identity in wanted} if wanted else set()
    )
    return {identity: _standing(view, identity, referenced, epoch) for identity in wanted}


def _standing(view: MetadataView, identity: bytes, referenced: set[bytes], epoch: int) -> Standing:
    session = chunk_session(identity)
    if identity in referenced or (session is not None and view.get(session_key(session)) is not None):
        return "wanted"
    own = chunk_epoch(identity) if session is None else session_epoch(session)
    if own < 1 or (own > epoch and session is None):
        return "never opened"
    return "orphan" if own < epoch else "under way"


def _named(view: MetadataView, names: ContainerNames) -> Iterator[tuple[bytes, ...]]:
    """What each row of segments, chunks and garbage names; of a row that cannot be read, its key."""
    for kind in (SEGMENT, CHUNK, GARBAGE):
        for key, raw in view.scan(kind, bytes((kind[0] + 1,))):
            try:
                if kind == SEGMENT:
                    segment = decode_segment(key, raw)
                    yield segment.first_chunk, segment.last_chunk
                elif kind == CHUNK:
                    yield named_chunks(names, key[1:], decode_chunk(key, raw))
                else:
                    garbage = decode_garbage(key, raw)
                    yield garbage.first, garbage.last
            except Damaged:
                yield (key[1:],)


def orphan_findings(context: ReadContext, *, epoch: int, found: Callable[[int], None]) -> Iterator[Finding]:
    """List the chunks and report those that nothing refers to. ``epoch``: the present one. ``found`` learns the bytes of them all, at
    the end. Raises what the storage raises."""
    suspects, strangers = list_suspects(context)
    for name in strangers:
        yield Finding(ORPHANED, "warning", "", "", name, 0, "this is not a chunk's name; no program of ours made it")
    if not suspects:
        found(0)
        return
    # What was committed, attached or opened meanwhile is no orphan.
    context.recheck()
    with context.store().view() as view:
        epoch = max(epoch, view.head.position.epoch)
        standings = judge(view, context.names, suspects, epoch=epoch)
    shown = shown_bytes = rest = rest_bytes = 0
    for item in suspects:
        if shown >= _SHOWN_MAX:
            if standings[item.identity] != "wanted":
                rest += 1
                rest_bytes += item.info.length
            continue
        finding = _finding(context, item, standings[item.identity])
        if finding is not None:
            shown += 1
            shown_bytes += item.info.length
            yield finding
    if rest:
        what = f"about {rest} more orphans of {rest_bytes} bytes"
        yield Finding(ORPHANED, "info", "", "", context.names.data_prefix(), 0, what)
    found(shown_bytes + rest_bytes)


def _finding(context: ReadContext, item: Suspect, standing: Standing) -> Finding | None:
    own = chunk_epoch(item.identity)
    if standing == "never opened" and own and context.storage.exists(context.names.epoch(own)):
        standing = "under way"
    if standing == "wanted" or (standing == "under way" and (item.age_ms is None or item.age_ms < _IN_FLIGHT_MS)):
        return None
    name = item.info.name
    if not context.storage.exists(name):
        return None  # a collector had it
    age = "of unknown age" if item.age_ms is None else f"{item.age_ms // 1000} s old"
    size = f"{item.info.length} bytes, {age}"
    if standing == "never opened":
        what = f"epoch {own} never opened, and wrote a chunk, {size}"
        return Finding(ORPHANED, "damage", "", name, name, 0, what)
    return Finding(ORPHANED, "info", "", name, name, 0, f"an orphan that nothing refers to, {size}")


_BUCKETS: Final = (1 << 14) - 1
"""Of a million ids, sixty are in one."""


class IdSet:
    """See the module."""

    def __init__(self) -> None:
        self._buckets: defaultdict[int, bytearray] = defaultdict(bytearray)

    def add(self, identity: bytes) -> bool:
        """Add it; whether it was not there. Raises nothing."""
        number = hash(identity)
        mark = number.to_bytes(8, "big", signed=True) + identity[-4:]
        bucket = self._buckets[number & _BUCKETS]
        if mark in bucket:
            return False
        bucket += mark
        return True

    def __contains__(self, identity: bytes) -> bool:
        number = hash(identity)
        bucket = self._buckets.get(number & _BUCKETS)
        return bucket is not None and number.to_bytes(8, "big", signed=True) + identity[-4:] in bucket
