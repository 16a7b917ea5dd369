"""``check``: what is planted is found at its level, with its number; orphans are told from what is on its way."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from chunkstore.changes import Attach, EndSession
from chunkstore.invariants import CheckLevel, Finding
from chunkstore.journal import Batch
from chunkstore.names import chunk_id
from chunkstore.operations import orphans
from chunkstore.reading import read_view
from chunkstore.storage import ListPage
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


def test_an_append_under_way_is_no_orphan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is committed between the view and the listing."""
    monkeypatch.setattr(orphans, "_IN_FLIGHT_MS", 0)
    store = world.open()
    store.create("a")

    class Late(Forwarding):
        def list(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> ListPage:
            store.append("a", b"committed while a check goes on")
            return self.inner.list(prefix, after=after, limit=limit)

    store._context = store._context._replace(storage=Late(store._context.storage))
    assert store.check("exists") == []


def test_chunks_of_an_open_session_are_no_orphans(world: World) -> None:
    store = world.open()
    store.create("a")
    session = store.session("somebody")
    writer = session.writer()
    storage = world.raw_storage()
    attached, left = (writer.write_chunk(storage, n, b"bytes") for n in (0, 1))
    assert store.check("exists") == []
    store.commit([Attach("a", session.id, (attached,)), EndSession(session.id)])
    session.mark_ended()
    assert store.check("exists") == [], "of the present epoch, and young"
    store.close()
    store = world.open()
    (finding,) = store.check("exists")
    live = next(iter(store.layout("a"))).name
    assert (finding.invariant, finding.severity) == (23, "info")
    assert finding.object != live and set(world.chunks()) == {finding.object, live} and attached != left


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
    store._context = store._context._replace(storage=slow)
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


def test_checks_beside_an_owner_that_works(world: World) -> None:
    """Replicas and the owner check while segments come and go without any grace: nothing is ever damaged."""
    store = world.open(rolling=4, gc_grace_s=0, snapshots_kept=1)
    replica = world.replica()
    stop = threading.Event()
    failures: list[object] = []

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            name = f"s{number % 3}"
            if store.exists(name):
                store.delete(name)
            store.create(name)
            store.append(name, pattern(0, 30))
            store.truncate(name, 13)
            if number % 4 == 0:
                store.collect()
            if number % 9 == 0:
                store.snapshot()

    thread = threading.Thread(target=work)
    thread.start()
    ends = time.monotonic() + 2.0
    while time.monotonic() < ends:
        replica.refresh()
        for reader in (replica, store):
            failures += [item for item in reader.check("deep") if item.severity in ("damage", "warning")]
        failures += store.scrub().findings
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert failures == []


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


def test_a_cache_beside_history(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.open()
    store.create("a")
    head = read_view(store, lambda view: view.head)
    elsewhere = head._replace(position=head.position._replace(lsn=head.position.lsn + 3))
    monkeypatch.setattr(read_view(store, type), "head", elsewhere)
    assert (12, "damage") in found(store.check("quick"))
