"""Extents become bytes of chunks, and the journal that held them goes: when, into what, and what it costs (protocol 3.10, 3.14.5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from chunkstore.changes import Concat, Seal
from chunkstore.checksum import BytesLike
from chunkstore.errors import Conflict, SegmentNotFound, StorageUnavailable
from chunkstore.operations import spill as spilling
from chunkstore.storage import ChunkHandle, ChunkStorage
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.inline import fill, inline, kinds
from tests.support.worlds import World


class Failing(Hooked):
    """Writes of chunks fail while it says so, those that append behind one byte."""

    failing = False

    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        if self.failing and "/d/" in name:
            raise StorageUnavailable("planted")
        return super().create(name, data)

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        if self.failing and "/d/" in handle.name:
            super().write(handle, offset, bytes(data)[:1])
            raise StorageUnavailable("planted")
        return super().write(handle, offset, data)


def test_a_spill_that_fails_changes_nothing_and_is_made_again(world: World) -> None:
    wrapped: list[Failing] = []

    def wrap(storage: ChunkStorage) -> ChunkStorage:
        wrapped.append(Failing(storage))
        return wrapped[-1]

    world.wrap = wrap
    store = inline(world)
    fill(store, "a", 3)
    store._spiller.spill_all("a")
    data = fill(store, "a", 3)
    before = kinds(store, "a")
    wrapped[0].failing = True
    with pytest.raises(StorageUnavailable):
        store._spiller.spill_all("a")
    wrapped[0].failing = False
    assert (kinds(store, "a"), store.read("a", 0, 999)) == (before, data)
    store._spiller.spill_all("a")
    assert kinds(store, "a") == ["object", "object"], "what is half written is never written again"
    assert store.read("a", 0, 999) == data
    assert problems(store.check("deep")) == []


@pytest.mark.parametrize("meanwhile", ["truncate", "delete", "concat"])
def test_what_happens_to_the_segment_meanwhile_wins(
    world: World, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk is written, and not committed yet."""
    store = inline(world)
    data = fill(store, "a", 4)
    store.create("front")
    store.append("front", b"front")

    def overtaken(write: Callable[..., Any], *arguments: object) -> Any:
        written = write(*arguments)
        if meanwhile == "truncate":
            store.truncate("a", 15)
        elif meanwhile == "delete":
            store.delete("a")
        else:
            store.commit([Seal("a"), Concat("front", "a", 5)])
        return written

    monkeypatch.setattr(spilling, "_write", partial(overtaken, spilling._write))
    with pytest.raises(Conflict if meanwhile == "truncate" else SegmentNotFound):
        spilling.spill(store._container, "a", bytes_max=1 << 20)
    monkeypatch.undo()
    if meanwhile == "truncate":
        assert store.read("a", 15, 99) == data[15:]
    elif meanwhile == "delete":
        assert not store.exists("a")
    else:
        assert store.read("front", 0, 99) == b"front" + data
    store.collect()
    assert problems(store.check("deep")) == []


@pytest.mark.parametrize("freed", ["spilled", "truncated", "deleted"])
def test_the_journal_stays_while_it_holds_extents_and_goes_then(world: World, freed: str) -> None:
    """The collector passes no record with an extent, live or garbage; without one the objects of former streams go."""
    store = inline(world, snapshots_kept=1)
    data = fill(store, "a", 3)
    fill(store, "b", 1)
    held = {chunk.name for chunk in store.layout("a")}
    assert held <= set(world.objects("default/j/"))
    for _ in range(3):
        world.crash(store)
        store = inline(world, snapshots_kept=1)
        store.table("t").put(b"k", b"v")
        store.snapshot()
        store.collect()
    assert held <= set(world.objects("default/j/")), "extents live there"
    assert store.read("a", 0, 99) == data
    store.delete("b")
    if freed == "spilled":
        store._spiller.spill_all("a")
    elif freed == "truncated":
        store.truncate("a", len(data))
    else:
        store.delete("a")
    for _ in range(3):
        store.snapshot()
        store.collect()
    assert not set(world.objects("default/j/")) & held
    if freed == "spilled":
        assert store.read("a", 0, 99) == data
    assert problems(store.check("deep")) == []
