"""Small real file systems that fill up."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from chunkstore.config import KIB, MIB

SIZE_BYTES = 24 * MIB

FileSystem = Literal["tmpfs", "ext4"]


class SmallDisk:
    """A mounted file system of 24 MiB, and a filler in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all space but ``leave_bytes``."""
        for _ in range(1200):
            self._take(leave_bytes)
            if self.free_bytes() <= leave_bytes:
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.free_bytes()} bytes of {self.path} cannot be filled")

    def _take(self, leave_bytes: int) -> None:
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


def run(*command: str) -> None:
    """A command that has to succeed."""
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def small_disk(kind: FileSystem, folder: Path, size_bytes: int = SIZE_BYTES) -> Iterator[SmallDisk]:
    """Mount one; skips, with the reason, where that is not possible."""
    folder.mkdir(parents=True)
    point = folder / "disk"
    point.mkdir()
    try:
        if kind == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(point))
        else:
            image = folder / "image"
            with open(image, "wb") as file:
                file.truncate(size_bytes)
            mkfs = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin") or "mkfs.ext4"
            # No reserve for root: full means full.
            run(mkfs, "-q", "-m", "0", str(image))
            run("mount", "-o", "loop", str(image), str(point))
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"disk full is not tested on {kind}: mounting needs root and {kind} ({why.strip()})")
    try:
        yield SmallDisk(point)
    finally:
        run("umount", "-l", str(point))
