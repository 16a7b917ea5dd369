"""The parts that owners and replicas are made of: settings, storages and caches; and what a root holds: a container, or backups of one.

Concrete parts are imported inside functions; ``chunkstore.assembly`` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from chunkstore.config import LIMITS, Settings, default_cache_dir
from chunkstore.errors import ContainerNotFound, Damaged, InvalidArgument, PastCollected, Unsupported
from chunkstore.journal import JournalFollower
from chunkstore.metadata.port import Head, MetadataCache, MetadataView
from chunkstore.metadata.retained import oldest_inline_record
from chunkstore.operations.collect import is_removed
from chunkstore.records.invariants import CheckLevel, Finding
from chunkstore.records.names import BackupNames, ContainerNames
from chunkstore.registry import Root, open_storage
from chunkstore.storage import ChunkStorage

__all__ = [
    "EXPORT_VERSION",
    "MAGIC",
    "MARKER",
    "ContainerParts",
    "cache_of",
    "checked_settings",
    "container_of",
    "fields_of",
    "marked_container",
    "open_copy",
    "read_small",
    "storage_of",
    "uuid_at",
]

MAGIC: Final = b"CKSE"
"""What small objects of a backup root begin with."""
EXPORT_VERSION: Final = 1
MARKER: Final = 16
"""Kind of the marker among the small objects of a backup root."""
_NAME_MAX: Final = 255


def checked_settings(settings: Settings | None) -> Settings:
    """The caller's settings, or the default ones. Raises ``InvalidArgument``."""
    if settings is None:
        return Settings()
    if not isinstance(settings, Settings):
        raise InvalidArgument(
            f"settings must be chunkstore.Settings, not {type(settings).__name__}", argument="settings"
        )
    return settings


@contextmanager
def storage_of(root: Root | ChunkStorage, settings: Settings | None) -> Iterator[ChunkStorage]:
    """The storage of a root, closed when the block ends; one of the caller's own stays open. Raises ``InvalidArgument``,
    ``StorageUnavailable``."""
    if isinstance(root, ChunkStorage):
        yield root
        return
    storage = open_storage(root, checked_settings(settings))
    try:
        yield storage
    finally:
        storage.close()


def cache_of(storage: ChunkStorage, container: bytes, settings: Settings, role: str) -> MetadataCache:
    """The metadata cache of a container at this root. Raises as ``LmdbMetadataCache``."""
    address = storage.address
    if storage.capabilities.medium == "memory" and settings.cache_dir is None:
        from chunkstore.metadata.memory import MemoryMetadataCache

        return MemoryMetadataCache(container, address, role)
    from chunkstore.metadata.lmdb import LmdbMetadataCache

    return LmdbMetadataCache(settings.cache_dir or default_cache_dir(), container, address, role, settings=settings)


class ContainerParts:
    """A container at a root, and what its owner or its replica needs besides the journal and the metadata store.

    ``cache``: a metadata cache of the caller's own; None: one of this machine's, for each role. ``close_storage``: closed with the rest.
    """

    def __init__(
        self,
        storage: ChunkStorage,
        names: ContainerNames,
        uuid: bytes,
        settings: Settings,
        cache: MetadataCache | None = None,
        *,
        close_storage: bool = False,
    ) -> None:
        self.storage = storage
        self.names = names
        self.uuid = uuid
        self.settings = settings
        self.cache = cache
        self.follower: JournalFollower | None = None
        """Of a replica, what it follows."""
        self.is_past = False
        self._made: MetadataCache | None = None
        self._close_storage = close_storage

    def make_cache(self, role: str) -> MetadataCache:
        """The caller's own cache, or one of this machine's; ``role``: owner, replica or past. Raises as ``LmdbMetadataCache``."""
        self.is_past = role == "past"
        if self.cache is not None:
            return self.cache
        self._made = cache_of(self.storage, self.uuid, self.settings, role)
        return self._made

    def close(self) -> None:
        """Close what was made here, and the storage unless it is the caller's own. Raises nothing. Safe to repeat."""
        try:
            if self._made is not None:
                self._made.close()
        finally:
            if self._close_storage:
                self.storage.close()

    def scratch(self) -> MetadataCache:
        """A cache for a replay that serves no caller: in memory where the caller brought a cache, else like the cache."""
        if self.cache is None:
            return cache_of(self.storage, self.uuid, self.settings, "replica")
        from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf

        return MemoryMetadataCache(self.uuid, self.storage.address, "replica", shelf=MemoryShelf())

    def journal_findings(self, level: CheckLevel, view: MetadataView, pinned_lsn: int | None) -> list[Finding]:
        """The journal's own invariants, for ``check``."""
        from chunkstore_journal.check import journal_findings

        memory = None if self.follower is None or self.cache is not None else self._seen_by_owner()
        found = journal_findings(self.storage, self.names, self.scratch, level, view, pinned_lsn, memory)
        if self.follower is not None and self.follower.ahead:
            found.append(Finding(12, "warning", "", "", "metadata cache", 0, self.follower.ahead))
        return found

    def stored_sizes(self, epoch: int | None) -> tuple[int, int, int]:
        """Bytes of the journal, of its open stream, and of snapshots; see ``chunkstore_journal.inspect``."""
        from chunkstore_journal.inspect import stored_sizes

        return stored_sizes(self.storage, self.names, epoch)

    def sweep_unfinished(self) -> int:
        """Abort uploads in parts that were never finished, where the binding has such; returns how many. Raises ``StorageUnavailable``."""
        from chunkstore_bindings.wrappers.wrapping import layers

        return sum(layer.sweep_uploads() for layer in layers(self.storage) if hasattr(layer, "sweep_uploads"))

    def open_copy(self, root: Root) -> ChunkStorage:
        """The storage of a copy of this container. Raises as the function ``open_copy``."""
        return open_copy(root, of=self.storage, container=self.names.container, settings=self.settings)

    def why_absent(self, chunk: str) -> PastCollected | None:
        """Why a chunk of the past is absent: it was removed since, or spilled, which the present rows tell; None where these still want it.

        Raises ``RolledBack`` where the journal does not have the moment that is shown, and what following the journal raises.
        """
        from chunkstore_journal.container import read_format
        from chunkstore_journal.follower import Follower
        from chunkstore_journal.past import FixedState

        storage, names, state = self.storage, self.names, self.follower
        assert isinstance(state, FixedState)
        state.require_on_history(storage)
        identity, place = names.parse_chunk(chunk), _position_of(names, chunk)
        room = self.scratch()
        present = Follower(storage, names, read_format(storage, names), room, self.settings)
        try:
            present.catch_up()
            with present.store.view() as view:
                held = oldest_inline_record(view)
                let_go = place is not None and (held is None or place < held)
                if not (let_go or (identity is not None and is_removed(view, names, identity))):
                    return None
        finally:
            present.close()
            room.close()
        lsn = state.store.head().position.lsn
        return PastCollected(f"{chunk} was removed after lsn {lsn} and has been collected", lsn=lsn, chunk=chunk)

    def _seen_by_owner(self) -> Head | None:
        """The end that owners on this machine have seen of this container. None: nothing is known."""
        if self.storage.capabilities.medium == "memory" and self.settings.cache_dir is None:
            return cache_of(self.storage, self.uuid, self.settings, "owner").seen()
        from chunkstore.metadata.lmdb import seen_end

        return seen_end(self.settings.cache_dir or default_cache_dir(), self.uuid, self.storage.address)


