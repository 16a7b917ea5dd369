"""Rows that no operation makes, put into a container by journal records that are right in everything else."""

from __future__ import annotations

from collections.abc import Mapping

from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.config import Settings
from chunkstore.journal import Batch, OpCode, RecordKind
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.container import read_format
from chunkstore_journal.service import ContainerJournal


def plant(
    storage: ChunkStorage, settings: Settings, rows: Mapping[bytes, bytes | None], container: str = "default"
) -> None:
    """Take the container over, and commit ``rows`` in one record with the right digest."""
    names = ContainerNames(container)
    format_ = read_format(storage, names)
    cache = MemoryMetadataCache(format_.uuid, "here", shelf=MemoryShelf())
    owned = ContainerJournal(storage, names, format_, cache, settings).take_over(own=None)
    digest = owned.store.head().digest
    for key, value in rows.items():
        old = owned.store.get(key)
        digest -= 0 if old is None else row_digest(key, old)
        digest += 0 if value is None else row_digest(key, value)
    ops = [(int(OpCode.SEAL), 0)]
    owned.journal.append(Batch(RecordKind.OPS, ops, list(rows.items()), digest % DIGEST_MODULUS, 0))
    owned.journal.close()
    owned.store.close(clean=False)
    cache.close()
