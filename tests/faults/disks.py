"""Small real file systems that fill up, and a storage that keeps its journal on a disk of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest

from chunkstore.checksum import BytesLike
from chunkstore.config import KIB, MIB
from chunkstore.storage import Capabilities, ChunkHandle, ChunkInfo, ChunkStorage, ConcatArgument, ListPage, ReadRange
from tests.support.forwarding import Pieces

SIZE_BYTES = 24 * MIB

FileSystem = Literal["tmpfs", "ext4"]


class SmallDisk:
    """A mounted file system of 24 MiB, and a filler in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all space but ``leave_bytes``."""
        with open(self._filler, "ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, file.tell() + self.free_bytes() - leave_bytes - MIB))
            file.seek(0, os.SEEK_END)
            for step in (64 * KIB, 4096, 1):
                with contextlib.suppress(OSError):
                    while self.free_bytes() - leave_bytes >= step:
                        file.write(bytes(step))
                        os.fsync(file.fileno())

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def free(self) -> None:
        """Give the filler's space back."""
        self._filler.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def small_disk(kind: FileSystem, folder: Path) -> Iterator[SmallDisk]:
    """Mount one; skips, with the reason, where that is not possible."""
    folder.mkdir(parents=True)
    point = folder / "disk"
    point.mkdir()
    try:
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(point))
        else:
            image = folder / "image"
            with open(image, "wb") as file:
                file.truncate(SIZE_BYTES)
            mkfs = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin") or "mkfs.ext4"
            # No reserve for root: full means full.
            _run(mkfs, "-q", "-m", "0", str(image))
            _run("mount", "-o", "loop", str(image), str(point))
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"disk full is not tested on {kind}: mounting needs root and {kind} ({why.strip()})")
    try:
        yield SmallDisk(point)
    finally:
        _run("umount", "-l", str(point))


class SplitStorage(ChunkStorage):
    """Keeps everything of the journal (claims, streams) on ``journal``, the rest on ``data``."""

    def __init__(self, data: ChunkStorage, journal: ChunkStorage) -> None:
        self._data = data
        self._journal = journal

    def _of(self, name: str) -> ChunkStorage:
        return self._journal if "/j/" in name or "/epoch/" in name else self._data

    @property
    def capabilities(self) -> Capabilities:
        return self._data.capabilities

    @property
    def url(self) -> str:
        return self._data.url

    def exists(self, name: str) -> bool:
        return self._of(name).exists(name)

    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        return self._of(name).create(name, data)

    def create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._of(name).create_if_absent(name, data)

    def put(self, name: str, data: BytesLike) -> None:
        self._of(name).put(name, data)

    def open_read(self, name: str) -> ChunkHandle:
        return self._of(name).open_read(name)

    def open_write(self, name: str) -> ChunkHandle:
        return self._of(name).open_write(name)

    def read(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        return self._of(handle.name).read(handle, offset, length)

    def read_into(self, handle: ChunkHandle, offset: int, buffer: bytearray | memoryview) -> int:
        return self._of(handle.name).read_into(handle, offset, buffer)

    def read_ranges(self, handle: ChunkHandle, ranges: Sequence[ReadRange]) -> Pieces:
        return self._of(handle.name).read_ranges(handle, ranges)

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        return self._of(handle.name).write(handle, offset, data)

    def sync(self, names: Sequence[str]) -> None:
        for storage in (self._data, self._journal):
            chosen = [name for name in names if self._of(name) is storage]
            if chosen:
                storage.sync(chosen)

    def harden(self, name: str) -> None:
        self._of(name).harden(name)

    def delete(self, name: str) -> None:
        self._of(name).delete(name)

    def list(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> ListPage:
        found = [
            item
            for storage in (self._data, self._journal)
            for item in storage.list(prefix, after=after, limit=limit).items
            if self._of(item.name) is storage
        ]
        items = tuple(sorted(found, key=lambda item: item.name)[:limit])
        return ListPage(items, items[-1].name if len(items) == limit else None)

    def stat(self, name: str) -> ChunkInfo:
        return self._of(name).stat(name)

    def identity(self, name: str) -> bytes:
        return self._of(name).identity(name)

    def concat(self, arguments: Sequence[ConcatArgument]) -> int:
        return self._of(arguments[0].name).concat(arguments)

    def truncate(self, handle: ChunkHandle, length: int) -> None:
        self._of(handle.name).truncate(handle, length)

    def set_read_only(self, handle: ChunkHandle, read_only: bool) -> None:
        self._of(handle.name).set_read_only(handle, read_only)

    def close(self) -> None:
        self._data.close()
        self._journal.close()
