"""A small world for journal tests: one storage, several processes, faults on demand, requests counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from chunkstore import runtime
from chunkstore.checksum import DIGEST_MODULUS, BytesLike, row_digest
from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, NotOwner, OutcomeUnknown
from chunkstore.journal import Batch, Journal, OpCode, Ownership, RecordKind, TakeOverReport
from chunkstore.metadata.keys import table_key
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Commit, MetadataStore, Position, RowChange
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_journal.container import create_container
from chunkstore_journal.follower import Follower
from chunkstore_journal.history import Opened, Streams
from chunkstore_journal.service import ContainerJournal
from tests.support.forwarding import Forwarding

Hook = Callable[[str, str], None]
"""Called with (operation, name); may raise."""
Override = Callable[[str, str, BytesLike], bool | None]
"""Called with (operation, name, data) of a write or conditional create; an answer that is not None is given instead."""
T = TypeVar("T")
COUNTED = frozenset(("exists", "read", "create_if_absent", "put", "stat", "list", "open_read"))


def nothing(operation: str, name: str) -> None:
    """A hook that does nothing."""


def let_pass(_operation: str, _name: str, _data: BytesLike) -> bool | None:
    """An override that overrides nothing."""


class Wire(Forwarding):
    """One process's way to the storage: counts requests, and lets a test act before or after any of them."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []
        self.before: Hook = nothing
        self.after: Hook = nothing
        self.override: Override = let_pass

    def count(self, operations: frozenset[str] = COUNTED) -> int:
        return sum(operation in operations for operation, _ in self.calls)

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        self.calls.append((operation, names[0]))
        self.before(operation, names[0])
        result = call()
        self.after(operation, names[0])
        return result

    def create_if_absent(self, name: str, data: BytesLike) -> bool:
        decided = self.override("create_if_absent", name, data)
        return decided if decided is not None else super().create_if_absent(name, data)

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        self.override("write", handle.name, data)
        return super().write(handle, offset, data)


class World:
    """One container on one storage. ``machine`` gives a shelf of metadata caches; ``process`` an owner-to-be."""

    def __init__(
        self, storage: ChunkStorage, mode: Literal["slot", "append"], settings: Settings | None = None
    ) -> None:
        self.storage = storage
        self.names = ContainerNames("orders")
        self.settings = settings or Settings(journal_mode=mode, op_deadline_s=60.0)
        self.format = create_container(storage, self.names, self.settings)
        self.streams = Streams(storage, self.names, self.format)
        assert self.format.mode == mode
        self.mode = mode
        self.told_when_fenced: type[ChunkstoreError] = NotOwner if mode == "slot" else OutcomeUnknown
        """What the first record of a deposed owner raises; for later ones it is ``NotOwner`` (protocol A5)."""

    def process(self, shelf: MemoryShelf | None = None, settings: Settings | None = None) -> Process:
        """A process on the machine of ``shelf`` (default: a machine of its own, with an empty cache)."""
        return Process(self, shelf or MemoryShelf(), settings or self.settings)

    def follower(self, shelf: MemoryShelf | None = None, storage: ChunkStorage | None = None) -> Follower:
        cache = MemoryMetadataCache(self.format.uuid, "here", "replica", shelf=shelf or MemoryShelf())
        return Follower(storage or self.storage, self.names, self.format, cache, self.settings)

    def opened(self, epoch: int) -> Opened:
        found = Streams(self.storage, self.names, self.format).slot0(epoch)
        assert isinstance(found, Opened)
        return found

    def overwrite(self, name: str, data: bytes) -> None:
        """Change stored bytes, as damage does."""
        self.storage.put(name, data)

    def whole(self, name: str) -> bytes:
        return self.storage.read(ChunkHandle(name, False), 0, 1 << 30)


class Process:
    """A process: its wire to the storage, its service, and after ``open`` a stream with its state."""

    def __init__(self, world: World, shelf: MemoryShelf, settings: Settings) -> None:
        self.world = world
        self.shelf = shelf
        self.settings = settings
        self.wire = Wire(world.storage)
        self.cache = MemoryMetadataCache(world.format.uuid, "here", shelf=shelf)
        self.service = ContainerJournal(self.wire, world.names, world.format, self.cache, settings)
        self.ownership: Ownership | None = None

    def open(self) -> Process:
        self.ownership = self.service.take_over(own=None)
        return self

    def die_at_open(self, epoch: int) -> None:
        """Claim ``epoch`` and die before its OPEN."""

        def die(operation: str, name: str) -> None:
            if operation == "create_if_absent" and name == self.world.names.slot(epoch, 0):
                raise KeyboardInterrupt

        self.wire.before = die
        with suppress(KeyboardInterrupt):
            self.open()
        assert self.ownership is None

    def again(self) -> Process:
        """Take over from ourselves."""
        self.ownership = self.service.take_over(own=self.journal)
        return self

    @property
    def journal(self) -> Journal:
        assert self.ownership is not None
        return self.ownership.journal

    @property
    def store(self) -> MetadataStore:
        assert self.ownership is not None
        return self.ownership.store

    @property
    def report(self) -> TakeOverReport:
        assert self.ownership is not None
        return self.ownership.report

    def batch(self, key: str, value: bytes, kind: RecordKind = RecordKind.OPS) -> Batch:
        row_key = table_key("t", key.encode())
        old = self.store.get(row_key)
        digest = self.store.head().digest - (row_digest(row_key, old) if old is not None else 0)
        digest = (digest + row_digest(row_key, value)) % DIGEST_MODULUS
        rows: list[RowChange] = [(row_key, value)]
        return Batch(kind, [(int(OpCode.TABLE_PUT), "t", key.encode())], rows, digest, runtime.now_ms())

    def put(self, key: str, value: bytes = b"v") -> Position:
        """Commit one row, apply it, and answer where it stands: what the engine does."""
        batch = self.batch(key, value)
        previous = self.journal.head
        position = self.journal.append(batch)
        commit = Commit(position, previous.hash, batch.digest, batch.ops, batch.rows)
        assert self.store.apply([commit], verify=True)
        return position

    def note(self, kind: RecordKind, notes: tuple[object, ...] = ()) -> Position:
        """Commit a record that changes nothing."""
        previous = self.journal.head
        digest = self.store.head().digest
        position = self.journal.append(Batch(kind, [], [], digest, runtime.now_ms(), notes))
        assert self.store.apply([Commit(position, previous.hash, digest, [], [])], verify=True)
        return position

    def snapshot(self) -> str:
        """Write, note and publish a snapshot; returns its name."""
        report = self.service.write_snapshot(self.store, epoch=self.journal.epoch)
        self.note(RecordKind.SNAPSHOT_NOTE, report.note)
        self.service.publish_latest(report, epoch=self.journal.epoch)
        return report.name

    def keys(self) -> set[str]:
        return keys_of(self.store)


def keys_of(store: MetadataStore) -> set[str]:
    prefix = table_key("t", b"")
    with store.view() as view:
        return {key[len(prefix) :].decode() for key, _ in view.scan(prefix, prefix + b"\xff")}


def make_storage(kind: str, folder: Path) -> ChunkStorage:
    """ "memory" or "filesystem", empty."""
    if kind == "memory":
        return MemoryChunkStorage(f"memory://{folder.name}-{runtime.token(4).hex()}")
    return FilesystemChunkStorage(folder / "store", medium="ext4")
