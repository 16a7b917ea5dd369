"""What is spilled behind take-overs, concats, quotas and pins, and what forgets what spills have left (protocol 3.10, 3.14.5)."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.changes import Concat, Seal
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import BadOffset, OutcomeUnknown, StorageFull
from chunkstore.metadata.codec import decode_garbage
from chunkstore.metadata.keys import GARBAGE
from chunkstore.metadata.port import MetadataView
from chunkstore.operations import spiller
from chunkstore.reading import read_view
from tests.support.data import problems
from tests.support.inline import fill, inline, keep, kinds
from tests.support.worlds import World


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_switching_it_off_spills_what_is_there_and_ends_it(world: World, killed: bool) -> None:
    store = inline(world)
    data = fill(store, "a", 3)
    if killed:
        world.crash(store)
    else:
        store.close()
    off = inline(world, inline_bytes_max=0)
    keep(off)  # finds what was left, and has it spilled
    assert kinds(off, "a") == ["object"]
    off.append("a", b"more")
    assert set(kinds(off, "a")) == {"object"} and off.read("a", 0, 99) == data + b"more"
    assert problems(off.check("deep")) == []


def test_what_an_earlier_owner_left_is_found_and_spilled(world: World) -> None:
    store = inline(world)
    data = fill(store, "a", 3)
    world.crash(store)
    world.forget_cache()
    again = inline(world, spill_s=0.0)
    keep(again)
    assert kinds(again, "a") == ["object"]
    assert again.read("a", 0, 99) == data
    assert problems(again.check("deep")) == []


def test_what_an_earlier_owner_left_is_spilled_when_its_segment_is_sealed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before anybody has looked for it."""
    store = inline(world)
    data = fill(store, "a", 3)
    world.crash(store)
    with monkeypatch.context() as context:
        context.setattr(spiller.Spiller, "tick", lambda *_: None)
        again = inline(world)
    again.seal("a")
    assert kinds(again, "a") == ["object"]
    assert again.read("a", 0, 99) == data


def test_a_quota_refuses_appends_and_not_their_spilling(world: World) -> None:
    """What is refused counts nowhere; spilling makes room for nothing new, and truncating what it made does."""
    store = inline(world, quota_bytes=100, rolling=50)
    expected = fill(store, "log", 10)
    for _ in range(2):
        with pytest.raises(StorageFull):
            store.append("log", b"one more")
    assert store.usage().safe_mode
    store._spiller.spill_all("log")
    assert kinds(store, "log") == ["object", "object"]
    assert store.read("log", 0, 1000) == expected
    store.truncate("log", 60)
    store.collect()
    assert store.append("log", b"one more") == len(expected)
    assert store.read("log", 60, 1000) == expected[60:] + b"one more"
    assert problems(store.check("deep")) == []
    store.close()


@pytest.mark.parametrize("how", ["commit", "unknown", "refused"])
def test_what_a_concat_takes_elsewhere_is_spilled_there(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extents that nobody counts hold the journal until the next owner."""
    store = inline(world, spill_s=0.0)
    keep(store)
    store.create("b")
    data = fill(store, "a", 2)
    store.commit([Seal("a")])
    if how == "commit":
        store.commit([Concat("b", "a")])
    elif how == "unknown":
        wait = store._container.wait

        def in_vain(*given: Any) -> None:
            wait(*given)
            raise OutcomeUnknown("the deadline passed")

        monkeypatch.setattr(store._container, "wait", in_vain)
        with pytest.raises(OutcomeUnknown):
            store.concat("b", 0, "a")
        monkeypatch.undo()
    else:
        with pytest.raises(BadOffset):
            store.concat("b", 7, "a")
    keep(store)
    name = "a" if how == "refused" else "b"
    assert "inline" not in kinds(store, name)
    assert store.read(name, 0, 99) == data


def test_what_is_committed_while_a_look_finds_nothing_is_spilled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = inline(world, spill_s=0.0)
    keep(store)
    data = fill(store, "a", 1)
    store.spill(["a"])
    look = spiller._count

    def behind(name: str, view: MetadataView) -> int:
        nonlocal data
        found = look(name, view)
        monkeypatch.undo()
        data = fill(store, "a", 1)
        return found

    monkeypatch.setattr(spiller, "_count", behind)
    store.spill(["a"])
    assert kinds(store, "a")[-1] == "inline"
    keep(store)
    assert "inline" not in kinds(store, "a")
    assert store.read("a", 0, 99) == data


def test_a_pin_keeps_what_spills_behind_it_have_left(world: World) -> None:
    store = inline(world)
    for number in range(6):
        if number == 3:
            store.pin("here")
        fill(store, "a", 1)
        store.spill(["a"])
    left = _garbage(store)
    store.collect()
    assert _garbage(store) == left[3:]
    store.unpin("here")
    store.collect()
    assert _garbage(store) == []


def _garbage(store: ChunkedSegmentStorage) -> list[int]:
    return read_view(store, lambda view: [decode_garbage("g", raw).lsn for _, raw in view.scan(GARBAGE, b"H")])
