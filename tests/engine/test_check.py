"""``check``: what is planted is found at its level, with its number; orphans are told from what is on its way."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.journal import Batch
from chunkstore.operations import orphans
from chunkstore.records.invariants import CheckLevel, Finding
from chunkstore.records.names import chunk_id
from tests.support.data import pattern
from tests.support.forwarding import Forwarding
from tests.support.hooked import replace_steps
from tests.support.worlds import World

LEVELS: tuple[CheckLevel, CheckLevel] = ("exists", "deep")


def found(findings: list[Finding]) -> set[tuple[int, str]]:
    return {(finding.invariant, finding.severity) for finding in findings}


def put_chunk(world: World, epoch: int, number: int = 77) -> str:
    name = world.names().chunk(chunk_id(1, epoch, number, 7))
    world.raw_storage().create(name, b"orphan")
    return name


def test_orphans_are_reported_with_their_age(world: World) -> None:
    with world.open() as first:
        first.create("a")
        first.append("a", b"bytes")
    store = world.open()
    name = put_chunk(world, first.epoch)
    assert store.check("quick") == []
    for level in LEVELS:
        (finding,) = store.check(level)
        assert (finding.invariant, finding.severity, finding.object) == (23, "info", name)
        assert "6 bytes" in finding.message and "s old" in finding.message
    with world.replica() as replica:
        assert found(replica.check("exists")) == {(23, "info")}


def test_what_may_be_on_its_way_is_no_orphan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are written before their record: of the present epoch only what has lain there for a day is reported."""
    store = world.open()
    put_chunk(world, store.epoch)
    assert store.check("exists") == []
    monkeypatch.setattr(orphans, "_IN_FLIGHT_MS", 0)
    assert found(store.check("exists")) == {(23, "info")}


def test_a_check_beside_a_collector_reports_nothing_that_was_truncated(world: World) -> None:
    """What its view refers to is truncated away and collected while it looks: that is no damage."""
    store = world.open(rolling=5, gc_grace_s=0)
    store.create("a")
    store.append("a", pattern(0, 50))
    store.create("b")
    store.append("b", pattern(0, 20))

    class Slow(Forwarding):
        collected = False

        def stat(self, name: str) -> Any:
            if not self.collected:
                self.collected = True
                store.truncate("a", 40)
                store.delete("b")
                store.collect()
            return self.inner.stat(name)

    slow = Slow(store._context.storage)
    store._context.storage = slow
    for level in LEVELS:
        slow.collected = False
        if not store.exists("b"):
            store.create("b")
            store.append("b", pattern(0, 20))
        assert store.check(level) == []
        assert slow.collected
    # What is still referred to, and gone, is damage as before.
    world.remove(next(iter(store.layout("a"))).name)
    assert (20, "damage") in found(store.check("exists"))


def test_the_levels_of_the_journals_invariants(world: World) -> None:
    """A digest that does not follow from the rows (10) is found by a deep check only: the others do not replay."""
    store = world.open()
    store.create("a")
    store.append("a", b"one")

    def lying(batch: Batch) -> Any:
        return before.append(batch._replace(digest=batch.digest ^ 1))

    before = replace_steps(store, append=lying)
    store.append("a", b"two")
    replace_steps(store, append=before.append)
    assert store.check("exists") == []
    assert (10, "damage") in found(store.check("deep"))
