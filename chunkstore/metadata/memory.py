"""The metadata store in memory: for tests, the simulator, and containers that live and die with a process.

A transaction changes a copy, which the commit puts in the place of the map: views copy nothing, and a write of many rows is slow beyond
some 100,000. The current store survives a clean close and opening again within the process (on one ``MemoryShelf``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from chunkstore.errors import Closed, InvalidArgument
from chunkstore.metadata.ordered_map import OrderedMap, Transaction
from chunkstore.metadata.port import GENESIS, ROLES, Head, MetadataCache, MetadataStore, furthest
from chunkstore.metadata.rows import RowDamaged
from chunkstore.metadata.store import RowStore, read_head
from chunkstore.runtime import lock

__all__ = ["MemoryMap", "MemoryMetadataCache", "MemoryShelf", "memory_store"]

T = TypeVar("T")
_DEADLINE_S = 60.0


class MemoryMap(OrderedMap):
    """An ordered map in memory."""

    def __init__(self) -> None:
        super().__init__("in memory")
        self.content = Transaction([], {})
        self.clean = False
        """Whether the last handle was closed cleanly."""

    def begin_read(self, ticket: int) -> Transaction:
        if self.count <= 0 or self.damage is not None:
            self.check()
        return self.content

    def transact(self, body: Callable[[Transaction], T]) -> T:
        changed = self.content.copy()
        try:
            done = body(changed)
        except RowDamaged as error:
            raise self.translate(error) from error
        self.content = changed
        return done

    def entry_count(self) -> int:
        return len(self.content)

    def free_bytes(self) -> int | None:
        return None

    def has_room(self) -> bool:
        return True

    def end(self, *, clean: bool) -> bool:
        self.clean = clean
        return True


def memory_store(container_uuid: bytes = bytes(16), content: MemoryMap | None = None) -> RowStore:
    """A handle on ``content``, or an empty store at genesis, of its own."""
    store = RowStore(content or MemoryMap(), container_uuid, deadline_s=_DEADLINE_S)
    if content is None:
        store.finish_load(Head(GENESIS, 0))
    return store


_Key: TypeAlias = tuple[bytes, str, str]
"""Container uuid, address and role."""


class MemoryShelf:
    """The stores of one machine: what survives a process of it. A simulator gives each machine its own."""

    def __init__(self) -> None:
        self._stores: dict[_Key, MemoryMap] = {}
        self._ends: dict[_Key, Head] = {}
        """The furthest of those that were dropped."""
        self._lock = lock()

    def clear(self) -> None:
        """Forget every store, as when the machine's disk is lost. Stores that are open go on alone."""
        with self._lock:
            self._stores.clear()
            self._ends.clear()

    def take(self, key: _Key) -> MemoryMap | None:
        """The store, if it was closed cleanly."""
        with self._lock:
            found = self._stores.get(key)
            if found is None or found.count > 0 or not found.clean:
                return None
            found.count = 1
            return found

    def seen(self, key: _Key) -> Head | None:
        """The furthest head of a store that is here, or was dropped."""
        with self._lock:
            content = self._stores.get(key)
            head = None if content is None else read_head(content.content, key[0])[0]
            return furthest(head, self._ends.get(key))

    def put(self, key: _Key, content: MemoryMap) -> None:
        """Keep ``content`` in the place of another."""
        with self._lock:
            self._stores[key] = content
            self._ends.pop(key, None)

    def drop(self, key: _Key, content: MemoryMap) -> None:
        """Forget ``content``, but for what it has seen."""
        with self._lock:
            if self._stores.get(key) is content:
                del self._stores[key]
                head = read_head(content.content, key[0])[0]
                self._ends[key] = furthest(head, self._ends.get(key)) or head


_SHELF = MemoryShelf()


class MemoryMetadataCache(MetadataCache):
    """Stores in memory that survive closing, per container uuid, address and role, on ``shelf`` (default: the process's own)."""

    def __init__(
        self, container_uuid: bytes, address: str, role: str = "owner", *, shelf: MemoryShelf | None = None
    ) -> None:
        if role not in ROLES:
            raise InvalidArgument(f"role {role!r} is none of {', '.join(ROLES)}", argument="role")
        self._key = (container_uuid, address, role)
        self._shelf = shelf if shelf is not None else _SHELF
        self._current: MemoryMap | None = None
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise Closed("this metadata cache")

    def open_current(self) -> MetadataStore | None:
        self._check()
        if self._current is None or not self._current.share():
            self._current = self._shelf.take(self._key)
        return None if self._current is None else memory_store(self._key[0], self._current)

    def seen(self) -> Head | None:
        return self._shelf.seen(self._key)

    def create(self) -> MetadataStore:
        self._check()
        return memory_store(self._key[0])

    def make_current(self, store: MetadataStore) -> None:
        self._check()
        self._current = self._content(store)
        self._shelf.put(self._key, self._current)

    def discard(self, store: MetadataStore) -> None:
        content = self._content(store)
        self._shelf.drop(self._key, content)
        if content is self._current:
            self._current = None
        store.close(clean=False)

    @staticmethod
    def _content(store: MetadataStore) -> MemoryMap:
        if not isinstance(store, RowStore) or not isinstance(store.environment, MemoryMap):
            raise InvalidArgument("this store is not of this cache", argument="store")
        return store.environment

    def close(self) -> None:
        self._closed = True
