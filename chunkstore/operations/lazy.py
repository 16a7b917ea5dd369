"""Lazy lengths: appends into a growing chunk that are acknowledged without a record (protocol 3.10, decision 0012).

Promises
* An append is acknowledged when its bytes are durable and the next epoch was seen unclaimed after that. Whoever takes over claims
  first and measures the chunk then, so it finds every acknowledged byte (P5, with a chunk's size for the journal's tail).
* One append to a chunk is on its way at a time, and a chunk is lazy for its whole life or never: whatever needs a record of
  its own (an event number, a change of structure, a failed write) closes it first, at its acknowledged length.
* What is acknowledged and not in the metadata stands in ``Core.ahead``: reads look there, and a state that is loaded again.
* A take-over writes the lengths it has measured, with their CRCs, before anybody is served (``reconcile``).

Leaves out: the first bytes of a chunk, whose record is committed like any other (``append``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import DIGEST_MODULUS, BytesLike, crc32c_extend, row_digest
from chunkstore.config import LIMITS, MIB, Settings
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, NotOwner, OutcomeUnknown, Unsupported
from chunkstore.journal import Batch, JournalBroken, OpCode, Ownership, RecordKind
from chunkstore.metadata.codec import (
    decode_chunk,
    decode_segment,
    decode_table,
    encode_chunk,
    encode_segment,
)
from chunkstore.metadata.keys import chunk_key, lazy_key, lazy_range, segment_key
from chunkstore.metadata.port import Commit, MetadataStore, MetadataView, Op
from chunkstore.names import ContainerNames
from chunkstore.operations.core import Core, Outdated, Undecided
from chunkstore.operations.pending import Ahead, PendingOp, RowRecord, SegmentState
from chunkstore.records import ACTIVE, CLOSED, LAZY, ChunkRecord, SegmentRecord, TableRecord
from chunkstore.storage import ChunkHandle, ChunkStorage

if TYPE_CHECKING:
    from chunkstore.operations.append_plan import PlannedAppend

__all__ = [
    "ACKNOWLEDGED",
    "Spoilt",
    "append_lazily",
    "check_lengths",
    "close_tails",
    "mark_lazy",
    "reconcile",
    "settle",
    "why_spoilt",
]

_APPEND: Final = int(OpCode.APPEND)
_PATIENCE_S: Final = 0.05
_READ_BYTES: Final = 4 * MIB
_WAYS: Final = 8

ACKNOWLEDGED: Final = PendingOp([], {}, (), (), 0)
"""Stands for an append that was decided without a record."""
ACKNOWLEDGED.decided = True


class Spoilt(Exception):
    """A lazy append failed with ``error``. ``op`` closes its chunk; None: that could not even be asked for."""

    def __init__(self, op: PendingOp | None, error: BaseException) -> None:
        super().__init__("spoilt")
        self.op = op
        self.error = error


def check_lengths(storage: ChunkStorage, settings: Settings) -> None:
    """Raise ``Unsupported`` where lazy lengths are asked for and cannot be safe: each append is fenced by a look at a name."""
    able = storage.capabilities
    if settings.lengths == "lazy" and (not able.append or not able.fence_by_stat or able.remote):
        raise Unsupported(
            f"lengths='lazy' needs a local storage that appends and whose names are never stale; {storage.url} "
            f"({able.medium or 'unknown'}) is none: use lengths='exact'",
            feature="lengths",
        )


# Appending


def append_lazily(core: Core, state: SegmentState, segment: SegmentRecord, data: BytesLike) -> bool:
    """With the segment's lock held and its state loaded: append without a record, if its last chunk allows that.

    Returns False if it does not (nothing was done). Raises ``Undecided``, ``Spoilt``, ``NotOwner`` (nothing was written),
    ``StorageUnavailable`` (likewise), ``OutcomeUnknown``.
    """
    tail, length = state.tail, len(data)
    if (
        tail is None
        or tail.state != LAZY
        or tail.epoch != core.epoch
        or (state.poisoned and segment.last_chunk in state.poisoned)
        or tail.length + length > segment.chunk_size_bytes_max
    ):
        return False
    undecided = state.undecided()
    if undecided is not None:
        raise Undecided(undecided)
    grown = tail.grown(tail.length + length, crc32c_extend(tail.crc32c or 0, data))
    after = segment.grown(segment.length + length, core.epoch, runtime.now_ms())
    storage, name, epoch = core.storage, state.tail_name, tail.epoch
    claim = core.names.epoch(epoch + 1)
    # C0, for the error's sake.
    if storage.exists(claim):
        _fence(core, state, epoch)
        raise NotOwner(epoch=epoch, owner=epoch + 1)
    state.writing = {chunk_key(segment.last_chunk): grown}
    try:
        storage.write(ChunkHandle(name, True), tail.length, data)
        storage.sync((name,))
        # C4 on the data path, never earlier: whoever claims after this look measures the chunk after our sync.
        claimed = storage.exists(claim)
    except BaseException as error:
        raise Spoilt(_spoil(core, state, segment), error) from error
    ahead = Ahead(after, grown)
    if claimed or not core.committer.unless_refused(state, lambda: core.ahead.__setitem__(state.name, ahead)):
        state.dead = True
        _fence(core, state, epoch)
        raise OutcomeUnknown(
            "a take-over began while this was being written, and may have found it: retry with an expected offset",
            subject=state.name,
        )
    state.segment, state.tail = after, grown
    core.committer.notify()
    return True


def _fence(core: Core, state: SegmentState, epoch: int) -> None:
    # Our own take-over leaves behind whoever holds a lock before it claims: without a twin the claim is a stranger's.
    if state.twin is None:
        core.fence(NotOwner(epoch=epoch, owner=epoch + 1))


def _spoil(core: Core, state: SegmentState, segment: SegmentRecord) -> PendingOp | None:
    """A write of unknown fate: the chunk is closed by a record at what is acknowledged, or the rest might be measured (A2)."""
    state.poisoned = {segment.last_chunk} | (state.poisoned or set())
    op: PendingOp | None = None
    # Rows of a newer owner: it may have measured what was written.
    with suppress(Damaged):
        op = _settling(core, state, closing=True)
    state.dead = True
    state.writers.clear()
    return op if op is not None and _entered(core, op) else None


def why_spoilt(core: Core, spoilt: Spoilt, deadline_s: float) -> BaseException:
    """What to tell the caller: the error itself once the chunk is closed (it did not happen), else ``OutcomeUnknown``."""
    with suppress(ChunkstoreError):
        if spoilt.op is not None:
            core.committer.wait(spoilt.op, deadline_s)
            return spoilt.error
    unknown = OutcomeUnknown(
        "the append failed, and so did closing its chunk in front of it: a take-over may find it, or a part of it"
    )
    unknown.__cause__ = spoilt.error
    return unknown


def mark_lazy(core: Core, state: SegmentState, segment: SegmentRecord, planned: PlannedAppend, *, plain: bool) -> None:
    """An append to ``segment`` that is journaled may close a lazy tail, and begin a chunk: say so in its record.

    With the lock held. ``plain``: the new chunk shall be lazy. Raises ``Damaged``; nothing was done then.
    """
    after, rows = planned.segment, planned.rows
    if after.last_chunk == segment.last_chunk:
        return
    if state.tail is not None and state.tail.state == LAZY:
        rows[lazy_key(segment.last_chunk)] = None
        if state.undecided() is None:
            # In the journal, appends follow one another: this record says what was acknowledged without one, too.
            known = _committed_length(core, segment)
            planned.header = (*planned.header[:2], known, after.length - known, *planned.header[4:])
    if plain and planned.tail.state == ACTIVE:
        rows[chunk_key(after.last_chunk)] = planned.tail = planned.tail._replace(state=LAZY)
        rows[lazy_key(after.last_chunk)] = TableRecord(0, segment.name.encode())


# Bringing the metadata up to what is acknowledged


def _settling(core: Core, state: SegmentState, *, closing: bool) -> PendingOp:
    """With the lock held, the state loaded, nothing undecided: an operation that journals the present length. Raises ``Damaged``."""
    segment, tail = state.segment, state.tail
    assert segment is not None
    assert tail is not None
    known = _committed_length(core, segment)
    rows: dict[bytes, RowRecord] = {segment_key(segment.name): segment, chunk_key(segment.last_chunk): tail}
    if closing:
        state.tail = rows[chunk_key(segment.last_chunk)] = tail._replace(state=CLOSED)
        rows[lazy_key(segment.last_chunk)] = None
    header = (_APPEND, segment.id, known, segment.length - known, ())
    return PendingOp([header], rows, (state,), (), core.epoch)


def _committed_length(core: Core, segment: SegmentRecord) -> int:
    """What the metadata say of a segment that is remembered as ``segment``. Raises ``Damaged`` when that is more: then the
    rows are a newer owner's, with whom this process shares its cache (``Core.rows_moved_on``)."""
    raw = core.store.get(segment_key(segment.name))
    known = segment.length if raw is None else decode_segment(segment.name, raw).length
    if known > segment.length:
        raise Damaged(
            "the metadata have more bytes than were acknowledged; run check", object=f"segment {segment.name}"
        )
    return known


