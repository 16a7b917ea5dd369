"""The container that an import makes: opened by nobody else until it is whole.

Promises: what is there already is refused before anything is claimed; an import of the same state that was interrupted is gone on with.
Leaves out: taking anything in (``importing``).
"""

from __future__ import annotations

from chunkstore import parts
from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ContainerNotFound
from chunkstore.metadata.importing import Origin
from chunkstore.metadata.port import GENESIS, MetadataCache
from chunkstore.names import ContainerNames
from chunkstore.owning import Claim
from chunkstore.storage import ChunkStorage

__all__ = ["open_target"]


def open_target(
    storage: ChunkStorage,
    *,
    container: str,
    origin: Origin,
    settings: Settings,
    wait_s: float = 0,
    cache: MetadataCache | None = None,
    root: str | None = None,
) -> ChunkedSegmentStorage:
    """Own a container that is new, or being made of ``origin``. The storage stays the caller's.

    Raises ``InvalidArgument`` (there is one already, or it is being made of another state), and as ``chunkstore.open``. Retry: safe.
    """
    from chunkstore_bindings.probe import probe_storage
    from chunkstore_bindings.wrappers.guarded import guarded
    from chunkstore_journal.container import create_container, read_format
    from chunkstore_journal.follower import Follower

    names, storage, created = ContainerNames(container), guarded(storage), False
    try:
        format_ = read_format(storage, names)
    except ContainerNotFound:
        format_ = create_container(storage, names, settings, probe=probe_storage, imports=True)
        created = True
    else:
        room = parts.scratch_of(storage, format_.uuid, settings, cache)()
        present = Follower(storage, names, format_, room, settings)
        try:
            # One that nobody ever opened holds nothing: somebody, perhaps we, died while making it.
            if present.catch_up().position != GENESIS:
                parts.require_import(present.store, names, origin)
        finally:
            present.close()
            room.close()
    claim = Claim(storage, names, format_, settings, cache, root, close_storage=False)
    return claim.own(None, None, float(wait_s), accept_rollback=False, created=created, origin=origin)
