"""The journal port: what the engine needs of the journal, the opcodes of history, and how a take-over is asked for.

Promises: ``Journal.append`` returns only when its record is committed, i.e. durable *and* fenced against zombies
(protocol.md 3.5, P4, P5). Records are appended one at a time, in the order of the calls. Everything about streams, slots,
claims and files stays after this port (``chunkstore_journal``).
Leaves out: group commit (the engine gathers), row semantics (the engine plans).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple, Protocol

from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.port import Head, Line, Lines, MetadataStore, Op, Position, RowChange

__all__ = [
    "Batch",
    "Journal",
    "JournalBroken",
    "JournalFollower",
    "JournalService",
    "LeaseInfo",
    "OpCode",
    "Ownership",
    "Place",
    "RecordKind",
    "RecordsPast",
    "SnapshotReport",
    "TailCut",
    "TakeOverReport",
]


class OpCode(IntEnum):
    """First element of an operation's header. Zero is never valid. The rest of each header is named after it."""

    CREATE = 1
    """(segment id, name): of an id that is there, another name (an import gives its segments theirs)"""
    APPEND = 2
    """(segment id, offset, length, ((segment offset, chunk id) of each new chunk, ...)); 1 after that: the new chunks are extents"""
    SEAL = 3
    """(segment id,)"""
    UNSEAL = 4
    """(segment id,)"""
    DELETE = 5
    """(segment id,)"""
    TRUNCATE = 6
    """(segment id, new start offset)"""
    CONCAT = 7
    """(target id, target offset, source id)"""
    ATTRIBUTES = 8
    """(segment id,)"""
    ATTACH = 9
    """(segment id, offset, length, ((segment offset, chunk id), ...)): chunks that a session wrote"""
    TABLE_PUT = 10
    """(namespace, key)"""
    TABLE_DELETE = 11
    """(namespace, key)"""
    SESSION_OPEN = 12
    """(session id,)"""
    SESSION_END = 13
    """(session id,)"""
    COLLECT = 14
    """(garbage row key, chunks forgotten)"""
    REPLACE = 15
    """(segment id, start, stop, ((segment offset, chunk id), ...)): what holds these bytes now"""
    SPILL = 16
    """(segment id, start, stop, ((segment offset, chunk id) of the new chunk, if there is one)): as REPLACE, of extents, whose rows go;
    without a new chunk the one in front of them has grown"""


class RecordKind(IntEnum):
    """Type of a journal record (FORMAT.md of ``chunkstore_journal``). Zero is never valid."""

    OPEN = 1
    SEAL = 2
    OPS = 3
    SNAPSHOT_NOTE = 4
    HEARTBEAT = 6
    CLOSE = 7
    PIN = 8
    UNPIN = 9


class Batch(NamedTuple):
    """What one record shall say. ``digest`` is the state digest after it; ``notes`` is the payload of note records; ``blob`` the bytes of
    its extents, which are where ``Journal.place`` said."""

    kind: RecordKind
    ops: Sequence[Op]
    rows: Sequence[RowChange]
    digest: int
    time_ms: int
    notes: tuple[object, ...] = ()
    blob: bytes = b""


class Place(NamedTuple):
    """Where bytes of extents are: ``names.journal_place`` of the object, and the byte there."""

    object: str
    offset: int


