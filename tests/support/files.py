"""What tests of storages on files share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER


def temporaries(root: Path) -> list[Path]:
    return list((root / TEMPORARY_FOLDER).iterdir())


def failing(number: int) -> Callable[..., NoReturn]:
    """A system call that fails with this errno."""

    def call(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return call


def makers(storage: FilesystemChunkStorage) -> list[Callable[[str, bytes], object]]:
    """Every operation that makes a chunk."""
    return [storage.create, storage.create_if_absent, storage.put]
