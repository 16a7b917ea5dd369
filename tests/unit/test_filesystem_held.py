"""Which directories a filesystem storage holds open, and what it makes of those that are moved, deleted or replaced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from chunkstore.errors import ChunkNotFound, StorageUnavailable
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.filesystem import FilesystemChunkStorage


def writing(storage: FilesystemChunkStorage, name: str) -> list[Callable[[], object]]:
    return [
        partial(storage.create, name, b"x"),
        partial(storage.create_if_absent, name, b"x"),
        partial(storage.put, name, b"x"),
    ]


def reading(storage: FilesystemChunkStorage, name: str) -> list[Callable[[], object]]:
    return [
        partial(storage.stat, name),
        partial(storage.open_read, name),
        partial(storage.read, ChunkHandle(name, False), 0, 9),
        partial(storage.harden, name),
        partial(storage.delete, name),
        partial(storage.list, "c/"),
    ]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("removed", ["root", "root/c"])
def test_nothing_is_made_in_the_place_of_a_tree_that_was_removed(tmp_path: Path, removed: str, replaced: bool) -> None:
    storage = FilesystemChunkStorage(tmp_path / "root")
    storage.create_if_absent("c/d/a", b"x")
    shutil.rmtree(tmp_path / removed)
    if replaced:
        (tmp_path / "root/c/d").mkdir(parents=True)
        (tmp_path / "root/c/d/a").write_bytes(b"another")
    before = sorted(tmp_path.rglob("*"))
    for call in [*writing(storage, "c/d/b"), *writing(storage, "c/new/b"), *reading(storage, "c/d/a")]:
        with pytest.raises(StorageUnavailable, match="moved, unmounted, replaced or removed"):
            call()
    with pytest.raises(ChunkNotFound):
        storage.identity("c/d/a")
    assert not storage.exists("c/d/a")
    assert [path for path in sorted(tmp_path.rglob("*")) if ".chunkstore-tmp" not in path.parts] == [
        path for path in before if ".chunkstore-tmp" not in path.parts
    ]
    storage.close()
    # Opened anew, it is a root like any other.
    again = FilesystemChunkStorage(tmp_path / "root")
    again.create_if_absent("c/d/b", b"x")
    again.close()
