"""Checking the index of extents (``metadata.inline_index``): by it the journal's collector knows what holds bytes of segments, so an extent
that is not in it could be lost.

Promises: nothing is scanned where no extent was met; from one view. An entry without a row is nothing: it goes with a later collection.
Leaves out: whether the extents' bytes are there (``check``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_chunk
from chunkstore.metadata.inline_index import oldest_inline_record
from chunkstore.metadata.keys import CHUNK, INLINE
from chunkstore.metadata.port import MetadataView
from chunkstore.records.invariants import Finding
from chunkstore.records.names import ContainerNames, confined, journal_position
from chunkstore.records.segments import KIND_INLINE

__all__ = ["inline_findings"]

_REMEDY = "the journal that holds it could be collected; delete the metadata cache and open again"


def inline_findings(view: MetadataView, names: ContainerNames, *, met: bool) -> Iterator[Finding]:
    """What the index does not say of extents that have rows. ``met``: whether there is one. O(chunks) then. Memory: 100 bytes for each."""
    if not met:
        return
    known = {identity for _, identity in view.scan(INLINE, bytes((INLINE[0] + 1,)))}
    held = oldest_inline_record(view)
    for key, raw in view.scan(CHUNK, bytes((CHUNK[0] + 1,))):
        with suppress(Damaged):  # told by who walks the lists
            record = confined(names, key[1:], decode_chunk(key, raw))
            if record.kind != KIND_INLINE:
                continue
            identity, what = key[1:], ""
            if identity not in known:
                what = "the index of extents has no entry for it"
            elif held is None or held > journal_position(record):
                what = "the index of extents has a younger one for the oldest"
            if what:
                name = names.address(identity, record).object
                yield Finding(15, "damage", "", name, "index of extents", 0, f"{what}, and {_REMEDY}")
