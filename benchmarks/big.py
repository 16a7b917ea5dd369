"""Containers with very many chunks, for the benchmarks: metadata is real, chunks are counted only (length-only binding).

Promises: the chunk list goes through real commits (sessions and ``Attach``), so journal, digest and offset index are what they
would be. Leaves out: bytes.
"""

from __future__ import annotations

from pathlib import Path

import chunkstore
from benchmarks.harness import tuned
from benchmarks.length_only import LengthOnlyChunkStorage
from chunkstore.assembly import open_store_on
from chunkstore.changes import Attach, Concat, Create, Seal
from chunkstore.changes.sessions import SessionChunk
from chunkstore.checksum import crc32c
from chunkstore.records.names import session_chunk_id
from chunkstore_bindings.filesystem import FilesystemChunkStorage

__all__ = ["CHUNK_BYTES", "build", "build_concats", "open_big", "settings_for"]

CHUNK_BYTES = 64 << 10
_PER_COMMIT = 5_000
_CRC = crc32c(bytes(CHUNK_BYTES))


def settings_for(path: Path) -> chunkstore.Settings:
    """Settings of the big containers: no lease, and snapshots only when asked for."""
    return tuned(
        cache_dir=str(path / "cache"),
        lease_s=0,
        journal_mode="append",
        snapshot_bytes_min=1 << 40,
        log_roll_bytes=1 << 40,
    )


def open_big(path: Path) -> chunkstore.ChunkedSegmentStorage:
    """Open the container under ``path``; every chunk is taken to exist."""
    storage = LengthOnlyChunkStorage(FilesystemChunkStorage(str(path / "root")), assume_length=CHUNK_BYTES)
    return open_store_on(storage, settings=settings_for(path), close_storage=True)


def _attach(store: chunkstore.ChunkedSegmentStorage, name: str, count: int, session_id: int, first: int) -> None:
    for begin in range(0, count, _PER_COMMIT):
        numbers = range(first + begin, first + min(count, begin + _PER_COMMIT))
        chunks = tuple(
            SessionChunk(session_chunk_id(session_id, number, number & 0xFFFFFFFF), CHUNK_BYTES, _CRC)
            for number in numbers
        )
        store.commit([Attach(name, session_id, chunks)])


def build(path: Path, chunks: int, *, snapshot: bool = False) -> None:
    """A container with one segment ``s`` of ``chunks`` chunks."""
    with open_big(path) as store:
        store.create("s")
        with store.session("bench") as session:
            _attach(store, "s", chunks, session.id, 0)
        if snapshot:
            store.snapshot()


def build_concats(path: Path, chunks: int, concats: int) -> None:
    """The same number of chunks, but ``s`` is made of ``concats`` segments spliced together."""
    with open_big(path) as store:
        store.create("s")
        each = chunks // concats
        with store.session("bench") as session:
            for number in range(concats):
                store.commit([Create("part")])
                _attach(store, "part", each, session.id, number * each)
                store.commit([Seal("part"), Concat("s", "part")])
