"""Where states come from that are imported: a moment of a container, one of its backups, an export file.

Promises: what is opened shows one state, and is only read. An export is verified to its end before anything of it
is believed; its chunks are looked for only where the same container is. Leaves out: what is imported (``survey``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeGuard

from chunkstore import parts
from chunkstore.backup.exporting import read_export, root_of
from chunkstore.backup.files import container_uuid
from chunkstore.backup.opened import load_export
from chunkstore.backup.selection import EVERYTHING, NameFilter
from chunkstore.backup.survey import HistoryEnd, Origin, Source
from chunkstore.config import Settings
from chunkstore.engine.reading import context_of, read_view
from chunkstore.engine.replica import Replica
from chunkstore.errors import InvalidArgument
from chunkstore.following import open_replica_on
from chunkstore.metadata.port import MetadataCache
from chunkstore.records.arguments import check_moment
from chunkstore.records.names import ContainerNames, check_segment_name
from chunkstore.registry import Root
from chunkstore.storage import ChunkStorage

__all__ = ["Caches", "Moment", "is_export", "open_source"]

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


def is_export(source: Root | ChunkStorage) -> TypeGuard[str | os.PathLike[str]]:
    """Whether this names an export file, and no root."""
    if not isinstance(source, str | os.PathLike):
        return False
    text = os.fspath(source)
    return "://" not in text and "\0" not in text and os.path.isfile(text)


@contextmanager
def open_source(
    source: Root | ChunkStorage,
    from_: Root | None,
    *,
    container: str,
    moment: Moment,
    settings: Settings,
    caches: Caches | None = None,
    chosen: NameFilter = EVERYTHING,
    salvage: bool = False,
) -> Iterator[Source]:
    """What ``restore`` calls its source. Raises ``InvalidArgument``, and what opening it raises."""
    moment.check()
    if is_export(source):
        if moment != Moment():
            text = "an export is of one moment: lsn, time and snapshot are for roots"
            raise InvalidArgument(
                text, argument=next(name for name, given in moment._asdict().items() if given is not None)
            )
        with _open_export(source, from_, settings=settings, chosen=chosen) as found:
            yield found
        return
    if from_ is not None and not salvage:
        text = "the source is no file, so it is taken for the root itself: from_ goes with export files and salvages"
        raise InvalidArgument(text, argument="from_")
    with ExitStack() as stack:
        storage = stack.enter_context(parts.storage_of(source, settings))
        copy: ChunkStorage | None = None
        if from_ is not None:
            copy = parts.open_copy(from_, of=storage, container=container, settings=settings, argument="from_")
            stack.callback(copy.close)
        if salvage and moment == Moment() and storage.exists(ContainerNames(container).format):
            cache = None if caches is None else caches("past")
            opened = _open_last_good(storage, container, settings, cache, chosen)
        else:
            opened = _open_past(
                storage, container=container, moment=moment, settings=settings, caches=caches, chosen=chosen
            )
        yield stack.enter_context(opened)._replace(copy=copy)


@contextmanager
def _open_last_good(
    storage: ChunkStorage, container: str, settings: Settings, cache: MetadataCache | None, chosen: NameFilter
) -> Iterator[Source]:
    """The last good state of a container. Raises ``Damaged`` where there is none, ``ContainerNotFound``, ``Unsupported``, and what the
    storage raises."""
    from chunkstore_bindings.wrappers.wrapping import guarded
    from chunkstore_journal.container import read_format
    from chunkstore_journal.history import Streams
    from chunkstore_journal.salvage import last_good_state

    names, storage = ContainerNames(container), guarded(storage)
    format_ = read_format(storage, names)
    room = parts.cache_of(storage, format_.uuid, settings, "past") if cache is None else cache
    try:
        found = last_good_state(Streams(storage, names, format_), room)
        try:
            with found.store.view() as view:
                origin = Origin.of(format_.uuid, view.head.position, chosen)
                end = HistoryEnd(found.damage, found.past)
                yield Source(origin, lambda call: call(view), names, storage, chosen, end)
        finally:
            room.discard(found.store)
    finally:
        if cache is None:
            room.close()


@contextmanager
def _open_past(
    storage: ChunkStorage,
    *,
    container: str,
    moment: Moment,
    settings: Settings,
    caches: Caches | None,
    chosen: NameFilter,
) -> Iterator[Source]:
    """The state of a container, or of its backups, at a moment. Raises as ``open_replica``."""
    lsn = moment.lsn
    if moment.time is None and lsn is None:
        lsn = _lsn_of(storage, container, moment.snapshot, settings, caches)
    cache = None if caches is None else caches("past")
    with open_replica_on(
        storage, container=container, settings=settings, cache=cache, at_lsn=lsn, at_time=moment.time
    ) as past:
        origin = Origin.of(past.uuid, read_view(past, lambda view: view.head).position, chosen)
        yield Source(origin, partial(read_view, past), context_of(past).names, past.storage, chosen)


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
    raise InvalidArgument(f"no pin {snapshot!r} exists; 'pins ls' lists the pins", argument="snapshot")


@contextmanager
def _open_export(
    path: str | os.PathLike[str],
    root: Root | None,
    *,
    settings: Settings,
    chosen: NameFilter,
) -> Iterator[Source]:
    """The state that an export file holds; its chunks are at ``root``, or else where the file says.

    Raises ``InvalidArgument`` (no file; another container is there), ``ContainerNotFound``, ``Unsupported``, ``Damaged`` (the file), and
    what the storage raises.
    """
    export = read_export(path)
    header = export.header
    names = ContainerNames(header.name)
    with parts.storage_of(root_of(header, root), settings) as storage:
        if container_uuid(storage, names) != header.container:
            text = f"the container {header.name!r} at {storage.url} is not the container of the export; name its root (--from)"
            raise InvalidArgument(text, argument="from_")
        cache = parts.cache_of(storage, header.container, settings, "past")
        try:
            store = load_export(export, cache, os.fspath(path), indexed=False)
            try:
                with store.view() as view:
                    origin = Origin.of(header.container, header.position, chosen)
                    yield Source(origin, lambda call: call(view), names, storage, chosen)
            finally:
                cache.discard(store)
        finally:
            cache.close()
