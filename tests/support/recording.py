"""Which calls reach a storage, with names made readable: what the golden files of the engine are made of."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from tests.support.forwarding import Forwarding

T = TypeVar("T")
_DATA = ("create", "write")


class Recording(Forwarding):
    """Writes down ``operation name`` for every call; chunks are called A, B, C ... in the order they were made."""

    def __init__(self, inner: ChunkStorage, container: str = "default") -> None:
        super().__init__(inner)
        self._names = ContainerNames(container)
        self._lock = threading.Lock()
        self._lines: list[tuple[str, str]] = []
        self._chunks: dict[str, str] = {}

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        with self._lock:
            said = ", ".join(sorted(self._say(name) for name in names))
            self._lines.append((operation, said))
        return call()

    def take(self) -> list[str]:
        """The calls since the last ``take``. Neighbouring data writes may run in parallel: they are put in order."""
        with self._lock:
            lines, self._lines = self._lines, []
        result: list[str] = []
        group: list[str] = []
        for operation, said in [*lines, ("", "")]:
            if operation in _DATA and said.startswith("chunk"):
                group.append(f"{operation} {said}")
                continue
            result += sorted(group)
            group.clear()
            result.append(f"{operation} {said}")
        return result[:-1]

    def _say(self, name: str) -> str:
        names = self._names
        if names.parse_chunk(name) is not None:
            return "chunk " + self._chunks.setdefault(name, chr(ord("A") + len(self._chunks)))
        slot = names.parse_slot(name)
        if slot is not None:
            return f"stream {slot[0]} slot {slot[1]}"
        log = names.parse_log(name)
        if log is not None:
            return f"stream {log} log"
        epoch = names.parse_epoch(name)
        if epoch is not None:
            return f"claim {epoch}"
        if names.parse_snapshot(name) is not None:
            return "snapshot"
        short = name.removeprefix(f"{names.container}/")
        return re.sub(r"[0-9a-f]{16,}", "*", short)
