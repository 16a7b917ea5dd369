"""SLOT streams: one record an object, put-if-absent as the fence (protocol 3.4 T3, 3.5, P3, P4).

Promises: an acknowledged record is the object in its slot; a successor ends the stream by being first in the next free
slot, for ever, so a zombie's next record finds the name taken, however late it comes.
"""

from __future__ import annotations

from collections.abc import Callable

from chunkstore.errors import AccessDenied, ChunkNotFound, Damaged, NotOwner, StorageFull, StorageUnavailable
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Position
from chunkstore_journal.claim import ClaimAttempt, encode_seal_record
from chunkstore_journal.history import Opened, Streams, position_after, probe_dense
from chunkstore_journal.payloads import decode_seal
from chunkstore_journal.record import Record, decode_slot
from chunkstore_journal.slots import Undecided, put_decided
from chunkstore_journal.stream import OwnedStream

__all__ = ["SlotStream", "seal_stream"]


class SlotStream(OwnedStream):
    """An owned stream of slots. One record in flight; its bytes are frozen until its slot is decided."""

    def _commit(self, data: bytes) -> int:
        name = self._names.slot(self.epoch, self.head.index)
        try:
            stored = put_decided(self._storage, name, data, deadline_s=self._deadline_s)
        except Undecided as undecided:
            raise self._broken(undecided.error, happened=None) from undecided
        except (StorageFull, AccessDenied) as refused:
            raise self._broken(refused, happened=False) from refused
        except Damaged as damage:
            raise self._broken(damage, happened=None) from damage
        if stored == data:
            # The slot is ours, but of which tree? Where a name can mean one object only, nothing is asked.
            if not self._answer(self.sees_own_claim, name):
                raise self._broken(self.moved(), happened=None)
            return 0
        raise self._refused(name, stored)

    def _refused(self, name: str, stored: bytes) -> Exception:
        # A foreign object in our next slot is decisive (A5): our record is not there and never will be.
        try:
            record = decode_slot(stored, object=name, container=self._container)
            if record.header.kind == RecordKind.SEAL:
                owner = decode_seal(record.payload, object=name, position=0).by_epoch
            else:
                owner = record.header.epoch
        except Damaged as damage:
            # Not readable as any writer's: it may be our own record, damaged. A take-over decides, and reports it.
            return self._broken(damage, happened=None)
        if record.header.kind != RecordKind.SEAL and owner == self.epoch:
            # A record of ours that we thought had not happened: this one has not, and only a take-over can say how many more.
            error = StorageUnavailable(f"{name} holds another record of this epoch", object=name)
            return self._broken(error, happened=False)
        return self._fenced(owner)


def seal_stream(
    streams: Streams,
    opened: Opened,
    attempt: ClaimAttempt,
    *,
    known: Position | None,
    judge: Callable[[Position], None],
    deadline_s: float,
) -> Position:
    """T3: occupy the first free slot of the stream with our SEAL, or find the SEAL that already ends it.

    ``known`` is a point of the stream that certainly exists (``Streams.holds``), to start probing from. Afterwards the
    end never moves: a SEAL is never deleted, and records of an unsealed stream are never collected (3.14.5).
    ``judge`` is given the last record in front of it, and raises while what is missing after that can still be put back.

    Raises: ``NotOwner`` (the stream was collected under us: a later owner is at work), ``Damaged`` (a record is missing before
    another one), ``StorageFull``, ``Undecided``.
    """
    storage, names, epoch = streams.storage, streams.names, opened.epoch
    last = known if known is not None else opened.position
    while True:
        # Asked again after every lost race: a sealer a thousand slots behind must not climb them one by one.
        found = probe_dense(lambda index: storage.exists(names.slot(epoch, index)), last.index - 1)
        if found > last.index - 1:
            record = _read(streams, epoch, found, attempt)
            if record.header.kind == RecordKind.SEAL:
                storage.harden(names.slot(epoch, found))
                end = _end_before(streams, opened, found, last, attempt)
                judge(end)
                return end
            last = Position(record.header.lsn, record.hash, epoch, found + 1, 0)
        index = last.index
        name = names.slot(epoch, index)
        if storage.exists(names.slot(epoch, index + 1)) and not storage.exists(name):
            # Asked in this order: a writer's lower slots are there before its higher ones.
            raise Damaged("the next record exists, but this one is missing: the storage lost names", object=name)
        judge(last)
        # P6: the record before the SEAL must be as durable as the SEAL that vouches for it.
        storage.harden(names.slot(epoch, index - 1))
        seal = encode_seal_record(streams, attempt, epoch, index)
        stored = put_decided(storage, name, seal, deadline_s=deadline_s)
        if stored == seal:
            return last
        record = decode_slot(stored, object=name, container=streams.container)
        if record.header.kind == RecordKind.SEAL:
            # Another claimant was first: its SEAL is as good as ours, once it is durable.
            storage.harden(name)
            return last
        # The owner was faster by one record: it is part of history, and the next slot is tried.
        last = position_after(record, last, object=name)


def _read(streams: Streams, epoch: int, index: int, attempt: ClaimAttempt) -> Record:
    try:
        return streams.read_slot(epoch, index)
    except ChunkNotFound as missing:
        # Seen a moment ago, gone now: only the collector of a later owner removes records.
        raise NotOwner(epoch=attempt.epoch, owner=attempt.epoch + 1) from missing


def _end_before(streams: Streams, opened: Opened, index: int, known: Position, attempt: ClaimAttempt) -> Position:
    if index == known.index:
        return known
    record = _read(streams, opened.epoch, index - 1, attempt)
    if record.header.lsn != opened.header.lsn + index - 1:
        raise Damaged("the record before the SEAL has a wrong lsn", object=streams.names.slot(opened.epoch, index - 1))
    return Position(record.header.lsn, record.hash, opened.epoch, index, 0)
