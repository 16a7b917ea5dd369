"""What is reserved but not decided: pending operations, and the pending state of each segment in use.

Promises (protocol A6): a segment's pending state is memory only, belongs to one epoch and changes under that segment's lock;
operations enter the commit queue in the order of their reservations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError
from chunkstore.journal import RecordKind
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.lines import WriterEvent
from chunkstore.metadata.port import Op
from chunkstore.operations.backlog import Arrival
from chunkstore.records.segments import ChunkRecord, GarbageRecord, PinRecord, SegmentRecord, SessionRecord, TableRecord

__all__ = [
    "NOT_LOADED",
    "ExistenceCheck",
    "Pending",
    "PendingLine",
    "PendingOp",
    "PendingSegment",
    "PendingSegments",
    "PendingTables",
    "RowRecord",
    "Stale",
    "Tail",
    "Undecided",
    "Waiter",
]

RowRecord: TypeAlias = SegmentRecord | ChunkRecord | TableRecord | SessionRecord | GarbageRecord | PinRecord | None

_IDLE_SEGMENTS_MAX: Final = 32_768
_PENDING_KEYS_KEPT: Final = 4_096
NOT_LOADED: Final = 0
"""The generation of pending fields that are not loaded."""


class Tail(NamedTuple):
    """A segment's last chunk as it will be. ``name``: of its object, where bytes may be added; ``growing``: they may be
    (``OwnedEpoch.may_grow``); ``open_row``: the value of its last block row, empty while that is the committed one."""

    record: ChunkRecord
    name: str
    growing: bool
    open_row: bytes = b""


class Stale(Exception):
    """Planned on a state that is gone (its epoch ended, or a batch failed); nothing happened: plan again."""


class Undecided(Exception):
    """An earlier operation has to be decided first: wait for ``op``, then plan again."""

    def __init__(self, op: Pending) -> None:
        super().__init__("undecided")
        self.op = op


class ExistenceCheck:
    """Which lengths chunks have in the storage, by their ids, for a commit that is not planned yet; None: not there, or not looked at."""

    def __init__(self, lengths: dict[bytes, int | None]) -> None:
        self.lengths = lengths
        self.collected: set[bytes] = set()
        """Those that a collection has begun to delete since."""


class Waiter:
    """One thread's wait for one event; a lock used as a one-shot flag, because that is the cheapest wake-up there is."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Let the waiting thread go on (once)."""
        self._lock.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait for ``wake``; False when ``timeout_s`` passed first."""
        return self._lock.acquire(True, max(0.0, timeout_s))


class PendingLine:
    """One append whose bytes the record takes along, between reservation and decision (``PendingOp``). ``event``: the writer's id, event
    number, and the CRC32C of ``data``."""

    __slots__ = (
        "data",
        "decided",
        "error",
        "event",
        "generation",
        "joined",
        "lsn",
        "offset",
        "segment_id",
        "segments",
        "waiters",
    )

    kind: Final = RecordKind.OPS
    written: Final = True

    def __init__(
        self,
        state: PendingSegment,
        segment_id: int,
        offset: int,
        data: bytes,
        event: tuple[bytes, int, int] | None,
        generation: int,
    ) -> None:
        self.segments = (state,)
        self.segment_id = segment_id
        self.offset = offset
        self.data = data
        self.event = event
        self.generation = generation
        self.joined: bool = False  # whether it goes on with the extent of another line
        self.decided: bool = False
        self.error: ChunkstoreError | None = None
        self.lsn: int = 0
        self.waiters: tuple[Waiter, ...] = ()

    def size_bytes_estimate(self) -> int:
        """As ``PendingOp``: what an OPEN says of a moved extent included."""
        return len(self.data) + 600


@dataclass(slots=True, eq=False, repr=False)
class PendingOp:
    """One operation between reservation and decision.

    ``rows`` are the records as they shall be, encoded by the record builder, which gives table rows, garbage and pins the record's lsn.
    ``sync_names``: the chunk objects to be made durable first. ``generation``: the queue's at planning. ``written``: its data
    is in the storage, so that it may be committed. ``decided`` is set last; ``error`` is None then for a committed operation.
    """

    headers: list[Op]
    rows: dict[bytes, RowRecord]
    segments: tuple[PendingSegment, ...]
    sync_names: Sequence[str]
    generation: int
    kind: RecordKind = RecordKind.OPS
    notes: tuple[object, ...] = ()
    garbage: list[GarbageRecord] = field(default_factory=list)
    table_keys: list[bytes] = field(default_factory=list)
    written: bool = True
    inline: list[tuple[bytes, bytes]] = field(default_factory=list)
    """The keys of the extents whose bytes the record takes along, and the bytes, in order; those of one extent one after the other."""
    inline_bytes: int = 0
    """How many bytes that are."""
    counts: list[Arrival] = field(default_factory=list)
    """What it adds to the extents that wait to be spilled."""
    reshapes: bool = False
    """Whether its segments' lists of chunks may change by more than a longer last chunk."""
    decided: bool = False
    error: ChunkstoreError | None = None
    lsn: int = 0
    waiters: tuple[Waiter, ...] = ()

    def size_bytes_estimate(self) -> int:
        """About how many journal bytes this takes, erring upwards; attributes and table values count in full."""
        total = 100 * len(self.headers) + 64 * len(self.garbage) + self.inline_bytes
        for key, record in self.rows.items():
            total += len(key) + 150
            if type(record) is TableRecord:
                total += len(record.value)
            elif type(record) is SegmentRecord and record.attributes:
                total += sum(len(name) * 4 + 16 for name in record.attributes)
                total += sum(len(item) * 4 for item in record.attributes.values() if not isinstance(item, int))
        return total


