"""What both kinds of owned stream share: building the next record, and remembering that the stream has ended.

Promises: lsn, index and hash chain continue without a hole; ``committed_lsn`` names the record before, which is decided
because records are built one at a time; labels of time never go backwards (invariant 30). A stream that failed once
takes no further record (protocol 3.9). "No newer claim" counts only if our own claim is seen after it, the very object we made (3.6).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, NoReturn, TypeVar

from chunkstore.config import KIB, LIMITS, Settings
from chunkstore.deadline import Backoff
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Closed,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    StorageUnavailable,
)
from chunkstore.journal import Batch, Journal, JournalBroken, Place, RecordKind
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.port import Line, Lines, Position
from chunkstore.records.names import journal_place
from chunkstore_journal.claim import moved
from chunkstore_journal.extents import encode_lines
from chunkstore_journal.history import Opened, Streams
from chunkstore_journal.payloads import BLOB_AT, encode_note, encode_ops
from chunkstore_journal.record import (
    EMBEDDABLE_BYTES_MAX,
    HEADER_BYTES,
    OVERHEAD_BYTES,
    RecordHeader,
    encode_lines_record,
    encode_record,
)
from chunkstore_journal.slots import race_backoff

__all__ = ["OwnedStream", "encode_batch", "unavailable"]

T = TypeVar("T")

_make = tuple.__new__  # what a NamedTuple's constructor does after its argument handling
_MOVED_ROW_BYTES = 24
"""So much longer a row may get, and what holds it, when its extent has another address."""
_EMBEDDED_BYTES_MAX = LIMITS.record_bytes_max - 64 * KIB
"""An embedded record and the rows of its extents; the rest is for the OPEN's own fields."""
_SURELY_FITS_BYTES = EMBEDDABLE_BYTES_MAX // 2 - LIMITS.batch_ops_max * _MOVED_ROW_BYTES
_PLAIN_KINDS = frozenset((RecordKind.OPS, RecordKind.HEARTBEAT, RecordKind.CLOSE))


def encode_batch(batch: Batch) -> bytes:
    """The payload of any record but OPEN and SEAL. Raises: ``InvalidArgument``."""
    if batch.kind in _PLAIN_KINDS:
        return encode_ops(batch.ops, batch.rows, batch.blob)
    if batch.kind in (RecordKind.OPEN, RecordKind.SEAL):
        raise InvalidArgument(f"{batch.kind.name} is written by take-overs only", argument="kind")
    return encode_note(batch.kind, batch.notes, batch.ops, batch.rows)


def _require_room(batch: Batch, size_bytes: int) -> None:
    """Raise ``InvalidArgument`` where an OPEN could not hold this record next to new rows of all its extents (protocol 3.7, A15)."""
    moved = sum(len(key) + len(value or b"") + _MOVED_ROW_BYTES for key, value in batch.rows if key[:1] == CHUNK)
    if size_bytes + moved > _EMBEDDED_BYTES_MAX:
        raise InvalidArgument(
            f"an OPS record of {size_bytes} bytes with {moved} bytes of chunk rows exceeds {_EMBEDDED_BYTES_MAX} "
            "bytes, the limit of a take-over; split the operation",
            argument="payload",
        )


def unavailable(error: ChunkstoreError, name: str) -> StorageUnavailable:
    """What the storage said of ``name``, as an error that ends the epoch."""
    if isinstance(error, StorageUnavailable):
        return error
    wrapped = StorageUnavailable(f"the journal file {name} failed: {error}", object=name)
    wrapped.__cause__ = error
    return wrapped


