"""Chunks of another container are copied into chunks of a new one.

Promises: on the way bytes are compared with the CRCs that their own container knows; what is returned is whole in the storage, and
durable. Memory is bounded: chunks are copied in pieces. What was copied and not committed is an orphan.
Leaves out: the snapshot that names them (``chunkstore.backup.founding``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeVar

from chunkstore import runtime
from chunkstore.blocks import Borders, crc_at_borders, first_bad
from chunkstore.changes import NewChunk
from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.deadline import Deadline
from chunkstore.errors import ChunkNotFound, Damaged
from chunkstore.metadata.codec import NUMBER_MAX
from chunkstore.names import Address, ContainerNames
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = [
    "Brought",
    "ChunkToBring",
    "ForeignChunk",
    "Place",
    "bring_chunk",
    "piece_bytes",
    "side_by_side",
]

S = TypeVar("S")
T = TypeVar("T")

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


class Brought(NamedTuple):
    """What a chunk there became: the new chunks, and how old they are."""

    chunks: list[NewChunk]
    created_ms: int


class ChunkToBring(NamedTuple):
    """A chunk of ``source`` for a segment of this name. ``fresh``: ids for what it becomes, which nobody has; ``former``: under which an
    earlier try may have left a copy, or none."""

    segment: str
    source: ChunkStorage
    chunk: ForeignChunk
    fresh: tuple[bytes, ...]
    former: tuple[bytes, ...] = ()


class Place(Protocol):
    """Where chunks are brought to."""

    @property
    def storage(self) -> ChunkStorage: ...
    @property
    def names(self) -> ContainerNames: ...
    @property
    def pool(self) -> runtime.Pool: ...
    @property
    def remote(self) -> bool: ...
    def deadline(self) -> Deadline: ...
    def bounded(self, deadline: Deadline) -> AbstractContextManager[None]: ...


def side_by_side(place: Place, bring: Callable[[T], S], items: Sequence[T], size_bytes: int) -> list[S]:
    """Call ``bring`` with each of the chunks ``items``, of ``size_bytes`` together, several at a time; in order. Raises the first error."""
    # Where it is near, handing a small chunk to a worker costs as much as copying it.
    size = _HANDED if not place.remote and size_bytes <= len(items) * MIB else 1
    groups = [items[at : at + size] for at in range(0, len(items), size)]
    found: list[S] = []
    for at in range(0, len(groups), _COPIED_AT_ONCE):
        calls = [partial(_each, bring, group) for group in groups[at : at + _COPIED_AT_ONCE]]
        found += chain.from_iterable(place.pool.run_all(calls))
    return found


def _each(bring: Callable[[T], S], items: Sequence[T]) -> list[S]:
    return [bring(item) for item in items]


class _Read(Protocol):
    def read(self, handle: ChunkHandle, offset: int, length: int, /) -> bytes: ...


class _Sum:
    """The borders of a new chunk, as its bytes come."""

    def __init__(self) -> None:
        self.length = self.crc = 0
        self._passed: list[tuple[int, int]] = []

    def add(self, data: bytes) -> None:
        self.crc, passed = crc_at_borders(self.crc, self.length, data)
        self._passed += passed
        self.length += len(data)

    def borders(self) -> Borders:
        return Borders(
            [0, *(at for at, _ in self._passed), self.length], [0, *(crc for _, crc in self._passed), self.crc]
        )


def piece_bytes(place: Place) -> int:
    """How long the chunks are that a longer one becomes."""
    if place.storage.capabilities.append:
        return NUMBER_MAX
    return -(-_HELD_BYTES // _WINDOW_BYTES) * _WINDOW_BYTES


def bring_chunk(place: Place, item: ChunkToBring) -> Brought:
    """Copy a chunk, or find it copied: then all of the copy is read and compared. Durable. Raises ``Damaged``,
    ``ChunkNotFound``, ``ChunkExists`` (somebody brings the same just now, or began to), and what the storages raise."""
    found = _find_copied(place, item.segment, item.former, item.chunk) if item.former else None
    if found is not None:
        return found
    return _copy_chunk(place, item)


def _copy_chunk(place: Place, item: ChunkToBring) -> Brought:
    """Copy a chunk into one with a fresh id, or into several of ``piece_bytes``. Raises as ``bring_chunk``."""
    chunk, fresh = item.chunk, iter(item.fresh)
    if not chunk.length:
        return Brought([], chunk.created_ms)
    windows = _windows(place, item.source, item.segment, chunk)
    storage, made = place.storage, list[NewChunk]()
    if storage.capabilities.append and not _is_composed(place, item):
        identity, total = next(fresh), _Sum()
        handle = ChunkHandle(place.names.chunk(identity), True)
        for data in windows:
            with place.bounded(place.deadline()):
                if total.length:
                    storage.write(handle, total.length, data)
                else:
                    storage.create(handle.name, data)
            total.add(data)
        # Here, many at a time: in the commit it would be one after the other, and hold up everybody's.
        storage.sync((handle.name,))
        return Brought([NewChunk(identity, total.borders())], chunk.created_ms)
    held, total, size, begin = list[bytes](), _Sum(), piece_bytes(place), 0
    for data in windows:
        total.add(data)
        if not _is_composed(place, item):
            held.append(data)
        if total.length >= size or begin + total.length == chunk.length:
            identity, name = next(fresh), chunk.address.object
            with place.bounded(place.deadline()):
                if held:
                    storage.create(place.names.chunk(identity), b"".join(held))
                else:
                    parts = (ChunkRange(name, chunk.address.offset + begin, total.length),)
                    storage.compose(place.names.chunk(identity), parts)
            made.append(NewChunk(identity, total.borders()))
            held, begin, total = [], begin + total.length, _Sum()
    return Brought(made, chunk.created_ms)


def _is_composed(place: Place, item: ChunkToBring) -> bool:
    """Whether the storage itself copies: both ends are in one, and the chunk is long enough."""
    return item.source.address == place.storage.address and item.chunk.length >= _COMPOSED_BYTES_MIN


class _Pieces:
    """Reads what a chunk became, as one."""

    def __init__(self, place: Place, ids: Sequence[bytes]) -> None:
        self._storage = place.storage
        self._names = [place.names.chunk(identity) for identity in ids]
        self._size = piece_bytes(place)

    def read(self, _: ChunkHandle, offset: int, length: int) -> bytes:
        number, begin = divmod(offset, self._size)
        return self._storage.read(ChunkHandle(self._names[number], False), begin, length)


def _find_copied(place: Place, segment: str, ids: Sequence[bytes], chunk: ForeignChunk) -> Brought | None:
    """The chunks of these ids, if they are a copy of ``chunk`` that somebody made who got no further: all of it is read and compared, and
    made durable. None: they are not. Raises what the storage raises."""
    if chunk.borders is None:
        return None
    sums, at, size = list[_Sum](), 0, piece_bytes(place)
    try:
        # A copy begins at byte 0, wherever the chunk itself begins in its object.
        for data in _windows(place, _Pieces(place, ids), segment, chunk._replace(address=Address("", 0))):
            if at % size == 0:
                sums.append(_Sum())
            sums[-1].add(data)
            at += len(data)
        for identity in ids:
            # Whoever wrote it may have died before it was synced (P6).
            place.storage.harden(place.names.chunk(identity))
    except (ChunkNotFound, Damaged):
        return None
    return Brought(
        [NewChunk(*pair) for pair in zip(ids, (total.borders() for total in sums), strict=True)], chunk.created_ms
    )


def _windows(place: Place, source: _Read, segment: str, chunk: ForeignChunk) -> Iterator[bytes]:
    """The bytes of a chunk, compared with what is known of them. Raises ``Damaged``, and what the storage raises."""
    position = crc = 0
    name, base = chunk.address
    while position < chunk.length:
        wanted = min(_WINDOW_BYTES, chunk.length - position)
        with place.bounded(place.deadline()):
            data = source.read(ChunkHandle(name, False), base + position, wanted)
        if len(data) != wanted:
            text = f"a chunk of segment {segment!r} is shorter than its record"
            raise Damaged(text, object=name, position=base + position + len(data))
        if chunk.borders is not None:
            at, crcs = chunk.borders
            first = bisect_right(at, position)
            if first_bad(position, crc, data, zip(at[first:], crcs[first:], strict=True)) is not None:
                text = f"bytes of segment {segment!r} do not have the CRC32C that its container has recorded"
                raise Damaged(text, object=name, position=base + position)
            crc = crc32c_extend(crc, data)
        yield data
        position += wanted
