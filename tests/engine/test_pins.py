"""Pins: what was there when one was made stays restorable, whatever is collected; nothing else stays for it."""

from __future__ import annotations

import dataclasses
import random
from contextlib import suppress
from typing import Any

import pytest

from chunkstore import Pin
from chunkstore.config import LIMITS
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Conflict, Damaged, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import pin_key
from chunkstore.metadata.retained import pinned_lsn
from chunkstore.operations import record_builder
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.records.segments import TableRecord
from tests.support.data import pattern, refused, run_threads
from tests.support.forwarding import Hooked
from tests.support.hooked import open_hooked
from tests.support.past import live_chunks, lsn_of, rows_at, rows_of
from tests.support.worlds import World

KEEPING_LITTLE: dict[str, Any] = {"rolling": 4, "gc_grace_s": 0, "snapshots_kept": 1}


def test_a_pin_is_a_record_and_says_what_it_is(world: World) -> None:
    store = world.open(rolling=4)
    world.still(store)
    made = store.pin("nightly", "before the upgrade", 3600)
    assert made.lsn == lsn_of(store) and made.name == "nightly" and made.note == "before the upgrade"
    assert made.expires_at == made.created_at + 3_600_000 and ":" in made.holder
    other = store.pin("äöü")
    assert other.expires_at is None and other.note == "" and other.lsn == made.lsn + 1
    assert store.pins() == [made, other]
    # The same call again finds the pin that stands, and makes no record: so it may be repeated when nobody knows what came of it.
    assert store.pin("nightly", "before the upgrade", 3600) == made
    refused(
        Conflict,
        lambda: store.pin("nightly"),
        lambda: store.pin("nightly", "before the upgrade", 3601),
    )
    assert lsn_of(store) == other.lsn
    with store._container.current.store.view() as view:
        assert pinned_lsn(view) == made.lsn
    replica = world.replica()
    assert replica.pins() == [made, other]
    assert store.unpin("nightly") and not store.unpin("nightly")
    assert store.pins() == [other] and lsn_of(store) == other.lsn + 1
    store.close()
    replica.refresh()
    assert replica.pins() == [other]
    world.forget_cache()
    again = world.open()
    assert again.pins() == [other] and again.check("deep") == []


def test_what_cannot_be_pinned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.open(rolling=4)
    refused(
        InvalidArgument,
        lambda: store.pin(""),
        lambda: store.pin("x" * 256),
        lambda: store.pin("a\0"),
        lambda: store.unpin(""),
        lambda: store.pin("p", "\ud800"),
        lambda: store.pin("p", "x" * 4097),
        lambda: store.pin("p", expires_s=0),
        lambda: store.pin("p", expires_s=float("nan")),
        lambda: store.pin("p", expires_s=True),
    )
    assert store.pins() == []
    monkeypatch.setattr("chunkstore.operations.pins.LIMITS", dataclasses.replace(LIMITS, pins_max=3))
    made = []
    # Also when they are asked for at once.
    run_threads(5, lambda thread: made.append(_pinned(store, f"p{thread}")))
    assert len(store.pins()) == 3 and sorted(made, key=str).count("refused") == 2
    store.unpin(store.pins()[0].name)
    assert store.pin("p" * 255, "n" * 4096).note == "n" * 4096


def _pinned(store: ChunkedSegmentStorage, name: str) -> str:
    try:
        return store.pin(name).name
    except Conflict:
        return "refused"


def test_a_pin_that_is_made_while_a_collection_deletes(world: World) -> None:
    """What it deletes was decided on before the pin, so it was removed below it."""
    store, wire = open_hooked(world, Hooked, **KEEPING_LITTLE)
    store.create("a")
    store.append("a", pattern(0, 40))
    names = {chunk.name for chunk in store.layout("a")}
    store.truncate("a", 24)
    made: list[Pin] = []
    turn = ["the first one"]

    def pin_now(operation: str, called: tuple[str, ...]) -> None:
        if operation == "delete" and called[0] in names:
            with suppress(IndexError):  # deletions run side by side
                turn.pop()
                made.append(store.pin("p"))
                store.truncate("a", 36)

    wire.before = pin_now
    store.collect()
    (pin,) = made
    rows = rows_at(world.raw_storage(), world.names(), pin.lsn)
    live = live_chunks(world.names(), rows)
    assert len(live) == 4 and set(live) <= set(world.chunks())


def test_a_row_that_cannot_be_read_holds_everything_until_it_is_removed(world: World) -> None:
    store = world.open(**KEEPING_LITTLE)
    store.create("a")
    store.append("a", pattern(0, 40))
    store.pin("p")
    _plant(store, pin_key("p"), b"\xc0")
    store.delete("a")
    assert store.collect().pinned == 10
    refused(Damaged, store.pins)
    assert [finding.invariant for finding in store.check() if finding.severity == "damage"] == [39]
    assert store.unpin("p")
    assert store.collect().chunks == 10 and store.check("deep") == []


