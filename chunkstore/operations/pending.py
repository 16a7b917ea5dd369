"""What is reserved but not decided: pending operations, and the pending state of each segment in use.

Promises (protocol A6): a segment's pending state is memory only and changes under that segment's lock; operations enter the
commit queue in the order of their reservations; when one fails, everything reserved behind it on that segment fails with
the same error and the pending state falls back to what is committed.
Leaves out: committing (``committer``), planning (``append``, ``draft``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError
from chunkstore.journal import RecordKind
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.port import Op
from chunkstore.records import ChunkRecord, GarbageRecord, SegmentRecord, SessionRecord, TableRecord

__all__ = ["Ahead", "PendingOp", "RowRecord", "SegmentState", "SegmentStates", "Waiter", "caught_up"]

RowRecord: TypeAlias = SegmentRecord | ChunkRecord | TableRecord | SessionRecord | GarbageRecord | None

_IDLE_STATES_MAX: Final = 32_768
_NOTHING: Final[Mapping[bytes, RowRecord]] = {}


class Ahead(NamedTuple):
    """What was acknowledged of a segment whose last chunk grows without records (lazy lengths): both as they would be."""

    segment: SegmentRecord
    tail: ChunkRecord


def caught_up(segment: SegmentRecord, ahead: Ahead | None) -> Ahead | None:
    """The committed ``segment`` with what is acknowledged beyond it, and its last chunk; None if it says everything itself."""
    if ahead is None:
        return None
    newer = ahead.segment
    if newer.id != segment.id or newer.last_chunk != segment.last_chunk or newer.length <= segment.length:
        return None
    return Ahead(segment.grown(newer.length, newer.owner_epoch, newer.modified_ms), ahead.tail)


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


class PendingOp:
    """One operation between reservation and decision.

    ``rows`` are the records as they shall be; the committer encodes them, so that ten appends to one segment in one batch
    cost one row. Table rows and garbage get the record's lsn there. ``sync_names`` are the chunk objects to be made
    durable first. ``epoch`` is the epoch it was planned in: chunks of one epoch are never committed by another (0: no chunks,
    any epoch will do). ``decided`` is set last; ``error`` is None then for a committed operation.
    """

    __slots__ = (
        "abandoned",
        "decided",
        "entered",
        "epoch",
        "error",
        "garbage",
        "headers",
        "kind",
        "leads",
        "lsn",
        "notes",
        "rows",
        "states",
        "sync_names",
        "table_keys",
        "waiter",
        "written",
    )

    def __init__(
        self,
        headers: list[Op],
        rows: dict[bytes, RowRecord],
        states: tuple[SegmentState, ...],
        sync_names: tuple[str, ...],
        epoch: int,
    ) -> None:
        self.epoch = epoch
        self.kind = RecordKind.OPS
        self.notes: tuple[object, ...] = ()
        self.headers = headers
        self.rows = rows
        self.states = states
        self.sync_names = sync_names
        self.garbage: list[GarbageRecord] = []
        self.table_keys: tuple[bytes, ...] = ()
        self.written = False
        self.entered = False
        self.decided = False
        self.error: ChunkstoreError | None = None
        self.lsn = 0
        self.waiter: Waiter | None = None
        self.leads = False
        self.abandoned = False

    def poison(self) -> None:
        """Remember that chunks this operation wrote may hold more, or less, than their records will say (protocol A2)."""
        if not self.sync_names:
            return
        written = {key[1:] for key in self.rows if key[:1] == CHUNK}
        for state in self.states:
            while state.twin is not None:
                state = state.twin
            state.poisoned = written if state.poisoned is None else state.poisoned | written

    def size_bytes_estimate(self) -> int:
        """About how many journal bytes this takes, erring upwards; attributes and table values count in full."""
        total = 100 * len(self.headers) + 64 * len(self.garbage)
        for key, record in self.rows.items():
            total += len(key) + 150
            if type(record) is TableRecord:
                total += len(record.value)
            elif type(record) is SegmentRecord and record.attributes:
                total += sum(len(name) * 4 + 16 for name in record.attributes)
                total += sum(len(item) * 4 for item in record.attributes.values() if not isinstance(item, int))
        return total


class SegmentState:
    """The pending state of one segment name. All fields change under ``lock``.

    ``dead`` says that the pending fields are not to be used before they are loaded again from the committed state.
    ``segment`` is None while no segment of this name exists. ``tail`` is the last chunk's pending record (None without
    chunks). ``growing`` says that this process may extend the tail: it is ours, of this epoch, and never failed.
    ``poisoned`` names chunks whose last write did not succeed: they are never written again (protocol A2).
    ``turn`` is taken before ``lock`` by whoever wants to reserve, and kept by changes of structure while they wait, without
    ``lock``, until nothing is undecided: appends queue up behind them instead of overtaking them for ever, and a take-over,
    which needs only ``lock``, is never in anybody's way.
    ``writing`` are the rows of what was written last under the lock. If that hangs, others go on with a ``twin`` (which is set
    under the committer's lock), and what is planned on this state enters the queue no more.
    ``reserved`` holds operations whose data is still being written, in order (only storages without append let several
    of them write at once). ``last`` is the newest operation that entered the commit queue.
    """

    __slots__ = (
        "dead",
        "growing",
        "last",
        "lock",
        "name",
        "poisoned",
        "reserved",
        "segment",
        "tail",
        "tail_name",
        "turn",
        "twin",
        "users",
        "writers",
        "writing",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.twin: SegmentState | None = None
        self.writing: Mapping[bytes, RowRecord] = _NOTHING
        self.lock = runtime.lock()
        self.turn = runtime.lock()
        self.segment: SegmentRecord | None = None
        self.tail: ChunkRecord | None = None
        self.tail_name = ""
        self.growing = False
        self.poisoned: set[bytes] | None = None
        self.dead = True
        self.users = 0
        self.last: PendingOp | None = None
        # A list, not a deque: it is short, and there may be 25,000 of these.
        self.reserved: list[PendingOp] = []
        self.writers: dict[bytes, tuple[int, int, PendingOp]] = {}

    def undecided(self) -> PendingOp | None:
        """The newest operation that is not decided yet, or None when the pending state is the committed one."""
        if self.reserved:
            return self.reserved[-1]
        last = self.last
        return last if last is not None and not last.decided else None


class SegmentStates:
    """The pending states in use, by name. Idle ones are forgotten, least recently used first.

    ``kept``: states of a former registry that stay in use.
    """

    def __init__(self, kept: Iterable[SegmentState] = ()) -> None:
        self._lock = runtime.lock()
        self._states: OrderedDict[str, SegmentState] = OrderedDict((state.name, state) for state in kept)

    def acquire(self, name: str) -> SegmentState:
        """The state of ``name``, protected from being forgotten until ``release``. Not loaded yet if it is ``dead``."""
        with self._lock:
            state = self._states.get(name)
            if state is None:
                state = self._states[name] = SegmentState(name)
                if len(self._states) > _IDLE_STATES_MAX:
                    self._forget_idle()
            else:
                self._states.move_to_end(name)
            state.users += 1
            return state

    def release(self, state: SegmentState) -> None:
        """End the protection that ``acquire`` gave."""
        with self._lock:
            state.users -= 1

    def peek(self, name: str) -> SegmentState | None:
        """The state of ``name`` if there is one, unprotected."""
        return self._states.get(name)

    def all(self) -> list[SegmentState]:
        """Every state in use, for take-overs."""
        with self._lock:
            return list(self._states.values())

    def replace(self, state: SegmentState, twin: SegmentState) -> None:
        """Whoever asks for the name from now on gets ``twin``."""
        with self._lock:
            if self._states.get(state.name) is state:
                self._states[state.name] = twin

    def _forget_idle(self) -> None:
        for _ in range(16):
            name, state = next(iter(self._states.items()))
            if _must_stay(state):
                self._states.move_to_end(name)
            else:
                del self._states[name]
                if len(self._states) <= _IDLE_STATES_MAX:
                    return


def _must_stay(state: SegmentState) -> bool:
    if state.users or state.undecided() is not None:
        return True
    # A poisoned tail must be remembered: nothing in the metadata says yet that its chunk is closed for ever. No other chunk grows.
    poisoned, segment = state.poisoned, state.segment
    return poisoned is not None and (state.dead or (segment is not None and segment.last_chunk in poisoned))
