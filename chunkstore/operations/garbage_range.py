"""Which chunks of a garbage range may be forgotten: what stays because its row is damaged or leads elsewhere, or it is too young.

Promises: reads rows only; goes from the first chunk to the last and never beyond, whatever the range says of its count. A row that
can be read but is refused (``names.confined``) still leads on. Beyond one that cannot be read only the way from the other end leads;
what is between two such rows stays.
An age is never longer than it is (protocol 3.14.2, A14): labels of time come from the clocks of owners, which may be wrong; so it counts on
our monotonic clock, from the later of the label and our own first OPEN: rolls and take-overs from ourselves begin nothing anew.
Leaves out: deleting (``collect``), pins (``pins``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_chunk, decode_garbage
from chunkstore.metadata.keys import GARBAGE, block_range, chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.container import OwnedContainer
from chunkstore.records.names import ContainerNames, confined
from chunkstore.records.segments import KIND_INLINE, ChunkRecord, GarbageRecord

__all__ = ["Unfolded", "is_older", "is_removed", "unfold"]


_UNFOLDED_AT_ONCE: Final = 10_000


class Unfolded(NamedTuple):
    """``ids`` may go, and with them the rows of their block borders, ``block_keys``; those in ``extents`` have no object of their own.
    ``refused`` may not: those that are among ``ids`` are in ``kept``, as ranges of their own, the others in ``rest``, what is left of the
    range."""

    ids: list[bytes]
    block_keys: list[bytes]
    size_bytes: int
    kept: list[GarbageRecord]
    refused: list[bytes]
    rest: GarbageRecord | None
    extents: set[bytes]


def unfold(view: MetadataView, names: ContainerNames, garbage: GarbageRecord, chunks_max: int) -> Unfolded:
    """The next chunks of a range, as long as they and their block rows are fewer than ``chunks_max``."""
    ids: list[bytes] = []
    block_keys: list[bytes] = []
    kept: list[GarbageRecord] = []
    refused: list[bytes] = []
    met: set[bytes] = set()
    extents: set[bytes] = set()
    first, last, left = garbage.first, garbage.last, garbage.count
    size_bytes = kept_bytes = 0
    backwards = next_to_kept = False
    while left and len(met) + len(block_keys) < chunks_max:
        identity = last if backwards else first
        record = _readable(view, identity) if identity not in met else None
        if record is None:
            refused.append(identity)
            if backwards or identity == last:
                break
            backwards, next_to_kept = True, False
            continue
        met.add(identity)
        left -= 1
        if _is_confined(names, identity, record):
            ids.append(identity)
            if record.kind == KIND_INLINE:
                extents.add(identity)
            block_keys += [key for key, _ in view.scan(*block_range(identity))]
            size_bytes += record.length
            next_to_kept = False
        else:
            refused.append(identity)
            kept_bytes += record.length
            if next_to_kept:
                before = kept.pop()
                kept.append(
                    before._replace(
                        first=identity if backwards else before.first,
                        last=before.last if backwards else identity,
                        count=before.count + 1,
                        size_bytes=before.size_bytes + record.length,
                    )
                )
            else:
                kept.append(GarbageRecord(identity, identity, 1, record.length, 0, 0, 0))
            next_to_kept = True
        if identity == (first if backwards else last):
            left = 0
        elif backwards:
            last = record.previous
            if last == first:
                break
        else:
            first = record.next
    rest = None
    if left:
        rest_bytes = max(0, garbage.size_bytes - size_bytes - kept_bytes)
        rest = garbage._replace(first=first, last=last, count=left, size_bytes=rest_bytes)
    return Unfolded(ids, block_keys, size_bytes, kept, refused, rest, extents)


def is_removed(view: MetadataView, names: ContainerNames, identity: bytes) -> bool:
    """Whether the rows know a chunk no more, or only as garbage. O(garbage) where there is a row of it. Raises ``Damaged``."""
    if view.get(chunk_key(identity)) is None:
        return True
    for key, raw in view.scan(GARBAGE, bytes((GARBAGE[0] + 1,))):
        garbage = decode_garbage(repr(key), raw)
        rest: GarbageRecord | None = garbage
        while rest is not None:
            found = unfold(view, names, rest, _UNFOLDED_AT_ONCE)
            if identity in found.ids or identity in found.refused:
                return True
            rest = found.rest if found.ids else None
    return False


def _readable(view: MetadataView, identity: bytes) -> ChunkRecord | None:
    raw = view.get(chunk_key(identity))
    try:
        return None if raw is None else decode_chunk("chunk row", raw)
    except Damaged:
        return None


def _is_confined(names: ContainerNames, identity: bytes, record: ChunkRecord) -> bool:
    try:
        confined(names, identity, record)
    except Damaged:
        return False
    return True


def is_older(container: OwnedContainer, key: bytes, lsn: int, time_ms: int, age_s: float) -> bool:
    """Whether at least ``age_s`` have passed since the record ``lsn``, with the label ``time_ms``, was committed. ``key`` names what was
    committed: no two commits have the same."""
    now_s = runtime.monotonic_s()
    # A label of ours counts by the clocks of its own epoch: wall clocks are set, and only these two were read together.
    starts = container.starts
    start = next((start for start in reversed(starts) if start.lsn < lsn), starts[0])
    began_s = start.at_s + max(0, time_ms - start.at_ms) / 1000
    if began_s > now_s:
        # A label of the future: the clock ran ahead when it was made. The age counts from when that is noticed.
        began_s = container.noticed_s.setdefault(key, now_s)
    if now_s - began_s < age_s:
        return False
    container.noticed_s.pop(key, None)
    return True
