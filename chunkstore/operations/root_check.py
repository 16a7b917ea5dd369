"""Checking the roots of foreign chunks (invariant 40): each has its row, and the row counts the chunks that lie in it.

Promises: nothing is scanned where there is none of either; from one view. Leaves out: whether the objects are there (``check``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from chunkstore.errors import Damaged
from chunkstore.invariants import ROOTS, Finding
from chunkstore.metadata.codec import decode_chunk
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.roots import scan_roots
from chunkstore.names import BackupNames, ContainerNames, confined, foreign_root
from chunkstore.records import ACTIVE, KIND_FOREIGN, RootRecord

__all__ = ["root_findings"]


def root_findings(view: MetadataView, names: ContainerNames, *, met: bool) -> Iterator[Finding]:
    """What is wrong with the roots. ``met``: whether a list has a foreign chunk. O(chunks) where there are roots."""
    roots = dict(scan_roots(view))
    if isinstance(names, BackupNames) or not (roots or met):
        return  # a backup has copies, and of garbage none
    counts: dict[int, tuple[int, int]] = {}
    for key, raw in view.scan(CHUNK, bytes((CHUNK[0] + 1,))):
        with suppress(Damaged):
            record = decode_chunk(key, raw)
            if record.kind != KIND_FOREIGN:
                continue
            found = foreign_root(confined(names, key[1:], record))
            if found is not None:
                chunks, size_bytes = counts.get(found, (0, 0))
                counts[found] = chunks + 1, size_bytes + record.length
    for number in sorted(roots.keys() | counts.keys()):
        root, count = roots.get(number), counts.get(number, (0, 0))
        what = ""
        if root is None:
            what = f"{count[0]} chunks lie in root {number:x}, which has no row: nobody knows where that is"
        elif not isinstance(root, RootRecord):
            what = root.message
        elif (root.references, root.size_bytes) != count:
            known = f"{root.references} chunks of {root.size_bytes} bytes"
            what = f"root {number:x} counts {known}, there are {count[0]} of {count[1]} bytes"
        elif root.state != ACTIVE and root.references:
            what = f"root {number:x} is being given up, and {root.references} chunks lie in it"
        if what:
            yield Finding(ROOTS, "damage", "", "", "roots", 0, what)
