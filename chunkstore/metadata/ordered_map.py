"""The ordered map under a metadata store: keys to values in key order, with consistent views and one write transaction at a time.

``Transaction`` and ``Cursor`` have the methods of LMDB's that the store calls, without anything between (``lmdb``); these here are lists.
An ``OrderedMap`` is shared by the handles of one cache object on one store. It keeps what they know of it: where the state is, and
appends that wait to be written (decision 0003).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, NamedTuple, TypeVar

from chunkstore.errors import CacheDamaged, ChunkstoreError, Closed, DeadlineExceeded, StorageUnavailable
from chunkstore.metadata.port import NO_TOTALS, Commit, Head, Position, Totals
from chunkstore.metadata.rows import RowDamaged, Tally, grown
from chunkstore.runtime import Lock, defer_interrupt, lock

__all__ = ["FIRST_ROW", "Cursor", "OrderedMap", "StoredHead", "Transaction", "WriteBuffer"]

T = TypeVar("T")

FIRST_ROW: Final = b"\x01"
"""Every key of a row or index entry is above it, the store's own below."""
_COMMITS_MAX: Final = 128
_ROWS_MAX: Final = 1024


class Transaction:
    """A consistent view, or the one write transaction, which sees its own changes: keys in order, and their values."""

    __slots__ = ("_keys", "_values", "get")

    def __init__(self, keys: list[bytes], values: dict[bytes, bytes]) -> None:
        self._keys = keys
        self._values = values
        self.get = values.get

    def copy(self) -> Transaction:
        return Transaction(self._keys.copy(), self._values.copy())

    def __len__(self) -> int:
        return len(self._keys)

    def cursor(self) -> Cursor:
        return Cursor(self, self._keys, self._values)

    def put(self, key: bytes, value: bytes, /) -> None:
        self.replace(key, value)

    def replace(self, key: bytes, value: bytes, /) -> bytes | None:
        old = self._values.get(key)
        if old is None:
            if self._keys and key < self._keys[-1]:
                insort(self._keys, key)
            else:
                self._keys.append(key)
        self._values[key] = value
        return old

    def pop(self, key: bytes, /) -> bytes | None:
        old = self._values.pop(key, None)
        if old is not None:
            del self._keys[bisect_left(self._keys, key)]
        return old

    def abort(self) -> None:
        """Nothing is held."""


class Cursor:
    """A place among the entries. After a move that answers False there is no entry at it."""

    __slots__ = ("_at", "_keys", "_txn", "_values")

    def __init__(self, txn: Transaction, keys: list[bytes], values: dict[bytes, bytes]) -> None:
        self._txn = txn
        self._keys = keys
        self._values = values
        self._at = 0

    def set_range(self, key: bytes, /) -> bool:
        self._at = bisect_left(self._keys, key)
        return self._at < len(self._keys)

    def last(self) -> bool:
        self._at = len(self._keys) - 1
        return self._at >= 0

    def prev(self) -> bool:
        self._at -= 1
        return self._at >= 0

    def key(self) -> bytes:
        return self._keys[self._at]

    def item(self) -> tuple[bytes, bytes]:
        key = self._keys[self._at]
        return key, self._values[key]

    def iternext(self) -> Iterator[tuple[bytes, bytes]]:
        for place in range(self._at, len(self._keys)):
            yield (key := self._keys[place]), self._values[key]

    def putmulti(
        self, items: Sequence[tuple[bytes, bytes]], /, *, overwrite: bool = True, append: bool = False
    ) -> tuple[int, int]:
        count = 0
        for key, value in items:
            if (append and self._keys and key <= self._keys[-1]) or (not overwrite and key in self._values):
                continue
            self._txn.put(key, value)
            count += 1
        return len(items), count


class StoredHead(NamedTuple):
    """The head's row, as bytes and decoded."""

    raw: bytes
    head: Head
    tallied: Tally


class WriteBuffer:
    """Commits after the head that is stored, in order, their rows, and the totals after them (None: to be counted). ``rows`` may be read
    without a lock, unless there are ``lines``: their rows are derived when they are written.

    Only appends of an owner's own wait, and they are seen: a look at one row finds it here, and before a view is opened they are written.
    A process that dies with some loses nothing but the time to replay them.
    """

    __slots__ = ("commits", "full", "lines", "position", "rows", "totals")

    def __init__(self, position: Position | None = None, totals: Totals = NO_TOTALS) -> None:
        """``position``: where the store is, None: that is not known, and nothing waits; ``totals``: there."""
        self.commits: list[Commit] = []
        self.rows: dict[bytes, bytes | None] = {}
        self.position = position
        self.totals: Totals | None = totals
        self.lines = 0
        """How many."""
        self.full: bool = False
        """Whether they are to be written before another one comes."""

    @property
    def head(self) -> Head | None:
        """Where the state is with them; there is one at least. None: the last one does not state its digest."""
        last = self.commits[-1]
        return None if last.digest is None else Head(last.position, last.digest)

    def add(self, commit: Commit) -> bool:
        """One more, if it follows, and is of appends only."""
        last = self.position
        if last is None or commit.previous_hash != last.hash or commit.position.lsn != last.lsn + 1:
            return False
        if commit.lines is not None:
            self.totals = None
            self.lines += len(commit.lines.lines)
        else:
            totals = grown(self.totals or NO_TOTALS, commit.ops)
            if totals is None:
                return False
            self.rows.update(commit.rows)
            self.totals = totals if self.totals is not None else None
        self.position = commit.position
        self.commits.append(commit)
        self.full = len(self.commits) >= _COMMITS_MAX or len(self.rows) + self.lines >= _ROWS_MAX
        return True


