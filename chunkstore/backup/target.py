"""The claim of a container that an import makes.

Promises: what an import makes is whole with its first record, and before that nobody opens it; what is there already is refused before
anything is claimed. Leaves out: what a container is made of (``founding``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chunkstore import parts
from chunkstore.backup.copy_in import Place
from chunkstore.config import Settings
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.metadata.port import MetadataCache
from chunkstore.names import ContainerNames
from chunkstore.storage import ChunkStorage

__all__ = ["make_container"]


def make_container(
    storage: ChunkStorage,
    *,
    container: str,
    settings: Settings,
    rows: Callable[[Place, int, bool], Iterator[list[tuple[bytes, bytes]]]],
    patience_s: float | None,
    cache: MetadataCache | None = None,
) -> None:
    """Make a container that begins with these ``rows``, given the place, the epoch, and whether somebody may have tried before. The storage
    stays the caller's, and nobody owns the container then.

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

    names, storage = ContainerNames(container), guarded(storage)
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
        place.pool.close()
        if cache is None:
            own.close()


def _require_nothing(storage: ChunkStorage, names: ContainerNames) -> None:
    """Raise ``InvalidArgument`` where a container was opened. One that nobody ever opened holds nothing: somebody died while making it.

    Changes nothing. Raises, too: ``ContainerNotFound`` (nobody has begun one), ``Damaged``, and what the storage does. Retry: safe.
    """
    from chunkstore_bindings.wrappers.wrapping import guarded
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.walk import newest_opened

    if newest_opened(open_streams(guarded(storage), names)):
        raise _there_already(names)


def _there_already(names: ContainerNames) -> InvalidArgument:
    text = f"there is a container {names.container!r} already (whole, if an import made it): name another one, or another root"
    return InvalidArgument(text, argument="new_root")
