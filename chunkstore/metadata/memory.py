"""The metadata store in memory: for tests, the simulator, and containers that live and die with a process.

Conditions and errors are those of the LMDB store. Views copy nothing: each open view keeps the values that writers have changed
since it was opened. The current store survives a clean close and opening again within the process (on one ``MemoryShelf``).
It is slow beyond some 100,000 rows, because an insertion moves part of a list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from chunkstore.errors import Closed, Damaged, InvalidArgument
from chunkstore.metadata.fold import fold, may_follow
from chunkstore.metadata.index import count_chunks, locate
from chunkstore.metadata.port import (
    GENESIS,
    NO_TOTALS,
    ROLES,
    Commit,
    Head,
    MetadataCache,
    MetadataStore,
    MetadataView,
    Position,
    Totals,
    furthest,
)
from chunkstore.metadata.totals import COUNTED, changed
from chunkstore.runtime import Lock, lock

__all__ = ["MemoryMetadataCache", "MemoryMetadataStore", "MemoryShelf"]

_PAGE = 256  # rows that a scan takes at a time, so that writers are not kept waiting


class _SortedMap:
    """A dict that knows the order of its keys."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        if key not in self.values:
            if self.keys and key < self.keys[-1]:
                insort(self.keys, key)
            else:
                self.keys.append(key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        if key in self.values:
            del self.values[key]
            del self.keys[bisect_left(self.keys, key)]


class _Content:
    """Rows, head and open views of one store; several ``MemoryMetadataStore`` handles may share it."""

    def __init__(self) -> None:
        self.lock: Lock = lock()
        self.live: _SortedMap = _SortedMap()
        self.head: Head = Head(GENESIS, 0)
        self.totals = NO_TOTALS
        self.views: set[MemoryMetadataView] = set()
        self.handles: set[MemoryMetadataStore] = set()
        """Open ones, of the one cache object that may write to it."""
        self.clean = False
        """Whether the last handle was closed cleanly."""

    def remember(self, key: bytes) -> None:
        """Keep a row's present value for every open view, before it changes."""
        for view in self.views:
            if key not in view.undo.values:
                view.undo.put(key, self.live.values.get(key))

    def put(self, key: bytes, value: bytes) -> None:
        self.remember(key)
        self.live.put(key, value)

    def delete(self, key: bytes) -> None:
        self.remember(key)
        self.live.delete(key)


class _WriteTransaction:
    """Changes in place, under the content's lock; ``roll_back`` takes them back."""

    def __init__(self, content: _Content) -> None:
        self._content = content
        self._before: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._content.live.values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._before.setdefault(key, self.get(key))
        self._content.put(key, value)

    def put_new(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in pairs:
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        self._before.setdefault(key, self.get(key))
        self._content.delete(key)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        keys = self._content.live.keys
        place = bisect_right(keys, key)
        return self._pair(keys[place - 1]) if place else None

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = self._content.live.keys
        for key in keys[bisect_left(keys, start) : bisect_left(keys, stop)]:
            yield self._pair(key)

    def _pair(self, key: bytes) -> tuple[bytes, bytes]:
        value = self.get(key)
        assert value is not None
        return key, value

    def totals(self) -> Totals:
        """Those behind the changes."""
        pairs = [(key[0], old, self.get(key)) for key, old in self._before.items() if key[0] in COUNTED]
        return changed(self._content.totals, pairs)

    def roll_back(self) -> None:
        for key, value in self._before.items():
            if value is None:
                self._content.delete(key)
            else:
                self._content.put(key, value)


class MemoryMetadataView(MetadataView):
    """One point of history: the live rows, overlaid with what changed since."""

    def __init__(self, content: _Content) -> None:
        self._content = content
        self.undo: _SortedMap = _SortedMap()
        with content.lock:
            self._head = content.head
            self._totals = content.totals
            content.views.add(self)
        self._open = True

    @property
    def head(self) -> Head:
        return self._head

    @property
    def totals(self) -> Totals:
        return self._totals

    def _check(self) -> None:
        if not self._open:
            raise Closed("this metadata view")

    def get(self, key: bytes) -> bytes | None:
        self._check()
        # The live value first: a writer remembers the old value before it changes the row.
        value = self._content.live.values.get(key)
        return self.undo.values.get(key, value)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            self._check()
            with self._content.lock:
                page, start, more = self._page(start, stop)
            yield from page
            if not more:
                return

    def _page(self, start: bytes, stop: bytes) -> tuple[list[tuple[bytes, bytes]], bytes, bool]:
        """Up to ``_PAGE`` keys of each side from ``start``, where to go on, and whether to."""
        sides = []
        for side in (self._content.live, self.undo):
            low = bisect_left(side.keys, start)
            sides.append(side.keys[low : min(low + _PAGE, bisect_left(side.keys, stop))])
        cut = min((keys[-1] for keys in sides if len(keys) == _PAGE), default=stop)
        found = []
        for key in sorted({*sides[0], *sides[1]}):
            if key > cut:
                break
            value = self.undo.values[key] if key in self.undo.values else self._content.live.values[key]
            if value is not None:
                found.append((key, value))
        return found, cut + b"\0", cut != stop

    def _floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The greatest entry at or below ``key`` that is there in this view."""
        live, undo = self._content.live, self.undo
        below = bisect_right(live.keys, key)
        while below and live.keys[below - 1] in undo.values:
            below -= 1  # its value then is on the other side
        kept = bisect_right(undo.keys, key)
        while kept and undo.values[undo.keys[kept - 1]] is None:
            kept -= 1
        best = max(live.keys[below - 1] if below else b"", undo.keys[kept - 1] if kept else b"")
        value = undo.values[best] if best in undo.values else live.values.get(best)
        return None if value is None else (best, value)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        self._check()
        with self._content.lock:
            return self._floor(key)

    def locate(self, segment_id: int, offset: int) -> tuple[bytes, int] | None:
        self._check()
        with self._content.lock:
            return locate(self._floor, segment_id, offset)

    def count_chunks(self, segment_id: int, start: int, stop: int) -> int:
        self._check()
        with self._content.lock:
            return count_chunks(self._scan_locked, self._floor, segment_id, start, stop)

    def _scan_locked(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        more = True
        while more:
            page, start, more = self._page(start, stop)
            yield from page

    def audit(self) -> None:
        self._check()  # nothing to find: memory holds what was written

    def close(self) -> None:
        if self._open:
            self._open = False
            with self._content.lock:
                self._content.views.discard(self)


class MemoryMetadataStore(MetadataStore):
    """See the module's text. ``MemoryMetadataStore()`` is an empty store at genesis, of its own."""

    def __init__(self, content: _Content | None = None) -> None:
        self._content = content if content is not None else _Content()
        self._content.handles.add(self)
        self._closed = False
        self._last_loaded = b""

    def _usable(self) -> _Content:
        if self._closed:
            raise Closed("this metadata store")
        return self._content

    def head(self) -> Head:
        return self._usable().head

    @property
    def position(self) -> Position:
        return self._usable().head.position

    def view(self) -> MetadataView:
        return MemoryMetadataView(self._usable())

    def get(self, key: bytes) -> bytes | None:
        content = self._usable()
        with content.lock:
            return content.live.values.get(key)

    def apply(self, commits: Sequence[Commit], *, verify: bool) -> bool:
        content = self._usable()
        with content.lock:
            if not commits:
                return True
            if not may_follow(content.head, commits):
                return False
            txn = _WriteTransaction(content)
            try:
                head, totals = fold(txn, content.head, commits, verify=verify), txn.totals()
            except BaseException:
                txn.roll_back()
                raise
            content.head, content.totals = head, totals
            return True

    def jump(self, position: Position, digest: int) -> bool:
        content = self._usable()
        with content.lock:
            head = content.head
            if head.digest != digest or position.lsn < head.position.lsn:
                return False
            content.head = head._replace(position=position)
            return True

    def load(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        content = self._usable()
        with content.lock:
            if content.live.keys and not self._last_loaded:
                raise InvalidArgument("load needs an empty store; create a new one", argument="pairs")
        for key, value in pairs:
            if key <= self._last_loaded or key[0] == 0:
                raise Damaged("rows to load are not in ascending key order", object=f"metadata row {key!r}")
            with content.lock:
                content.put(key, value)
                if key[0] in COUNTED:
                    content.totals = changed(content.totals, ((key[0], None, value),))
            self._last_loaded = key

    def finish_load(self, head: Head) -> None:
        content = self._usable()
        with content.lock:
            content.head = head

    def entry_count(self) -> int:
        return len(self._usable().live.values)

    def free_bytes(self) -> int | None:
        self._usable()
        return None

    def close(self, *, clean: bool) -> None:
        if not self._closed:
            self._closed = True
            self._content.handles.discard(self)
            self._content.clean = clean


_Key: TypeAlias = tuple[bytes, str, str]
"""Container uuid, address and role."""


class MemoryShelf:
    """The stores of one machine: what survives a process of it. A simulator gives each machine its own."""

    def __init__(self) -> None:
        self._stores: dict[_Key, _Content] = {}
        self._ends: dict[_Key, Head] = {}
        """The furthest of those that were dropped."""
        self._lock = lock()

    def clear(self) -> None:
        """Forget every store, as when the machine's disk is lost. Stores that are open go on alone."""
        with self._lock:
            self._stores.clear()
            self._ends.clear()

    def take(self, key: _Key) -> _Content | None:
        """The store, if it was closed cleanly."""
        with self._lock:
            found = self._stores.get(key)
            return None if found is None or found.handles or not found.clean else found

    def seen(self, key: _Key) -> Head | None:
        """The furthest head of a store that is here, or was dropped."""
        with self._lock:
            content = self._stores.get(key)
            return furthest(content.head if content is not None else None, self._ends.get(key))

    def put(self, key: _Key, content: _Content) -> None:
        """Keep ``content`` in the place of another."""
        with self._lock:
            self._stores[key] = content
            self._ends.pop(key, None)

    def drop(self, key: _Key, content: _Content) -> None:
        """Forget ``content``, but for what it has seen."""
        with self._lock:
            if self._stores.get(key) is content:
                del self._stores[key]
                self._ends[key] = furthest(content.head, self._ends.get(key)) or content.head


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
        self._current: _Content | None = None
        self._made: list[MemoryMetadataStore] = []
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise Closed("this metadata cache")

    def _handle(self, content: _Content) -> MemoryMetadataStore:
        store = MemoryMetadataStore(content)
        self._made = [store, *(made for made in self._made if not made._closed)]  # noqa: SLF001
        return store

    def open_current(self) -> MetadataStore | None:
        self._check()
        if self._current is None or not self._current.handles:
            self._current = self._shelf.take(self._key)
        return None if self._current is None else self._handle(self._current)

    def seen(self) -> Head | None:
        return self._shelf.seen(self._key)

    def create(self) -> MetadataStore:
        self._check()
        return self._handle(_Content())

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
    def _content(store: MetadataStore) -> _Content:
        if not isinstance(store, MemoryMetadataStore):
            raise InvalidArgument("this store is not of this cache", argument="store")
        return store._content  # noqa: SLF001  (both are this module's)

    def close(self) -> None:
        self._closed = True

    def abandon(self) -> None:
        """As when the process died: for simulations, whose processes die without closing. Nothing of it may be used afterwards."""
        self._closed = True
        for store in self._made:
            if not store._closed:  # noqa: SLF001  (else another cache may hold its content by now)
                store._content.views.clear()  # noqa: SLF001
                store._content.handles.clear()  # noqa: SLF001
                store._content.clean = False  # noqa: SLF001