def _entered(core: Core, op: PendingOp) -> bool:
    """Put it into the queue. Whether it was; else it is decided, for a twin of its segment may wait for it already."""
    try:
        if core.committer.enter(op, reserve=True):
            return True
    except BaseException:
        if not op.entered:
            for state in op.states:
                state.dead = True
        raise
    core.leave_behind(op)
    return False


def close_tails(core: Core, states: Sequence[SegmentState]) -> list[PendingOp]:
    """With the locks held and nothing undecided: close the lazy tails among these, so that a draft sees committed lengths.

    Returns what to wait for, without the locks. Raises ``Outdated``, ``Undecided``, ``Damaged``, ``StorageUnavailable``.
    """
    if not core.lazy:
        return []
    for state in states:
        if state.dead:
            core.load(state)
    entered = []
    for state in states:
        if state.tail is not None and state.tail.state == LAZY:
            op = _settling(core, state, closing=True)
            if not _entered(core, op):
                assert op.error is not None
                raise op.error
            entered.append(op)
    return entered


def settle(core: Core, *, closing: bool = False) -> None:
    """Journal what is acknowledged and is not yet; ``closing``: and close every lazy chunk. Passes over segments that are busy.

    Never raises: what is not settled now is settled later, or measured by whoever takes over.
    """
    if not core.lazy or core.fenced is not None or core.broken is not None:
        return
    entered: list[tuple[SegmentState, PendingOp, Ahead | None]] = []
    for name in _lazy_names(core.store) if closing else list(core.ahead):
        state = core.states.acquire(name)
        ahead = core.ahead.get(name)
        with suppress(ChunkstoreError, Outdated, Undecided):
            op = _settle_one(core, state, closing=closing)
            if op is None:
                _forget(core, state, ahead)
            elif op is not ACKNOWLEDGED:
                entered.append((state, op, ahead))
                continue
        core.states.release(state)
    deadline_s = core.deadline_s()
    for state, op, ahead in entered:
        with suppress(ChunkstoreError):
            core.committer.wait(op, deadline_s)
            _forget(core, state, ahead)
        core.states.release(state)


