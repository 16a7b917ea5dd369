"""The worlds that engine tests run in: {memory, filesystem} x {slot, append}.

A world is one root of a chunk storage, and machines that come and go: each has a metadata cache of its own. In
``memory-slot`` the storage cannot append (every write makes chunks of its own, as on object stores); in the other three it
can. Metadata lies in LMDB in the filesystem worlds, in memory in the memory worlds, unless a test asks otherwise.

A test is for two worlds that differ in everything: as on object stores and HDFS, and as on a local disk. A test of how a journal
and chunks go together is for all four (``EVERY_WORLD``), and so is every test with ``CHUNKSTORE_FAULTS=full``. ``make test`` runs each
test in half of its worlds, chosen by its name; ``make proofs`` runs the other half (``is_left_to_proofs``).
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from chunkstore.assembly import open_asker_on, open_store_on
from chunkstore.config import RollingPolicy, Settings, Tuning
from chunkstore.engine.owner import Asker
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.following import open_replica_on
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, MetadataCache, MetadataStore
from chunkstore.records.names import ContainerNames
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_journal.container import read_format
from tests.support.alone import alone
from tests.support.settings import tuned

Kind = Literal["memory", "filesystem", "hdfs", "s3"]
Mode = Literal["slot", "append"]
Wrap = Callable[[ChunkStorage], ChunkStorage]

VARIANTS: tuple[tuple[Kind, Mode], ...] = (
    ("memory", "slot"),
    ("memory", "append"),
    ("filesystem", "slot"),
    ("filesystem", "append"),
)
VARIANT_IDS = tuple(f"{kind}-{mode}" for kind, mode in VARIANTS)
FULL_RUN = os.environ.get("CHUNKSTORE_FAULTS", "") == "full"
"""Whether every case runs, instead of a fixed share of them."""
USUAL = VARIANTS if FULL_RUN else (VARIANTS[0], VARIANTS[-1])
EVERY_WORLD = pytest.mark.parametrize("world", VARIANTS, ids=VARIANT_IDS, indirect=True)

_numbers = itertools.count(1)


def is_left_to_proofs(item: pytest.Item) -> bool:
    """Whether ``make test`` runs this test in another world instead. Follows from the test's name, so that all workers agree."""
    if FULL_RUN or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    variant = item.callspec.params.get("world")
    if variant not in VARIANTS:
        return False
    parity = zlib.crc32(item.nodeid.partition("[")[0].encode()) % 2
    if variant in USUAL and not any(mark.args[0] == "world" for mark in item.iter_markers("parametrize")):
        return USUAL.index(variant) != parity
    # Of the four: both kinds of storage and both journals.
    kind, mode = variant
    return ((kind == "memory") == (mode == "slot")) != bool(parity)


class ShelfCache(MemoryMetadataCache):
    """A metadata cache in memory on a machine's shelf; learns the container's uuid when it is first used."""

    def __init__(self, storage: ChunkStorage, container: str, role: str, shelf: MemoryShelf) -> None:
        self._source = storage, ContainerNames(container)
        super().__init__(b"", "here", role, shelf=shelf)

    def _learn(self) -> None:
        if not self._key[0]:
            self._key = (read_format(*self._source).uuid, *self._key[1:])

    def open_current(self) -> MetadataStore | None:
        self._learn()
        return super().open_current()

    def seen(self) -> Head | None:
        self._learn()
        return super().seen()

    def create(self) -> MetadataStore:
        self._learn()
        return super().create()


