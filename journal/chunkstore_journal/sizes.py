"""How many bytes journal and snapshots take up, by LIST; of logs, without the zeros at their end.

Promises: reads only. Names that are not ours count for nothing. Leaves out: claims and hints, which are small.
"""

from __future__ import annotations

from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkHandle, ChunkInfo, ChunkStorage, iter_listing
from chunkstore_journal.snapshot import list_snapshots

__all__ = ["stored_sizes"]


def stored_sizes(storage: ChunkStorage, names: ContainerNames, epoch: int | None) -> tuple[int, int, int]:
    """Bytes of records, of the first ones of streams (which stay for ever) among them, and of snapshots. With ``epoch``, only the first
    record of each stream from that epoch on counts.

    Raises what ``list`` raises. Retry: safe.
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
    try:
        while end:
            begin = max(0, end - MIB)
            if data := storage.read(ChunkHandle(log.name, False), begin, end - begin).rstrip(b"\0"):
                return begin + len(data)
            end = begin
    except ChunkNotFound:
        pass  # collected meanwhile
    return 0
