"""Looking at a journal without owning it: who owns it, which records it holds, how long it is.

Promises: reads only, claims nothing, believes nothing unchecked. Records of the newest stream are shown as far as they are visible; the
last one may still be undecided. Leaves out: whether the journal keeps its invariants (``check``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from chunkstore.config import LIMITS, MIB
from chunkstore.errors import ChunkNotFound, InvalidArgument
from chunkstore.journal import LeaseInfo, RecordKind
from chunkstore.metadata.port import RowChange
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkHandle, ChunkInfo, ChunkStorage, iter_listing
from chunkstore_journal.extents import lines_of
from chunkstore_journal.history import Streams
from chunkstore_journal.lease import read_lease
from chunkstore_journal.objects import Claim, decode_claim
from chunkstore_journal.payloads import blob_of, decode_ops
from chunkstore_journal.record import Record
from chunkstore_journal.slots import read_if_present
from chunkstore_journal.snapshot import list_snapshots
from chunkstore_journal.walk import collected_max, find_last_claim, legs_of_history, newest_opened, stored_records

__all__ = ["OwnerInfo", "RecordInfo", "describe_owner", "iter_records", "read_claim", "stored_sizes"]

_EPOCHS_SHOWN_MAX = 20


class OwnerInfo(NamedTuple):
    """``claimed_epoch``: the highest claim; ``opened_epoch``: the highest that opened (0: none yet), and ``claim`` is its."""

    claimed_epoch: int
    opened_epoch: int
    claim: Claim | None
    lease: LeaseInfo | None


class RecordInfo(NamedTuple):
    """One record of history. ``object`` and ``position`` say where its bytes are (an embedded one: in the OPEN, for ever).
    ``inline_bytes``: those of appends that it has taken along, spilled by now or not. Of lines ``ops`` counts; ``digest`` is 0 there."""

    epoch: int
    index: int  # type: ignore[assignment]
    lsn: int
    kind: str
    time_ms: int
    ops: int
    rows: int
    size: int
    hash: bytes
    digest: int
    embedded: bool
    object: str
    position: int
    inline_bytes: int


def read_claim(streams: Streams, epoch: int) -> Claim | None:
    """The claim of an epoch. Raises ``Damaged``, ``StorageUnavailable``."""
    name = streams.names.epoch(epoch)
    data = read_if_present(streams.storage, name, size_max=LIMITS.small_object_bytes_max)
    return None if data is None else decode_claim(data, object=name)


def describe_owner(streams: Streams) -> OwnerInfo:
    """What was claimed last, who opened last, and what the lease hint says. Raises ``Damaged``, ``StorageUnavailable``."""
    top = find_last_claim(streams)
    newest = newest_opened(streams, top)
    opened = 0 if newest is None else newest.epoch
    claim = read_claim(streams, opened) if opened else None
    return OwnerInfo(top, opened, claim, read_lease(streams.storage, streams.names))


def _info(record: Record, *, embedded: bool, name: str, position: int) -> RecordInfo:
    header = record.header
    ops: Sequence[object] = ()
    rows: Sequence[RowChange] = ()
    inline_bytes = 0
    if header.kind not in (RecordKind.OPEN, RecordKind.SEAL):
        inline_bytes = len(blob_of(record.payload))
        lines = lines_of(record, header.at, object=name, position=position)
        if lines is None:
            ops, rows = decode_ops(record.payload, object=name, position=position)
        else:
            ops = lines.lines
    return RecordInfo(
        header.epoch, header.index, header.lsn, header.kind.name, header.time_ms, len(ops), len(rows), record.size,
        record.hash, header.digest, embedded, name, position, inline_bytes,
    )  # fmt: skip


def iter_records(streams: Streams, epoch: int | None = None) -> Iterator[RecordInfo]:
    """The records of history that are still stored, oldest first; only those of stream ``epoch`` where given.

    Raises: ``InvalidArgument`` where history has no stream ``epoch``, ``Damaged`` where it cannot be read, ``ChunkNotFound`` if
    a collector runs meanwhile.
    """
    top = find_last_claim(streams)
    legs = [*legs_of_history(streams, top)]
    chosen = [leg for leg in legs if epoch in (None, leg.opened.epoch)]
    if epoch is not None and not chosen:
        newest = ", ".join(str(leg.opened.epoch) for leg in legs[-_EPOCHS_SHOWN_MAX:]) or "no epoch"
        raise InvalidArgument(f"no records of epoch {epoch}: there are those of {newest}", argument="epoch")
    gone_max = collected_max(streams, newest_opened(streams, top)) if legs else 0
    for leg in chosen:
        for record, embedded, name, position in stored_records(streams, leg, gone_max, []):
            yield _info(record, embedded=embedded, name=name, position=position)


def stored_sizes(storage: ChunkStorage, names: ContainerNames, epoch: int | None) -> tuple[int, int, int]:
    """Bytes of records, of the first ones of streams (which stay for ever) among them, and of snapshots, by LIST. With ``epoch``, only the
    first record of each stream from that epoch on counts. Raises what ``list`` raises.
    """
    journal_bytes = open_bytes = 0
    for info in iter_listing(storage, names.journal_prefix()):
        slot = names.parse_slot(info.name)
        stream, index = slot if slot is not None else (names.parse_log(info.name), 1)
        if stream is not None and (epoch is None or stream < epoch or index == 0):
            journal_bytes += info.length if slot is not None else _used_bytes(storage, info)
            open_bytes += info.length if index == 0 else 0
    return journal_bytes, open_bytes, sum(snapshot.size for snapshot in list_snapshots(storage, names))


def _used_bytes(storage: ChunkStorage, log: ChunkInfo) -> int:
    """Where the zeros begin that a log ends with (``LogReader``); a byte or two before the end of the last record, by chance."""
    end = log.length
    with suppress(ChunkNotFound):  # collected meanwhile
        while end:
            begin = max(0, end - MIB)
            if data := storage.read(ChunkHandle(log.name, False), begin, end - begin).rstrip(b"\0"):
                return begin + len(data)
            end = begin
    return 0