class World:
    """One root, several processes and machines. ``wrap`` goes around every storage object that is made from now on."""

    def __init__(self, kind: Kind, mode: Mode, tmp_path: Path) -> None:
        self.kind = kind
        self.mode = mode
        self.tmp_path = tmp_path
        self.root = tmp_path / "root"
        tmp_path.mkdir(parents=True, exist_ok=True)
        self.url = f"memory://world-{os.getpid()}-{next(_numbers)}"
        self.wrap: Wrap | None = None
        self.defaults: dict[str, Any] = {
            "lease_s": 0.0,
            "collect_s": 0.0,
            "op_deadline_s": 60.0,
            "io_workers": 4,
            "open_files_max": 64,
            "lmdb_map_bytes": 1 << 28,
            # Tests of chunks, which most are, look at theirs at once; INLINE is for those of appends in records.
            "inline_bytes_max": 0,
        }
        self._machine = 0
        self._machines = itertools.count(1)
        self._shelf = MemoryShelf()
        self._open: list[ChunkedSegmentStorage | Replica] = []
        self._storages: list[ChunkStorage] = []
        self._caches: list[ShelfCache] = []

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.mode}"

    @property
    def appends(self) -> bool:
        """Whether chunks can grow here."""
        return self.id != "memory-slot"

    # Storages and stores

    def raw_storage(self) -> ChunkStorage:
        """A new storage object over the same data, never wrapped."""
        storage: ChunkStorage
        if self.kind == "memory":
            storage = MemoryChunkStorage(self.url, append=self.appends)
        else:
            storage = FilesystemChunkStorage(str(self.root), open_files_max=64)
        self._storages.append(storage)
        return storage

    def storage(self, wrap: Wrap | None = None) -> ChunkStorage:
        """A new storage object over the same data, behind ``wrap`` (default: the world's)."""
        chosen = wrap if wrap is not None else self.wrap
        raw = self.raw_storage()
        return raw if chosen is None else chosen(raw)

    @property
    def cache_dir(self) -> Path:
        """The LMDB cache directory of the present machine."""
        return self.tmp_path / f"cache-{self._machine}"

    def settings(self, *, metadata: str | None = None, **settings: Any) -> Settings:
        """The world's settings with changes; ``rolling=N`` is short for a default policy of N bytes."""
        chosen = {"journal_mode": self.mode, **self.defaults, **settings}
        rolling = chosen.pop("rolling", None)
        if rolling is not None:
            chosen["default_rolling"] = RollingPolicy(chunk_size_bytes_max=rolling)
        if self._uses_lmdb(metadata):
            chosen.setdefault("cache_dir", str(self.cache_dir))
        return tuned(**chosen)

    def _uses_lmdb(self, metadata: str | None) -> bool:
        return metadata == "lmdb" or (metadata is None and self.kind == "filesystem")

    def _cache(self, storage: ChunkStorage, container: str, role: str, metadata: str | None) -> MetadataCache | None:
        if self._uses_lmdb(metadata):
            return None
        cache = ShelfCache(storage, container, role, self._shelf)
        self._caches.append(cache)
        return cache

    def open(
        self,
        container: str = "default",
        *,
        create: bool = True,
        wait_s: float | None = None,
        metadata: Literal["lmdb", "memory"] | None = None,
        wrap: Wrap | None = None,
        storage: ChunkStorage | None = None,
        **settings: Any,
    ) -> ChunkedSegmentStorage:
        """Claim the container, on the present machine; with ``wait_s`` politely. ``rolling=N`` sets the default chunk size."""
        behind = storage if storage is not None else self.storage(wrap)
        store = open_store_on(
            behind,
            container=container,
            create=create,
            wait_s=wait_s,
            take_over=wait_s is None,
            settings=self.settings(metadata=metadata, **settings),
            cache=self._cache(behind, container, "owner", metadata),
        )
        self._open.append(store)
        return store

    def replica(
        self,
        container: str = "default",
        *,
        metadata: Literal["lmdb", "memory"] | None = None,
        wrap: Wrap | None = None,
        at_lsn: int | None = None,
        at_time: datetime | int | None = None,
        **settings: Any,
    ) -> Replica:
        """A replica on the present machine."""
        behind = self.storage(wrap)
        past = at_lsn is not None or at_time is not None
        replica = open_replica_on(
            behind,
            container=container,
            settings=self.settings(metadata=metadata, **settings),
            cache=self._cache(behind, container, "past" if past else "replica", metadata),
            at_lsn=at_lsn,
            at_time=at_time,
        )
        self._open.append(replica)
        return replica

    def asker(self, container: str = "default", **settings: Any) -> Asker:
        """What asks the container's owner, over a replica of its own."""
        return open_asker_on(self.storage(), self.replica(container, **settings))

    def forget_cache(self) -> None:
        """Go on on another machine: everything opened from now on starts without a cache."""
        self._machine = next(self._machines)
        self._shelf = MemoryShelf()

    @property
    def machine(self) -> tuple[int, MemoryShelf]:
        """The present machine, for ``wake``."""
        return self._machine, self._shelf

    def wake(self, machine: tuple[int, MemoryShelf]) -> None:
        """Go on on a machine that was left before, with the cache it had then."""
        self._machine, self._shelf = machine

    def crash(self, store: ChunkedSegmentStorage) -> None:
        """As if the process had stopped here: its background work ends and nothing is closed or written."""
        store._made_in = None
        store._maintenance.stopping.set()
        for background in store._maintenance.background:
            background.stop()

    def still(self, store: ChunkedSegmentStorage) -> None:
        """For tests that count: from now on only the test itself writes records, and asks the storage."""
        alone(store)

    # Behind the engine's back

    def names(self, container: str = "default") -> ContainerNames:
        return ContainerNames(container)

    def objects(self, prefix: str = "") -> list[str]:
        """All object names that begin with ``prefix``."""
        return [item.name for item in iter_listing(self.raw_storage(), prefix)]

    def chunks(self, container: str = "default") -> list[str]:
        """The names of all chunk objects of a container."""
        return self.objects(ContainerNames(container).data_prefix())

    def content(self, name: str) -> bytes:
        """The bytes of an object."""
        storage = self.raw_storage()
        return storage.read(ChunkHandle(name, False), 0, storage.stat(name).length)

    def overwrite(self, name: str, data: bytes) -> None:
        """Replace an object's bytes (damage, or garbage at its end)."""
        if self.kind == "filesystem":
            # In place, so that file handles that somebody holds see it.
            with open(self.root / name, "r+b") as file:
                file.write(data)
                file.truncate()
        else:
            self.raw_storage().put(name, data)

    def remove(self, name: str) -> None:
        """Delete an object."""
        self.raw_storage().delete(name)

    def close(self) -> None:
        """Close everything that was opened, newest first, and forget the data."""
        for item in reversed(self._open):
            item.close()
        for cache in self._caches:
            cache.close()
        for storage in self._storages:
            storage.close()
        if self.kind == "memory":
            forget_memory(self.url)


class RemoteWorld(World):
    """One place on a real server, several processes and machines; storages as production makes them."""

    def __init__(self, kind: Kind, url: str, tmp_path: Path) -> None:
        super().__init__(kind, "slot", tmp_path)
        self.url = url

    @property
    def appends(self) -> bool:
        return False

    def raw_storage(self) -> ChunkStorage:
        storage = open_storage(
            self.url, Settings(op_deadline_s=self.defaults["op_deadline_s"], tuning=Tuning(io_workers=4))
        )
        self._storages.append(storage)
        return storage


@pytest.fixture(params=USUAL, ids="-".join)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A fresh world; closed at the end of the test."""
    kind, mode = request.param
    made = World(kind, mode, tmp_path)
    try:
        yield made
    finally:
        made.close()