Pending: TypeAlias = PendingOp | PendingLine


@dataclass(slots=True, eq=False, repr=False)
class PendingSegment:
    """The pending state of one segment name in one epoch. All fields change under ``lock``.

    ``turn`` is taken before ``lock``. Changes of structure keep it while they wait, without ``lock``, until nothing is undecided:
    appends wait after them instead of overtaking them for ever. ``generation``: the commit queue's when the fields below were
    loaded or last advanced; they hold only while it is the same. ``segment`` is None while no segment of this name exists.
    An append by line changes none of these, but the *tip*, which holds while ``tip_generation`` is the queue's: the id (0: no such
    segment), length and state of the segment, and how long a line and an extent may be. ``writing``: the rows of the data write under
    way; if it does not succeed, its chunks are never written again (protocol A2), which ``unwritable`` remembers. ``last`` is the newest
    operation that entered the commit queue.
    """

    name: str
    lock: runtime.Lock = field(default_factory=runtime.lock)
    turn: runtime.Lock = field(default_factory=runtime.lock)
    generation: int = NOT_LOADED
    segment: SegmentRecord | None = None
    tail: Tail | None = None
    writing: Mapping[bytes, RowRecord] | None = None
    unwritable: frozenset[bytes] = frozenset()
    last: Pending | None = None
    tip_generation: int = NOT_LOADED
    segment_id: int = 0
    length: int = 0
    sealed: bool = False
    line_bytes_max: int = 0
    extent_bytes_max: int = 0
    encoded: bytes = b""
    writers: dict[bytes, tuple[WriterEvent, Pending]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.encoded = self.name.encode()

    def unload(self) -> None:
        """Forget the pending fields: the next operation loads the committed rows."""
        self.generation = self.tip_generation = NOT_LOADED
        self.writers.clear()

    def settle_write(self) -> None:
        """Remember the chunks of a data write that did not succeed."""
        if self.writing is not None:
            self.unwritable |= {key[1:] for key in self.writing if key[:1] == CHUNK}
            self.writing = None

    def advance(self, segment: SegmentRecord | None, tail: Tail | None, generation: int) -> None:
        """The operation that leads here has entered the queue, and its data was written."""
        self.segment = segment
        self.tail = tail
        self.writing = None
        self.tip_generation = NOT_LOADED
        self.generation = generation

    def undecided(self) -> Pending | None:
        """The newest operation that is not decided yet, or None when the pending state is the committed one."""
        last = self.last
        return last if last is not None and not last.decided else None

    def guards_tail(self) -> bool:
        """With nothing undecided: whether the last chunk may be one that must not be written again, which no metadata says."""
        if not self.unwritable:
            return False
        if self.generation == NOT_LOADED or self.last is None or self.last.error is not None:
            return True
        return self.segment is not None and self.segment.last_chunk in self.unwritable


class PendingSegments:
    """The pending states of one epoch. Idle ones are forgotten, oldest first."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self.by_name: dict[str, PendingSegment] = {}
        """Read without a lock: after locking a state, check that it is still the one stored here."""

    def find(self, name: str) -> PendingSegment:
        """The state of ``name``, perhaps not loaded yet. It may be forgotten until its lock is held."""
        with self._lock:
            state = self.by_name.get(name)
            if state is None:
                state = self.by_name[name] = PendingSegment(name)
                if len(self.by_name) > _IDLE_SEGMENTS_MAX:
                    self._forget_idle(state)
        return state

    def all(self) -> list[PendingSegment]:
        """Every state in use."""
        with self._lock:
            return list(self.by_name.values())

    def _forget_idle(self, newest: PendingSegment) -> None:
        for name in list(self.by_name)[:16]:
            state = self.by_name.pop(name)
            if state is not newest and _is_idle(state):
                state.lock.release()
            else:
                self.by_name[name] = state


def _is_idle(state: PendingSegment) -> bool:
    """Whether nothing would be lost with it; then its lock is held."""
    if state.turn.locked() or not state.lock.acquire(False):
        return False
    if state.undecided() is not None or state.writing is not None or state.guards_tail():
        state.lock.release()
        return False
    return True


class PendingTables:
    """Which table rows and sessions have undecided changes. ``lock`` orders planning and entering of such changes."""

    def __init__(self) -> None:
        self.lock: runtime.Lock = runtime.lock()
        self._newest: dict[bytes, PendingOp] = {}

    def remember(self, op: PendingOp) -> None:
        """With ``lock`` held, before ``op`` enters the queue."""
        newest = self._newest
        if len(newest) > _PENDING_KEYS_KEPT:
            self._newest = newest = {key: item for key, item in newest.items() if not item.decided}
        for key in op.table_keys:
            newest[key] = op

    def check(self, key: bytes) -> None:
        """With ``lock`` held: raise ``Undecided`` while a change of the key is."""
        op = self._newest.get(key)
        if op is not None and not op.decided:
            raise Undecided(op)
