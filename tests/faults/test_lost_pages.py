"""Pages that a sync could not write, on a real kernel: they count as clean then, and stay readable until the machine goes down.

The disk is a sparse image, larger than the file system that it lies on: once that is full, blocks that were never written before cannot be
written, and the sync that tries is told so, once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.config import KIB, MIB, Settings, Tuning
from chunkstore.errors import ChunkstoreError, StorageUnavailable
from chunkstore.following import open_replica_on
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from tests.faults.disks import SmallDisk, run, small_disk
from tests.support.forwarding import Hooked
from tests.support.hooked import within

pytestmark = pytest.mark.proof

IMAGE_BYTES = 200 * MIB


@contextlib.contextmanager
def mounted(image: Path, point: Path) -> Iterator[Path]:
    point.mkdir(exist_ok=True)
    try:
        run("mount", "-o", "loop", str(image), str(point))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(
            f"pages that are lost are not tested: mounting needs root ({getattr(error, 'stderr', '') or error})"
        )
    try:
        yield point
    finally:
        run("umount", "-l", str(point))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[SmallDisk, Path]]:
    """What the image lies on, and the image."""
    with small_disk("tmpfs", tmp_path / "below") as below:
        image = below.path / "image"
        image.touch()
        os.truncate(image, IMAGE_BYTES)
        mkfs = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
        if mkfs is None:
            pytest.skip("pages that are lost are not tested: no mkfs.ext4")
        run(mkfs, "-q", "-O", "^has_journal", "-b", "4096", "-E", "lazy_itable_init=1,nodiscard", str(image))
        yield below, image


def test_a_file_is_read_past_the_page_cache(disk: tuple[SmallDisk, Path], tmp_path: Path) -> None:
    below, image = disk
    with mounted(image, tmp_path / "disk") as point:
        storage = FilesystemChunkStorage(point / "root")
        log = storage.create("log")
        first, second = os.urandom(72 * KIB), os.urandom(64 * KIB)
        storage.write(log, 0, first)
        storage.sync(["log"])
        below.fill()
        storage.write(log, len(first), second)
        with pytest.raises(ChunkstoreError):
            storage.sync(["log"])
        below.free()
        other = FilesystemChunkStorage(point / "root")
        seen = ChunkHandle("log", False)
        whole = len(first) + len(second)
        other.harden("log")
        assert other.read(seen, 0, whole) == first + second, "the kernel still shows it"
        stored = other.read_uncached(seen, 0, whole + MIB)
        assert len(stored) == whole
        assert stored[: len(first)] == first
        assert stored[len(first) :] == bytes(len(second))
        for offset, length in ((0, 1), (4095, 2), (70 * KIB + 5, 5000), (len(first) - 1, 1), (whole, 1), (0, 0)):
            assert other.read_uncached(seen, offset, length) == stored[offset : offset + length]
        other.close()
        storage.close()


def test_a_replica_does_not_show_what_no_disk_has(disk: tuple[SmallDisk, Path], tmp_path: Path) -> None:
    """The owner's sync fails, and it gets no further. Whoever syncs next is told that all is well."""
    below, image = disk
    settings = Settings(
        cache_dir=str(tmp_path / "cache"),
        lease_s=0,
        op_deadline_s=2,
        free_bytes_min=0,
        inline_bytes_max=64 * KIB,
        tuning=Tuning(undecided_s_max=1),
    )
    ample = dataclasses.replace(settings, op_deadline_s=60.0)
    with mounted(image, tmp_path / "disk") as point:
        hooked = Hooked(FilesystemChunkStorage(point / "root"))
        store = open_store_on(hooked, settings=settings)
        assert store.settings.journal_mode in ("auto", "append")
        with within(store, 60.0):
            store.create("s")
            store.append("s", b"first; ")

        def fill(operation: str, names: tuple[str, ...]) -> None:
            if operation == "write" and names[0].endswith("log.a"):
                hooked.before = cut_off
                below.fill()

        def cut_off(operation: str, names: tuple[str, ...]) -> None:
            if operation != "sync":
                raise StorageUnavailable("this process is stalled", object="")

        hooked.before = fill
        with pytest.raises(ChunkstoreError):
            store.append("s", bytes(48 * KIB))
        below.free()
        log = next(point.rglob("log.a")).read_bytes()
        assert len(log) > 48 * KIB, "the kernel still shows the record"
        storage = FilesystemChunkStorage(point / "root")
        with contextlib.closing(open_replica_on(storage, settings=ample)) as replica:
            replica.refresh()
            assert replica.read("s", 0, MIB) == b"first; "
        store.close()
        storage.close()
        hooked.close()
    with mounted(image, tmp_path / "disk") as point:
        storage = FilesystemChunkStorage(point / "root")
        with contextlib.closing(open_store_on(storage, settings=settings)) as store:
            assert store.read("s", 0, MIB) == b"first; ", "the machine went down, and what no disk had is gone"
        storage.close()
