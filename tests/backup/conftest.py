"""A container with segments of every kind, and a place for its backups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import backup
from chunkstore.assembly import open_store_on
from chunkstore.backup import Removed
from chunkstore.config import Tuning
from chunkstore.engine import parts
from chunkstore.following import open_replica_on
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage, iter_listing
from chunkstore_bindings.memory import MemoryChunkStorage

SMALL = chunkstore.RollingPolicy(chunk_size_bytes_max=100)


@dataclass
class Place:
    """``target()`` opens the backup root, of which ``url`` is the address; ``opened`` makes an owner of the container."""

    store: Any
    url: str
    target: Callable[[], ChunkStorage]
    settings: chunkstore.Settings
    opened: Callable[[], Any]

    def reopen(self) -> None:
        """A later epoch."""
        self.store.close()
        self.store = self.opened()

    def backup(self, **more: Any) -> backup.BackupReport:
        return backup.backup(self.store, self.url, **more)

    def drop(self, run: str) -> Removed:
        return backup.remove(self.url, run, settings=self.settings)

    def replica(self, **moment: Any) -> chunkstore.Replica:
        cache = MemoryMetadataCache(bytes(16), "test", "replica", shelf=MemoryShelf())
        return open_replica_on(self.target(), settings=self.settings, cache=cache, close_storage=True, **moment)

    def names(self) -> set[str]:
        target = self.target()
        found = {info.name.partition("/")[2] for info in iter_listing(target)}
        target.close()
        return found

    def content(self, store: Any = None) -> dict[str, bytes]:
        found = self.store if store is None else store
        return {info.name: found.read(info.name, info.start_offset, 10_000) for info in found.segments()}

    def assert_sound(self) -> None:
        """What counts is whole, and what is opened is one of the states that were backed up."""
        assert backup.verify_copies(self.url, settings=self.settings).findings == ()
        if list(backup.list_backups(self.url, settings=self.settings)):
            with self.replica() as replica:
                assert replica.check("deep") == []


@pytest.fixture(params=["files", "memory", "no-append"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    settings = chunkstore.Settings(
        cache_dir=str(tmp_path / "cache"), lease_s=0, gc_grace_s=0, tuning=Tuning(collect_s=0, io_workers=4)
    )
    urls = [f"memory://{tmp_path.name}-{request.param}-{end}" for end in ("source", "target")]
    if request.param == "files":
        urls = [(tmp_path / end).as_uri() for end in ("source", "target")]

    def opened(url: str, chosen: chunkstore.Settings = settings) -> ChunkStorage:
        return MemoryChunkStorage(url, append=False) if request.param == "no-append" else open_storage(url, chosen)

    monkeypatch.setattr(parts, "open_storage", opened)

    def owned() -> Any:
        return open_store_on(opened(urls[0]), settings=settings, close_storage=True)

    found = Place(owned(), urls[1], lambda: opened(urls[1]), settings, owned)
    for name in ("a", "b", "c"):
        found.store.create(name, rolling=SMALL)
        found.store.append(name, name.encode() * 250, writer_id="w", event_number=7)
    found.store.truncate("a", 120)
    found.store.seal("b")
    yield found
    found.store.close()
