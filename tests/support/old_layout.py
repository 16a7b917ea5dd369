"""Roots of the old layout, and what the old code would see of them."""

from __future__ import annotations

from typing import Any

import pytest

import chunkstore
from chunkstore.backup import export_headers, headers, import_headers
from chunkstore.backup.header_keeper import HeaderKeeper
from chunkstore.codec.rolling_header import ChunkEntry, decode_header
from chunkstore.metadata.layouts import find_layout
from chunkstore.storage import ChunkHandle
from chunkstore.upkeep.jobs import Job, Step
from tests.support.worlds import World

__all__ = [
    "CODE_ONLY",
    "EPOCH_SEGMENT",
    "LAYOUT",
    "SMALL",
    "export_root",
    "facts",
    "follow",
    "header_of",
    "import_root",
    "job_of",
    "old_root",
    "old_view",
    "opened",
    "put",
    "recorded",
]

SMALL = chunkstore.RollingPolicy(chunk_size_bytes_max=10)
CODE_ONLY, LAYOUT = "CODE_ONLY_UPGRADE", "LAYOUT_UPGRADE"
EPOCH_SEGMENT = "scope/stream/0.#epoch.0"


def put(world: World, **files: bytes) -> None:
    for name, data in files.items():
        world.raw_storage().put(name.replace("_header", "$header"), data)


def old_root(world: World) -> dict[str, tuple[int, int, bool, bytes]]:
    """Three segments of the old layout, as the old code left them: the facts of each."""
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


def opened(world: World, container: str = "default", **settings: Any) -> chunkstore.ChunkedSegmentStorage:
    """An owner whose headers follow when the test says so."""
    store = world.open(container, **settings)
    store.optimiser.pause()
    return store


def facts(store: Any) -> dict[str, tuple[int, int, bool, bytes]]:
    return {
        info.name: (info.start_offset, info.length, info.sealed, store.read(info.name, info.start_offset, 1000))
        for info in store.segments()
    }


def follow(store: chunkstore.ChunkedSegmentStorage) -> list[str]:
    """Let the headers follow, as the optimiser does; what was found remarkable."""
    step = Step(float("inf"), lambda: False)
    assert not job_of(store, "headers").step(step)
    return step.findings


def job_of(store: chunkstore.ChunkedSegmentStorage, name: str) -> Job:
    assert isinstance(store.old_layout, HeaderKeeper)
    return next(job for job, _ in store.old_layout.jobs(imports=True) if job.name == name)


def header_of(world: World, name: str) -> tuple[ChunkEntry, ...]:
    return decode_header(world.content(f"{name}$header")).chunks


def old_view(world: World, name: str) -> tuple[int, bytes]:
    """What the old code reads: by the header and the lengths of its files alone."""
    chunks = header_of(world, name)
    ends = [chunk.offset for chunk in chunks[1:]]
    parts = [world.content(chunk.name) for chunk in chunks]
    for at, end in enumerate(ends):
        parts[at] = parts[at][: end - chunks[at].offset]
    return chunks[0].offset if chunks else 0, b"".join(parts)


def recorded(store: Any) -> str | None:
    return store.look(find_layout)  # type: ignore[no-any-return]


def import_root(world: World, store: chunkstore.ChunkedSegmentStorage, *names: str) -> tuple[str, ...]:
    with pytest.MonkeyPatch.context() as patched:
        for module in ("headers", "header_import"):
            patched.setattr(f"chunkstore.backup.{module}.open_storage", lambda *_: world.raw_storage())
        return import_headers(store, "file:///root", names).segments


def export_root(world: World, store: Any, *names: str) -> headers.HeadersReport:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("chunkstore.backup.headers.open_storage", lambda *_: world.raw_storage())
        return export_headers(store, "file:///root", names, replace=True)
