"""Verified bytes become a new chunk. Merges, spills, repairs, restores, backups and sessions copy this way.

``read_verified`` compares bytes with their recorded CRC32C before it yields them. ``write_chunk`` writes what it is given, and
``compose_chunk`` has the storage copy. A chunk is durable on return, so a record may name it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

from chunkstore.checksum import BytesLike, crc32c_extend
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.records.blocks import Borders, ChunkSum
from chunkstore.records.chunks import joined
from chunkstore.records.names import Address
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = ["compose_chunk", "read_verified", "write_chunk"]

Bounded: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Bounds one call of a storage in time."""


class _Reads(Protocol):
    def read(self, handle: ChunkHandle, offset: int, length: int, /) -> bytes: ...


def read_verified(
    storage: _Reads,
    address: Address,
    length: int,
    borders: Borders | None,
    window_bytes: int,
    *,
    what: str = "it",
    bounded: Bounded = nullcontext,
) -> Iterator[bytes]:
    """The ``length`` bytes at ``address`` in windows, each compared with the ``borders`` that it reaches; None: nothing is known of them.

    Raises ``Damaged``, which says ``what`` is, and what the storage raises.
    """
    name, base = address
    at, crcs = borders or ((), ())
    position = crc = 0
    while position < length:
        wanted = min(window_bytes, length - position)
        with bounded():
            data = storage.read(ChunkHandle(name, False), base + position, wanted)
        stop = position + len(data)
        if len(data) != wanted:
            text = f"{what} is {stop} bytes long, but {length} are recorded; run check"
            raise Damaged(text, object=name, position=base + stop)
        view, begin = memoryview(data), position
        for number in range(bisect_right(at, position), bisect_right(at, stop)):
            crc = crc32c_extend(crc, view[begin - position : at[number] - position])
            begin = at[number]
            if crc != crcs[number]:
                text = f"{what} does not have the recorded CRC32C; run scrub"
                raise Damaged(text, object=name, position=base + position)
        crc = crc32c_extend(crc, view[begin - position :])
        yield data
        position = stop


def write_chunk(
    storage: ChunkStorage,
    name: str,
    windows: Iterable[BytesLike],
    *,
    before: tuple[int, int] | None = None,
    bounded: Bounded = nullcontext,
) -> ChunkSum:
    """Write these bytes as the new chunk ``name``, or add them to it; ``before``: its length and CRC32C.

    Durable. Where the storage does not append, all of them are in memory at once. Raises what ``windows`` and the storage raise.
    """
    total = ChunkSum(*before or ())
    handle, appends = ChunkHandle(name, True), storage.capabilities.append
    for data in windows if appends else (joined(windows),):
        with bounded():
            if total.length:
                storage.write(handle, total.length, data)
            else:
                storage.create(name, data)
        total.add(data)
    if appends:
        # Before the commit: there it would hold up the commits of all.
        with bounded():
            storage.sync((name,))
    return total


def compose_chunk(storage: ChunkStorage, name: str, ranges: Sequence[ChunkRange]) -> int:
    """Have the storage copy ``ranges`` of its chunks into the new chunk ``name``. Durable.

    Returns how many bytes went through this client. Raises ``Damaged`` (a chunk is shorter than its range), and what the storage raises.
    """
    wanted = sum(item.length for item in ranges)
    try:
        made = storage.compose(name, ranges)
    except InvalidArgument as error:
        raise Damaged(f"a chunk is shorter than its record: {error}", object=name) from error
    if made.length != wanted:
        raise Damaged(f"the composed chunk has {made.length} bytes, not {wanted}", object=name)
    return made.carried_bytes
