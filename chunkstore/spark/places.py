"""Whether a root is the same one on this machine as where a read or write was planned: the container's uuid in FORMAT says so.

Promises: nothing is written; one small object is read. Leaves out: copies of one container, which bear one uuid.
"""

from __future__ import annotations

from typing import Final

from chunkstore.errors import ContainerNotFound, RootUnavailable
from chunkstore.parts import uuid_at
from chunkstore.storage import ChunkStorage

__all__ = ["check_place"]

_REMEDY: Final = "every machine that runs tasks must reach the same storage under this URL"


def check_place(storage: ChunkStorage, *, container: str, uuid: bytes) -> None:
    """Raise ``RootUnavailable`` unless the container of this ``uuid`` lies in ``storage``; and what reading FORMAT raises.

    Where no ``uuid`` is known nothing is compared. Changes nothing; a retry, here or on another machine, is safe.
    """
    if not uuid:
        return
    try:
        found = uuid_at(storage, container)
    except ContainerNotFound:
        reason = f"container {container!r} does not exist on this machine"
    else:
        if found == uuid:
            return
        reason = f"on this machine container {container!r} is not the planned one: its uuid is {found.hex()}, the plan has {uuid.hex()}"
    raise RootUnavailable(storage.url, reason, remedy=_REMEDY) from None
