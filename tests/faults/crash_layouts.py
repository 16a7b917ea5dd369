"""Interrupted: a segment that is imported from its header file, headers that follow the journal, and openings that mend them
(``crash_runs`` has the rest)."""

from __future__ import annotations

from contextlib import suppress

from chunkstore.codec.rolling_header import decode_header
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, OutcomeUnknown
from chunkstore.storage import ChunkHandle, ChunkStorage
from tests.faults.crash_runs import OpeningRun, OperationRun
from tests.faults.ground import Ground
from tests.faults.scenarios import SMALL, Opening, Operation

__all__ = ["LAYOUT_OPENINGS", "LAYOUT_OPERATIONS", "LayoutOpeningRun", "LayoutRun"]

CODE_ONLY: dict[str, object] = {**SMALL, "layout": "CODE_ONLY_UPGRADE"}
IMPORTED = {
    "old$header": b"maxsize=40&0=old$offset.0&40=old$offset.40&",
    "old$offset.0": b"a" * 40,
    "old$offset.40": b"b" * 7,
}


def _fill(store: ChunkedSegmentStorage) -> None:
    store.optimiser.pause()  # what is interrupted is what this thread does
    for name in ("log", "other"):
        store.create(name)
        store.append(name, b"0123456789" * 4)
    _follow(store)


def _old_files(store: ChunkedSegmentStorage) -> None:
    _fill(store)
    for name, data in IMPORTED.items():
        store.read_context.storage.put(name, data)


def _follow(store: ChunkedSegmentStorage) -> None:
    """Of this no caller learns anything."""
    with suppress(ChunkstoreError):
        if store.old_layout is not None:
            store.old_layout.flush()


def _import(store: ChunkedSegmentStorage, _: object) -> None:
    try:
        store.info("old")
    except ChunkstoreError as error:
        raise OutcomeUnknown("a look says nothing about what it brought") from error
    _follow(store)


def _append(store: ChunkedSegmentStorage, _: object) -> None:
    store.append("log", b"a chunk of its own, and a bit more of it")
    _follow(store)


def _delete(store: ChunkedSegmentStorage, _: object) -> None:
    store.delete("log")
    _follow(store)


def _kill_behind_commits(ground: Ground, store: ChunkedSegmentStorage) -> None:
    store.optimiser.pause()
    store.append("log", b"a chunk of its own, and a bit more of it")
    store.delete("other")
    store.create("new")
    ground.wire.kill()
    ground.abandon(store)


LAYOUT_OPERATIONS = (
    Operation("import-and-header", _import, _old_files, CODE_ONLY),
    Operation("append-and-header", _append, _fill, CODE_ONLY),
    Operation("delete-and-header", _delete, _fill, CODE_ONLY, repeatable=False),
)
LAYOUT_OPENINGS = (Opening("with headers behind", _kill_behind_commits, _fill, CODE_ONLY),)


class LayoutRun(OperationRun):
    """One operation, whose headers follow."""

    def clean(self, store: ChunkedSegmentStorage) -> None:
        super().clean(store)
        check_headers(store, self.ground, power_cut=self.power_cut)


class LayoutOpeningRun(OpeningRun):
    """One take-over, by which headers are mended."""

    def clean(self, store: ChunkedSegmentStorage) -> None:
        super().clean(store)
        check_headers(store, self.ground, power_cut=self.power_cut)


def check_headers(store: ChunkedSegmentStorage, ground: Ground, *, power_cut: bool) -> None:
    """Once they have followed, the old code reads what readers read; and what is gone stays gone."""
    assert store.old_layout is not None
    store.old_layout.flush()
    storage = ground.world.raw_storage()
    for info in store.segments():
        start, data = _seen_by_old_code(storage, info.name)
        assert start <= info.start_offset
        assert data.endswith(store.read(info.name, info.start_offset, 10_000)), info
        assert start + len(data) == info.length, info
    if not power_cut:  # deletions are not synced
        assert storage.exists("log$header") == store.exists("log")


def _seen_by_old_code(storage: ChunkStorage, name: str) -> tuple[int, bytes]:
    def content(name: str) -> bytes:
        return storage.read(ChunkHandle(name, False), 0, storage.stat(name).length)

    chunks = decode_header(content(f"{name}$header"), object=name).chunks
    data = b""
    for at, (offset, chunk) in enumerate(chunks):
        part = content(chunk)
        data += part if at == len(chunks) - 1 else part[: chunks[at + 1].offset - offset]
    return (chunks[0].offset if chunks else 0), data
