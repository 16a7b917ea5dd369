"""The order of storage calls, as golden files: bytes durable, journal durable, fence known, and only then the answer.

``CHUNKSTORE_GOLDEN=write`` makes the files anew; read the difference before you believe it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from chunkstore.changes import Append, Seal
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from tests.support.data import pattern
from tests.support.forwarding import Forwarding
from tests.support.worlds import EVERY_WORLD, World

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


pytestmark = EVERY_WORLD

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_order_of_storage_calls(world: World) -> None:
    recorded: list[Recording] = []

    def wrap(storage: ChunkStorage) -> Recording:
        recorded.append(Recording(storage))
        return recorded[-1]

    said: list[str] = []

    def section(title: str, recording: Recording) -> None:
        said.extend((f"# {title}", *recording.take(), ""))

    store = world.open(rolling=10, wrap=wrap, free_bytes_min=0)
    world.still(store)
    first = recorded[0]
    first.take()
    store.create("a")
    section("create a segment", first)
    store.append("a", pattern(0, 4))
    section("the first append", first)
    store.append("a", pattern(4, 4))
    section("a second append", first)
    store.append("a", pattern(8, 9))
    section("an append with rollover", first)
    store.commit([Append("a", pattern(17, 2)), Seal("a")])
    section("an append and a seal in one commit", first)
    store.read("a", 0, 5)
    section("a read of the first chunk", first)
    store.table("t").put(b"k", b"v")
    section("a table row", first)
    store.snapshot()
    section("a snapshot", first)
    store.close()
    section("close", first)
    store = world.open(rolling=10, wrap=wrap, free_bytes_min=0)
    world.still(store)
    section("take-over, with the cache of the former owner", recorded[1])
    store.unseal("a")
    recorded[1].take()
    store.append("a", pattern(19, 1))
    section("the first append of a new epoch", recorded[1])
    world.crash(store)
    world.forget_cache()
    store = world.open(rolling=10, wrap=wrap, free_bytes_min=0)
    section("take-over after a crash, without a cache", recorded[2])
    assert store.read("a", 0, 99) == pattern(0, 20)
    text = "\n".join(said)
    path = GOLDEN / f"engine_{world.id}.txt"
    if os.environ.get("CHUNKSTORE_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
