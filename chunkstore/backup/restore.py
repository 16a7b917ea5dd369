"""Restoring and importing: a state of a container, of a backup or of an export, or some segments of it, as a new container.

Promises: the source is only read; the new container is whole or opened by no one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypedDict, Unpack

from chunkstore.assembly import check_patience
from chunkstore.backup import runs
from chunkstore.backup.copy_in import Place
from chunkstore.backup.founding import State
from chunkstore.backup.salvage import Salvage, SalvageReport
from chunkstore.backup.selection import NameFilter
from chunkstore.backup.sources import Caches, Moment, Opening, is_export, open_source
from chunkstore.backup.survey import MissingChunk, Stretch, require_complete, stretches, survey
from chunkstore.config import Settings
from chunkstore.engine import parts
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.metadata.port import MetadataCache
from chunkstore.records.arguments import check_flags
from chunkstore.records.names import ContainerNames
from chunkstore.registry import Root
from chunkstore.storage import ChunkStorage

__all__ = ["RestoreOptions", "RestoreReport", "import_", "make_container", "restore"]


class RestoreReport(NamedTuple):
    """What was restored: the state that the record ``lsn`` left. Numbers are of the whole, whichever of it an earlier try had copied.

    ``missing``: of a dry run, the first thousand chunks that are not there (``missing_chunks``: all); else there are none. ``salvaged``: of
    a salvage, what was lost of them.
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
    salvaged: SalvageReport | None = None


class RestoreOptions(TypedDict, total=False):
    """What ``restore`` and ``import_`` take as keywords."""

    lsn: int | None
    time: datetime | int | None
    snapshot: str | None
    salvage: bool
    from_: Root | None
    settings: Settings | None
    wait_s: float | None
    take_over: bool
    dry_run: bool
    progress: Callable[[int], object] | None
    caches: Caches | None


@dataclass(frozen=True, kw_only=True)
class _Options:
    """``RestoreOptions`` with their defaults."""

    lsn: int | None = None
    time: datetime | int | None = None
    snapshot: str | None = None
    salvage: bool = False
    from_: Root | None = None
    settings: Settings | None = None
    wait_s: float | None = None
    take_over: bool = False
    dry_run: bool = False
    progress: Callable[[int], object] | None = None
    caches: Caches | None = None


def restore(
    root: Root | ChunkStorage,
    new_root: Root | ChunkStorage,
    segments: Sequence[str] = (),
    *,
    container: str = "default",
    new_container: str | None = None,
    **options: Unpack[RestoreOptions],
) -> RestoreReport:
    """Copy the state of ``root`` at a moment of the past into a new container under ``new_root``. ``root`` may be one of backups: then the
    newest is restored, or that of the lsn, or the newest that was made by the time. Or it is an export file, of one moment: its chunks are
    looked for at ``from_``, or else where the file says, and only if the same container is there.

    ``segments``: names, or prefixes with ``*`` after them; none: all. Of a part the retention policies of its segments and the rows of its
    ledgers come along, other tables do not.

    The moment: ``lsn``, ``time`` (both as in ``open_replica``), or ``snapshot``, the name of a pin; none of them: now. First every chunk is
    looked at; then all are copied, and compared with their CRCs on the way. Segments keep their offsets, attributes, seals, labels of time
    and writers' last events, tables their rows; retention policies come along. What speaks of the other history does not: garbage,
    sessions, pins. ``new_container``: its name, else that at the source. ``wait_s``, ``take_over``: as in ``open``.
    ``settings``: of both. ``dry_run``: only look. ``progress``: called with the bytes of each step. Roots may be storages of the caller's
    own, which stay open; ``caches`` makes its own metadata caches, by role.

    ``salvage``: of a damaged container, too. Without a moment the last good state is copied: what the newest snapshot that can be read and
    the records after it lead to, up to the first one that is missing or damaged. Records after that are counted, and not replayed. Chunks
    are compared block by block first; rotten and missing blocks come from ``from_``, the root of a copy or of backups, where it has them.
    A segment that has lost bytes ends in front of the first lost one, and is sealed; what follows a hole becomes the sealed segment
    ``NAME.after-OFFSET``, with the offsets that it had. The last event of a writer goes with its bytes. ``salvaged`` lists what is lost.
    Stop the container's owner first: what it commits meanwhile may be missing.

    The new container is there whole or not at all, and durable. After an interruption the same call takes what was copied before for its
    own once it has read and compared it, and copies the rest; what no one uses stays as orphans until a sweep. Of two at once the later
    wins.

    Raises ``InvalidArgument`` (the moment; there is such a container already, or one root is inside the other container; another
    container at ``from_``), ``SegmentNotFound`` (of ``segments``), ``ChunksMissing``, all before anything is made,
    ``PastCollected``, ``ContainerNotFound``, ``ContainerBusy``, ``Unsupported``, ``Damaged`` (a chunk, or the file), ``NotOwner``,
    ``OutcomeUnknown``, ``StorageFull``, ``StorageUnavailable``, ``DeadlineExceeded``. Retry: safe, and goes on where it was.
    """
    given = _Options(**options)
    settings, salvage = parts.checked_settings(given.settings), given.salvage
    how = Opening(ContainerNames(container).container, settings, NameFilter(segments), given.caches)
    check_flags(dry_run=given.dry_run, salvage=salvage)
    patience_s = check_patience(given.wait_s, given.take_over)
    moment = Moment(given.lsn, given.time, given.snapshot)
    progress = given.progress or (lambda _: None)
    if new_container is not None:
        ContainerNames(new_container)
    with (
        open_source(root, given.from_, moment, how, salvage=salvage) as source,
        parts.storage_of(new_root, settings) as new,
    ):
        target = source.names.container if new_container is None else new_container
        runs.require_apart(source.storage, source.names.container, new, target, "new_root")
        whole = survey(source, ask=not salvage)
        sound = Salvage(source)

        def pages() -> Iterator[list[Stretch]]:
            nonlocal sound
            sound = Salvage(source)
            return sound.sound(stretches(source)) if salvage else stretches(source)

        if given.dry_run and salvage:
            for _ in pages():
                pass
        if not given.dry_run:
            require_complete(whole)

            def rows(place: Place, epoch: int, goes_on: bool) -> Iterator[list[tuple[bytes, bytes]]]:
                return State(source, pages(), place, epoch, progress, goes_on=goes_on).pages()

            cache = how.cache("owner")
            make_container(new, ContainerNames(target), settings, rows, patience_s=patience_s, cache=cache)
        lost = sound.report() if salvage else None
        return RestoreReport(target, source.view.head.position.lsn, *whole, dry_run=given.dry_run, salvaged=lost)


