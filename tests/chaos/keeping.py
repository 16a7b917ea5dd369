"""A storage that keeps a copy of whatever is deleted: so that the judge can read all of history, and every byte it referred to.

Promises: a journal object or chunk is deleted only once its copy is whole under ``kept``, on another disk than one that fills up.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.wrapping import WrappingChunkStorage

__all__ = ["KeepingChunkStorage", "stored_bytes"]

T = TypeVar("T")


class KeepingChunkStorage(WrappingChunkStorage):
    """``folder`` is where the storage's objects lie."""

    def __init__(self, inner: ChunkStorage, folder: str, kept: str) -> None:
        super().__init__(inner)
        self._folder = folder
        self._kept = kept

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        if operation == "delete":
            for name in names:
                self._keep(name)
        return call()

    def _keep(self, name: str) -> None:
        target = os.path.join(self._kept, name)
        temporary = f"{target}.{os.getpid()}-{threading.get_ident()}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            shutil.copyfile(os.path.join(self._folder, name), temporary)
        except FileNotFoundError:
            return  # somebody else has deleted it, and kept it
        os.replace(temporary, target)


def stored_bytes(folder: str, kept: str, name: str) -> bytes | None:
    """What an object holds, or held when it was deleted."""
    for place in (folder, kept):
        try:
            with open(os.path.join(place, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            pass
    return None