class OwnedStream(Journal):
    """Base of ``SlotStream`` and ``AppendStream``."""

    def __init__(self, streams: Streams, opened: Opened, settings: Settings, claim: bytes) -> None:
        """``claim``: what ``storage.identity`` said of our claim when we had made it."""
        self.epoch = opened.epoch
        self.head = opened.position
        self.opened = opened
        self._storage = streams.storage
        self._names = streams.names
        self._container = streams.container
        self._mode = streams.mode
        self._token = opened.payload.token
        self._stream = streams.container, opened.epoch, opened.payload.token
        self._log_place = journal_place(opened.epoch, None)
        self._deadline_s = settings.op_deadline_s
        self._time_ms = opened.header.time_ms
        self._fence_name = streams.names.epoch(opened.epoch + 1)
        self._claim_name = streams.names.epoch(opened.epoch)
        self._claim = claim
        self._bytes_written = self._blob_bytes = 0
        self._end: ChunkstoreError | None = None

    @property
    def mode(self) -> Literal["slot", "append"]:
        return self._mode

    @property
    def place(self) -> Place:
        head = self.head
        if self._mode == "append":
            return _make(Place, (self._log_place, head.end + HEADER_BYTES + BLOB_AT))
        return Place(journal_place(self.epoch, head.index), HEADER_BYTES + BLOB_AT)

    @property
    def bytes_written(self) -> int:
        return self._bytes_written

    @property
    def blob_bytes(self) -> int:
        return self._blob_bytes

    @property
    def records_written(self) -> int:
        return self.head.index - 1

    def _refuse(self, end: ChunkstoreError) -> NoReturn:
        if isinstance(end, (NotOwner, Closed)):
            raise end.copy()
        # Nothing of this call was written, whatever happened to the one that ended the stream.
        raise JournalBroken(end.copy(), happened=False)

    def append_lines(self, lines: Sequence[Line], data: Sequence[bytes], time_ms: int) -> tuple[Position, Lines]:
        if self._end is not None:
            self._refuse(self._end)
        lsn, link, epoch, index, at = self.head
        time_ms = max(time_ms, self._time_ms)
        here = (self._log_place, at + HEADER_BYTES + BLOB_AT) if self._mode == "append" else self.place
        place = _make(Lines, (epoch, lsn + 1, time_ms, *here, lines))
        raw_lines = encode_lines(lines)
        raw, identity = encode_lines_record(self._stream, (index, at, lsn, link), time_ms, data, raw_lines)
        end_byte = self._commit(raw)
        self._time_ms = time_ms
        self._bytes_written += len(raw)
        self._blob_bytes += len(raw) - len(raw_lines) - OVERHEAD_BYTES
        self.head = position = _make(Position, (lsn + 1, identity, epoch, index + 1, end_byte))
        return position, place

    def append(self, batch: Batch) -> Position:
        if self._end is not None:
            self._refuse(self._end)
        payload = encode_batch(batch)
        if batch.blob and len(payload) > _SURELY_FITS_BYTES:
            _require_room(batch, len(payload))
        head = self.head
        time_ms = max(batch.time_ms, self._time_ms)
        data, identity = encode_record(
            _make(
                RecordHeader,
                (
                    batch.kind, 0, self._container, self.epoch, head.index, head.lsn + 1, head.lsn, head.hash,
                    batch.digest, self._token, time_ms, head.end,
                ),
            ),
            payload,
        )  # fmt: skip
        end_byte = self._commit(data)
        self._time_ms = time_ms
        self._bytes_written += len(data)
        self._blob_bytes += len(batch.blob)
        self.head = position = _make(Position, (head.lsn + 1, identity, self.epoch, head.index + 1, end_byte))
        return position

    @abstractmethod
    def _commit(self, data: bytes) -> int:
        """Make the record durable and fenced. Returns ``Position.end`` after it."""

    def check_fence(self) -> None:
        """Raise ``NotOwner`` if a newer epoch has been claimed.

        Sound only where ``Capabilities.fence_by_stat``; elsewhere a fenced read commits a HEARTBEAT instead (A13).
        May run while ``append`` does. During a self-take-over our own claim looks like a foreign one: ask the new stream.
        """
        if isinstance(self._end, NotOwner):
            raise self._end.copy()
        if self._storage.exists(self._fence_name):
            raise NotOwner(epoch=self.epoch, owner=self.epoch + 1)
        if not self.sees_own_claim():
            raise self.moved()

    def sees_own_claim(self) -> bool:
        """Whether our claim is still where we made it: else the root or folder was moved or replaced. Raises ``StorageUnavailable``."""
        try:
            return not self._claim or self._storage.identity(self._claim_name) == self._claim
        except ChunkNotFound:
            return False

    def moved(self) -> StorageUnavailable:
        """What is said where our claim is not seen."""
        return moved(self._storage, self._names, self.epoch)

    def close(self) -> None:
        if self._end is None:
            self._end = Closed("this journal stream")

    def _fenced(self, owner: int) -> NotOwner:
        error = NotOwner(epoch=self.epoch, owner=owner)
        self._end = error
        return error

    def _unknown(self, owner: int) -> OutcomeUnknown:
        self._fenced(owner)
        return OutcomeUnknown(
            f"epoch {owner} was claimed while a record of epoch {self.epoch} was being written; its take-over decides",
            subject=self._names.container,
        )

    def _answer(self, question: Callable[[], T], name: str) -> T:
        """The storage's answer to a question without effects, repeated while a record, written under ``name``, waits for it."""
        backoff: Backoff | None = None
        while True:
            try:
                return question()
            except ChunkstoreError as error:
                backoff = race_backoff(self._deadline_s) if backoff is None else backoff
                if not isinstance(error, StorageUnavailable) or not backoff.pause():
                    raise self._broken(unavailable(error, name), happened=None) from error

    def _broken(self, error: ChunkstoreError, *, happened: Literal[False] | None) -> JournalBroken:
        self._end = error
        return JournalBroken(error, happened=happened)
