"""Containers: made once, found again, refused where they could not be served safely (protocol 3.1, 2.2, A13).

Promises: FORMAT is put-if-absent, so a container has one uuid and one journal mode for ever, whichever process creates it first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from chunkstore import runtime
from chunkstore.config import LIMITS, Settings
from chunkstore.errors import ChunkstoreError, ContainerNotFound, Damaged, Unsupported
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.objects import (
    CONTAINER_FORMAT_VERSION,
    ContainerFormat,
    Plain,
    decode_format,
    encode_format,
)
from chunkstore_journal.slots import Undecided, put_decided, read_if_present

__all__ = [
    "check_writable",
    "container_missing",
    "create_container",
    "find_format",
    "list_containers",
    "read_format",
]

_SHOWN_MAX: Final = 10


def check_writable(storage: ChunkStorage, container: ContainerFormat, settings: Settings) -> None:
    """Raise ``Unsupported`` unless a container can be owned here: real put-if-absent, and for an APPEND journal a file
    system on the allow-list or the word said aloud (``journal_mode="append"``)."""
    capabilities = storage.capabilities
    _require_put_if_absent(storage)
    flaw = ""
    if not capabilities.append:
        flaw = f"and {storage.url} cannot append; open it read-only, and restore it into a new container"
    elif not capabilities.append_journal and settings.journal_mode != "append":
        flaw = (
            f"which is not safe on {capabilities.medium or 'this storage'}; open it read-only, or set journal_mode='append' "
            "if this storage keeps appended bytes"
        )
    if container.mode == "append" and flaw:
        raise Unsupported(f"container {container.name!r} has an APPEND journal, {flaw}", feature="append_journal")


def _require_put_if_absent(storage: ChunkStorage) -> None:
    if not storage.capabilities.create_if_absent:
        raise Unsupported(
            f"{storage.url} has no atomic put-if-absent, so a container there cannot have an owner; open it read-only",
            feature="create_if_absent",
        )


def read_format(storage: ChunkStorage, names: ContainerNames) -> ContainerFormat:
    """The container's FORMAT. Raises: ``ContainerNotFound``, ``Damaged`` (also where only FORMAT is gone), ``Unsupported`` (a newer
    version; feature "backup": its backups are here)."""
    if (found := find_format(storage, names)) is None:
        raise container_missing(storage, names)
    return found


def find_format(storage: ChunkStorage, names: ContainerNames) -> ContainerFormat | None:
    """As ``read_format``; None where there is no container."""
    data = read_if_present(storage, names.format, size_max=LIMITS.small_object_bytes_max)
    if data is None:
        if storage.exists(names.backup):
            raise Unsupported(
                f"backups of container {names.container!r} are stored at {storage.url}, but no container; read them "
                "with open_replica, or restore",
                feature="backup",
            )
        _require_nothing_left(storage, names)
        return None
    return _checked(names, data)


def container_missing(storage: ChunkStorage, names: ContainerNames) -> ContainerNotFound:
    """The error that names the containers that are there, or says that the root's folder is missing. Raises nothing."""
    there: tuple[str, ...] | None = ()
    with suppress(ChunkstoreError):  # the caller may be allowed to see one container only
        there = tuple(islice(list_containers(storage), _SHOWN_MAX))
    url = urlsplit(storage.url)
    if url.scheme == "file" and not os.path.isdir(unquote(url.path, errors="surrogateescape")):
        there = None
    return ContainerNotFound(names.container, root=storage.url, containers=there)


def _require_nothing_left(storage: ChunkStorage, names: ContainerNames) -> None:
    """Raise ``Damaged`` where a container has lost its FORMAT: a new one over it would be the end of what it holds."""
    prefixes = (names.epoch_prefix(), names.journal_prefix(), names.snapshot_prefix(), names.data_prefix())
    left = (item.name for prefix in prefixes for item in storage.list(prefix, limit=1).items)
    found = next(left, None)
    # Asked in this order: a concurrent creator puts FORMAT before the first claim.
    if found is not None and not storage.exists(names.format):
        raise Damaged(
            f"container {names.container!r} existed before, because {found} is stored, but its FORMAT is missing: "
            "the storage lost names. Restore it",
            object=names.format,
        )


def _checked(names: ContainerNames, data: bytes) -> ContainerFormat:
    found = decode_format(data, object=names.format)
    if found.version != CONTAINER_FORMAT_VERSION:
        text = (
            f"container {names.container!r} has format version {found.version}; this program reads only "
            f"{CONTAINER_FORMAT_VERSION}. Upgrade it; a lower version was never released: make a new container"
        )
        raise Unsupported(text, feature="container_version")
    if found.name != names.container:
        # A FORMAT that was copied by hand: names of objects would not fit its uuid.
        raise Damaged(f"this FORMAT belongs to container {found.name!r}", object=names.format)
    return found


def create_container(
    storage: ChunkStorage,
    names: ContainerNames,
    settings: Settings,
    *,
    probe: Callable[[ChunkStorage, str], Mapping[str, Plain]] | None = None,
    imports: bool = False,
) -> ContainerFormat:
    """Make the container, or return the FORMAT of the first creator. ``imports``: for an import. Atomic, durable, safe to repeat.

    ``probe`` is called with the storage and a name prefix to work under; it tries what put-if-absent promises, cleans up, and returns what
    it saw.

    Raises: ``Unsupported`` (no working put-if-absent here, or ``journal_mode="append"`` without append),
    ``StorageFull``, ``StorageUnavailable`` (it may have been made), ``Damaged`` (also where only FORMAT is gone).
    """
    capabilities = storage.capabilities
    _require_put_if_absent(storage)
    _require_nothing_left(storage, names)
    seen = {} if probe is None else probe(storage, names.temporary(""))
    mode: Literal["slot", "append"] = "append" if capabilities.append_journal else "slot"
    if settings.journal_mode != "auto":
        mode = settings.journal_mode
    if mode == "append" and not capabilities.append:
        text = (
            f"{storage.url} ({capabilities.medium}) cannot append, so journal_mode='append' is impossible; use 'slot'"
        )
        raise Unsupported(text, feature="append_journal")
    wanted = ContainerFormat(
        uuid=runtime.token(16),
        version=CONTAINER_FORMAT_VERSION,
        mode=mode,
        medium=capabilities.medium[:255],
        probe=seen,
        created_ms=runtime.now_ms(),
        name=names.container,
        imports=imports,
    )
    data = encode_format(wanted)
    try:
        return _checked(names, put_decided(storage, names.format, data, deadline_s=settings.op_deadline_s))
    except Undecided as undecided:
        raise undecided.error.copy() from undecided


def list_containers(storage: ChunkStorage) -> Iterator[str]:
    """The names of the containers under this root, in the order of their objects. One LIST and one question for each."""
    after: str | None = None
    while True:
        page = storage.list("", after=after, limit=1)
        if not page.items:
            return
        first = page.items[0].name
        part, slash, _ = first.partition("/")
        if slash and storage.exists(f"{part}/FORMAT"):
            yield part
        # Everything of one container is under "<name>/": skip to after the last name that could begin so.
        after = f"{part}/\U0010ffff" if slash else first
