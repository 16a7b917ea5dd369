"""Finding orphans: chunk objects on the storage that no metadata speaks of (invariant 23, protocol 3.14.4, A9).

Promises: reads only, and says nothing of what may still be wanted: chunks of an open session, chunks of the present epoch
younger than a day (bytes are written before their record), and chunks that a commit or a collector dealt with during the
listing. Orphans cost space and nothing else: "info". A chunk of an epoch that never opened is "damage": no owner can have
written it.
Leaves out: sweeping them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from chunkstore import runtime
from chunkstore.invariants import Finding
from chunkstore.metadata.keys import chunk_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.names import chunk_epoch, chunk_session
from chunkstore.operations.read import ReadContext
from chunkstore.storage import ChunkInfo, iter_listing

__all__ = ["orphan_findings"]

_INVARIANT = 23
_SHOWN_MAX = 100
_IN_FLIGHT_MS = 24 * 3_600_000
"""A chunk of the present epoch without a record: younger than this it may be on its way."""


def orphan_findings(
    context: ReadContext, view: MetadataView, *, epoch: int, found: Callable[[int], None]
) -> Iterator[Finding]:
    """List the chunks and report those that ``view`` does not know. ``epoch``: that of ``view``. ``found`` is told the bytes of
    them all, at the end. Raises what the storage raises."""
    suspects: list[tuple[bytes, ChunkInfo]] = []
    for info in iter_listing(context.storage, context.names.data_prefix()):
        identity = context.names.parse_chunk(info.name)
        if identity is None:
            yield _finding("warning", info.name, "this is not a chunk's name; no program of ours made it")
        elif not _is_known(view, identity):
            suspects.append((identity, info))
    found((yield from _judge(context, suspects, epoch)) if suspects else 0)


def _is_known(view: MetadataView, identity: bytes) -> bool:
    """Whether the chunk has a record, or is one of a session that is open."""
    if view.get(chunk_key(identity)) is not None:
        return True
    session = chunk_session(identity)
    return session is not None and view.get(session_key(session)) is not None


def _judge(context: ReadContext, suspects: list[tuple[bytes, ChunkInfo]], epoch: int) -> Generator[Finding, None, int]:
    """Read the metadata again: what was committed, attached or opened meanwhile is no orphan. Returns the bytes of those that are."""
    context.recheck()
    shown = shown_bytes = rest = rest_bytes = 0
    with context.store().view() as view:
        epoch = max(epoch, view.head.position.epoch)
        for identity, info in suspects:
            if _is_known(view, identity):
                continue
            if shown >= _SHOWN_MAX:
                rest += 1
                rest_bytes += info.length
                continue
            finding = _judge_one(context, identity, info, epoch)
            if finding is not None:
                shown += 1
                shown_bytes += info.length
                yield finding
    if rest:
        yield _finding("info", context.names.data_prefix(), f"about {rest} more orphans of {rest_bytes} bytes")
    return shown_bytes + rest_bytes


def _judge_one(context: ReadContext, identity: bytes, info: ChunkInfo, epoch: int) -> Finding | None:
    age_ms = None if info.modified_ms is None else max(0, runtime.now_ms() - info.modified_ms)
    own = chunk_epoch(identity)
    if own == epoch and (age_ms is None or age_ms < _IN_FLIGHT_MS):
        return None
    if not context.storage.exists(info.name):
        return None  # a collector had it
    age = "of unknown age" if age_ms is None else f"{age_ms // 1000} s old"
    if own > epoch:
        return _finding("damage", info.name, f"epoch {own} never opened, and wrote a chunk, {info.length} bytes, {age}")
    return _finding("info", info.name, f"an orphan that nothing refers to, {info.length} bytes, {age}")


def _finding(severity: str, name: str, message: str) -> Finding:
    return Finding(_INVARIANT, severity, "", name if severity != "warning" else "", name, 0, message)
