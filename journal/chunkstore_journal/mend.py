"""Going on behind the last good record: the take-over of a repair, whose OPEN cuts history early (protocol 3.15, REPAIR).

Promises: fences like any take-over. Everything below the claim is decided and every stream that is cut off is sealed at its real end before
anything is read, so no zombie adds to what is left out, and no later OPEN can insert itself. What is cut off stays stored. The local cache
is no witness: it is replaced.
Leaves out: when to do this (a person says so); what of the records that are cut off can be kept (``chunkstore.operations.regain``).
"""

from __future__ import annotations

from typing import Literal

from chunkstore.config import Settings
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.journal import Ownership, RecordKind
from chunkstore.metadata.codec import decode_table, encode_table
from chunkstore.metadata.keys import REPAIR_KEY
from chunkstore.metadata.port import MetadataCache, MetadataStore
from chunkstore.records import TableRecord
from chunkstore_journal.claim import ClaimAttempt, encode_seal_record
from chunkstore_journal.history import Opened, Sealed, Streams
from chunkstore_journal.payloads import FLAG_REPAIR
from chunkstore_journal.recovery import Materialised
from chunkstore_journal.repair import diagnose, list_slots
from chunkstore_journal.slots import Mine, put_decided
from chunkstore_journal.takeover import TakeOver

__all__ = ["Mend", "interrupted_repair"]


def interrupted_repair(store: MetadataStore) -> int | None:
    """The epoch of a repair that has not ended; None if there is none. Raises ``Damaged``."""
    raw = store.get(REPAIR_KEY)
    return None if raw is None else int.from_bytes(decode_table(REPAIR_KEY, raw).value, "big")


class Mend(TakeOver):
    """One repairing take-over. Use ``run``, once."""

    def __init__(self, streams: Streams, cache: MetadataCache, settings: Settings, *, from_epoch: int) -> None:
        """``from_epoch``: the oldest stream that may be cut; those from it on are sealed."""
        # Whatever was seen of its end: this history goes on from what is there.
        super().__init__(streams, cache, settings, own=None, attempt=None, accept_rollback=True)
        self._from_epoch = from_epoch

    def _witness_store(self) -> MetadataStore | None:
        return None

    def _after_claim(self, attempt: ClaimAttempt) -> Ownership:
        for epoch in range(attempt.epoch - 1, max(0, self._from_epoch - 1), -1):
            self._decide(attempt, epoch)
        diagnosis = diagnose(self._streams, self._cache, attempt.epoch - 1)
        store, previous, closed = diagnosis.store, diagnosis.previous, diagnosis.closed
        attempt.previous_epoch = previous.epoch if previous is not None else 0
        self._forget_what_is_lost(attempt)
        if previous is not None and self._streams.mode == "slot":
            self._storage.harden(self._names.slot(previous.epoch, closed.end.index - 1))  # P6
        link = diagnosis.snapshot
        source: Literal["journal", "snapshot"] = "journal" if link is None else "snapshot"
        # One that only a list shows may be gone tomorrow: a good start, and never to be named.
        named = link if self._latest is not None and link == self._latest.snapshot else None
        found = Materialised(store, source, diagnosis.progress, named, diagnosis.damaged, diagnosis.findings)
        # One that cuts nothing off leaves it to an earlier one, which was interrupted, what lies behind that one's cut.
        repairing = (interrupted_repair(store) if diagnosis.cause is None else None) or attempt.epoch
        mark = TableRecord(store.head().position.lsn + 1, repairing.to_bytes(8, "big"))
        self._store = found.store
        if not attempt.open_data:
            rows = [(REPAIR_KEY, encode_table(mark))]
            attempt.open_data = self._build_open(attempt, previous, closed, found, FLAG_REPAIR, rows)
        return self._serve(attempt, previous, closed, found)

    def _finish(self, opened: Opened) -> None:
        assert self._store is not None
        self._cache.make_current(self._store)
        super()._finish(opened)

    def _decide(self, attempt: ClaimAttempt, epoch: int) -> None:
        """Let nothing come into being below us any more: neither an OPEN nor a record."""
        try:
            found = self._streams.slot0(epoch)
        except Damaged:
            found = None  # the name is taken for ever; what it decided cannot be known
        name = self._names.slot(epoch, 0)
        if found is None and not self._storage.exists(name):
            data = encode_seal_record(self._streams, attempt, epoch, 0)
            decision = put_decided(self._storage, name, data, deadline_s=self._deadline_s)
            found = self._streams.decode_slot0(epoch, data if isinstance(decision, Mine) else decision.data)
        else:
            self._storage.harden(name)
        if isinstance(found, Sealed) and not self._has_slots(epoch):
            return
        if self._streams.mode == "slot":
            self._seal_end(attempt, epoch)
            return
        try:
            self._storage.harden(self._names.log(epoch))  # P6: what is read here must not vanish
        except ChunkNotFound:
            return

    def _has_slots(self, epoch: int) -> bool:
        return any(list_slots(self._streams, epoch))

    def _seal_end(self, attempt: ClaimAttempt, epoch: int) -> None:
        """Occupy the name behind the stream's last record, whatever is missing or unreadable before it."""
        storage, names = self._storage, self._names
        last = max(list_slots(self._streams, epoch), default=0)
        while True:
            if last and self._is_seal(epoch, last):
                storage.harden(names.slot(epoch, last))
                return
            data = encode_seal_record(self._streams, attempt, epoch, last + 1)
            if isinstance(put_decided(storage, names.slot(epoch, last + 1), data, deadline_s=self._deadline_s), Mine):
                return
            last += 1  # a record of its owner, who was faster, or another's SEAL

    def _is_seal(self, epoch: int, index: int) -> bool:
        try:
            return self._streams.read_slot(epoch, index).header.kind == RecordKind.SEAL
        except Damaged:
            return False