def _position_of(names: ContainerNames, name: str) -> tuple[int, int] | None:
    """Where in history (``journal_position``) an object is that holds extents; None: another one."""
    log = names.parse_log(name)
    return names.parse_slot(name) if log is None else (log, 0)


def open_copy(
    root: Root, *, of: ChunkStorage, container: str, settings: Settings, argument: str = "repair_from"
) -> ChunkStorage:
    """The storage of ``root``, which holds a copy of a container that is in storage ``of``, or backups of it.

    Raises ``InvalidArgument`` of ``argument`` (no URL, or no copy is there), ``Unsupported``, ``StorageUnavailable``.
    """
    from chunkstore_journal.container import read_format

    names = ContainerNames(container)
    copy = open_storage(root, settings)
    try:
        what = "" if copy.address != of.address else "it is this root itself"
        try:
            if not what and uuid_at(copy, container) != read_format(of, names).uuid:
                what = "the container of this name there is another one"
        except ContainerNotFound:
            what = "there is no such container"
        except Damaged:
            pass  # its chunks may be sound all the same
        if what:
            text = f"{copy.url} holds no copy of container {container!r}: {what}; name a root that the container's was copied to"
            raise InvalidArgument(text, argument=argument)
    except BaseException:
        copy.close()
        raise
    return copy


def uuid_at(copy: ChunkStorage, container: str) -> bytes:
    """The uuid of the container that is in a storage, or of that whose backups do.

    Raises ``ContainerNotFound``, ``Damaged``, ``Unsupported`` (of a newer version), and what the storage raises.
    """
    from chunkstore_journal.container import read_format

    try:
        return read_format(copy, ContainerNames(container)).uuid
    except Unsupported as error:
        if error.feature != "backup":
            raise
        return container_of(copy, BackupNames(container))


def container_of(storage: ChunkStorage, names: BackupNames) -> bytes:
    """The uuid of the container whose backups are stored here. Raises ``ContainerNotFound``, ``Damaged``, and what the storage raises."""
    fields = read_small(storage, names.backup, MARKER)
    if fields is None:
        raise ContainerNotFound(names.container, root=storage.url)
    return marked_container(fields, names)


def marked_container(fields: Any, names: BackupNames) -> bytes:
    """The container that a marker is of. Raises ``Damaged``: one of another name."""
    container, name = fields.raw(16), fields.text(_NAME_MAX)
    if name != names.container:
        raise Damaged(f"this marker belongs to container {name!r}", object=names.backup)
    return bytes(container)


def read_small(storage: ChunkStorage, name: str, kind: int) -> Any:
    """The fields of a small object, to be taken one after the other (the journal's ``wire.Fields``); None where there is none.

    Raises ``Damaged``, and what the storage raises.
    """
    from chunkstore_journal.slots import read_if_present

    data = read_if_present(storage, name, size_max=LIMITS.small_object_bytes_max)
    return None if data is None else fields_of(data, name, kind)


def fields_of(data: bytes, name: str, kind: int) -> Any:
    """As ``read_small``, of the bytes of the object ``name``."""
    from chunkstore_journal.wire import FRAME_HEADER_BYTES, Fields, check_frame, decode_frame_header, refuse, unpack

    header = decode_frame_header(data, MAGIC, LIMITS.small_object_bytes_max, object=name, position=0)
    check_frame(data[:FRAME_HEADER_BYTES], data[FRAME_HEADER_BYTES:], version=EXPORT_VERSION, object=name, position=0)
    if header.kind != kind:
        refuse(f"an object of kind {header.kind}, where {kind} belongs", name, 0)
    return Fields(
        unpack(data[FRAME_HEADER_BYTES:], name, FRAME_HEADER_BYTES), "a small object", name, FRAME_HEADER_BYTES
    )
