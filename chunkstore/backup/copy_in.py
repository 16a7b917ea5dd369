"""Chunks of another container are copied into chunks of a new one, several at a time.

Bytes are compared with the CRCs that their own container has recorded, and copies are durable on return. Memory is bounded: chunks are
copied in pieces. A copy that no snapshot names (``founding``) is an orphan.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain, islice
from typing import Final

from chunkstore import runtime
from chunkstore.backup.survey import FoundChunk
from chunkstore.changes import NewChunk
from chunkstore.config import MIB, Settings
from chunkstore.copy_ranges import compose_chunk, read_verified, write_chunk
from chunkstore.deadline import Deadline, until
from chunkstore.metadata.codec import NUMBER_MAX
from chunkstore.records.blocks import ChunkSum
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkRange, ChunkStorage

__all__ = ["Place"]

_WINDOW_BYTES: Final = 4 * MIB
_HELD_BYTES: Final = 64 * MIB
"""Of a chunk, where nothing appends: a longer one becomes several."""
_COMPOSED_BYTES_MIN: Final = 5 * MIB
"""From here on S3's servers copy a range by themselves."""
_COPIED_AT_ONCE: Final = 64
_HANDED: Final = 16


class Place:
    """The root that chunks are copied to. The storage stays the caller's."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames, settings: Settings) -> None:
        self.names = names
        self._pool = runtime.pool("chunkstore-import", settings.tuning.io_workers)
        self._storage = storage
        self._remote = storage.capabilities.remote
        self._deadline_s = settings.op_deadline_s
        appends = storage.capabilities.append
        self._piece_bytes = NUMBER_MAX if appends else -(-_HELD_BYTES // _WINDOW_BYTES) * _WINDOW_BYTES

    def close(self) -> None:
        """Release the workers. Safe to repeat."""
        self._pool.close()

    def pieces_of(self, chunk: FoundChunk) -> int:
        """How many chunks one becomes."""
        return -(-chunk.length // self._piece_bytes)

    def copy_chunks(self, items: Sequence[tuple[FoundChunk, Sequence[bytes]]]) -> list[list[NewChunk]]:
        """What each chunk became, in order; with it come unused ids, one for each piece. Raises ``Damaged``, ``ChunkNotFound``, and what
        the storages raise."""
        # Where it is near, handing a small chunk to a worker costs as much as copying it.
        is_small = sum(chunk.length for chunk, _ in items) <= len(items) * MIB
        size = _HANDED if not self._remote and is_small else 1
        groups = [items[at : at + size] for at in range(0, len(items), size)]
        copied: list[list[NewChunk]] = []
        for at in range(0, len(groups), _COPIED_AT_ONCE):
            calls = [partial(self._copy_group, group) for group in groups[at : at + _COPIED_AT_ONCE]]
            copied += chain.from_iterable(self._pool.run_all(calls))
        return copied

    def _copy_group(self, items: Sequence[tuple[FoundChunk, Sequence[bytes]]]) -> list[list[NewChunk]]:
        return [self._copy_chunk(*item) for item in items]

    def _copy_chunk(self, chunk: FoundChunk, ids: Sequence[bytes]) -> list[NewChunk]:
        storage, size = self._storage, self._piece_bytes
        # Both ends are in one storage, and the chunk is long enough.
        composed = chunk.storage.address == storage.address and chunk.length >= _COMPOSED_BYTES_MIN
        windows = read_verified(
            chunk.storage, chunk.address, chunk.length, chunk.borders, _WINDOW_BYTES, bounded=self._bounded
        )
        made: list[NewChunk] = []
        for number, identity in enumerate(ids):
            name, piece = self.names.chunk(identity), islice(windows, size // _WINDOW_BYTES)
            if composed:
                total = ChunkSum()
                for data in piece:
                    total.add(data)
                with self._bounded():
                    begin = chunk.address.offset + number * size
                    compose_chunk(storage, name, (ChunkRange(chunk.address.object, begin, total.length),))
            else:
                total = write_chunk(storage, name, piece, bounded=self._bounded)
            made.append(NewChunk(identity, total.borders()))
        return made

    def _bounded(self) -> AbstractContextManager[None]:
        """Within this, calls to a remote storage end by the deadline of an operation."""
        return until(Deadline(self._deadline_s).end_s) if self._remote else nullcontext()
