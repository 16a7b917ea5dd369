"""Claiming a container and serving it: what opening and importing end in.

Promises: everything that was opened here is closed if anything on the way fails; concrete parts are imported inside functions.
Leaves out: which storage and which container (``assembly``, ``backup.target``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from chunkstore import parts
from chunkstore.arguments import check_flags
from chunkstore.config import OptimiserPolicy, Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument
from chunkstore.journal import JournalService, Ownership
from chunkstore.metadata.port import MetadataCache
from chunkstore.names import ContainerNames
from chunkstore.observer import Observer
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.space import Reserve
from chunkstore.registry import open_copy
from chunkstore.storage import ChunkStorage

__all__ = ["Claim", "check_ownership", "check_patience"]


def check_patience(wait_s: float | None, take_over: bool) -> float | None:
    """How long a live owner is waited for, in seconds; None: it is deposed at once. Raises ``InvalidArgument``."""
    check_flags(take_over=take_over)
    if wait_s is None:
        return None if take_over else 0.0
    if not isinstance(wait_s, (int, float)) or not 0 <= wait_s <= 86_400:
        raise InvalidArgument(f"wait_s must be from 0 to 86400 seconds, not {wait_s!r}", argument="wait_s")
    if take_over:
        raise InvalidArgument("take_over=True claims at once, wait_s waits: give one of them", argument="wait_s")
    return float(wait_s)


def check_ownership(observer: object, optimiser: object, accept_rollback: object) -> None:
    """Check what an owner is made with. Raises ``InvalidArgument``."""
    check_flags(accept_rollback=accept_rollback)
    if observer is not None and not isinstance(observer, Observer):
        raise InvalidArgument(
            f"observer must be a chunkstore.observer.Observer, not {type(observer).__name__}", argument="observer"
        )
    if optimiser is not None and not isinstance(optimiser, OptimiserPolicy):
        raise InvalidArgument(
            f"optimiser must be a chunkstore.OptimiserPolicy, not {type(optimiser).__name__}", argument="optimiser"
        )


class Claim(NamedTuple):
    """A container that is there, and whoever is about to own it. ``cache``: of the caller's own, if any."""

    storage: ChunkStorage
    names: ContainerNames
    format: Any
    """Its FORMAT, of ``chunkstore_journal``."""
    settings: Settings
    cache: MetadataCache | None
    close_storage: bool

    def own(
        self,
        observer: Observer | None,
        optimiser: OptimiserPolicy | None,
        patience_s: float | None,
        *,
        accept_rollback: bool,
        created: bool = False,
    ) -> ChunkedSegmentStorage:
        """Take over and serve. ``patience_s``: see ``check_patience``."""
        from chunkstore_bindings.probe import confirm_storage
        from chunkstore_journal.container import check_writable
        from chunkstore_journal.lease import wait_politely
        from chunkstore_journal.objects import encode_format
        from chunkstore_journal.service import ContainerJournal

        storage, names, format_, settings = self.storage, self.names, self.format, self.settings
        check_writable(storage, format_, settings)
        lease = wait_politely(storage, names, settings, patience_s)
        if not created:
            Reserve(storage, names, settings).make_room()  # for the claim
            confirm_storage(storage, names.format, encode_format(format_), format_.probe, names.temporary(""))
        cache = self.cache if self.cache is not None else parts.cache_of(storage, format_.uuid, settings, "owner")
        closing: list[Callable[[], None]] = [] if self.cache is not None else [cache.close]
        if self.close_storage:
            closing.append(storage.close)
        try:
            service = ContainerJournal(storage, names, format_, cache, settings)
            ownership = service.take_over(own=None, lease=lease, accept_rollback=accept_rollback)
            return self._serve(service, ownership, closing, observer, optimiser)
        except BaseException:
            if self.cache is None:
                cache.close()
            raise

    def _serve(
        self,
        service: JournalService,
        ownership: Ownership,
        closing: list[Callable[[], None]],
        observer: Observer | None,
        optimiser: OptimiserPolicy | None,
    ) -> ChunkedSegmentStorage:
        """The store of a fresh ownership, which is given up if that fails."""
        from chunkstore_journal.asks import StoredAsks

        storage, names, settings, uuid = self.storage, self.names, self.settings, self.format.uuid
        try:
            return ChunkedSegmentStorage(
                storage=storage,
                names=names,
                uuid=uuid,
                settings=settings,
                service=service,
                ownership=ownership,
                journal_findings=partial(
                    parts.journal_findings, storage, names, parts.scratch_of(storage, uuid, settings, self.cache)
                ),
                stored_sizes=parts.stored_sizes(storage, names),
                observer=observer,
                optimiser=optimiser,
                sweep_unfinished=partial(parts.sweep_unfinished, storage),
                open_copy=partial(open_copy, of=storage, container=names.container, settings=settings),
                asks=StoredAsks(storage, names, uuid),
                importer=_importer(settings),
                on_close=closing,
            )
        except BaseException:
            ownership.journal.close()
            ownership.store.close(clean=False)
            raise


def _importer(
    settings: Settings,
) -> Callable[[ChunkedSegmentStorage, OwnedContainer], Callable[[str], bool]] | None:
    """What imports unknown segments from header files (``Settings.headers``)."""
    if settings.headers != "import":
        return None
    from chunkstore.headers.importing import HeaderImporter

    return HeaderImporter
