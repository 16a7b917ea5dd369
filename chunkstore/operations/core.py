"""What all operations of one owned container share: the parts, the present ownership, and the gates in front of it.

Promises: ``journal``, ``store`` and ``epoch`` change only during a take-over, while the gate is shut and nothing is
reserved. Order of checks in every operation: argument, closed, not owner, then the segment (api: order of checks).
Leaves out: what to do at faults (``lifecycle``), the verbs themselves.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from chunkstore import runtime
from chunkstore.config import Settings
from chunkstore.deadline import until
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    Damaged,
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    SegmentNotFound,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.journal import Journal, JournalService, Ownership, RecordKind, SnapshotReport
from chunkstore.metadata.codec import decode_chunk, decode_segment
from chunkstore.metadata.keys import CHUNK, chunk_key, segment_key
from chunkstore.metadata.port import MetadataStore
from chunkstore.names import ContainerNames, chunk_epoch, chunk_id
from chunkstore.operations.committer import Committer
from chunkstore.operations.gate import Gate
from chunkstore.operations.pending import Ahead, PendingOp, SegmentState, SegmentStates, caught_up
from chunkstore.records import ACTIVE, ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkStorage

if TYPE_CHECKING:
    from chunkstore.operations.lifecycle import Lifecycle
    from chunkstore.operations.table import PendingTables

__all__ = ["Core", "Outdated", "Undecided", "decode_found_chunk"]

_SPACE_CHECK_S = 0.05
_RETIRED_MAX = 16
_PATIENCE_S_MAX = 5.0


class Core:
    """The shared heart. Built by the engine after a take-over; ``lifecycle`` and ``tables`` are set right after."""

    lifecycle: Lifecycle
    tables: PendingTables

    def __init__(
        self,
        *,
        storage: ChunkStorage,
        names: ContainerNames,
        settings: Settings,
        service: JournalService,
        ownership: Ownership,
    ) -> None:
        self.storage = storage
        self.names = names
        self.settings = settings
        self.service = service
        self.appendable = storage.capabilities.append
        self.remote = storage.capabilities.remote
        self.lazy = settings.lengths == "lazy"
        self.ahead: dict[str, Ahead] = {}
        """By segment name: what is acknowledged and not in the metadata yet. Put in under the committer's lock, by who holds the
        segment's; taken out once the metadata say it."""
        self.patience_s = min(_PATIENCE_S_MAX, settings.op_deadline_s / 2)
        """How long who recovers waits for somebody else's data write, before it goes on without."""
        self.gate = Gate(self)
        self.pool = runtime.pool("chunkstore-io", settings.io_workers)
        self.committer = Committer(self)
        self.snapshot_worker: Callable[[int], SnapshotReport] | None = None
        """Writes a snapshot of the present state in another process, given our epoch; None: the owner does it itself."""
        self.collecting = runtime.lock()
        """Held by the one collection that is under way."""
        self.garbage_noticed_s: dict[bytes, float] = {}
        """When garbage with a label of the future was first seen here, by its row's key."""
        self.closed = False
        self.ended = False
        """Whether everything has been released, too: what hung until then must not take over any more."""
        self.inherited = False
        """Whether this is a forked child's copy: the container, the threads and the locks are its parent's."""
        self.fenced: NotOwner | None = None
        self.broken: ChunkstoreError | None = None
        """Why there is no usable journal at the moment; the next change tries to take over again."""
        self.maintaining = False
        self._space_checked_s = -1.0
        self._retired: deque[tuple[float, MetadataStore]] = deque()
        """Replaced stores, and when they were replaced."""
        self.adopt(ownership)
        _cores.add(self)

    def adopt(self, ownership: Ownership, *, broken: ChunkstoreError | None = None) -> None:
        """Start serving with a fresh ownership. ``broken``: why nobody may be served yet."""
        # Before anybody can see the new journal: it is to be mended, not to be written.
        self.broken = broken or self.broken
        self.journal: Journal = ownership.journal
        self.store: MetadataStore = ownership.store
        self.epoch = ownership.journal.epoch
        self.report = ownership.report
        self.digest = ownership.store.head().digest
        self._chunk_numbers = itertools.count(1)
        # Whole ids: epoch and number must never be taken from two different ownerships.
        self._ids = itertools.count((self.epoch << 32) + 1)
        self.opened_s = runtime.monotonic_s()
        self.opened_ms = runtime.now_ms()
        self.broken = broken

    def retire(self, store: MetadataStore) -> None:
        """Keep a replaced store open for readers that still hold it: until their operation has ended for certain."""
        now_s = runtime.monotonic_s()
        self._retired.append((now_s, store))
        while len(self._retired) > _RETIRED_MAX and now_s - self._retired[0][0] > self.settings.op_deadline_s:
            _, outlived = self._retired.popleft()
            if outlived is not self.store:
                outlived.close(clean=False)

    def close_stores(self) -> None:
        """Close the retired stores and the present one: the last user of what they share says that it was left clean."""
        for _, store in self._retired:
            if store is not self.store:
                store.close(clean=False)
        self.store.close(clean=True)

    @property
    def states(self) -> SegmentStates:
        """The pending states in use."""
        return self.gate.states

    # Gates

    def deadline_s(self) -> float:
        """The end of an operation that begins now, on the monotonic clock."""
        return runtime.monotonic_s() + self.settings.op_deadline_s

    def aged_ms(self) -> int:
        """What the wall clock would say now if nobody had set it since we opened."""
        return self.opened_ms + int((runtime.monotonic_s() - self.opened_s) * 1000)

    def check_open(self) -> None:
        """Raise ``Closed`` after ``close``, and in a forked child."""
        if self.closed:
            raise self._closed_error()

    def check_owner(self) -> None:
        """Raise ``Closed``, or ``NotOwner`` once a newer owner has been seen."""
        if self.closed:
            raise self._closed_error()
        if self.fenced is not None:
            raise self.fenced.copy()

    def check_fence(self) -> None:
        """Ask the storage whether a newer owner exists, waiting out a take-over of our own.

        A remote storage is told when that has to be over (``chunkstore.deadline``). Raises ``Closed``, ``NotOwner``,
        ``DeadlineExceeded``, ``StorageUnavailable``, and ``StorageFull`` where a stat may be stale.
        """
        self.check_owner()
        if not self.remote:
            self._check_fence()
            return
        with until(self.deadline_s()):
            self._check_fence()

    def _check_fence(self) -> None:
        if not self.storage.capabilities.fence_by_stat:
            # A stat may be stale here (protocol A13): only a commit of our own proves that we still own the container,
            # and a broken journal has to be mended for it: to look for a claim instead is no better now than before.
            try:
                self.lifecycle.note(RecordKind.HEARTBEAT, ())
            except OutcomeUnknown:
                # Whether the heartbeat becomes history is nothing to whoever reads: he was not answered, and changed nothing.
                self.raise_deadline("asking whether a newer owner exists")
            return
        deadline_s = self.deadline_s()
        while True:
            journal = self.journal
            owner = self._newer_owner(journal)
            if owner is None:
                return
            # The gate is shut from before a take-over of our own claims until its journal is the present one.
            if self.gate.is_open() and self.journal is journal:
                # A1: whoever has seen a higher claim halts; it does not go on committing until that claimant gets to the seal.
                error = NotOwner(epoch=journal.epoch, owner=owner)
                self.fence(error)
                raise error
            self.gate.wait(deadline_s)
            self.check_owner()

    def give_way(self) -> None:
        """Stop owning if a newer claim is there already. Asks the storage once; never waits, never writes."""
        journal = self.journal
        if self.broken is None and self.gate.is_open():
            owner = self._newer_owner(journal)
            if owner is not None and self.gate.is_open() and self.journal is journal:
                self.fence(NotOwner(epoch=journal.epoch, owner=owner))

    def rows_moved_on(self, damage: Damaged) -> bool:
        """Whether rows that contradicted what we remember are those of a later epoch: True for our own next one (look again).

        Owners on one machine share the metadata cache. Raises ``NotOwner`` when the rows are a newer owner's, or we were deposed.
        """
        if self.fenced is not None:
            # What a successor's OPEN told us of is remembered, and was never applied to our rows.
            raise self.fenced.copy() from damage
        owner = self.store.head().owner_epoch
        if owner <= self.epoch:
            return False
        if not self.gate.is_open() or owner <= self.epoch:
            # Asked in this order: a take-over of our own may have ended between the two.
            return True
        error = NotOwner(epoch=self.epoch, owner=owner)
        self.fence(error)
        raise error from damage

    def _newer_owner(self, journal: Journal) -> int | None:
        """The epoch of a claim above ours that does not seem to be our own, or None."""
        if self.broken is None:
            try:
                journal.check_fence()
                return None
            except (NotOwner, Closed):
                # By a stranger, or by a take-over of our own under way: that has closed the stream, too.
                pass
        return self.service.foreign_claim(journal)

    def _closed_error(self) -> Closed:
        name = f"container {self.names.container!r}"
        return Closed(f"{name}, opened before this process was forked," if self.inherited else name)

    def pass_gate(self, deadline_s: float) -> None:
        """Wait while a take-over of our own is under way, and mend a broken journal.

        Raises ``DeadlineExceeded``, ``NotOwner``, ``Closed``, and why the journal cannot be mended now.
        """
        self.check_owner()
        if not self.gate.is_open():
            self.gate.wait(deadline_s)
            self.check_owner()
        if self.broken is not None:
            # An earlier fault could not be mended at once (a full disk, say): try again before anything is planned.
            self.lifecycle.mend(deadline_s)

    def abandon(self, state: SegmentState) -> None:
        """Go on without whoever hangs in a data write under the state's lock: what is planned there has missed its turn.

        The chunks that are being written may grow at any time from now on, so they are never written again (protocol A2).
        """
        twin = SegmentState(state.name)
        twin.poisoned = {key[1:] for key in state.writing if key[:1] == CHUNK} | (state.poisoned or set())
        twin.last = state.last
        if self.committer.refuse(state, twin):
            state.dead = True
            self.states.replace(state, twin)

    def fence(self, error: NotOwner) -> None:
        """We were deposed: every later change and fenced read says so."""
        if self.fenced is None:
            self.fenced = error
            self.committer.notify()

    def check_cache_space(self, now_s: float) -> None:
        """Raise ``StorageFull`` while the cache disk is nearly full, before anything is written anywhere."""
        if now_s - self._space_checked_s < _SPACE_CHECK_S:
            return
        free_bytes = self.store.free_bytes()
        if free_bytes is not None and free_bytes < self.settings.cache_free_bytes_min:
            raise StorageFull(
                f"the cache disk has {free_bytes} bytes left, fewer than cache_free_bytes_min="
                f"{self.settings.cache_free_bytes_min}; free some space or move cache_dir",
                object="cache",
            )
        self._space_checked_s = now_s

    def maintenance_due(self) -> bool:
        """Whether the journal should be rolled now."""
        return not self.maintaining and self.lifecycle.roll_due()

    # Segments

    def load(self, state: SegmentState) -> None:
        """With ``state.lock`` held: make the pending fields usable.

        Raises ``Outdated`` (pass the gate, and look the state up again), ``Undecided`` (wait for that first). Nobody waits
        here: who lets go of a lock to wait may find it in the hands of somebody who hangs.
        """
        if not self.gate.is_open() or self.states_outdated(state):
            raise Outdated
        undecided = state.undecided()
        if undecided is not None:
            raise Undecided(undecided)
        raw = self.store.get(segment_key(state.name))
        if raw is None:
            state.segment, state.tail, state.growing = None, None, False
            state.poisoned = None
        else:
            state.segment = decode_segment(state.name, raw)
            self._load_tail(state, state.segment)
            newer = caught_up(state.segment, self.ahead.get(state.name))
            if newer is not None:
                state.segment, state.tail = newer
        state.dead = False

    def _load_tail(self, state: SegmentState, segment: SegmentRecord) -> None:
        last = segment.last_chunk
        if state.poisoned and last not in state.poisoned:
            # Only the last chunk of the list ever grows, so whatever else was poisoned is closed for ever.
            state.poisoned = None
        if not last:
            state.tail, state.growing = None, False
            return
        tail = state.tail = self.chunk(last)
        state.growing = self.may_grow(last, tail, state.poisoned)
        state.tail_name = self.names.chunk(last)

    def may_grow(self, identity: bytes, tail: ChunkRecord, poisoned: set[bytes] | None) -> bool:
        """Whether this process may extend the chunk: storage appends, it is ours, of this epoch, and never failed."""
        return (
            self.appendable
            and tail.state == ACTIVE
            and tail.epoch == self.epoch
            and chunk_epoch(identity) == self.epoch
            and not (poisoned and identity in poisoned)
        )

    def states_outdated(self, state: SegmentState) -> bool:
        """Whether a take-over has replaced the registry this state belonged to."""
        return self.states.peek(state.name) is not state

    def wait_for(self, op: PendingOp, deadline_s: float) -> None:
        """Wait until an operation of somebody else is decided. Raises ``DeadlineExceeded``."""
        if not self.committer.wait_decided(op, deadline_s):
            self.raise_deadline("waiting for an earlier operation")

    def chunk(self, identity: bytes) -> ChunkRecord:
        """A chunk's committed record. Raises ``Damaged`` if it is missing or unreadable."""
        return decode_found_chunk(self.names, identity, self.store.get(chunk_key(identity)))

    def new_chunk(self, segment_id: int) -> bytes:
        """A fresh chunk id of this epoch."""
        random = int.from_bytes(runtime.token(4), "big")
        return chunk_id(segment_id, self.epoch, next(self._chunk_numbers), random)

    def new_id(self) -> int:
        """A fresh segment or session id: epoch and a counter, so that no id is ever used twice."""
        return next(self._ids)

    @staticmethod
    def require(state_segment: SegmentRecord | None, name: str, identity: int | None) -> SegmentRecord:
        """The record, or ``SegmentNotFound`` (also when a handle's segment was deleted and the name re-created)."""
        if state_segment is None or (identity is not None and state_segment.id != identity):
            raise SegmentNotFound(name)
        return state_segment

    def acquire_within(self, lock: runtime.Lock, deadline_s: float, name: str) -> None:
        """Take the lock of ``name``. Raises ``DeadlineExceeded``: nothing was done."""
        if not lock.acquire(True, max(0.0, deadline_s - runtime.monotonic_s())):
            self.raise_deadline(f"waiting for the lock of {name}")

    @staticmethod
    def left_behind(op: PendingOp) -> StorageUnavailable:
        """Why an operation did not enter the queue: others had to go on without it. With the locks of its segments held, whose
        pending fields speak of it and are not to be used any more."""
        for state in op.states:
            state.dead = True
            state.writers.clear()
        names = ", ".join(state.name for state in op.states)
        return StorageUnavailable(f"writing to {names} took too long, and others had to go on without it; retry")

    def leave_behind(self, op: PendingOp) -> StorageUnavailable:
        """Decide it so, and return why: a twin of its segment may wait for it already. Nobody else may wait for it."""
        error = op.error = self.left_behind(op)
        op.decided = True
        return error

    def raise_deadline(self, what: str) -> NoReturn:
        """Raise ``DeadlineExceeded``: nothing was done."""
        raise DeadlineExceeded(what, deadline_s=self.settings.op_deadline_s)

    @staticmethod
    def unexpected(error: BaseException) -> StorageUnavailable:
        """Wrap something no binding should have raised, so that foreign exceptions do not reach other callers."""
        wrapped = StorageUnavailable(f"unexpected {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped


def decode_found_chunk(names: ContainerNames, identity: bytes, raw: bytes | None) -> ChunkRecord:
    """The record in a chunk's row. Raises ``Damaged`` naming the chunk if there is none or it cannot be decoded."""
    if raw is None:
        # A list that ends too early leads to no chunk at all, which has no name.
        where = names.chunk(identity) if identity else "a chunk list"
        raise Damaged("the metadata refers to a chunk it has no record of; run check", object=where)
    try:
        return decode_chunk("chunk row", raw)
    except Damaged as error:
        # Names cost more than decoding, so they are made only for people.
        raise Damaged(error.message, object=names.chunk(identity)) from error


_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Two processes with one claim would write to the same places of the same stream: no fence tells them apart.
    for core in _cores:
        core.closed = core.inherited = True


os.register_at_fork(after_in_child=_after_fork_in_child)


class Undecided(Exception):
    """Something of somebody else has to be decided first."""

    def __init__(self, op: PendingOp) -> None:
        super().__init__("undecided")
        self.op = op


class Outdated(Exception):
    """A take-over replaced the pending states while we waited: look the state up again."""
