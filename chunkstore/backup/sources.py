"""Where states come from that are copied: a moment of a container, one of its backups, an export file.

What is opened shows one state, and is only read. An export is verified to its end before anything of it is believed; its chunks are
looked for only where the same container is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from datetime import datetime
from typing import NamedTuple, TypeAlias, TypeGuard

from chunkstore.backup.exporting import read_export, root_of
from chunkstore.backup.files import container_uuid
from chunkstore.backup.opened import load_export
from chunkstore.backup.selection import NameFilter
from chunkstore.backup.survey import Source
from chunkstore.config import Settings
from chunkstore.engine import parts
from chunkstore.engine.reading import context_of
from chunkstore.errors import InvalidArgument
from chunkstore.following import open_replica_on
from chunkstore.metadata.port import MetadataCache
from chunkstore.records.arguments import check_moment
from chunkstore.records.names import ContainerNames, check_segment_name
from chunkstore.registry import Root
from chunkstore.storage import ChunkStorage

__all__ = ["Caches", "Moment", "Opening", "is_export", "open_source"]

Caches: TypeAlias = Callable[[str], MetadataCache]
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


class Opening(NamedTuple):
    """Which container a source is of, what of it is taken, and how it is opened."""

    container: str
    settings: Settings
    chosen: NameFilter
    caches: Caches | None = None

    def cache(self, role: str) -> MetadataCache | None:
        """The caller's own cache."""
        return None if self.caches is None else self.caches(role)


def is_export(source: Root | ChunkStorage) -> TypeGuard[str | os.PathLike[str]]:
    """Whether this names an export file, and no root."""
    if not isinstance(source, str | os.PathLike):
        return False
    text = os.fspath(source)
    return "://" not in text and "\0" not in text and os.path.isfile(text)


@contextmanager
def open_source(
    source: Root | ChunkStorage, from_: Root | None, moment: Moment, how: Opening, *, salvage: bool
) -> Iterator[Source]:
    """What ``restore`` calls its source. Raises ``InvalidArgument``, and what opening it raises."""
    moment.check()
    with ExitStack() as stack:
        if is_export(source):
            if moment != Moment():
                text = "an export is of one moment: lsn, time and snapshot are for roots"
                given = next(name for name, value in moment._asdict().items() if value is not None)
                raise InvalidArgument(text, argument=given)
            yield stack.enter_context(_open_export(source, from_, how))
            return
        if from_ is not None and not salvage:
            text = (
                "the source is no file, so it is taken for the root itself: from_ goes with export files and salvages"
            )
            raise InvalidArgument(text, argument="from_")
        storage = stack.enter_context(parts.storage_of(source, how.settings))
        copy: ChunkStorage | None = None
        if from_ is not None:
            copy = parts.open_copy(from_, of=storage, container=how.container, settings=how.settings, argument="from_")
            stack.callback(copy.close)
        if salvage and moment == Moment() and storage.exists(ContainerNames(how.container).format):
            opened = _open_last_good(storage, how)
        else:
            opened = _open_past(storage, moment, how)
        yield stack.enter_context(opened)._replace(copy=copy)


@contextmanager
def _open_past(storage: ChunkStorage, moment: Moment, how: Opening) -> Iterator[Source]:
    """The state of a container, or of its backups, at a moment. Raises as ``open_replica``."""
    container, settings, chosen, _ = how
    lsn, time, snapshot = moment
    if time is None and lsn is None:
        with open_replica_on(storage, container=container, settings=settings, cache=how.cache("replica")) as present:
            pins = {pin.name: pin.lsn for pin in present.pins()}
            if snapshot is not None and snapshot not in pins:
                raise InvalidArgument(f"no pin {snapshot!r} exists; 'pins ls' lists the pins", argument="snapshot")
            lsn = present.lsn if snapshot is None else pins[snapshot]
    cache = how.cache("past")
    with open_replica_on(
        storage, container=container, settings=settings, cache=cache, at_lsn=lsn, at_time=time
    ) as past:
        context = context_of(past)
        with context.store().view() as view:
            yield Source(view, context.names, storage, chosen)


@contextmanager
def _open_last_good(storage: ChunkStorage, how: Opening) -> Iterator[Source]:
    """The last good state of a container. Raises ``Damaged`` where there is none, ``ContainerNotFound``, ``Unsupported``, and what the
    storage raises."""
    from chunkstore_bindings.wrappers.wrapping import guarded
    from chunkstore_journal.container import read_format
    from chunkstore_journal.history import Streams
    from chunkstore_journal.salvage import last_good_state

    names, storage = ContainerNames(how.container), guarded(storage)
    format_ = read_format(storage, names)
    given = how.cache("past")
    with (
        nullcontext(given)
        if given is not None
        else closing(parts.cache_of(storage, format_.uuid, how.settings, "past")) as cache
    ):
        found = last_good_state(Streams(storage, names, format_), cache)
        try:
            with found.store.view() as view:
                yield Source(view, names, storage, how.chosen, found.damage, found.past)
        finally:
            cache.discard(found.store)


@contextmanager
def _open_export(path: str | os.PathLike[str], root: Root | None, how: Opening) -> Iterator[Source]:
    """The state that an export file holds; its chunks are at ``root``, or else where the file says.

    Raises ``InvalidArgument`` (no file; no known place; another container is there), ``ContainerNotFound``, ``Unsupported``, ``Damaged``
    (the file), and what the storage raises.
    """
    export = read_export(path)
    header = export.header
    names = ContainerNames(header.name)
    with parts.storage_of(root_of(header, root), how.settings) as storage:
        if container_uuid(storage, names) != header.container:
            text = f"the container {header.name!r} at {storage.url} is not the container of the export; name its root (--from)"
            raise InvalidArgument(text, argument="from_")
        with closing(parts.cache_of(storage, header.container, how.settings, "past")) as cache:
            store = load_export(export, cache, os.fspath(path), indexed=False)
            try:
                with store.view() as view:
                    yield Source(view, names, storage, how.chosen)
            finally:
                cache.discard(store)
