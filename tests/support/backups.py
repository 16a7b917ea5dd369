"""Dropping old backups, as somebody does who keeps the newest only."""

from __future__ import annotations

from chunkstore import backup
from chunkstore.backup import runs
from chunkstore.backup.removing import Removed
from chunkstore.config import Settings
from chunkstore.engine import parts
from chunkstore.records.names import BackupNames
from chunkstore.storage import ChunkStorage

__all__ = ["drop_old"]


def drop_old(
    root: str | ChunkStorage, *, keep: int = 1, container: str = "default", settings: Settings | None = None
) -> list[Removed]:
    """Drop all but the newest ``keep`` backups, the oldest first. Raises as ``backup.remove``."""
    names = BackupNames(container)
    with parts.storage_of(root, settings) as storage:
        complete = sorted(runs.iter_complete(storage, names), key=lambda item: (item.lsn, item.time_ms))
    return [
        backup.remove(root, item.run, container=container, settings=settings)
        for item in complete[: max(0, len(complete) - keep)]
    ]
