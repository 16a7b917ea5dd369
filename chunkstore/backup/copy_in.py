"""Chunks of another container are copied into chunks of a new one, several at a time.

Bytes are compared with the CRCs that their own container has recorded, and copies are durable on return. Memory is bounded: chunks are
copied in pieces. A copy that no snapshot names (``founding``) is an orphan.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.changes import NewChunk
from chunkstore.config import MIB, Settings
from chunkstore.copy_ranges import compose_chunk, read_verified, write_chunk
from chunkstore.deadline import Deadline, until
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.metadata.codec import NUMBER_MAX
from chunkstore.records.blocks import Borders, ChunkSum
from chunkstore.records.names import Address, ContainerNames
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = ["ChunkToCopy", "ForeignChunk", "Place", "piece_bytes"]

_WINDOW_BYTES: Final = 4 * MIB
_HELD_BYTES: Final = 64 * MIB
"""Of a chunk, where nothing appends: a longer one becomes several."""
_COMPOSED_BYTES_MIN: Final = 5 * MIB
"""From here on S3's servers copy a range by themselves."""
_COPIED_AT_ONCE: Final = 64
_HANDED: Final = 16


class ForeignChunk(NamedTuple):
    """A chunk of another container, or a part of one, that is read at ``address``; of a salvage perhaps in a copy. ``borders`` None: they
    were not looked up."""

    address: Address
    length: int
    borders: Borders | None
    created_ms: int
    in_copy: bool = False


class ChunkToCopy(NamedTuple):
    """A chunk of ``source`` for a segment of this name. ``fresh``: unused ids, one for each piece; ``former``: under which an
    earlier try may have left a copy, or none."""

    segment: str
    source: ChunkStorage
    chunk: ForeignChunk
    fresh: tuple[bytes, ...]
    former: tuple[bytes, ...] = ()


class Place:
    """The root that chunks are copied to. Who makes it closes the pool."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames, settings: Settings) -> None:
        self.storage = storage
        self.names = names
        self.pool: runtime.Pool = runtime.pool("chunkstore-import", settings.tuning.io_workers)
        self._remote = storage.capabilities.remote
        self._deadline_s = settings.op_deadline_s

    def bounded(self) -> AbstractContextManager[None]:
        """Within this, calls to a remote storage end by the deadline of an operation."""
        return until(Deadline(self._deadline_s).end_s) if self._remote else nullcontext()

    def copy_chunks(self, items: Sequence[ChunkToCopy], size_bytes: int) -> list[list[NewChunk]]:
        """What each chunk of ``items`` became, in order; ``size_bytes``: of all. Raises as ``_copy_chunk``."""
        # Where it is near, handing a small chunk to a worker costs as much as copying it.
        size = _HANDED if not self._remote and size_bytes <= len(items) * MIB else 1
        groups = [items[at : at + size] for at in range(0, len(items), size)]
        copied: list[list[NewChunk]] = []
        for at in range(0, len(groups), _COPIED_AT_ONCE):
            calls = [partial(_copy_group, self, group) for group in groups[at : at + _COPIED_AT_ONCE]]
            copied += chain.from_iterable(self.pool.run_all(calls))
        return copied


def _copy_group(place: Place, items: Sequence[ChunkToCopy]) -> list[list[NewChunk]]:
    return [_find_copied(place, item) or _copy_chunk(place, item) for item in items]


def piece_bytes(storage: ChunkStorage) -> int:
    """How long the chunks are that a longer one becomes."""
    if storage.capabilities.append:
        return NUMBER_MAX
    return -(-_HELD_BYTES // _WINDOW_BYTES) * _WINDOW_BYTES


def _copy_chunk(place: Place, item: ChunkToCopy) -> list[NewChunk]:
    """Copy a chunk into one of each fresh id. Raises ``Damaged``, ``ChunkNotFound``, ``ChunkExists`` (another restore does the same, or
    began to), and what the storages raise."""
    chunk, storage, size = item.chunk, place.storage, piece_bytes(place.storage)
    # Both ends are in one storage, and the chunk is long enough.
    composed = item.source.address == storage.address and chunk.length >= _COMPOSED_BYTES_MIN
    windows = read_verified(
        item.source,
        chunk.address,
        chunk.length,
        chunk.borders,
        _WINDOW_BYTES,
        what=f"a chunk of segment {item.segment!r}",
        bounded=place.bounded,
    )
    made: list[NewChunk] = []
    for number, identity in enumerate(item.fresh):
        name, piece = place.names.chunk(identity), islice(windows, size // _WINDOW_BYTES)
        if composed:
            total = ChunkSum()
            for data in piece:
                total.add(data)
            with place.bounded():
                begin = chunk.address.offset + number * size
                compose_chunk(storage, name, (ChunkRange(chunk.address.object, begin, total.length),))
        else:
            total = write_chunk(storage, name, piece, bounded=place.bounded)
        made.append(NewChunk(identity, total.borders()))
    return made


class _Pieces:
    """Reads what a chunk became, as one."""

    def __init__(self, place: Place, ids: Sequence[bytes]) -> None:
        self._storage = place.storage
        self._names = [place.names.chunk(identity) for identity in ids]
        self._size = piece_bytes(place.storage)

    def read(self, _: ChunkHandle, offset: int, length: int) -> bytes:
        number, begin = divmod(offset, self._size)
        return self._storage.read(ChunkHandle(self._names[number], False), begin, length)


def _find_copied(place: Place, item: ChunkToCopy) -> list[NewChunk] | None:
    """The chunks of the former ids, if they are a copy that an earlier try made: all of it is read and compared, and made durable. None:
    they are not. Raises what the storage raises."""
    ids, chunk, made = item.former, item.chunk, list[NewChunk]()
    if not ids or chunk.borders is None:
        return None
    # A copy begins at byte 0, wherever the chunk itself begins in its object.
    pieces, start = _Pieces(place, ids), Address("", 0)
    windows = read_verified(pieces, start, chunk.length, chunk.borders, _WINDOW_BYTES, bounded=place.bounded)
    try:
        for identity in ids:
            total = ChunkSum()
            for data in islice(windows, piece_bytes(place.storage) // _WINDOW_BYTES):
                total.add(data)
            made.append(NewChunk(identity, total.borders()))
        for identity in ids:
            # Its writer may have died before it was synced (P6).
            place.storage.harden(place.names.chunk(identity))
    except (ChunkNotFound, Damaged):
        return None
    return made
