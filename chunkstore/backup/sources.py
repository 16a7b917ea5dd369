"""Where states come from that are taken in: a moment of a container, one of its backups, an export file.

Promises: what is opened shows one state, and is only read. An export is verified to its end before anything of it
is believed; its chunks are looked for only where the same container lies. Leaves out: what is taken in (``survey``, ``importing``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from chunkstore import parts
from chunkstore.arguments import check_moment
from chunkstore.backup.exporting import read_export, root_of
from chunkstore.backup.files import container_uuid
from chunkstore.backup.opened import load_export
from chunkstore.backup.renaming import AS_IT_IS, NamePlan
from chunkstore.backup.survey import Source
from chunkstore.config import Settings
from chunkstore.errors import InvalidArgument
from chunkstore.following import open_replica_on
from chunkstore.metadata.importing import Origin
from chunkstore.metadata.port import MetadataCache, Position
from chunkstore.metadata.roots import find_root
from chunkstore.names import ContainerNames, check_segment_name
from chunkstore.registry import routed
from chunkstore.replica import Replica
from chunkstore.storage import ChunkStorage

__all__ = ["Caches", "Moment", "is_export", "open_export_source", "open_past"]

Caches = Callable[[str], MetadataCache]
"""Makes a caller's own caches, by role."""


class Moment(NamedTuple):
    """Which state of a container: at most one of these; none: the present one, or the newest backup."""

    lsn: int | None = None
    time: datetime | int | None = None
    snapshot: str | None = None

    def check(self) -> None:
        """Raises ``InvalidArgument``."""
        if sum(given is not None for given in self) > 1:
            text = "give one of lsn, time and snapshot: a moment is named in one way"
            raise InvalidArgument(text, argument="snapshot")
        check_moment(self.lsn, self.time)
        if self.snapshot is not None:
            check_segment_name(self.snapshot, "snapshot")


def is_export(source: str | os.PathLike[str]) -> bool:
    """Whether this names an export file, and no root."""
    text = os.fspath(source)
    return "://" not in text and "\0" not in text and os.path.isfile(text)


@contextmanager
def open_past(
    storage: ChunkStorage,
    *,
    container: str,
    moment: Moment,
    settings: Settings,
    caches: Caches | None = None,
    plan: NamePlan = AS_IT_IS,
    merges: bool = False,
) -> Iterator[Source]:
    """The state of a container, or of its backups, at a moment. Raises as ``open_replica``."""
    moment.check()
    lsn = moment.lsn
    if moment.time is None and lsn is None:
        lsn = _lsn_of(storage, container, moment.snapshot, settings, caches)
    cache = None if caches is None else caches("past")
    with open_replica_on(
        storage, container=container, settings=settings, cache=cache, at_lsn=lsn, at_time=moment.time
    ) as past:
        origin = _origin(past.uuid, past.look(lambda view: view.head).position, plan)
        yield Source(origin, past.look, past.read_context.names, past.storage, plan, merges)


def _lsn_of(
    storage: ChunkStorage, container: str, snapshot: str | None, settings: Settings, caches: Caches | None
) -> int:
    cache = None if caches is None else caches("replica")
    with open_replica_on(storage, container=container, settings=settings, cache=cache) as present:
        return present.lsn if snapshot is None else _lsn_of_pin(present, snapshot)


def _lsn_of_pin(present: Replica, snapshot: str) -> int:
    """The position that a pin keeps. Raises ``InvalidArgument``."""
    for pin in present.pins():
        if pin.name == snapshot:
            return pin.lsn
    raise InvalidArgument(f"nothing is pinned as {snapshot!r}; 'pins ls' shows what is", argument="snapshot")


@contextmanager
def open_export_source(
    path: str | os.PathLike[str],
    root: str | None,
    *,
    settings: Settings,
    plan: NamePlan = AS_IT_IS,
    merges: bool = False,
) -> Iterator[Source]:
    """The state that an export file holds; its chunks lie at ``root``, or else where the file says (``RootRefused``: not just anywhere).

    Raises ``InvalidArgument`` (no file; another container lies there), ``ContainerNotFound``, ``Unsupported``, ``Damaged`` (the file), and
    what the storage raises.
    """
    export = read_export(path)
    header = export.header
    names = ContainerNames(header.name)
    with parts.storage_of(root_of(header, root, settings), settings) as storage:
        if container_uuid(storage, names) != header.container:
            text = f"the container {header.name!r} at {storage.url} is another one than that of the export: say where that lies (--from)"
            raise InvalidArgument(text, argument="source_root")
        cache = parts.cache_of(storage, header.container, settings, "past")
        try:
            store = load_export(export, cache, os.fspath(path), indexed=merges)
            try:
                with store.view() as view:
                    origin = _origin(header.container, header.position, plan)
                    door, close_roots = routed(storage, names, settings, partial(find_root, view))
                    try:
                        yield Source(origin, lambda call: call(view), names, door, plan, merges)
                    finally:
                        close_roots()
            finally:
                cache.discard(store)
        finally:
            cache.close()


def _origin(container: bytes, position: Position, plan: NamePlan) -> Origin:
    """Which state it is, and what of it: by another plan it is another one."""
    of_plan = plan.digest()
    identity = blake2b(position.hash + of_plan, digest_size=16).digest() if of_plan else position.hash
    return Origin(container, position.lsn, identity)
