"""What is spilled behind take-overs, concats, quotas and pins, and what forgets what spills have left (protocol 3.10, 3.14.5)."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.changes import Concat, Seal
from chunkstore.errors import BadOffset, OutcomeUnknown
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