class OrderedMap(ABC):
    """The port. ``path`` is its name in messages. ``errors``: what its transactions raise, and a view that has none any more
    (``AttributeError``); ``translate`` says what that means."""

    errors: ClassVar[tuple[type[Exception], ...]] = (AttributeError, RowDamaged)

    def __init__(self, path: str) -> None:
        self.path = path
        self.writing: Lock = lock()
        self.buffer: WriteBuffer = WriteBuffer()
        """Commits that no transaction has yet; the next write takes them along. Changed with ``writing`` held."""
        self.last_head: StoredHead | None = None
        """What the last transaction left as the head, if that is known; in a transaction ``written_head`` is what it will leave."""
        self.written_head: StoredHead | None = None
        self.at: Position | None = None
        """Where the state is; None while it moves, and where this is not known. Set with ``writing`` held."""
        self.views: set[int] = set()
        """Tickets of the views that are open."""
        self.inherited: bool = False
        """Whether it was opened by the process that this one was forked from."""
        self.damage: CacheDamaged | None = None
        self.count = 1
        """Open handles."""
        self._counting: Lock = lock()

    @abstractmethod
    def begin_read(self, ticket: int) -> Transaction:
        """A consistent view, counted as long as ``ticket`` is in ``views``."""

    @abstractmethod
    def transact(self, body: Callable[[Transaction], T]) -> T:
        """Run ``body`` in a write transaction and commit it, or nothing of it; it may run again from the start. Only for ``write``."""

    @abstractmethod
    def entry_count(self) -> int:
        """O(1)."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Free space for it; None: unknown, or without meaning."""

    @abstractmethod
    def has_room(self) -> bool:
        """Whether what is put off now can surely be written later: what was acknowledged must be there on a full disk, too."""

    @abstractmethod
    def end(self, *, clean: bool) -> bool:
        """Release everything, after the last handle. False, with no effect, if that cannot be."""

    def recorded(self, known: StoredHead) -> None:  # noqa: B027  (not every map records it)
        """A transaction left this head."""

    def meaning(self, error: Exception) -> ChunkstoreError:
        """The error that says what one of ``errors`` means to the caller."""
        return CacheDamaged(
            f"the metadata cache {self.path} is damaged ({error}); it is rebuilt from the journal", object=self.path
        )

    def translate(self, error: Exception) -> ChunkstoreError:
        """As ``meaning``; after damage nothing begins here any more."""
        translated = self.meaning(error)
        if isinstance(translated, CacheDamaged) and self.damage is None:
            self.damage = translated
            self.at = None
        return translated

    def check(self) -> None:
        """Raise if this process may not use it."""
        if self.inherited:
            raise StorageUnavailable(
                f"the metadata cache {self.path} was opened before this process was forked; open the store again here, "
                "or start processes with the 'spawn' method",
                object=self.path,
            )
        if self.count <= 0:
            raise Closed("this metadata store")
        if self.damage is not None:
            raise self.damage.copy()

    def write(self, body: Callable[[Transaction], T], deadline_s: float) -> T:
        """Run ``body``, which applies what is in the buffer, in a write transaction and commit it."""
        if self.inherited or self.count <= 0 or self.damage is not None:
            self.check()
        with defer_interrupt():
            if not self.writing.acquire(False) and not self.writing.acquire(timeout=deadline_s):
                raise DeadlineExceeded("waiting for the metadata store's writer", deadline_s=deadline_s)
            try:
                self.written_head = self.at = None
                done = self.transact(body)
                known = self.last_head = self.written_head
                # Appends wait only where what is put off now can surely be written later.
                waits = known is not None and self.has_room()
                self.buffer = (
                    WriteBuffer(known.head.position, known.tallied.totals) if known and waits else WriteBuffer()
                )
                if known is not None:
                    self.recorded(known)
                    self.at = known.head.position
                return done
            finally:
                self.writing.release()

    def share(self) -> bool:
        """Count one more handle; False if there is none any more, or it is damaged."""
        with self._counting:
            if self.inherited or self.count <= 0 or self.damage is not None:
                return False
            self.count += 1
            return True

    def release(self, *, clean: bool) -> None:
        """Give a handle back. The last one closes it, and with ``clean`` it may be opened again."""
        if self.inherited:
            return
        with self._counting:
            self.count -= 1
            if self.count == 0 and not self.end(clean=clean):
                self.count = 1  # the thread that is writing keeps it, and its lock, for ever
