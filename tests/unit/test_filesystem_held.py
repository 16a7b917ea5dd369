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


@pytest.mark.parametrize("moved", ["root", "root/c"])
def test_everything_goes_on_in_a_tree_that_was_renamed(tmp_path: Path, moved: str) -> None:
    storage = FilesystemChunkStorage(tmp_path / "root")
    storage.create("c/d/old", b"old")
    (tmp_path / moved).rename(tmp_path / "elsewhere")
    place = tmp_path / "elsewhere" / ("c" if moved == "root" else "")
    for number, write in enumerate(writing(storage, "c/e/new")):
        write()
        storage.sync(["c/e/new"])
        assert (place / "e/new").read_bytes() == b"x", number
        storage.delete("c/e/new")
    assert storage.write(storage.open_write("c/d/old"), 3, b"er") == 2
    assert [item.name for item in storage.list("c/").items] == ["c/d/old"]
    storage.set_read_only(ChunkHandle("c/d/old", True), True)
    assert not storage.open_write("c/d/old").writable
    storage.harden("c/d/old")
    assert (place / "d/old").read_bytes() == b"older"
    with pytest.raises(ChunkNotFound):
        storage.identity("c/d/old")
    assert not (tmp_path / moved).exists()
    storage.close()


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