def _settle_one(core: Core, state: SegmentState, *, closing: bool) -> PendingOp | None:
    """The operation that was entered; None if there is nothing to settle; ``ACKNOWLEDGED`` if now is not the time."""
    if not state.lock.acquire(True, _PATIENCE_S):
        return ACKNOWLEDGED
    try:
        if not core.gate.is_open() or core.states_outdated(state) or state.undecided() is not None:
            return ACKNOWLEDGED
        if core.broken is not None:
            return ACKNOWLEDGED
        if state.dead:
            core.load(state)
        if state.tail is None or state.tail.state != LAZY:
            return None
        if state.tail.epoch != core.epoch:
            # What a former epoch acknowledged is not forgotten before it was measured.
            return ACKNOWLEDGED
        op = _settling(core, state, closing=closing)
        return op if _entered(core, op) else ACKNOWLEDGED
    finally:
        state.lock.release()


def _forget(core: Core, state: SegmentState, ahead: Ahead | None) -> None:
    """The metadata have what ``ahead`` says; what was acknowledged since stays."""

    def forget() -> None:
        if core.ahead.get(state.name) is ahead:
            core.ahead.pop(state.name, None)

    core.committer.unless_refused(state, forget)


def _lazy_names(store: MetadataStore) -> list[str]:
    with store.view() as view:
        return [decode_table(key, raw).value.decode() for key, raw in view.scan(*lazy_range())]


# After a take-over