def test_a_check_finds_what_a_pin_needs_and_is_gone(world: World) -> None:
    store = world.open(**KEEPING_LITTLE)
    store.create("a")
    store.append("a", pattern(0, 40))
    store.truncate("a", 4)
    lost = next(iter(store.layout("a"))).name
    pin = store.pin("p")
    store.delete("a")
    store.collect()
    world.remove(lost)
    assert store.check("quick") == []
    (found,) = store.check("exists")
    assert (found.invariant, found.severity, found.object) == (
        39,
        "damage",
        lost,
    ) and f"{pin.lsn} by 'p'" in found.message
    (again,) = world.replica().check("exists")
    assert again == found
    store.unpin("p")
    assert store.check("exists") == []
    # The journal's part: it cannot be restored once the collector has been told that nothing is pinned.
    pin = store.pin("p")
    for _ in range(2):
        store.snapshot()
        store.close()
        store = world.open(**KEEPING_LITTLE)
    store.snapshot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chunkstore_journal.service.pinned_lsn", lambda view: None)
        assert store.collect().journal_objects > 0
    (found,) = (item for item in store.check() if item.severity == "damage")
    assert found.invariant == 39 and f"lsn {pin.lsn} is pinned" in found.message and "'p'" in found.message


def _plant(store: ChunkedSegmentStorage, key: bytes, value: bytes) -> None:
    """A row as a hostile hand would write it: by a record that is right in everything else."""

    def plan(changes: ChangeSet) -> None:
        changes.headers.append((int(OpCode.TABLE_PUT), "t", b"k"))
        changes.rows[key] = TableRecord(0, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_builder, "encode_row", lambda record: record.value)
        commit_changes(store._container, (), plan)


@pytest.mark.parametrize("seed", range(2))
def test_every_pinned_state_can_be_restored_whatever_goes_on(world: World, seed: int) -> None:
    """Random changes, snapshots, collections, owners that come and go: whenever a collection has ended, the rows at each pin are replayed
    from what is left, are those that were there, and every object they refer to, the journal's with appends in them besides, is there as
    long as they say."""
    chance = random.Random(seed)
    keeping = {**KEEPING_LITTLE, "rolling": (4, 20)[seed], "inline_bytes_max": (0, None)[seed]}
    store = world.open(**keeping)
    pinned: dict[str, tuple[int, dict[bytes, bytes]]] = {}
    world.still(store)
    chunks = journal_objects = kept = 0
    for step in range(180):
        names = [info.name for info in store.segments()]
        name = chance.choice(names) if names else ""
        dice = chance.randrange(100)
        if dice < 8 or not names:
            store.create(f"s{step}")
        elif dice < 38:
            store.append(name, chance.randbytes(chance.randrange(1, 20)))
        elif dice < 52:
            info = store.info(name)
            store.truncate(name, chance.randrange(info.start_offset, info.length + 1))
        elif dice < 57:
            store.delete(name)
        elif dice < 62:
            _concat(store, name, f"c{step}")
        elif dice < 67:
            store.pin(f"p{step}")
            pinned[f"p{step}"] = lsn_of(store), rows_of(store._container.current.store)
        elif dice < 74 and len(pinned) > 1:
            gone = chance.choice(sorted(pinned))
            assert store.unpin(gone)
            del pinned[gone]
        elif dice < 82:
            store.snapshot()
            store.spill([name])
        elif dice < 88:
            world.crash(store) if chance.random() < 0.5 else store.close()
            world.forget_cache()
            store = world.open(**keeping)
            world.still(store)
        else:
            report = store.collect()
            chunks += report.chunks
            journal_objects += report.journal_objects
            kept += report.pinned
            _judge(world, pinned)
    assert {pin.name: pin.lsn for pin in store.pins()} == {name: lsn for name, (lsn, _) in pinned.items()}
    for gone in pinned:
        store.unpin(gone)
    store.collect()
    found = [chunk for info in store.segments() for chunk in store.layout(info.name)]
    assert set(world.chunks()) == {chunk.name for chunk in found if chunk.kind == "object"}
    assert {chunk.kind for chunk in found} == ({"object", "inline"} if seed else {"object"})
    assert min(chunks, kept) > 10 and journal_objects and store.check("deep") == []


def _concat(store: ChunkedSegmentStorage, target: str, source: str) -> None:
    store.create(source)
    store.append(source, b"0123456789")
    store.seal(source)
    store.concat(target, store.info(target).length, source)


def _judge(world: World, pinned: dict[str, tuple[int, dict[bytes, bytes]]]) -> None:
    storage, names = world.raw_storage(), world.names()
    for lsn, rows in pinned.values():
        assert rows_at(storage, names, lsn) == rows
        for chunk, length in live_chunks(names, rows).items():
            assert storage.stat(chunk).length >= length
