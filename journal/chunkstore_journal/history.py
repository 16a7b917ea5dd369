"""Reading history: slot 0 of every stream, the legs of H, and whether a point is where it says (protocol 3.4).

Promises: what is read is checked against the container, the stream and the index it was read from.
Leaves out: applying records (``recovery``), ending a stream (``slot_stream``, ``append_stream``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.config import KIB, MIB
from chunkstore.errors import ChunkNotFound, Damaged, Unsupported
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import GENESIS, Position
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_journal.container import read_format
from chunkstore_journal.objects import ContainerFormat
from chunkstore_journal.payloads import (
    OpenPayload,
    SealPayload,
    SnapshotLink,
    blob_end,
    decode_open,
    decode_ops,
    decode_seal,
)
from chunkstore_journal.record import (
    HEADER_BYTES,
    MAGIC,
    LogReader,
    Record,
    RecordHeader,
    decode_slot,
    intact_header,
    peek_length,
)
from chunkstore_journal.slots import read_if_present, read_whole
from chunkstore_journal.wire import HASH_BYTES

__all__ = ["ZERO_HASH", "Leg", "Opened", "Sealed", "Streams", "open_streams", "position_after", "probe_dense"]

ZERO_HASH = bytes(HASH_BYTES)
_OPENED_KEPT_MAX = 256
_OPENED_BYTES_MAX = 64 * KIB
"""An OPEN that embeds a large record is read again rather than kept."""
_FETCH_WIDTH = 16
_make = (
    tuple.__new__
)  # what a NamedTuple's constructor does, without its argument handling: replay makes one per record


class Opened(NamedTuple):
    """A stream that history may pass through: its OPEN, with the embedded record decoded."""

    epoch: int
    header: RecordHeader
    hash: bytes
    payload: OpenPayload
    embedded: Record | None
    object: str

    @property
    def position(self) -> Position:
        """The point just after the OPEN."""
        return Position(self.header.lsn, self.hash, self.epoch, 1, 0)

    @property
    def before_open(self) -> Position:
        """The point just before the OPEN, the embedded record included."""
        return Position(self.payload.last_lsn, self.payload.last_hash, self.epoch, 0, 0)

    @property
    def before_embedded(self) -> Position:
        """The point where history leaves the previous stream: the cut."""
        if self.embedded is None:
            return self.before_open
        return Position(self.embedded.header.lsn - 1, self.embedded.header.previous_hash, self.epoch, 0, 0)

    @property
    def previous_end(self) -> Position:
        """The cut of the previous stream."""
        payload, before = self.payload, self.before_embedded
        return Position(before.lsn, before.hash, payload.previous_epoch, payload.end_index, payload.end_byte)

    @property
    def founded_on(self) -> SnapshotLink | None:
        """The state that history begins with, if this is its first OPEN and that is not nothing."""
        return None if self.payload.previous_epoch else self.payload.snapshot

    @property
    def is_quiet(self) -> bool:
        """Whether neither this OPEN nor the record it embeds changes a row."""
        if self.payload.rows:
            return False
        if self.embedded is None:
            return True
        if blob_end(self.embedded.payload):
            return False
        ops, rows = decode_ops(self.embedded.payload, object=self.object, position=0)
        return not ops and not rows


class Sealed(NamedTuple):
    """A SEAL: in slot 0 it makes the stream void."""

    epoch: int
    payload: SealPayload


class Leg(NamedTuple):
    """One stream that history passes through, and where it leaves it: ``end`` is after the last record that is in H."""

    opened: Opened
    end: Position


def probe_dense(present: Callable[[int], bool], known: int) -> int:
    """The highest n for which ``present(n)``, of a dense sequence in which ``known`` is present (or 0); 16 questions for a thousand."""
    low, step = known, 1
    while present(low + step):
        low += step
        step *= 4
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if present(middle):
            low = middle
        else:
            high = middle
    return low


def position_after(record: Record, previous: Position, *, object: str, end: int = 0) -> Position:
    """The point after ``record``, which ends at byte ``end`` of a log.

    Raises ``Damaged`` unless it is the one after ``previous`` in the same stream (invariants 4 and 6).
    """
    header, position = record.header, previous.end
    if header.epoch != previous.epoch or header.index != previous.index:
        raise Damaged(
            f"record {header.index} of epoch {header.epoch} is stored where {previous.index} of {previous.epoch} belongs",
            object=object,
            position=position,
        )
    if header.lsn != previous.lsn + 1 or header.previous_hash != previous.hash:
        raise Damaged(f"lsn {header.lsn} does not follow lsn {previous.lsn}", object=object, position=position)
    if header.kind in (RecordKind.OPEN, RecordKind.SEAL):
        raise Damaged(f"{header.kind.name} inside a stream", object=object, position=position)
    return _make(Position, (header.lsn, record.hash, header.epoch, header.index + 1, end))


class Streams:
    """Reads the streams of one container. Holds no resources but a small cache of OPENs, which never change."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames, container: ContainerFormat) -> None:
        self.storage = storage
        self.names = names
        self.container = container.uuid
        self.mode = container.mode
        self._imports = container.imports
        self._opened: dict[int, Opened | Sealed] = {}

    def require_begun(self, at: Position) -> None:
        """Raise ``Unsupported`` where no record is there ``at`` the end of history, and the first one belongs to an import."""
        if self._imports and at == GENESIS:
            text = f"an import into container {self.names.container!r} ended before it began; run it again, or delete its objects"
            raise Unsupported(text, feature="unfinished_import")

    def is_ours(self, link: SnapshotLink) -> bool:
        """Whether a link, which may say anything, names a snapshot of this container, at its lsn."""
        found = self.names.parse_snapshot(link.name)
        return found is not None and found[0] == link.lsn

    def snapshot(self, link: SnapshotLink) -> str:
        """The object that a link leads to. Raises ``Damaged`` where it leads elsewhere."""
        if not self.is_ours(link):
            raise Damaged(
                f"{link.name[:200]!r} is not a snapshot of this container at lsn {link.lsn}",
                object=self.names.snapshot_prefix(),
            )
        return link.name

    def slot0(self, epoch: int) -> Opened | Sealed | None:
        """What decides the stream: its OPEN, the SEAL that voids it, or None: undecided. Raises ``Damaged``: a slot is atomic (A4)."""
        known = self._opened.get(epoch)
        if known is not None:
            return known
        data = read_if_present(self.storage, self.names.slot(epoch, 0))
        return None if data is None else self.decode_slot0(epoch, data)

    def opened(self, epoch: int) -> Opened:
        """The OPEN of a stream on H. Raises: ``Damaged`` if there is none: it must never be deleted (3.14.5)."""
        found = self.slot0(epoch)
        if not isinstance(found, Opened):
            raise Damaged(
                "history passes through this stream, but its OPEN is missing", object=self.names.slot(epoch, 0)
            )
        return found

    def decode_slot0(self, epoch: int, data: bytes) -> Opened | Sealed:
        """As ``slot0``, from bytes already read."""
        name = self.names.slot(epoch, 0)
        record = decode_slot(data, object=name, container=self.container)
        header = record.header
        if header.epoch != epoch or header.index != 0:
            raise Damaged(f"slot 0 of epoch {epoch} holds record {header.index} of {header.epoch}", object=name)
        found: Opened | Sealed
        if header.kind == RecordKind.SEAL:
            found = Sealed(epoch, decode_seal(record.payload, object=name, position=0))
        elif header.kind == RecordKind.OPEN:
            found = self._check_open(record, name)
        else:
            raise Damaged(f"slot 0 holds {header.kind.name}, not OPEN or SEAL", object=name)
        if record.size <= _OPENED_BYTES_MAX:
            if len(self._opened) >= _OPENED_KEPT_MAX:
                self._opened.pop(next(iter(self._opened)))
            self._opened[epoch] = found
        return found

    def _check_open(self, record: Record, name: str) -> Opened:
        header = record.header
        payload = decode_open(record.payload, object=name, position=0)
        embedded = None
        if payload.embedded:
            embedded = decode_slot(payload.embedded, object=name, container=self.container, at=payload.end_byte)
        good = (
            payload.epoch == header.epoch
            and payload.token == header.token
            and payload.previous_epoch < header.epoch
            and payload.base.epoch <= payload.previous_epoch
            and payload.base.lsn <= payload.last_lsn
            and payload.last_lsn == header.lsn - 1
            and payload.last_hash == header.previous_hash
            and payload.mode == self.mode
        )
        if embedded is not None:
            inner = embedded.header
            good = (
                good
                and (embedded.hash, inner.lsn) == (payload.last_hash, payload.last_lsn)
                and (inner.epoch, inner.index) == (payload.previous_epoch, payload.end_index)
                and inner.kind not in (RecordKind.OPEN, RecordKind.SEAL)
            )
        if not good:
            raise Damaged("the OPEN contradicts itself", object=name)
        return Opened(header.epoch, header, record.hash, payload, embedded, name)

    def read_slot(self, epoch: int, index: int) -> Record:
        """The record (or SEAL) in a slot. Raises: ``ChunkNotFound``, ``Damaged``."""
        name = self.names.slot(epoch, index)
        record = decode_slot(read_whole(self.storage, name), object=name, container=self.container)
        if (record.header.epoch, record.header.index) != (epoch, index):
            raise Damaged("the slot holds a record of another place", object=name)
        return record

    def read_slots(self, epoch: int, start: int, stop: int | None) -> Iterator[Record]:
        """Slots ``start``, ``start + 1``, ... in order, fetched 16 at a time.

        A missing slot or a SEAL raises ``ChunkNotFound`` with ``stop``, and ends the iteration without.
        """
        index = start
        pool = runtime.pool("journal-slots", _FETCH_WIDTH)
        try:
            while stop is None or index < stop:
                # Without a known end, look one ahead first: an idle follower must not pay for sixteen misses.
                width = _FETCH_WIDTH if index > start or stop is not None else 1
                last = index + width if stop is None else min(stop, index + width)
                calls = [partial(self._slot_or_flaw, epoch, i) for i in range(index, last)]
                for found in pool.run_all(calls):
                    if isinstance(found, Damaged):
                        raise found  # not before those in front of it were shown
                    if found is None or found.header.kind == RecordKind.SEAL:
                        if stop is None:
                            return
                        # A SEAL below the end that an OPEN on H names is a doomed claimant's, in a hole: collected as well.
                        raise ChunkNotFound(self.names.slot(epoch, index))
                    yield found
                    index += 1
        finally:
            pool.close()

    def _slot_or_flaw(self, epoch: int, index: int) -> Record | Damaged | None:
        try:
            return self.read_slot(epoch, index)
        except Damaged as damage:
            return damage
        except ChunkNotFound:
            return None

    def log_reader(self, epoch: int, offset: int, stop: int | None = None, *, is_uncached: bool = False) -> LogReader:
        """A reader of log.a; reading raises ``ChunkNotFound`` when there is none."""
        name = self.names.log(epoch)
        handle = ChunkHandle(name, False)
        read = self.storage.read_uncached if is_uncached else self.storage.read
        return LogReader(
            lambda at, length: read(handle, at, length),
            object=name,
            container=self.container,
            offset=offset,
            stop=stop,
        )

    def holds(self, position: Position) -> bool | None:
        """Whether the record that ends at ``position`` really is there, by its hash; None when nothing is there. One request."""
        epoch, index = position.epoch, position.index
        if index == 1:
            found = self.slot0(epoch)
            return isinstance(found, Opened) and found.hash == position.hash and position.end == 0
        try:
            if self.mode == "slot":
                return self.read_slot(epoch, index - 1).hash == position.hash
            if position.end < HASH_BYTES:
                return False
            # A record ends with its hash.
            tail = self.storage.read(self._as_named(self.names.log(epoch)), position.end - HASH_BYTES, HASH_BYTES)
        except ChunkNotFound:
            return None
        return tail == position.hash if len(tail) == HASH_BYTES and any(tail) else None

    def goes_on_without(self, position: Position) -> bool:
        """Whether what is at ``position`` and after it is intact, and surely not what was there: a record that follows another one, or
        one across the place where a record ended. One request. Raises ``StorageUnavailable``."""
        epoch, index, end = position.epoch, position.index, position.end
        begin = max(0, end - MIB)
        name = self.names.slot(epoch, index) if self.mode == "slot" else self.names.log(epoch)
        try:
            data = self.storage.read(self._as_named(name), begin, end - begin + HEADER_BYTES)
        except ChunkNotFound:
            return False
        last = end - begin
        if header := intact_header(data, last, self.container):
            return header.previous_hash != position.hash
        at = last
        while (at := data.rfind(MAGIC, 0, at)) >= 0:
            header = intact_header(data, at, self.container)
            if header is not None and (header.epoch, header.at) == (epoch, begin + at):
                return at + (peek_length(data, at, begin + at) or 0) > last
        return False

    def _as_named(self, name: str) -> ChunkHandle:
        """A handle of what has the name now, and not when it was last opened: over a network that is what any read gets."""
        return ChunkHandle(name, False) if self.storage.capabilities.remote else self.storage.open_read(name)

    def object_of(self, epoch: int, index: int) -> str:
        """The object that holds record ``index`` of a stream."""
        return self.names.log(epoch) if index and self.mode == "append" else self.names.slot(epoch, index)

    def is_there(self, leg: Leg) -> bool:
        """Whether the record that ``leg`` ends with still is where it was seen: one small request. Raises ``StorageUnavailable``.

        A log is asked for its hash, a slot for its owner's token: none is ever offered two records of one token (A1, T7).
        """
        opened, end = leg
        if end.end:
            return self.holds(end) is True
        try:
            handle = self._as_named(self.object_of(end.epoch, end.index - 1))
            header = intact_header(self.storage.read(handle, 0, HEADER_BYTES), 0, self.container)
        except ChunkNotFound:
            return False
        return header is not None and (header.lsn, header.token) == (end.lsn, opened.header.token)

    def passes(self, newest: Position, epoch: int, lsn: int) -> bool:
        """Whether history up to ``newest`` has, or had, a record ``lsn`` in stream ``epoch``.

        A request for each epoch in between that was not read before. Raises as ``opened``.
        """
        at, end = newest.epoch, newest.lsn
        while at > epoch:
            payload = self.opened(at).payload
            at, end = payload.previous_epoch, payload.last_lsn
        return at == epoch and lsn <= end


def open_streams(storage: ChunkStorage, names: ContainerNames) -> Streams:
    """The streams of a stored container. Raises as ``read_format``."""
    return Streams(storage, names, read_format(storage, names))
