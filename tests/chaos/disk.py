"""A small real file system that can be filled up.

Promises: an ext4 image behind a loop device, mounted for as long as the context lasts; ``NoDisk`` with the reason where that is
not possible (not root, no loop devices). Leaves out: other file systems.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from chunkstore.config import KIB, MIB

__all__ = ["NoDisk", "SmallDisk", "small_disk"]

_SIZE_BYTES: Final = 192 * MIB
_INODES: Final = 60_000


class NoDisk(Exception):
    """A small file system cannot be mounted here; the text says why."""


class SmallDisk:
    """A mounted file system and the file that fills it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._filler = os.path.join(path, "filler")

    def fill(self, leave_bytes: int) -> None:
        """Take all space but about ``leave_bytes``."""
        with open(self._filler, "ab", buffering=0) as file:
            for _ in range(3):
                free = self.free_bytes() - leave_bytes
                if free < 4 * KIB:
                    return
                with suppress(OSError):
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)

    def free_bytes(self) -> int:
        """What is left."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def free(self) -> None:
        """Give the filler's space back."""
        with suppress(FileNotFoundError):
            os.unlink(self._filler)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoDisk(f"{command[0]}: {getattr(error, 'stderr', '') or error}".strip()) from error


@contextmanager
def small_disk(folder: str) -> Iterator[SmallDisk]:
    """Make and mount one below ``folder``. Raises ``NoDisk``."""
    point, image = os.path.join(folder, "disk"), os.path.join(folder, "disk.image")
    os.makedirs(point, exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(_SIZE_BYTES)
    path = f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin"
    # Small blocks and many inodes: the files that a container never deletes are tiny. No reserve for root: full means full.
    _run(shutil.which("mkfs.ext4", path=path) or "mkfs.ext4", "-q", "-m", "0", "-b", "1024", "-N", str(_INODES), image)
    _run(shutil.which("mount", path=path) or "mount", "-o", "loop", image, point)
    try:
        yield SmallDisk(point)
    finally:
        _run(shutil.which("umount", path=path) or "umount", "-l", point)
        with suppress(OSError):
            os.unlink(image)
