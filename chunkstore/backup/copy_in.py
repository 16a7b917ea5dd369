"""Chunks of another container are copied into chunks of a new one, several at a time.

Bytes are compared with the CRCs that their own container has recorded, and copies are durable on return. Memory is bounded: chunks are
copied in pieces. What an earlier try left is compared, byte by byte, and used. A copy that no snapshot names (``founding``) is an orphan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.survey import FoundChunk
from chunkstore.changes import NewChunk
from chunkstore.config import MIB, Settings
from chunkstore.deadline import Deadline, until
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.metadata.codec import NUMBER_MAX
from chunkstore.operations.copy_ranges import compose_chunk, read_verified, write_chunk
from chunkstore.records.blocks import ChunkSum
from chunkstore.records.names import Address, ContainerNames
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = ["ChunkToCopy", "Place"]

_WINDOW_BYTES: Final = 4 * MIB
_HELD_BYTES: Final = 64 * MIB
"""Of a chunk, where nothing appends: a longer one becomes several."""
_COMPOSED_BYTES_MIN: Final = 5 * MIB
"""From here on S3's servers copy a range by themselves."""
_COPIED_AT_ONCE: Final = 64
_HANDED: Final = 16


class ChunkToCopy(NamedTuple):
    """A chunk for a segment of this name. ``fresh``: unused ids, one for each piece; ``former``: under which an earlier try may have left
    a copy, or none."""

    segment: str
    chunk: FoundChunk
    fresh: Sequence[bytes]
    former: Sequence[bytes]


class Place:
    """The root that chunks are copied to. The storage stays the caller's."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames, settings: Settings) -> None:
        self.names = names
        self._pool = runtime.pool("chunkstore-import", settings.tuning.io_workers)
        self.storage = storage
        self._remote = storage.capabilities.remote
        self._deadline_s = settings.op_deadline_s
        appends = storage.capabilities.append
        self.piece_bytes: int = NUMBER_MAX if appends else -(-_HELD_BYTES // _WINDOW_BYTES) * _WINDOW_BYTES

    def close(self) -> None:
        """Release the workers. Safe to repeat."""
        self._pool.close()

    def pieces_of(self, chunk: FoundChunk) -> int:
        """How many chunks one becomes."""
        return -(-chunk.length // self.piece_bytes)

    def copy_chunks(self, items: Sequence[ChunkToCopy]) -> list[list[NewChunk]]:
        """What each chunk became, in order. Raises ``Damaged``, ``ChunkNotFound``, ``ChunkExists`` (another restore does the same, or began
        to), and what the storages raise."""
        # Where it is near, handing a small chunk to a worker costs as much as copying it.
        is_small = sum(item.chunk.length for item in items) <= len(items) * MIB
        size = _HANDED if not self._remote and is_small else 1
        groups = [items[at : at + size] for at in range(0, len(items), size)]
        copied: list[list[NewChunk]] = []
        for at in range(0, len(groups), _COPIED_AT_ONCE):
            calls = [partial(self._copy_group, group) for group in groups[at : at + _COPIED_AT_ONCE]]
            copied += chain.from_iterable(self._pool.run_all(calls))
        return copied

    def _copy_group(self, items: Sequence[ChunkToCopy]) -> list[list[NewChunk]]:
        return [self._find_copied(item) or self._copy_chunk(item) for item in items]

    def _find_copied(self, item: ChunkToCopy) -> list[NewChunk]:
        """The chunks of the former ids, if they are a copy that an earlier try made: all of it is read and compared, and made durable."""
        if not item.former:
            return []
        # A copy begins at byte 0, wherever the chunk itself begins in its object.
        pieces, start, chunk = _Pieces(self, item.former), Address("", 0), item.chunk
        windows = read_verified(pieces, start, chunk.length, chunk.borders, _WINDOW_BYTES, bounded=self._bounded)
        try:
            made = [self._read_piece(identity, windows) for identity in item.former]
            for identity in item.former:
                # Its writer may have died before it was synced (P6).
                self.storage.harden(self.names.chunk(identity))
        except (ChunkNotFound, Damaged):
            return []
        return made

    def _read_piece(self, identity: bytes, windows: Iterator[bytes]) -> NewChunk:
        """What the next windows make of a chunk, which is in its place already."""
        total = ChunkSum()
        for data in islice(windows, self.piece_bytes // _WINDOW_BYTES):
            total.add(data)
        return NewChunk(identity, total.borders())

    def _copy_chunk(self, item: ChunkToCopy) -> list[NewChunk]:
        chunk, storage, size = item.chunk, self.storage, self.piece_bytes
        # Both ends are in one storage, and the chunk is long enough.
        composed = chunk.storage.address == storage.address and chunk.length >= _COMPOSED_BYTES_MIN
        windows = read_verified(
            chunk.storage,
            chunk.address,
            chunk.length,
            chunk.borders,
            _WINDOW_BYTES,
            what=f"a chunk of segment {item.segment!r}",
            bounded=self._bounded,
        )
        made: list[NewChunk] = []
        for number, identity in enumerate(item.fresh):
            name = self.names.chunk(identity)
            if composed:
                piece = self._read_piece(identity, windows)
                with self._bounded():
                    source = ChunkRange(
                        chunk.address.object, chunk.address.offset + number * size, piece.borders.at[-1]
                    )
                    compose_chunk(storage, name, (source,))
            else:
                windows_here = islice(windows, size // _WINDOW_BYTES)
                piece = NewChunk(identity, write_chunk(storage, name, windows_here, bounded=self._bounded).borders())
            made.append(piece)
        return made

    def _bounded(self) -> AbstractContextManager[None]:
        """Within this, calls to a remote storage end by the deadline of an operation."""
        return until(Deadline(self._deadline_s).end_s) if self._remote else nullcontext()


class _Pieces:
    """Reads what a chunk became, as one."""

    def __init__(self, place: Place, ids: Sequence[bytes]) -> None:
        self._storage = place.storage
        self._names = [place.names.chunk(identity) for identity in ids]
        self._size = place.piece_bytes

    def read(self, _: ChunkHandle, offset: int, length: int) -> bytes:
        number, begin = divmod(offset, self._size)
        return self._storage.read(ChunkHandle(self._names[number], False), begin, length)
