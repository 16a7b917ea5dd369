"""Roots that lost something: what is taken away and put back, and what is refused meanwhile."""

from __future__ import annotations

import pytest

from chunkstore.errors import Damaged
from chunkstore.journal import RecordKind
from chunkstore.metadata.memory import MemoryShelf
from chunkstore.metadata.port import Position
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_journal.history import Sealed
from tests.journal.world import Process, World

KEYS = {f"k{number}" for number in range(8)}
Objects = dict[str, bytes]


def close(process: Process) -> None:
    """What the engine does at a clean close."""
    process.note(RecordKind.CLOSE)
    process.service.renew_lease(process.journal.epoch, released=True)


def closed(world: World, shelf: MemoryShelf | None = None) -> Process:
    owner = world.process(shelf).open()
    for number in range(8):
        owner.put(f"k{number}", bytes(number * 10))
    close(owner)
    return owner


def objects_of(storage: ChunkStorage) -> Objects:
    names = [item.name for item in storage.list("", limit=100_000).items]
    return {name: storage.read(ChunkHandle(name, False), 0, 1 << 30) for name in names}


def become(world: World, objects: Objects) -> None:
    """As ``put_back``."""
    put_back(world.storage, objects)


def put_back(storage: ChunkStorage, objects: Objects) -> None:
    """Let ``objects`` be all that the storage holds: what was lost, or a backup that takes the root's place."""
    for name in objects_of(storage).keys() - objects.keys():
        storage.delete(name)
    for name, data in objects.items():
        storage.put(name, data)


def cut_tail(world: World, end: Position) -> None:
    """The last records of the first epoch, which ends at ``end``, are gone."""
    if world.mode == "append":
        world.overwrite(world.names.log(1), world.whole(world.names.log(1))[: end.end - 700])
    else:
        for index in range(end.index - 3, end.index):
            world.storage.delete(world.names.slot(1, index))


def refused(world: World, shelf: MemoryShelf | None = None, lost: frozenset[str] = frozenset()) -> Damaged:
    """Nobody may open it, and nothing that restoring would have to undo is written: claims, and voids of dead ones."""
    before = objects_of(world.storage)
    with pytest.raises(Damaged) as raised:
        world.process(shelf).open()
    after = objects_of(world.storage)
    hints = {world.names.voided}
    new = {world.names.parse_slot(name) for name in after.keys() - before.keys() - hints} - {None}
    assert all(index == 0 and isinstance(world.streams.slot0(epoch), Sealed) for epoch, index in filter(None, new)), new
    assert not lost & after.keys()
    assert {name: after[name] for name in before.keys() - hints} == {
        name: before[name] for name in before.keys() - hints
    }
    return raised.value
