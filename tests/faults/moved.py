"""What is done to a tree under its owner: renamed, removed, replaced by a copy; and what is asked of the owner then."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chunkstore.errors import DeadlineExceeded, NotOwner, OutcomeUnknown, StorageUnavailable

__all__ = ["CONTAINER", "WAYS", "Place", "can_mount", "files_of", "is_refused"]

CONTAINER: Final = "default"


class Place:
    """A root, and another place beside it; what is done to them gives the root to open from then on."""

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

    def copy_and_remove_folder(self) -> Path:
        shutil.copytree(self.root / CONTAINER, self.other / CONTAINER)
        shutil.rmtree(self.root / CONTAINER)
        return self.other

    def replace_root(self) -> Path:
        self.root.rename(self.other)
        shutil.copytree(self.other, self.root)
        return self.root

    def replace_folder(self) -> Path:
        self.other.mkdir()
        (self.root / CONTAINER).rename(self.other / CONTAINER)
        shutil.copytree(self.other / CONTAINER, self.root / CONTAINER)
        return self.root

    def replace_removed_root(self) -> Path:
        shutil.copytree(self.root, self.other)
        shutil.rmtree(self.root)
        self.other.rename(self.root)
        return self.root

    def replace_removed_folder(self) -> Path:
        shutil.copytree(self.root / CONTAINER, self.other)
        shutil.rmtree(self.root / CONTAINER)
        self.other.rename(self.root / CONTAINER)
        return self.root


WAYS: Final = tuple(name for name in vars(Place) if not name.startswith("_"))


def files_of(root: Path) -> set[str]:
    """All that lies there, but for the folder of temporaries, whose contents are nobody's."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if ".chunkstore-tmp" not in path.parts}


def can_mount() -> bool:
    """Whether a folder can be mounted elsewhere."""
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as point:
        made = subprocess.run(["mount", "--bind", source, point], check=False, capture_output=True)
        _unmount(point)
        return made.returncode == 0


def _unmount(point: Path | str) -> None:
    subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def is_refused(call: Callable[[], object]) -> bool:
    """Whether a change or a fenced read is; any other error says something else, and passes through."""
    try:
        call()
    except (NotOwner, OutcomeUnknown, StorageUnavailable, DeadlineExceeded):
        return True
    return False
