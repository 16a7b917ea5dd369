"""Tiny containers in memory, copied, damaged and recovered thousands of times."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from chunkstore import runtime
from chunkstore.assembly import open_store_on
from chunkstore.config import RollingPolicy, Settings, Tuning
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.journal import TakeOverReport
from chunkstore.metadata.codec import decode_chunk, encode_row
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import MetadataStore
from chunkstore.records.names import ContainerNames
from chunkstore.records.segments import KIND_INLINE
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_journal.claim import new_attempt
from chunkstore_journal.container import read_format
from chunkstore_journal.service import ContainerJournal
from tests.support.alone import abandon
from tests.support.worlds import Mode, ShelfCache

T = TypeVar("T")
Objects = Mapping[str, bytes]
NAMES = ContainerNames("default")

_numbers = itertools.count(1)


def settings(mode: Mode, *, inline: bool = True) -> Settings:
    return Settings(
        journal_mode=mode,
        lease_s=5,
        op_deadline_s=120,
        default_rolling=RollingPolicy(chunk_size_bytes_max=64),
        inline_bytes_max=None if inline else 0,
        tuning=Tuning(resolve_s=0, io_workers=2),
    )


class Rows(NamedTuple):
    """The whole state: what recovery must lead to."""

    digest: int
    rows: dict[bytes, bytes]


def rows_of(store: MetadataStore) -> Rows:
    with store.view() as view:
        return Rows(view.head.digest, dict(view.scan(b"A", b"Z")))


def unplaced(state: Rows) -> dict[bytes, bytes]:
    """The rows without where extents lie: an OPEN says it anew of those that it embeds."""
    rows = dict(state.rows)
    for key, raw in rows.items():
        if key[:1] == CHUNK and (record := decode_chunk(key, raw)).kind == KIND_INLINE:
            rows[key] = encode_row(record.placed("", 0))
    return rows


class Tiny(NamedTuple):
    """A container: its objects, its state, the states before, and (for the case with a cache) the cache."""

    mode: Mode
    objects: dict[str, bytes]
    state: Rows
    states: tuple[Rows, ...]
    content: dict[str, bytes]
    shelf: MemoryShelf

    @property
    def metadata(self) -> dict[str, bytes]:
        """The objects that hold no user's bytes."""
        return {name: data for name, data in self.objects.items() if not name.startswith(NAMES.data_prefix())}


@contextmanager
def storage_of(objects: Objects) -> Iterator[MemoryChunkStorage]:
    """A storage that holds these objects."""
    url = f"memory://tiny-{next(_numbers)}"
    storage = MemoryChunkStorage(url)
    try:
        for name, data in objects.items():
            storage.put(name, data)
        yield storage
    finally:
        storage.close()
        forget_memory(url)


def objects_of(storage: MemoryChunkStorage) -> dict[str, bytes]:
    return {name: bytes(chunk.data) for name, chunk in sorted(storage._chunks.items())}


@functools.cache
def make(mode: Mode, *, closed: bool, inline: bool = True, behind: bytes = b"") -> Tiny:
    """Two epochs that were opened and one void between them, a snapshot, records behind it, two extents or one chunk of data or two.
    ``behind`` is appended by the last record."""
    states: list[Rows] = []
    with storage_of({}) as storage:
        shelf = MemoryShelf()

        def open_it() -> ChunkedSegmentStorage:
            uuid_cache = ShelfCache(storage, "default", "owner", shelf)
            return open_store_on(storage, settings=settings(mode, inline=inline), cache=uuid_cache, take_over=True)

        def note(store: ChunkedSegmentStorage) -> None:
            states.append(rows_of(store._container.current.store))

        store = open_it()
        note(store)
        store.create("log", attributes={"k": 1})
        note(store)
        store.append("log", b"hello ")
        note(store)
        store.close()
        # A claim that was never opened: the next opener makes the epoch void and leaves the hint VOIDED.
        storage.create_if_absent(NAMES.epoch(2), new_attempt(2).data)
        store = open_it()
        store.snapshot()
        store.append("log", b"world")
        note(store)
        store.table("rows").put(b"key", b"value")
        note(store)
        store.create("other")
        note(store)
        if behind:
            store.append("log", behind)
            note(store)
        content = {"log": store.read("log", 0, 100), "other": b""}
        if closed:
            store.close()
        else:
            abandon(store)
        return Tiny(mode, objects_of(storage), states[-1], tuple(states), content, shelf)


class _InlinePool:
    """Runs everything in the caller's thread: starting threads would cost more than a recovery does."""

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        return [call() for call in calls]

    def close(self) -> None:
        return None


class InlineRuntime(runtime._Production):
    """Production, with pools that start no threads."""

    def pool(self, name: str, workers: int) -> runtime.Pool:
        return _InlinePool()


class Recovered(NamedTuple):
    state: Rows
    report: TakeOverReport


def recover(objects: Objects, mode: Mode, shelf: MemoryShelf | None = None) -> Recovered:
    """Take over the container these objects make up, as ``open`` does. Raises what recovery raises."""
    with storage_of(objects) as storage:
        found = read_format(storage, NAMES)
        cache = MemoryMetadataCache(found.uuid, "here", shelf=shelf if shelf is not None else MemoryShelf())
        try:
            ownership = ContainerJournal(storage, NAMES, found, cache, settings(mode)).take_over(own=None)
            state = rows_of(ownership.store)
            ownership.journal.close()
            ownership.store.close(clean=False)
            return Recovered(state, ownership.report)
        finally:
            cache.close()
