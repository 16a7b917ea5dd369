"""How a chunk's bytes get here: what an import takes in is copied into chunks of ours.

Promises: on the way bytes are compared with the CRCs that their own container knows; what is returned is whole in the storage, and
durable. Memory is bounded: chunks are copied in pieces. What was copied and not committed is an orphan.
Leaves out: the record that commits them (``take_in``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from chunkstore.blocks import Borders, crc_at_borders, first_bad
from chunkstore.changes import NewChunk
from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.errors import Damaged
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["Brought", "ForeignChunk", "bring_chunks"]

_WINDOW_BYTES: Final = 4 * MIB
_HELD_BYTES: Final = 64 * MIB
"""Of a chunk, where nothing appends: a longer one becomes several."""
_COPIED_AT_ONCE: Final = 64
_HANDED: Final = 16


class ForeignChunk(NamedTuple):
    """A chunk of another container. ``borders`` None: its CRC is not known there."""

    name: str
    length: int
    borders: Borders | None
    created_ms: int


class Brought(NamedTuple):
    """What a chunk there became: the new chunks, and how old they are."""

    chunks: list[NewChunk]
    created_ms: int


def bring_chunks(
    container: OwnedContainer,
    owned: OwnedEpoch,
    source: ChunkStorage,
    chunks: Sequence[tuple[str, ForeignChunk]],
    ids: Mapping[str, int],
) -> Iterator[Brought]:
    """Copy chunks, each with its segment's name, into chunks of the segments of these ``ids``; in order. Raises ``Damaged``,
    ``ChunkNotFound``, and what the storages raise."""
    # Where it is near, handing a small chunk to a worker costs as much as copying it.
    small = not container.remote and sum(chunk.length for _, chunk in chunks) <= len(chunks) * MIB
    size = _HANDED if small else 1
    groups = [chunks[at : at + size] for at in range(0, len(chunks), size)]
    found: list[list[Brought]] = []
    for at in range(0, len(groups), _COPIED_AT_ONCE):
        calls = [
            partial(_copy_some, container, owned, source, ids, group) for group in groups[at : at + _COPIED_AT_ONCE]
        ]
        found += container.pool.run_all(calls)
    return chain.from_iterable(found)


def _copy_some(
    container: OwnedContainer,
    owned: OwnedEpoch,
    source: ChunkStorage,
    ids: Mapping[str, int],
    chunks: Sequence[tuple[str, ForeignChunk]],
) -> list[Brought]:
    return [_copy(container, owned, source, segment, ids[segment], chunk) for segment, chunk in chunks]


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


def _copy(
    container: OwnedContainer,
    owned: OwnedEpoch,
    source: ChunkStorage,
    segment: str,
    segment_id: int,
    chunk: ForeignChunk,
) -> Brought:
    windows = _windows(container, source, segment, chunk)
    storage, made = container.storage, list[NewChunk]()
    if owned.appendable:
        identity, total = owned.new_chunk(segment_id), _Sum()
        handle = ChunkHandle(container.names.chunk(identity), True)
        storage.create(handle.name)
        for data in windows:
            with container.bounded(container.deadline()):
                storage.write(handle, total.length, data)
            total.add(data)
        # Here, many at a time: in the commit it would be one after the other, and hold up everybody's.
        storage.sync((handle.name,))
        return Brought([NewChunk(identity, total.borders())], chunk.created_ms)
    held = list[bytes]()
    for data in windows:
        held.append(data)
        if sum(map(len, held)) >= _HELD_BYTES:
            made.append(_create(container, owned, segment_id, b"".join(held)))
            held = []
    if held:
        made.append(_create(container, owned, segment_id, b"".join(held)))
    return Brought(made, chunk.created_ms)


def _create(container: OwnedContainer, owned: OwnedEpoch, segment_id: int, data: bytes) -> NewChunk:
    identity, total = owned.new_chunk(segment_id), _Sum()
    with container.bounded(container.deadline()):
        container.storage.create(container.names.chunk(identity), data)
    total.add(data)
    return NewChunk(identity, total.borders())


def _windows(container: OwnedContainer, source: ChunkStorage, segment: str, chunk: ForeignChunk) -> Iterator[bytes]:
    """The bytes of a chunk, compared with what is known of them. Raises ``Damaged``, and what the storage raises."""
    position = crc = 0
    while position < chunk.length:
        wanted = min(_WINDOW_BYTES, chunk.length - position)
        with container.bounded(container.deadline()):
            data = source.read(ChunkHandle(chunk.name, False), position, wanted)
        if len(data) != wanted:
            text = f"a chunk of segment {segment!r} is shorter than its record"
            raise Damaged(text, object=chunk.name, position=position + len(data))
        if chunk.borders is not None:
            at, crcs = chunk.borders
            first = bisect_right(at, position)
            if first_bad(position, crc, data, zip(at[first:], crcs[first:], strict=True)) is not None:
                text = f"bytes of segment {segment!r} do not have the CRC32C that its container has recorded"
                raise Damaged(text, object=chunk.name, position=position)
            crc = crc32c_extend(crc, data)
        yield data
        position += wanted
