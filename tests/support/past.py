"""A past state, made as a restore to a position makes it: from a snapshot that is left, and the records behind it."""

from __future__ import annotations

from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.metadata.codec import decode_chunk, decode_segment
from chunkstore.metadata.keys import SEGMENT, chunk_key, is_row
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import MetadataStore
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.history import Streams, open_streams
from chunkstore_journal.recovery import commit_of, commits_of_open
from chunkstore_journal.snapshot import list_snapshots, load_snapshot
from chunkstore_journal.walk import find_last_claim, legs_of_history, stored_records


def lsn_of(store: ChunkedSegmentStorage) -> int:
    """The last record that an owner has applied."""
    return store._container.current.store.head().position.lsn


def rows_of(store: MetadataStore) -> dict[bytes, bytes]:
    """All rows that the state digest covers."""
    with store.view() as view:
        rows = {key: value for key, value in view.scan(b"A", b"z") if is_row(key)}
        assert sum(row_digest(key, value) for key, value in rows.items()) % DIGEST_MODULUS == view.head.digest
    return rows


def rows_at(storage: ChunkStorage, names: ContainerNames, lsn: int) -> dict[bytes, bytes]:
    """The rows at ``lsn``, replayed with every digest verified. Fails where what is stored does not lead there."""
    streams = open_streams(storage, names)
    starts = [item.name for item in reversed(list_snapshots(storage, names)) if item.lsn <= lsn]
    why: list[str] = []
    for start in (*starts, None):
        store = MemoryMetadataCache(streams.container, "past", shelf=MemoryShelf()).create()
        try:
            if start is not None:
                load_snapshot(storage, start, store, container=streams.container)
            _replay(streams, store, lsn)
        except (ChunkNotFound, Damaged) as error:
            why.append(f"from {start}: {error}")
            continue
        if store.head().position.lsn == lsn:
            return rows_of(store)
        why.append(f"from {start}: records end, or are missing, behind lsn {store.head().position.lsn}")
    raise AssertionError(f"lsn {lsn} cannot be restored: {'; '.join(why)}")


def _replay(streams: Streams, store: MetadataStore, lsn: int) -> None:
    begin = store.head().position.lsn
    for leg in legs_of_history(streams, find_last_claim(streams)):
        if leg.end.lsn <= store.head().position.lsn:
            continue
        for commit in commits_of_open(leg.opened, embedded=True):
            if store.head().position.lsn < commit.position.lsn <= lsn and not store.apply([commit], verify=True):
                return
        at = leg.opened.position
        for record, embedded, name, position in stored_records(streams, leg, begin, []):
            if embedded or not record.header.index:
                continue
            end = position + record.size if streams.mode == "append" else 0
            at = at._replace(lsn=record.header.lsn, hash=record.hash, index=record.header.index + 1, end=end)
            if store.head().position.lsn < at.lsn <= lsn and not store.apply(
                [commit_of(record, at, object=name, at=position)], verify=True
            ):
                return


def live_chunks(names: ContainerNames, rows: dict[bytes, bytes]) -> dict[str, int]:
    """The objects that segments refer to, and as far as their bytes count."""
    found: dict[str, int] = {}
    for key, value in rows.items():
        if key[:1] != SEGMENT:
            continue
        identity = decode_segment(key, value).first_chunk
        while identity:
            record = decode_chunk(key, rows[chunk_key(identity)])
            name, begin = names.address(identity, record)
            found[name] = max(found.get(name, 0), begin + record.length)
            identity = record.next
    return found
