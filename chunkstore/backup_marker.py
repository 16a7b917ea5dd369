"""The container whose backups a root holds: the marker that a backup root begins with, and the frame of its small objects.

Promises: read-only; whatever is not what it should be is ``Damaged`` with its place. It knows no more of backups than opening a root
needs, to tell a copy of a container from the backups of one. Leaves out: runs, exports and copies (``chunkstore.backup``).
"""

from __future__ import annotations

from typing import Any, Final

from chunkstore.config import LIMITS
from chunkstore.errors import ContainerNotFound, Damaged
from chunkstore.names import BackupNames
from chunkstore.storage import ChunkStorage

__all__ = ["EXPORT_VERSION", "MAGIC", "MARKER", "container_of", "fields_of", "marked_container", "read_small"]

MAGIC: Final = b"CKSE"
EXPORT_VERSION: Final = 1
MARKER: Final = 16
"""Kind of the marker among the small objects of a backup root."""
_NAME_MAX: Final = 255


def container_of(storage: ChunkStorage, names: BackupNames) -> bytes:
    """The uuid of the container whose backups are stored here. Raises ``ContainerNotFound``, ``Damaged``, and what the storage raises."""
    fields = read_small(storage, names.backup, MARKER)
    if fields is None:
        raise ContainerNotFound(names.container, root=storage.url)
    return marked_container(fields, names)


def marked_container(fields: Any, names: BackupNames) -> bytes:
    """The container that a marker is of. Raises ``Damaged``: one of another name."""
    container, name = fields.raw(16), fields.text(_NAME_MAX)
    if name != names.container:
        raise Damaged(f"this marker belongs to container {name!r}", object=names.backup)
    return bytes(container)


def read_small(storage: ChunkStorage, name: str, kind: int) -> Any:
    """The fields of a small object, to be taken one after the other (the journal's ``wire.Fields``); None where there is none.

    Raises ``Damaged``, and what the storage raises.
    """
    from chunkstore_journal.slots import read_if_present

    data = read_if_present(storage, name, size_max=LIMITS.small_object_bytes_max)
    return None if data is None else fields_of(data, name, kind)


def fields_of(data: bytes, name: str, kind: int) -> Any:
    """As ``read_small``, of the bytes of the object ``name``."""
    from chunkstore_journal.wire import FRAME_HEADER_BYTES, Fields, check_frame, decode_frame_header, refuse, unpack

    header = decode_frame_header(data, MAGIC, LIMITS.small_object_bytes_max, object=name, position=0)
    check_frame(data[:FRAME_HEADER_BYTES], data[FRAME_HEADER_BYTES:], version=EXPORT_VERSION, object=name, position=0)
    if header.kind != kind:
        refuse(f"an object of kind {header.kind}, where {kind} belongs", name, 0)
    return Fields(
        unpack(data[FRAME_HEADER_BYTES:], name, FRAME_HEADER_BYTES), "a small object", name, FRAME_HEADER_BYTES
    )