def reconcile(storage: ChunkStorage, names: ContainerNames, ownership: Ownership) -> ChunkstoreError | None:
    """Measure every lazy chunk that the former owner left, and commit the lengths in the new stream, before it serves (T5).

    Returns why that failed; then nobody may be served. A record of it counts like any other: until it is part of history
    nobody was told a length, and the next owner measures again.
    """
    epoch = ownership.journal.epoch
    try:
        while _reconcile_some(storage, names, ownership):
            pass
    except JournalBroken as broken:
        return broken.error
    except OutcomeUnknown:
        return NotOwner(epoch=epoch, owner=epoch + 1)
    except ChunkstoreError as error:
        return error
    return None


class _Left(NamedTuple):
    """A lazy chunk that was left. ``segment`` and ``record`` are None where only the row that names it is left."""

    identity: bytes
    segment: SegmentRecord | None
    record: ChunkRecord | None


def _reconcile_some(storage: ChunkStorage, names: ContainerNames, ownership: Ownership) -> bool:
    store, journal = ownership.store, ownership.journal
    with store.view() as view:
        left = _find_left(view)
        if not left:
            return False
        pool = runtime.pool("chunkstore-measure", _WAYS)
        try:
            measured = pool.run_all([_Measure(storage, names.chunk(item.identity), item.record) for item in left])
        finally:
            pool.close()
        ops: list[Op] = []
        rows: list[tuple[bytes, bytes | None]] = []
        now_ms = runtime.now_ms()
        for item, record in zip(left, measured, strict=True):
            rows.append((lazy_key(item.identity), None))
            if item.segment is None or item.record is None or record is None:
                continue
            known, added = item.segment.length, record.length - item.record.length
            after = item.segment._replace(
                length=known + added, modified_ms=now_ms if added else item.segment.modified_ms
            )
            rows.append((segment_key(after.name), encode_segment(after)))
            rows.append((chunk_key(item.identity), encode_chunk(record)))
            ops.append((_APPEND, after.id, known, added, ()))
        head = view.head
        digest = head.digest
        for key, value in rows:
            old = view.get(key)
            digest -= row_digest(key, old) if old is not None else 0
            digest += row_digest(key, value) if value is not None else 0
    digest %= DIGEST_MODULUS
    position = journal.append(Batch(RecordKind.OPS, ops, rows, digest, now_ms))
    commit = Commit(position, head.position.hash, digest, ops, rows)
    if not store.apply([commit], owner_epoch=journal.epoch, verify=False):
        raise NotOwner(epoch=journal.epoch, owner=journal.epoch + 1)
    return True


def _find_left(view: MetadataView) -> list[_Left]:
    prefix, stop = lazy_range()
    left = []
    for key, raw in view.scan(prefix, stop):
        identity, name = key[len(prefix) :], decode_table(key, raw).value.decode()
        raw_segment, raw_record = view.get(segment_key(name)), view.get(chunk_key(identity))
        segment = None if raw_segment is None else decode_segment(name, raw_segment)
        record = None if raw_record is None else decode_chunk(key, raw_record)
        if segment is None or segment.last_chunk != identity or record is None or record.state != LAZY:
            segment = record = None
        left.append(_Left(identity, segment, record))
        if len(left) == LIMITS.garbage_unfold_chunks_max:
            break
    return left


class _Measure:
    """How long a chunk is now, made durable, and its record with that length, closed."""

    __slots__ = ("name", "record", "storage")

    def __init__(self, storage: ChunkStorage, name: str, record: ChunkRecord | None) -> None:
        self.storage = storage
        self.name = name
        self.record = record

    def __call__(self) -> ChunkRecord | None:
        storage, name, record = self.storage, self.name, self.record
        if record is None:
            return None
        length, crc = record.length, record.crc32c or 0
        # A chunk that is gone, or shorter than its record, is damage for ``check`` to report, like any other.
        with suppress(ChunkNotFound):
            stop = storage.stat(name).length
            # P6: after the size was seen, or bytes that come between would be counted and not be durable.
            storage.harden(name)
            while length < stop:
                data = storage.read(ChunkHandle(name, False), length, min(_READ_BYTES, stop - length))
                if not data:
                    break
                length, crc = length + len(data), crc32c_extend(crc, data)
        return record._replace(length=length, crc32c=crc, state=CLOSED)
