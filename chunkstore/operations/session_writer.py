"""What writes the chunks of a session outside the owner (protocol A9).

Promises: picklable, and imports no engine: executors have the storage, but neither the metadata nor the claim. Names never meet.
Leaves out: opening, attaching and ending a session, which the owner does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.changes.sessions import SessionChunk, check_chunk_number, check_session_id
from chunkstore.checksum import BytesLike, check_data
from chunkstore.errors import ChunkExists, InvalidArgument
from chunkstore.operations.copy_ranges import write_chunk
from chunkstore.records.names import ContainerNames, session_chunk_id
from chunkstore.storage import ChunkStorage

__all__ = ["SessionWriter"]

_NUMBER_MAX: Final = (1 << 64) - 1
_NAMES_TRIED: Final = 4


class SessionWriter(NamedTuple):
    """Writes chunks for one session. ``first_number`` must differ between writers of one session (e.g. the task's number
    shifted left by 32), so that names never meet; the random part makes retried tasks safe."""

    container: str
    session_id: int
    first_number: int = 0

    def write_chunk(self, storage: ChunkStorage, number: int, data: BytesLike | Sequence[BytesLike]) -> SessionChunk:
        """Write one chunk, durable on return. ``number``: from 0 on; with ``first_number`` below 2**64. ``data``: its bytes, or parts
        of them in order, which are not put together where the storage appends.

        Raises ``InvalidArgument``, and of the storage ``Closed``, ``StorageFull``, ``StorageUnavailable``,
        ``DeadlineExceeded``, ``ChunkExists`` (four random names were taken). A retry writes another chunk: safe.
        """
        parts = [check_data(part) for part in (data if isinstance(data, (list, tuple)) else (data,))]
        parts = [part for part in parts if len(part)]
        if not parts:
            raise InvalidArgument("a chunk cannot be empty", argument="data")
        check_session_id(self.session_id)
        check_chunk_number(self.first_number, "first_number")
        check_chunk_number(number, "number", _NUMBER_MAX - self.first_number)
        for tries_left in range(_NAMES_TRIED - 1, -1, -1):
            random = int.from_bytes(runtime.token(4), "big")
            identity = session_chunk_id(self.session_id, self.first_number + number, random)
            try:
                written = write_chunk(storage, ContainerNames(self.container).chunk(identity), parts)
            except ChunkExists:
                if not tries_left:
                    raise
            else:
                crcs = tuple(crc for _, crc in written.passed)
                return SessionChunk(identity, written.length, written.crc32c, crcs)
        raise AssertionError
