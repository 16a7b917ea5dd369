"""One batch as one journal record: rows merged, encoded and added to the state digest (protocol 3.2).

Promises: a row that ten operations of the batch changed is encoded once, as the last of them wants it; garbage and table rows
get the record's lsn; the digest after the record is that of the state after its rows. Pure but for reading the old rows
whose digests are not remembered.
Leaves out: bytes of the record (``chunkstore_journal``), queueing (``committer``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from chunkstore import runtime
from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.journal import Batch
from chunkstore.metadata.keys import garbage_key
from chunkstore.metadata.port import Op, RowChange
from chunkstore.operations.pending import PendingOp
from chunkstore.operations.rows import encode_row

if TYPE_CHECKING:
    from chunkstore.operations.core import Core

__all__ = ["RecordBuilder", "RowDigests"]

_DIGESTS_KEPT: Final = 65_536

RowDigests = Sequence[tuple[bytes, int | None]]
"""Keys of a record's rows and their new digests (None: deleted)."""


class RecordBuilder:
    """Builds the records of one store, one at a time; remembers digests of rows that were written last."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._time_ms = 0
        self._digests: dict[bytes, int] = {}

    def build(self, batch: Sequence[PendingOp], lsn: int) -> tuple[Batch, RowDigests]:
        """The record of a batch that will have this lsn. Call ``remember`` with the digests once it is committed."""
        # Never behind our own age: a clock set back must not make what is removed now look as if it had been long ago.
        time_ms = self._time_ms = max(self._time_ms, runtime.now_ms(), self._core.aged_ms())
        first = batch[0]
        if len(batch) == 1:
            headers: Sequence[Op] = first.headers
            merged = first.rows
            garbage = first.garbage
        else:
            headers = [header for op in batch for header in op.headers]
            garbage = [item for op in batch for item in op.garbage]
            merged = {}
            for op in batch:
                merged.update(op.rows)
        if garbage:
            merged = dict(merged)
            for sequence, item in enumerate(garbage):
                merged[garbage_key(lsn, sequence)] = item._replace(lsn=lsn, time_ms=time_ms)
        rows: list[RowChange] = []
        digests: list[tuple[bytes, int | None]] = []
        digest = self._core.digest
        for key, record in merged.items():
            value = None if record is None else encode_row(record, lsn)
            rows.append((key, value))
            new = None if value is None else row_digest(key, value)
            digest += (new or 0) - self._old(key)
            digests.append((key, new))
        return Batch(first.kind, headers, rows, digest % DIGEST_MODULUS, time_ms, first.notes), digests

    def _old(self, key: bytes) -> int:
        known = self._digests.get(key)
        if known is not None:
            return known
        value = self._core.store.get(key)
        return 0 if value is None else row_digest(key, value)

    def remember(self, digests: RowDigests) -> None:
        """The record of these rows is committed and applied."""
        known = self._digests
        for key, value in digests:
            if value is None:
                known.pop(key, None)
            else:
                known[key] = value
        if len(known) > _DIGESTS_KEPT:
            for key in list(known)[: _DIGESTS_KEPT // 2]:
                del known[key]

    def forget(self) -> None:
        """After a take-over: the state may have moved without us."""
        self._digests.clear()
