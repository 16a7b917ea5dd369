"""Restoring: a state of the past as a container of its own.

Promises: the old container is only read; the new one is whole or opened by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from typing import NamedTuple

from chunkstore import parts
from chunkstore.arguments import check_flags
from chunkstore.backup import runs
from chunkstore.backup.founding import Chunks, State
from chunkstore.backup.sources import Caches, Moment, open_past
from chunkstore.backup.survey import MissingChunk, Source, require_complete, survey
from chunkstore.backup.target import make_container
from chunkstore.config import Settings
from chunkstore.metadata.port import MetadataCache
from chunkstore.names import ContainerNames
from chunkstore.operations.bring_chunks import Place
from chunkstore.records import RootRecord
from chunkstore.storage import ChunkStorage

__all__ = ["RestoreReport", "into_new", "restore"]


class RestoreReport(NamedTuple):
    """What was restored: the state that the record ``lsn`` left. Numbers are of the whole, whichever of it an earlier try had copied.

    ``missing``: of a dry run, the first thousand chunks that are not there (``missing_chunks``: all); else there are none.
    """

    container: str
    lsn: int
    segments: int
    chunks: int
    size_bytes: int
    rows: int
    missing: tuple[MissingChunk, ...]
    missing_chunks: int
    dry_run: bool


def restore(
    root: str | ChunkStorage,
    new_root: str | ChunkStorage,
    *,
    lsn: int | None = None,
    time: datetime | int | None = None,
    snapshot: str | None = None,
    container: str = "default",
    new_container: str | None = None,
    settings: Settings | None = None,
    wait_s: float = 0,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
    caches: Caches | None = None,
) -> RestoreReport:
    """Copy the state of ``root`` at a moment of the past into a new container under ``new_root``. ``root`` may be one of backups: then the
    newest is restored, or that of the lsn, or the newest that was made by the time.

    The moment: ``lsn``, ``time`` (both as in ``open_replica``), or ``snapshot``, the name of a pin; none of them: now. First every chunk is
    looked at; then all are copied, and compared with their CRCs on the way. Segments keep their offsets, attributes, seals, labels of time
    and writers' last events, tables their rows; retention policies come along. What speaks of the other history does not: garbage,
    sessions, pins. ``new_container``: its name, if not the same. ``wait_s``: as in ``open``, where an earlier try may still run.
    ``settings``: of both. ``dry_run``: only look. ``progress``: called with the bytes of each step. Roots may be storages of the caller's
    own, which stay open; ``caches`` makes its own metadata caches, by role.

    The new container is there whole or not at all, and durable. After an interruption the same call takes what was copied before for its
    own once it has read and compared it, and copies the rest; what nobody uses stays as orphans until a sweep. Of two at once the later
    wins.

    Raises ``InvalidArgument`` (the moment; there is such a container already, or one root is inside
    the other container), ``ChunksMissing`` (before anything is made),
    ``PastCollected``, ``ContainerNotFound``, ``ContainerBusy``, ``Unsupported``, ``Damaged``, ``NotOwner``, ``OutcomeUnknown``,
    ``StorageFull``, ``StorageUnavailable``, ``DeadlineExceeded``. Retry: safe, and goes on where it was.
    """
    chosen = parts.checked_settings(settings)
    check_flags(dry_run=dry_run)
    target = ContainerNames(container if new_container is None else new_container).container
    moment = Moment(lsn, time, snapshot)
    with (
        parts.storage_of(root, chosen) as old,
        parts.storage_of(new_root, chosen) as new,
        open_past(old, container=container, moment=moment, settings=chosen, caches=caches) as source,
    ):
        runs.require_apart(old, container, new, target, "new_root")
        return into_new(
            source,
            new,
            container=target,
            settings=chosen,
            wait_s=wait_s,
            dry_run=dry_run,
            progress=progress,
            cache=None if caches is None or dry_run else caches("owner"),
        )


def into_new(
    source: Source,
    new: ChunkStorage,
    *,
    container: str,
    settings: Settings,
    wait_s: float = 0,
    dry_run: bool = False,
    progress: Callable[[int], object] | None = None,
    cache: MetadataCache | None = None,
    adopt: RootRecord | None = None,
) -> RestoreReport:
    """Look at every chunk of ``source``, then make the new container of it; see ``restore``. ``adopt``: the root where its chunks
    stay."""
    with closing(Chunks()) as chunks:
        found = survey(source, None if dry_run else chunks.keep)
        if not dry_run:
            require_complete(found)

            def rows(place: Place, epoch: int, goes_on: bool) -> Iterator[list[tuple[bytes, bytes]]]:
                return State(
                    source,
                    chunks,
                    place,
                    epoch=epoch,
                    goes_on=goes_on,
                    adopt=adopt,
                    progress=progress,
                ).pages()

            make_container(new, container=container, settings=settings, rows=rows, wait_s=wait_s, cache=cache)
    return RestoreReport(container, source.origin.lsn, *found, dry_run=dry_run)
