"""A backup root that is read like a container's: what a replica follows there (``Replica``, ``JournalFollower``).

What is shown is the newest backup that counts, or that of a named moment. Rows are loaded into a metadata cache of their own; nothing is
believed before the whole export was verified."""

from __future__ import annotations

from collections.abc import Iterator

from chunkstore.backup.copies import copies
from chunkstore.backup.files import Export, open_stored_export
from chunkstore.backup.runs import BackupInfo, complete_at, find_done, newest_complete
from chunkstore.checksum import DIGEST_MODULUS, rows_digest
from chunkstore.engine.parts import ContainerParts, container_of
from chunkstore.errors import ChunkNotFound, ContainerNotFound, Damaged, PastCollected
from chunkstore.metadata.index import rebuild_index
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.port import Head, MetadataCache, MetadataStore, MetadataView
from chunkstore.records.invariants import CheckLevel, Finding
from chunkstore.records.names import BackupNames, ContainerNames
from chunkstore.storage import ChunkStorage

__all__ = ["BackupFollower", "BackupParts", "load_export"]


class BackupFollower:
    """Shows the newest backup of a container. Not thread-safe; views of ``store`` may be used by other threads.

    ``names`` learns which copies belong to chunks that were growing. ``moment``: lsn or milliseconds since 1970; none: the present.
    """

    ahead = ""

    def __init__(
        self, storage: ChunkStorage, names: BackupNames, cache: MetadataCache, moment: tuple[int | None, int | None]
    ) -> None:
        self._storage = storage
        self._moment = moment
        self._is_past = moment != (None, None)
        self._names = names
        self._cache = cache
        self._store: MetadataStore | None = None
        self._shown = ""
        self._retired: MetadataStore | None = None

    @property
    def store(self) -> MetadataStore:
        """The rows of the backup that ``catch_up`` reached last."""
        if self._store is None:
            raise ContainerNotFound(self._names.container, root=self._storage.url)
        return self._store

    @property
    def unopened_epoch(self) -> int | None:
        """None: no record is missing in a past state."""
        return None

    def catch_up(self) -> Head:
        """Show the newest backup, or that of the moment. Raises ``ContainerNotFound`` (there is none), ``InvalidArgument`` (none of that
        moment), ``Damaged`` (it cannot be read), ``StorageFull``, ``StorageUnavailable``. Retry: safe."""
        if self._is_past and self._store is not None:
            return self.store.head()
        found = (
            complete_at(self._storage, self._names, *self._moment)
            if self._is_past
            else newest_complete(self._storage, self._names)
        )
        if found is None:
            raise ContainerNotFound(self._names.container, root=self._storage.url)
        if found.run != self._shown:
            self._show(found)
        return self.store.head()

    def _show(self, found: BackupInfo) -> None:
        known = self._cache.open_current() if self._store is None else None
        if known is not None and known.head().position[:2] != (found.lsn, found.hash):
            known.close(clean=True)
            known = None
        try:
            store = known or self._loaded(found)
        except (ChunkNotFound, Damaged) as error:
            text = f"the backup of lsn {found.lsn} cannot be read ({error}): choose another lsn ('backup ls')"
            position = getattr(error, "position", 0)
            raise Damaged(text, object=found.stored(self._names), position=position) from error
        with store.view() as view:
            head = view.head
            rows = copies(view.scan(CHUNK, b"D"), ContainerNames(self._names.container), head.position.epoch)
            growing = {item.identity: item.growing for item in rows if item.growing >= 0}
        # Readers of the store before this one end long before the next backup.
        if self._retired is not None:
            self._cache.discard(self._retired)
        self._retired, self._store, self._shown = self._store, store, found.run
        self._names.growing = growing

    def _loaded(self, found: BackupInfo) -> MetadataStore:
        name = found.stored(self._names)
        export = open_stored_export(self._storage, name)
        header = export.header
        if header.container != container_of(self._storage, self._names) or header.position[:2] != (
            found.lsn,
            found.hash,
        ):
            raise Damaged("the export is of another container, or of another state, than its backup", object=name)
        store = load_export(export, self._cache, name)
        self._cache.make_current(store)
        return store

    def findings(self, level: CheckLevel, view: MetadataView, pinned_lsn: int | None) -> list[Finding]:
        """Damage of the backup's export as it is stored: what is shown may come from the cache. Raises what the storage raises."""
        name = self._names.stored(self.store.head().position.lsn, self._shown)
        try:
            for _ in open_stored_export(self._storage, name):
                pass
        except (ChunkNotFound, Damaged) as error:
            return [Finding(0, "damage", "", "", name, getattr(error, "position", 0), str(error))]
        return []

    def why_absent(self, chunk: str) -> PastCollected | None:
        """Why a copy is absent: the backup that is shown was dropped since; None: it is lost. Raises as ``find_done``."""
        if find_done(self._storage, self._names, self._shown) is not None:
            return None
        lsn = self.store.head().position.lsn
        return PastCollected(f"the backup of lsn {lsn} was dropped, and {chunk} deleted", lsn=lsn, chunk=chunk)

    def close(self) -> None:
        """Release the stores."""
        store, self._store = self._store, None
        if store is not None and self._is_past:
            self._cache.discard(store)
        elif store is not None:
            store.close(clean=True)
        if self._retired is not None:
            self._cache.discard(self._retired)
            self._retired = None


def load_export(export: Export, cache: MetadataCache, name: str, *, indexed: bool = True) -> MetadataStore:
    """A store of its own with the rows of an export, and their index, unless nothing looks for offsets. Raises ``Damaged`` (``name``: the
    export, or a list of chunks does not add up), ``StorageFull``, and what reading it raises."""
    store = cache.create()
    digest = 0

    def rows() -> Iterator[tuple[bytes, bytes]]:
        nonlocal digest
        for keys, values in export.blocks():
            digest += rows_digest(keys, values)
            yield from zip(keys, values, strict=True)

    try:
        store.load(rows())
        if not export.verified:
            raise Damaged("the export was not read to its end", object=name)
        if indexed:
            with store.view() as view:
                store.load(rebuild_index(view))
        store.finish_load(Head(export.header.position, digest % DIGEST_MODULUS))
    except BaseException:
        cache.discard(store)
        raise
    return store


class BackupParts(ContainerParts):
    """Of backups, which have no journal: what is checked is the backup."""

    backup: BackupFollower

    def journal_findings(self, level: CheckLevel, view: MetadataView, pinned_lsn: int | None) -> list[Finding]:
        """As ``BackupFollower.findings``."""
        return self.backup.findings(level, view, pinned_lsn)

    def why_absent(self, chunk: str) -> PastCollected | None:
        """As ``BackupFollower.why_absent``."""
        return self.backup.why_absent(chunk)

    def stored_sizes(self, epoch: int | None) -> tuple[int, int, int]:
        """None of a journal."""
        return 0, 0, 0
