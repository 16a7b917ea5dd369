"""The metadata port: a store of rows that is a prefix of history, and the cache that keeps such stores on local disk.

Promises
* The content is always ``fold(apply, H[..head.lsn])``: ``apply`` is conditional on the head's hash and lsn (protocol.md 3.8,
  P7). A commit is applied whole or not at all.
* A store has one writer for its whole life: the cache object that made or opened it. No one else ever moves its head.
* Views are consistent: one point of history, however long they stay open. They are cheap and must be closed.
* The offset index is derived from the operations of each commit (``metadata.index``) in the same transaction; the totals
  from the rows that it changes (``metadata.rows``).
* Everything here can be thrown away and rebuilt from the journal.

Errors: ``StorageFull`` (cache disk), ``CacheDamaged`` (a row is not what was written here; every later call says so, too),
``StorageUnavailable`` (anything else of the cache), ``Damaged`` (a row cannot be decoded, or a replayed digest differs), ``Closed``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self, TypeAlias

__all__ = [
    "GENESIS",
    "NO_TOTALS",
    "ROLES",
    "Commit",
    "Head",
    "Line",
    "Lines",
    "MetadataCache",
    "MetadataStore",
    "MetadataView",
    "Op",
    "Position",
    "RowChange",
    "Totals",
    "furthest",
]

Op: TypeAlias = tuple[object, ...]
"""The logical header of one operation: (opcode, ...); see ``chunkstore.journal`` for the opcodes."""

RowChange: TypeAlias = tuple[bytes, bytes | None]
"""(key, new value); None deletes the row."""


class Position(NamedTuple):
    """A point of history, and where its record is.

    ``lsn`` and ``hash`` (16 bytes, the record's hash) name the point. The record is in stream ``epoch``; the next
    record of that stream has index ``index``, and in APPEND mode begins at byte ``end`` of log.a (in SLOT mode 0).
    Genesis is lsn 0 with 16 zero bytes.
    """

    lsn: int
    hash: bytes
    epoch: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which is not used on positions
    end: int


GENESIS = Position(0, bytes(16), 0, 0, 0)

ROLES: Final = ("owner", "replica", "past")
"""Whom a cache serves. Stores of the past are never current: each is of one moment, and deleted when it is closed."""


class Head(NamedTuple):
    """Where a store is: position, and the state digest over all rows."""

    position: Position
    digest: int


def furthest(*heads: Head | None) -> Head | None:
    """The one with the most records, the first of equals."""
    return max(filter(None, heads), key=lambda head: head.position.lsn, default=None)


class Totals(NamedTuple):
    """What all segments and garbage ranges take up: sums over their rows (``metadata.rows``)."""

    segments: int
    chunks: int
    """In the lists of segments; those in garbage are not among them."""
    live_bytes: int
    """Readable: from each segment's start offset to its length."""
    dead_head_bytes: int
    """Of first chunks, below their segment's start offset."""
    garbage_bytes: int


NO_TOTALS = Totals(0, 0, 0, 0, 0)


class Line(NamedTuple):
    """One append whose bytes are in the record (protocol 3.7).

    ``crc32c`` covers the extent up to the line's end. ``joined``: the line goes on with the extent of the line before it, else it
    begins one. ``name``: of the segment, UTF-8. ``event``: the writer's id, event number and CRC32C of the line's own bytes.
    """

    segment_id: int
    offset: int
    length: int
    crc32c: int
    joined: bool
    name: bytes
    event: tuple[bytes, int, int] | None = None


class Lines(NamedTuple):
    """The appends of one record, which was written as ``lsn`` in ``epoch``, in the order of their bytes; these begin at byte ``at`` of
    ``object`` (``names.journal_place``)."""

    epoch: int
    lsn: int
    time_ms: int
    object: str
    at: int
    lines: Sequence[Line]


class Commit(NamedTuple):
    """One decided record, ready to be applied: rows as they shall be, and the operations that say why; or ``lines``, from which
    ``metadata.lines`` derives both. ``digest``: the state digest after it; None: the record does not state it."""

    position: Position
    previous_hash: bytes
    digest: int | None
    ops: Sequence[Op]
    rows: Sequence[RowChange]
    lines: Lines | None = None


class MetadataView(ABC):
    """A consistent read view; a context manager. Not for use by several threads at once."""

    @property
    @abstractmethod
    def head(self) -> Head:
        """The point of history this view shows."""

    @property
    @abstractmethod
    def totals(self) -> Totals:
        """The totals over the rows of this view. O(1)."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The row's value, or None."""

    @abstractmethod
    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows with ``start <= key < stop`` in key order. Valid while the view is open."""

    @abstractmethod
    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The row (or index entry) with the greatest key at or below ``key``, or None. O(log n)."""

    @abstractmethod
    def locate(self, segment_id: int, offset: int) -> tuple[bytes, int] | None:
        """The chunk that holds ``offset`` of a segment, by the offset index: (chunk id, segment offset of its first byte).

        The chunk found begins at or below ``offset``; None when the index has nothing there. O(log n), never a walk.
        """

    @abstractmethod
    def count_chunks(self, segment_id: int, start: int, stop: int) -> int:
        """How many chunks of the segment begin in ``[start, stop)``, by the offset index. O(answer)."""

    @abstractmethod
    def audit(self) -> None:
        """Read everything once and compare it with what was written: what vanished is noticed, too. O(entries).

        Raises ``CacheDamaged``, as does every later call on this store then. Retry: safe.
        """

    @abstractmethod
    def close(self) -> None:
        """End the view. Safe to repeat."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class MetadataStore(ABC):
    """The port; see the module's text. Thread-safe; ``apply`` calls must not overlap in one process."""

    @abstractmethod
    def head(self) -> Head:
        """Where the store is, asked freshly."""

    @property
    @abstractmethod
    def position(self) -> Position | None:
        """Where every view that is opened now is, without asking; None: not known, as while it moves. Raises ``Closed``, or None."""

    @abstractmethod
    def view(self) -> MetadataView:
        """Open a consistent view."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """One row, freshly."""

    def audit(self) -> None:
        """As ``MetadataView.audit``, of a view that is opened now."""
        with self.view() as view:
            view.audit()

    @abstractmethod
    def apply(self, commits: Sequence[Commit], *, verify: bool) -> bool:
        """Apply consecutive commits in one transaction.

        Returns False, with no effect, unless the head is exactly the point before ``commits[0]``. ``verify`` recomputes the
        state digest from the old rows and compares it with each commit's digest.

        Raises: ``Damaged`` (a digest differs: nothing applied), ``StorageFull``, ``StorageUnavailable``.
        Durability: none promised; a lost cache is rebuilt.
        """

    @abstractmethod
    def jump(self, position: Position, digest: int) -> bool:
        """Move the head to a later position whose state is the same: allowed only if the store's digest equals ``digest``
        and the position's lsn is not lower. Returns whether it moved. (History between has changed no row.)"""

    @abstractmethod
    def load(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Bulk-load rows and index entries in ascending key order into an empty store (many transactions; not atomic)."""

    @abstractmethod
    def finish_load(self, head: Head) -> None:
        """End a bulk load: set the head. The state digest is the caller's to verify (it saw every row)."""

    @abstractmethod
    def entry_count(self) -> int:
        """How many entries there are, rows and offset index together; O(1)."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Free space where the store is, or None where that has no meaning."""

    @abstractmethod
    def close(self, *, clean: bool) -> None:
        """Release it; only after ``clean`` it is opened again. Safe to repeat."""


class MetadataCache(ABC):
    """Keeps the stores of one container, address and role; see ``ChunkStorage.address``. No two cache objects ever write to one store.

    ``open_current`` may answer None at any time: the cache is disposable.
    """

    @abstractmethod
    def open_current(self) -> MetadataStore | None:
        """A store of our own, or None.

        Another handle on the one that this object has current already; else the one of our container, role and address that was
        closed cleanly. It may be anywhere in history, also in another than the container's: the caller confirms (lsn, hash) of its head.
        """

    @abstractmethod
    def seen(self) -> Head | None:
        """The end of history that an owner's stores have reached, also those that are held, rotten or discarded; None: nothing is known.

        A store that becomes current takes its place: its maker has compared it with the journal.
        """

    @abstractmethod
    def create(self) -> MetadataStore:
        """A new, empty store at genesis, not yet current. Raises ``StorageFull``, ``StorageUnavailable``."""

    @abstractmethod
    def make_current(self, store: MetadataStore) -> None:
        """Make a store that ``create`` returned the current one, atomically: no other store, held or not, is opened any more."""

    @abstractmethod
    def discard(self, store: MetadataStore) -> None:
        """Close and delete a store (current or not); what it has seen stays known."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""
