"""Moving a container to another storage while the application runs: first where it writes, in one record; then the bytes, at leisure.

The new container *adopts* the chunks of the old one: they stay where they are, are pinned there, and are read there. So the application
stands still for as long as the metadata take, whatever the data weigh. ``settle`` copies the bytes afterwards, verified block by block.
"""

from __future__ import annotations

from dataclasses import replace

import chunkstore
from chunkstore import ChunkedSegmentStorage, DefragPolicy, OptimiserPolicy, Settings, backup
from chunkstore.changes import Seal
from examples.flights.pipeline import BRONZE, CONTAINER


class MovedMeanwhile(RuntimeError):
    """The old container has got bytes that the new one has not. Nothing has changed."""


def move(
    old: ChunkedSegmentStorage, root: str, *, settings: Settings, optimiser: OptimiserPolicy
) -> tuple[ChunkedSegmentStorage, dict[str, object]]:
    """The container at ``root`` that goes on where ``old`` is now. Whoever else writes has to have stopped.

    The old one serves until the new one is there, for the pin is asked of it. Then its segments are sealed, so that whoever comes back to
    it by mistake is refused, and it is closed. If anybody has written into it meanwhile, or anything else goes wrong, it stays as it was.
    ``starting``: where a query goes on that has read all of bronze.
    """
    backup.import_file(root, old.url, source_container=CONTAINER, adopt=True, settings=settings)
    settings = replace(settings, foreign_roots=(old.url,))
    new = chunkstore.open(root, container=CONTAINER, settings=settings, optimiser=optimiser)
    sealed = [info.name for info in old.segments() if not info.sealed]
    old.commit([Seal(name) for name in sealed])
    there, here = ({info.name: info.length for info in store.segments()} for store in (old, new))
    if there != here:
        new.close()
        for name in sealed:
            old.unseal(name)
        raise MovedMeanwhile(f"somebody wrote to {old.url} meanwhile: stop them, delete {root}, and move again")
    old.close()
    starting = {name: length for name, length in here.items() if name.startswith(BRONZE)}
    return new, {"moved": new.url, "foreign_bytes": new.usage().foreign_bytes, "starting": starting}


def settle(store: ChunkedSegmentStorage) -> dict[str, object]:
    """Copy what lies at other roots into chunks here. Interrupted, it goes on with the next call.

    ``left``: bytes that are still read there, 0 behind this. The past is, too, for as long as it is kept (``pitr_horizon_s``): the former
    root has to stay until ``usage().foreign_bytes`` is 0; then nothing of it is needed.
    """
    report = store.defrag(policy=DefragPolicy(foreign=True))
    chunks = (chunk for info in store.segments() for chunk in store.layout(info.name))
    left = sum(chunk.length for chunk in chunks if chunk.kind == "foreign")
    return {"settled": store.url, "bytes_moved": report.bytes_moved, "left": left}
