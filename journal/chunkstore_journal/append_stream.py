"""APPEND streams: records in one file, write-then-check as the fence (protocol 3.4 T3, 3.5 C1 to C4, P5, P6, A15).

Promises: a record is acknowledged only after it was durable *and* the next epoch was seen unclaimed after that, in the tree
where our own claim is (P10): a successor that claims, reads the tail and records its end cannot miss an acknowledged record.
"""

from __future__ import annotations

from contextlib import suppress

from chunkstore.config import KIB, Settings
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, InvalidOffset, StorageFull
from chunkstore.journal import TailCut
from chunkstore.metadata.port import Position
from chunkstore.storage import ChunkHandle
from chunkstore_journal.claim import ClosedStream
from chunkstore_journal.history import Opened, Streams, position_after
from chunkstore_journal.record import MAGIC, LogReader, Record, decode_record, encode_record, peek_length
from chunkstore_journal.stream import OwnedStream, unavailable

__all__ = ["AppendStream", "is_suspect", "last_record", "read_tail"]

_WINDOW_BYTES = 64 * KIB


class AppendStream(OwnedStream):
    """An owned log.a. The file must exist and be empty when the stream is built."""

    def __init__(self, streams: Streams, opened: Opened, settings: Settings, claim: bytes) -> None:
        super().__init__(streams, opened, settings, claim)
        self._log = streams.names.log(opened.epoch)
        self._appender = self._storage.log_appender(
            self._log, absent=self._fence_name, present=self._claim_name, identity=claim
        )

    def _commit(self, data: bytes) -> int:
        start = self.head.end
        # C3: one write of the whole record, then durable.
        try:
            self._appender.write_durable(start, data)
        except (StorageFull, InvalidOffset) as error:
            # Nothing, or a part: an incomplete record never becomes valid, because nothing is written here again.
            failure = error if isinstance(error, StorageFull) else unavailable(error, self._log)
            raise self._broken(failure, happened=False) from error
        except ChunkstoreError as error:
            # What reached the disk is unknown for ever, and a later sync may be (protocol 2.3): never again here.
            raise self._broken(unavailable(error, self._log), happened=None) from error
        # C4, never before C3: checking first would let a successor read the tail between check and write.
        if not self._appender.look():
            refusal = self._answer(self._refusal, self._log)
            if refusal is not None:
                raise refusal
        return start + len(data)

    def check_fence(self) -> None:
        if self._end is not None or not self._appender.look():
            super().check_fence()

    def close(self) -> None:
        super().close()
        self._appender.close()

    def _refusal(self) -> Exception | None:
        """Why a durable record is not acknowledged: a newer claim, or a look at another tree. Raises what the storage raises."""
        if self._storage.exists(self._fence_name):
            return self._unknown(self.epoch + 1)
        return None if self.sees_own_claim() else self._broken(self.moved(), happened=None)


def read_tail(streams: Streams, opened: Opened, *, known: Position | None, synced_hash: bytes) -> ClosedStream:
    """T3: how the stream's file ends, made durable. Must run after our claim (P5: claim before reading the tail).

    ``known``: a point of the stream that certainly is in the file; reading starts there. No commit mark covers the last record, so our OPEN
    embeds it and the cut is in front of it (A15): also where ``known`` ends with it, for a replica may have seen it, synced in vain after a
    sync of the owner's that failed. ``synced_hash``: of the last record whose sync the owner itself has reported; empty: of none.

    Raises: ``Damaged`` when invalid bytes are followed by a record (damage, not a torn write), or records do not chain.
    """
    storage = streams.storage
    name = streams.names.log(opened.epoch)
    start = known if known is not None else opened.position
    before = last = start
    record: Record | None = None
    reader = streams.log_reader(opened.epoch, start.end)
    try:
        for record in reader:
            before, last = last, position_after(record, last, object=name, end=reader.offset)
        tail_cut = _judge_tail(streams, opened.header.token, last, reader)
        # P6: what was read may exist in the page cache only. OPEN must not point at bytes a power cut can take away.
        storage.harden(name)
        if record is None and start.index > 1 and start.hash != synced_hash:
            record = last_record(streams, start)
            if record is not None:
                link = record.header.previous_hash
                before = Position(start.lsn - 1, link, opened.epoch, start.index - 1, start.end - record.size)
    except ChunkNotFound:
        # It is made before OPEN, and a newest stream is never collected.
        raise Damaged("the journal file vanished", object=name, position=start.end) from None
    if record is None:
        return ClosedStream(start, tail_cut=tail_cut)
    return ClosedStream(before, record, encode_record(record.header, record.payload)[0], tail_cut)


def is_suspect(streams: Streams, token: bytes | None, last: Position, reader: LogReader, suspected: int | None) -> bool:
    """Whether a reader next to an owner that may be alive reads on: a record seems to follow bytes that may be whole by now.

    ``suspected``: the index at which this was asked before; damage that is still there is damage. ``token``: of the stream; None: unknown.
    Raises ``Damaged``.
    """
    try:
        _judge_tail(streams, token, last, reader)
    except Damaged:
        if suspected == last.index:
            raise
        return True
    return False


def _judge_tail(streams: Streams, token: bytes | None, last: Position, reader: LogReader) -> TailCut | None:
    """What a torn write left after ``last``. Raises ``Damaged`` when a record follows it (protocol 3.2, A4)."""
    if reader.ended != "tail":
        return None
    later = streams.log_reader(last.epoch, last.end).find_record_after(last.end, lsn=last.lsn, token=token, moved=True)
    if later is not None:
        raise Damaged(
            f"{reader.reason}, but the record with lsn {later[1].lsn} is intact after it: this is damage, not a torn write",
            object=streams.names.log(last.epoch),
            position=last.end,
        )
    return TailCut(reader.tail_bytes, last.lsn)


def last_record(streams: Streams, end: Position) -> Record | None:
    """The record that ends where the log is cut: looked for backwards. Raises ``ChunkNotFound``, and what the storage raises."""
    name = streams.names.log(end.epoch)
    window = _WINDOW_BYTES
    while True:
        start = max(0, end.end - window)
        data = streams.storage.read(ChunkHandle(name, False), start, end.end - start)
        at = data.rfind(MAGIC)
        while at >= 0:
            if at + (peek_length(data, at, start + at) or 0) == len(data):
                with suppress(Damaged):
                    return decode_record(data, at, object=name, container=streams.container, at=start + at)
            at = data.rfind(MAGIC, 0, at)
        if not start:
            return None
        window *= 16
