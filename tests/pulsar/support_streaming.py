"""What the tests of streaming offload share: a source in memory, and a store whose writing can be held back or made to fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chunkstore import runtime
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.config import KIB
from chunkstore.errors import StorageUnavailable
from chunkstore.pulsar.container import LedgerReader
from chunkstore.pulsar.contexts import Stored
from chunkstore.pulsar.ledgers import MemorySource
from chunkstore.pulsar.streaming import StreamingPolicy

WAIT_S = 60.0
TOPIC = "persistent://public/default/orders"
SMALL = StreamingPolicy(1, 10, 64 * KIB, 16 * KIB)


def entry_of(ledger: int, entry: int, size: int = 100) -> Entry:
    """An entry whose bytes tell which one it is."""
    return Entry(ledger, entry, b"%d:%d," % (ledger, entry) * (size // 4 + 1))


def source_of(counts: dict[int, int], size: int = 1000, **more: Any) -> MemorySource:
    """Ledgers in memory with so many entries as ``entry_of`` makes."""
    made = {
        ledger: [entry_of(ledger, entry, size).payload for entry in range(count)] for ledger, count in counts.items()
    }
    return MemorySource(made, **more)


def stored_entries(store: Stored, topic: str = TOPIC) -> list[Entry]:
    """All entries of a topic, each as often as it is stored."""
    reader = LedgerReader(store)
    return [entry for item in reader.ledgers(topic) for entry in reader.read(topic, item.ledger)]


class Gate:
    """Around a store: its appends and commits can be held back, and fail from a given call on."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.opened: runtime.Event | None = None
        """Appends wait for it."""
        self.calls = 0
        self.fails_at: int | None = None
        """This call, and all that follow, raise; the owner is dead."""
        self.happens = False
        """Whether the first call that raises is done all the same."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return partial(self._gated, found) if name in ("append_many", "commit") else found

    def _gated(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self.opened is not None and call.__name__ == "append_many":
            assert self.opened.wait(WAIT_S)
        number, self.calls = self.calls, self.calls + 1
        if self.fails_at is not None and number >= self.fails_at:
            if self.happens and number == self.fails_at:
                call(*arguments, **options)
            raise StorageUnavailable("the storage is gone")
        return call(*arguments, **options)
