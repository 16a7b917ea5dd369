"""A root or a container's folder is renamed, copied, replaced or unmounted under a live owner; a successor opens what it became.

From then on the former owner is never acknowledged and answers no fenced read, nothing is made anew in the old place, and what
the successor has is sound (protocol 3.6, schedule 52). On real files; mounting needs root.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.config import Settings, Tuning
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, DeadlineExceeded, NotOwner, OutcomeUnknown, StorageUnavailable
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from tests.support.alone import alone
from tests.support.hooked import within
from tests.support.worlds import Mode

CONTAINER = "default"
HASTY_S = 0.3
REFUSALS = (NotOwner, OutcomeUnknown, StorageUnavailable, DeadlineExceeded)
WAYS = ("rename_root", "rename_folder", "copy_and_remove_root", "replace_folder")


class Place:
    """A root, and another place; what is done to them gives the root to open from then on."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.other = folder / "other"
        self.root.mkdir()

    def rename_root(self) -> Path:
        self.root.rename(self.other)
        return self.other

    def rename_folder(self) -> Path:
        self.other.mkdir()
        (self.root / CONTAINER).rename(self.other / CONTAINER)
        return self.other

    def copy_and_remove_root(self) -> Path:
        shutil.copytree(self.root, self.other)
        shutil.rmtree(self.root)
        return self.other

    def replace_folder(self) -> Path:
        self.rename_folder()
        shutil.copytree(self.other / CONTAINER, self.root / CONTAINER)
        return self.root


def files_of(root: Path) -> set[str]:
    """All that lies there, but for the folder of temporaries."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if ".chunkstore-tmp" not in path.parts}


@pytest.fixture(params=["slot", "append"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return "slot" if request.param == "slot" else "append"


class Bench:
    """Owners of one container. Each has a machine of its own."""

    def __init__(self, folder: Path, mode: Mode) -> None:
        self.folder = folder
        self.mode: Mode = mode
        self.stores: list[ChunkedSegmentStorage] = []

    def open(self, root: Path, wrap: Callable[[ChunkStorage], ChunkStorage] | None = None) -> ChunkedSegmentStorage:
        storage: ChunkStorage = FilesystemChunkStorage(root)
        settings = Settings(
            journal_mode=self.mode,
            cache_dir=str(self.folder / f"cache-{len(self.stores)}"),
            op_deadline_s=HASTY_S,
            lease_s=0.0,
            tuning=Tuning(resolve_s=0.0, lmdb_map_bytes=1 << 26),
        )
        store = open_store_on(storage if wrap is None else wrap(storage), container=CONTAINER, settings=settings)
        alone(store)
        # What is to be refused is tried for HASTY_S; whatever has to succeed may take its time.
        store._container.settings = replace(settings, op_deadline_s=60.0)
        self.stores.append(store)
        return store

    def close(self) -> None:
        for store in self.stores:
            with within(store, HASTY_S):
                store.close()


@pytest.fixture
def bench(tmp_path: Path, mode: Mode) -> Iterator[Bench]:
    bench = Bench(tmp_path, mode)
    yield bench
    bench.close()


def check_zombie(z: ChunkedSegmentStorage, n: ChunkedSegmentStorage, root: Path, content: bytes) -> None:
    """``n`` serves what lies at ``root`` with this content. Whatever ``z`` tries, it is refused, and makes nothing there."""
    before = files_of(root)
    for _ in range(2):
        with within(z, HASTY_S), pytest.raises(REFUSALS):
            z.append("s", b"Z")
        with pytest.raises((NotOwner, StorageUnavailable)):
            z.read("s", 0, 99)
        with within(z, HASTY_S), pytest.raises(ChunkstoreError):
            z.create("another")
    # In a tree that both share it may leave a chunk that nobody refers to.
    assert {name for name in files_of(root) - before if "/d/" not in name} == set()
    n.append("s", b"c")
    assert n.read("s", 0, 99) == content + b"c"
    assert not [finding for finding in n.check("deep") if finding.severity == "damage"]


@pytest.mark.parametrize("way", WAYS)
def test_a_tree_that_is_moved_under_its_owner(way: str, bench: Bench, tmp_path: Path) -> None:
    place = Place(tmp_path)
    z = bench.open(place.root)
    z.create("s")
    z.append("s", b"a")
    moved_to = getattr(place, way)()
    n = bench.open(moved_to)
    n.append("s", b"b")
    old = place.root if moved_to != place.root else place.other
    before = files_of(old) if old.exists() else None
    check_zombie(z, n, moved_to, b"ab")
    z.close()
    if old == place.root:
        assert (files_of(old) if old.exists() else None) == before, "nothing is made anew in the old place"
    again = bench.open(moved_to)
    assert again.read("s", 0, 99) == b"abc"
    again.append("s", b"d")


@contextmanager
def bound(source: Path, point: Path) -> Iterator[None]:
    """``source`` mounted at ``point``; skips, with the reason, where that is not possible."""
    made = subprocess.run(["mount", "--bind", source, point], check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"an unmounted root is not tested: mounting needs root ({made.stderr.strip()})")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def test_a_root_that_is_unmounted_under_its_owner(bench: Bench, tmp_path: Path) -> None:
    place, point = Place(tmp_path), tmp_path / "point"
    point.mkdir()
    with bound(place.root, point):
        z = bench.open(point)
        z.create("s")
        z.append("s", b"a")
        subprocess.run(["umount", "-l", point], check=True)
        n = bench.open(place.root)
        n.append("s", b"b")
        check_zombie(z, n, place.root, b"ab")
        assert list(point.iterdir()) == [], "nothing is made anew where it was mounted"
