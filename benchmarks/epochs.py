"""Many epochs behind a container, made quickly: in memory, and then copied to where they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from chunkstore.assembly import open_store_on
from chunkstore.config import Settings
from chunkstore.metadata.memory import MemoryShelf
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from tests.support.forwarding import Hooked
from tests.support.worlds import ShelfCache

__all__ = ["age"]

Put = Callable[[str, bytes], object]


class _Died(BaseException):
    """The claimant has ended before its OPEN."""


def age(storage: ChunkStorage, put: Put, epochs: int, *, opened: bool) -> None:
    """Put ``epochs`` more epochs behind the container "default" on ``storage``: opened and empty ones, or such as were claimed
    and never opened. ``put`` stores one object there."""
    url = "memory://epochs-to-be-copied"
    forget_memory(url)
    memory = MemoryChunkStorage(url, append=False)
    before = _objects(storage)
    for name in before:
        memory.put(name, storage.read(ChunkHandle(name, False), 0, 1 << 24))
    settings = Settings(lease_s=0, journal_mode="slot")
    names = ContainerNames("default")
    shelf = MemoryShelf()
    epoch = sum(1 for name in before if name.startswith(names.epoch_prefix()))
    for number in range(epoch + 1, epoch + 1 + epochs):
        behind = Hooked(memory)

        def die(operation: str, named: tuple[str, ...], target: str = names.slot(number, 0)) -> None:
            if not opened and operation == "create_if_absent" and target in named:
                raise _Died

        behind.before = die
        cache = ShelfCache(behind, "default", "owner", shelf)
        try:
            store = open_store_on(behind, settings=settings, cache=cache)
        except _Died:
            continue
        store._made_in = None
        store._maintenance.stopping.set()
        store._container.pool.close()
    contents = {name: memory.read(ChunkHandle(name, False), 0, 1 << 24) for name in _objects(memory)}
    changed = [
        name for name in contents if before.get(name) != len(contents[name]) or name in (names.voided, names.latest)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: put(name, contents[name]), changed))
    forget_memory(url)


def _objects(storage: ChunkStorage) -> dict[str, int]:
    return {item.name: item.length for item in iter_listing(storage)}