class JournalBroken(Exception):
    """Internal: this stream can take no more records; only a take-over by the same process can go on (protocol.md 3.9).

    ``happened`` is False when the failed record certainly is not, and never will be, part of history; None when only
    the take-over can tell. ``error`` is what to raise if it did not happen.
    """

    def __init__(self, error: ChunkstoreError, *, happened: Literal[False] | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.happened = happened


class Journal(ABC):
    """One owned stream. Not thread-safe for ``append``: the engine's committer is the only caller."""

    epoch: int
    head: Position
    """The position after the last committed record."""

    @property
    @abstractmethod
    def mode(self) -> Literal["slot", "append"]:
        """The container's journal mode."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """Where the ``blob`` of the next record would begin."""

    @abstractmethod
    def append(self, batch: Batch) -> Position:
        """Commit one record and return the position after it.

        Raises: ``NotOwner`` (fenced; did not happen), ``OutcomeUnknown`` (fenced after the write; the successor decides),
        ``JournalBroken`` (take over from yourself), ``InvalidArgument`` (record too long; did not happen), or what the storage
        answered to the first attempt (no turn, closed; did not happen).
        """

    @abstractmethod
    def append_lines(self, lines: Sequence[Line], data: Sequence[bytes], time_ms: int) -> tuple[Position, Lines]:
        """As ``append``, of appends whose bytes are ``data``, one for each line; also where they are now. Raises as ``append``."""

    @abstractmethod
    def check_fence(self) -> None:
        """Raise ``NotOwner`` if a newer epoch has been claimed; for fenced reads (protocol.md 3.13).

        Raises ``StorageUnavailable`` also where our own claim is not seen: the tree was moved or replaced (3.6, P10).
        """

    @property
    @abstractmethod
    def bytes_written(self) -> int:
        """Journal bytes of this stream so far."""

    @property
    @abstractmethod
    def blob_bytes(self) -> int:
        """... and how many of them were bytes of extents, which no replay reads."""

    @property
    @abstractmethod
    def records_written(self) -> int:
        """Records of this stream so far."""

    @abstractmethod
    def close(self) -> None:
        """Release resources. Writes nothing (the engine appends CLOSE itself)."""


class TailCut(NamedTuple):
    """An incomplete last record that recovery cut off (protocol.md A4): bytes dropped after the last good lsn."""

    bytes: int
    lsn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOverReport:
    """What a take-over did, for people and tests. ``source`` says where the state came from."""

    epoch: int
    previous_epoch: int
    source: Literal["genesis", "cache", "snapshot", "journal"]
    journal_mode: Literal["slot", "append"]
    replayed_records: int
    replayed_bytes: int
    tail_cut: TailCut | None = None
    findings: tuple[str, ...] = ()
    """Things recovery had to work around (a damaged snapshot, a discarded cache), one sentence each."""
    snapshot_failure: str = ""
    """Why the owner's last snapshot failed since then; empty after one that succeeded, and where none was tried."""
    previous_owner: str = ""
    """Host and process of the owner before us; empty where there was none, or it was this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The result of a take-over: an owned stream and the materialised state at its head."""

    journal: Journal
    store: MetadataStore
    report: TakeOverReport
    adopted: Position = field(default_factory=lambda: Position(0, bytes(16), 0, 0, 0))
    """For a self-take-over: the last record of the own former stream that is part of history."""


class LeaseInfo(NamedTuple):
    """The lease hint (protocol.md A15). Never consulted for who owns what.

    ``lsn`` and ``hash``: once released, the last record of its epoch (A17); 0 where that is not known.
    """

    epoch: int
    counter: int
    host: str
    pid: int
    boot_id: str
    released: bool
    lsn: int = 0
    hash: bytes = b""


class RecordsPast(NamedTuple):
    """Intact records after a gap in history, which no replay reaches. ``lsn_max`` tells how many are missing besides; times are the labels
    of the first and the last; ``segments``: which they name, a thousand at most."""

    records: int = 0
    lsn_min: int = 0
    lsn_max: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    segments: tuple[str, ...] = ()


class SnapshotReport(NamedTuple):
    """A written and validated snapshot, and where it is: ``position`` and ``digest`` of the head it shows."""

    name: str
    position: Position
    digest: int
    rows: int
    size_bytes: int

    @property
    def lsn(self) -> int:
        """The last record it contains."""
        return self.position.lsn

    @property
    def note(self) -> tuple[object, ...]:
        """What its SNAPSHOT_NOTE record says: name, lsn, hash, digest, epoch, index, end."""
        lsn, identity, epoch, index, end = self.position
        return (self.name, lsn, identity, self.digest, epoch, index, end)


class JournalService(ABC):
    """The journal of one container, before and between ownerships."""

    @abstractmethod
    def take_over(
        self, *, own: Journal | None, lease: LeaseInfo | None = None, accept_rollback: bool = False
    ) -> Ownership:
        """Claim the next epoch, end the former stream, materialise the state, open our stream (protocol.md T0 to T9).

        ``own`` is our own failed or rolled journal (self-take-over, A1: only ``own.epoch + 1`` is tried), or None to climb
        to the top. ``lease``: as a polite claimant has just read it; None: it is read. ``accept_rollback``: go on where the journal
        does not reach what was seen of it before (A17).

        Raises: ``NotOwner`` (a newer claim was met), ``Damaged`` (history cannot be trusted), ``RolledBack``,
        ``StorageFull``, ``StorageUnavailable``, ``Unsupported`` (no safe claim on this storage).
        """

    @abstractmethod
    def foreign_claim(self, own: Journal) -> int | None:
        """The epoch of a stranger's claim above ``own``, or None; our own half-done self-take-over is no stranger.

        For fenced reads while ``own`` is broken. Raises ``StorageUnavailable``, ``Damaged``.
        """

    @abstractmethod
    def resolve(self, position: Position) -> bool | None:
        """Whether the record at ``position`` (of a former epoch) is part of history; None while no successor's OPEN says so."""

    @abstractmethod
    def write_snapshot(self, store: MetadataStore, *, epoch: int) -> SnapshotReport:
        """Write a snapshot of the store's present head, read it back, and return it. The caller then appends SNAPSHOT_NOTE."""

    @abstractmethod
    def publish_latest(self, report: SnapshotReport, *, epoch: int) -> None:
        """Overwrite the LATEST hint after the note is committed."""

    @abstractmethod
    def collect(
        self, *, head: Head, epoch: int, dry_run: bool, go_on: Callable[[], bool] = lambda: True, least: bool = False
    ) -> tuple[int, int]:
        """Delete journal objects and snapshots no longer needed (protocol.md 3.14.5, 6). Returns (objects, bytes). ``go_on`` is asked
        before each deletion; False ends it there: what is left goes the next time. ``least``: one snapshot is enough."""

    @abstractmethod
    def renew_lease(self, epoch: int, *, released: bool) -> None:
        """Rewrite the lease hint; errors are swallowed (it is a hint). Released, it names the last committed record: CLOSE."""

    @abstractmethod
    def read_lease(self) -> LeaseInfo | None:
        """The lease hint, or None."""


class JournalFollower(Protocol):
    """What a replica needs of the journal."""

    ahead: str
    """Why the followed cache has more than the journal; empty: it has not."""

    @property
    def store(self) -> MetadataStore:
        """The materialised state."""

    def catch_up(self) -> Head:
        """Apply everything committed. Raises ``Damaged``, ``StorageUnavailable``, ``StorageFull``."""

    @property
    def unopened_epoch(self) -> int | None:
        """As ``Replica.unopened_epoch``."""

    def close(self) -> None:
        """Release resources."""
