"""A stored object that is read in ranges: what the codecs of Pulsar's and Kafka's files decode from.

Promises: a read that is shorter than the object's known length is ``Damaged``, with the position where bytes end. Leaves out: where the
object is stored, and every error of the storage, which passes through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.config import MIB
from chunkstore.errors import Damaged

__all__ = ["WINDOW_BYTES", "DataSource", "read_exactly"]

WINDOW_BYTES = 1 * MIB
"""Bytes asked for in one read: large enough for few calls, small enough for the processor's cache."""


class DataSource(NamedTuple):
    """A stored data object: its name (for errors), its length in bytes *as the storage knows it*, and how to read it.

    ``read(offset, length)`` returns the bytes of that range, fewer only where the object ends; the returned buffer may be
    reused by the next call. Its errors pass through unchanged.
    """

    name: str
    length: int
    read: Callable[[int, int], BytesLike]


def read_exactly(source: DataSource, position: int, length: int) -> BytesLike:
    """The ``length`` bytes at ``position``. Raises ``Damaged`` where fewer come, and what ``source.read`` raises. Retry: safe."""
    data = source.read(position, length)
    if len(data) < length:
        raise Damaged(
            f"{length} bytes asked for, {len(data)} read: the object is cut off",
            object=source.name,
            position=position + len(data),
        )
    return data if len(data) == length else memoryview(data)[:length]
