"""Roots with header files, as the code before PDP-34 left them."""

from __future__ import annotations

import chunkstore
from chunkstore.codec import rolling_header
from chunkstore.codec.rolling_header import HeaderEntry
from chunkstore.storage import ChunkHandle
from tests.support.worlds import World

__all__ = ["EPOCH_SEGMENT", "decode_entries", "facts", "old_root", "put"]

EPOCH_SEGMENT = "scope/stream/0.#epoch.0"


def decode_entries(data: bytes) -> tuple[HeaderEntry, ...]:
    """The entries of a header, as they are stored there."""
    return tuple(entry for _, entry in rolling_header._decoded(data, "header"))


def put(world: World, **files: bytes) -> None:
    for name, data in files.items():
        world.raw_storage().put(name.replace("_header", "$header"), data)


def old_root(world: World) -> dict[str, tuple[int, int, bool, bytes]]:
    """Three segments: the facts of each."""
    put(
        world,
        a_header=b"maxsize=10&0=a$offset.0&10=a$offset.10&",
        **{"a$offset.0": b"0123456789", "a$offset.10": b"abc"},
        empty_header=b"maxsize=7&",
        unborn_header=b"",
        **{f"{EPOCH_SEGMENT}_header": b"0=gone&5=deep/file&", "deep/file": b"deep down"},
    )
    if world.raw_storage().capabilities.set_read_only:
        world.raw_storage().set_read_only(ChunkHandle("a$header", True), True)
    sealed = world.raw_storage().capabilities.set_read_only
    return {
        "a": (0, 13, sealed, b"0123456789abc"),
        "empty": (0, 0, False, b""),
        EPOCH_SEGMENT: (5, 14, False, b"deep down"),
    }


def facts(store: chunkstore.ChunkedSegmentStorage) -> dict[str, tuple[int, int, bool, bytes]]:
    return {
        info.name: (info.start_offset, info.length, info.sealed, store.read(info.name, info.start_offset, 1000))
        for info in store.segments()
    }