def import_(
    new_root: Root,
    source: Root,
    segments: Sequence[str] = (),
    *,
    source_container: str = "default",
    container: str | None = None,
    **options: Unpack[RestoreOptions],
) -> RestoreReport:
    """As ``restore``, with its ``options``, and the new root first. ``source_container``: of a root; ``container``: the name of the new
    one, else as there."""
    if is_export(new_root):
        text = f"{new_root!r} is an export file: say first the root of the new container, then the file"
        raise InvalidArgument(text, argument="new_root")
    return restore(source, new_root, segments, container=source_container, new_container=container, **options)


def make_container(
    storage: ChunkStorage,
    names: ContainerNames,
    settings: Settings,
    rows: Callable[[Place, int, bool], Iterator[list[tuple[bytes, bytes]]]],
    *,
    patience_s: float | None,
    cache: MetadataCache | None = None,
) -> None:
    """Make a container that begins with these ``rows``, given the place, the epoch, and whether somebody may have tried before. The storage
    stays the caller's, and no one owns the container then.

    Atomic and durable. Raises ``InvalidArgument`` (there is one already), as ``chunkstore.open``, and what ``rows`` raises. Retry: safe.
    """
    from chunkstore_bindings.wrappers.probe import confirm_storage, probe_storage
    from chunkstore_bindings.wrappers.wrapping import guarded
    from chunkstore_journal.container import create_container, find_format
    from chunkstore_journal.lease import wait_politely
    from chunkstore_journal.objects import encode_format
    from chunkstore_journal.payloads import SnapshotLink
    from chunkstore_journal.service import ContainerJournal
    from chunkstore_journal.snapshot import write_base

    storage = guarded(storage)
    format_ = find_format(storage, names)
    if goes_on := format_ is not None:
        _require_nothing(storage, names)
        confirm_storage(storage, names.format, encode_format(format_), format_.probe, names.temporary(""))
    else:
        format_ = create_container(storage, names, settings, probe=probe_storage, imports=True)
    wait_politely(storage, names, settings, patience_s)
    place = Place(storage, names, settings)

    def make(epoch: int, token: bytes) -> SnapshotLink:
        pages = rows(place, epoch, goes_on)
        return write_base(storage, names, container=format_.uuid, epoch=epoch, token=token, pages=pages)

    own = parts.cache_of(storage, format_.uuid, settings, "owner") if cache is None else cache
    try:
        ContainerJournal(storage, names, format_, own, settings).found(make)
    except Conflict as error:
        raise _there_already(names) from error
    finally:
        place.close()
        if cache is None:
            own.close()


def _require_nothing(storage: ChunkStorage, names: ContainerNames) -> None:
    """Raise ``InvalidArgument`` where a container was opened. One that no one ever opened holds nothing: somebody died while making it.

    Changes nothing. Raises, too: ``ContainerNotFound`` (no one has begun one), ``Damaged``, and what the storage does. Retry: safe.
    """
    from chunkstore_bindings.wrappers.wrapping import guarded
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.walk import newest_opened

    if newest_opened(open_streams(guarded(storage), names)):
        raise _there_already(names)


def _there_already(names: ContainerNames) -> InvalidArgument:
    text = f"there is a container {names.container!r} already (whole, if an import made it): name another one, or another root"
    return InvalidArgument(text, argument="new_root")
