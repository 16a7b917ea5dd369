"""Extents become bytes of chunks, and the journal that held them goes: when, into what, and what it costs (protocol 3.10, 3.14.5)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest

from chunkstore.changes import Concat, Seal
from chunkstore.checksum import BytesLike
from chunkstore.errors import Conflict, SegmentNotFound, StorageUnavailable
from chunkstore.operations import spill as spilling
from chunkstore.operations.container import OwnedContainer
from chunkstore.storage import ChunkHandle, ChunkStorage
from tests.support.data import pattern, problems
from tests.support.forwarding import Hooked
from tests.support.inline import fill, inline, keep, kinds
from tests.support.worlds import World


@pytest.mark.parametrize(
    ("settings", "appends", "due"),
    [
        ({"spill_bytes": 50}, 4, False),
        ({"spill_bytes": 50}, 5, True),
        ({"spill_s": 0.0}, 1, True),
        ({"inline_rows_max": 3}, 3, False),
        ({"inline_rows_max": 3}, 4, True),
    ],
    ids=str,
)
def test_when_they_are_due(world: World, settings: dict[str, Any], appends: int, due: bool) -> None:
    store = inline(world, **settings)
    keep(store)  # looks for what others left
    data = fill(store, "a", appends)
    assert kinds(store, "a") == ["inline"] * appends
    keep(store)
    assert ("inline" not in kinds(store, "a")) == due
    assert store.read("a", 0, 999) == data
    assert problems(store.check("deep")) == []


def test_appends_go_to_chunks_while_spilling_is_behind(world: World) -> None:
    store = inline(world, inline_rows_max=3)
    keep(store)
    data = fill(store, "a", 10)
    assert kinds(store, "a")[:6] == ["inline"] * 6 and "inline" not in kinds(store, "a")[6:]
    keep(store)
    data = fill(store, "a", 1)
    assert kinds(store, "a")[-1] == "inline" and kinds(store, "a").count("inline") == 1
    assert store.read("a", 0, 999) == data
    assert problems(store.check("deep")) == []


def test_where_storages_append_one_chunk_grows(world: World) -> None:
    """A segment that is spilled every minute would else have 1,440 chunks after a day."""
    store = inline(world)
    for _ in range(5):
        data = fill(store, "a", 3)
        store._spiller.spill_all("a")
    assert kinds(store, "a") == ["object"] * (1 if world.appends else 5)
    assert len(world.chunks()) == store.info("a").chunk_count
    again = inline(world)
    data = fill(again, "a", 3)
    again._spiller.spill_all("a")
    assert again.info("a").chunk_count == (2 if world.appends else 6), "of another epoch nothing grows"
    assert again.read("a", 0, 999) == data
    assert problems(again.check("deep")) == []


@pytest.mark.parametrize("by_commit", [True, False], ids=["commit", "concat"])
def test_a_spill_grows_no_chunk_that_a_concat_has_put_in_front(world: World, by_commit: bool) -> None:
    """A chunk of the source lies in the source's run: bytes added to it in the target would be found by no offset."""
    store = inline(world)
    data = fill(store, "a", 3)
    store.spill(["a"])
    before = store.append("a", pattern(len(data), 10))
    data += store.read("a", before, 10)
    store.create("b")
    store.append("b", b"front")
    store.commit([Seal("a"), Concat("b", "a")] if by_commit else [Seal("a")])
    if not by_commit:
        store.concat("b", 5, "a")
    store.append("b", b"behind")
    expected = b"front" + data + b"behind"
    for _ in range(2):
        store.spill(["b"])
        assert [store.read("b", offset, 3) for offset in range(len(expected))] == [
            expected[offset : offset + 3] for offset in range(len(expected))
        ]
        assert problems(store.check("deep")) == []
        store.append("b", b"again")
        expected += b"again"
    again = inline(world)
    again.truncate("b", 33)
    assert again.read("b", 33, 999) == expected[33:]
    assert problems(again.check("deep")) == []


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


def test_whoever_loses_to_another_spill_goes_on_as_long_as_that_one_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper spills the same segment in smaller pieces, and is always the faster one."""
    store = inline(world)
    data = fill(store, "a", 9)
    real = spilling.spill

    def slower(
        container: OwnedContainer, name: str, *, bytes_max: int, past: Collection[bytes], beside: bool
    ) -> spilling.Spilled:
        if real(container, name, bytes_max=10).extents:
            raise Conflict("planted", expected="what was read", found="something else")
        return spilling.Spilled(0, 0, {})

    monkeypatch.setattr(spilling, "spill", slower)
    store.spill(["a"])
    monkeypatch.undo()
    assert "inline" not in kinds(store, "a") and store.read("a", 0, 999) == data
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
