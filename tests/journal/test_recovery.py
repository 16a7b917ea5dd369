"""Where the state comes from, and what makes recovery stop: caches, snapshots, damage (protocol 3.2, 3.11, 3.12, A4)."""

from __future__ import annotations

import pytest

from chunkstore.errors import Damaged, RolledBack
from chunkstore.journal import Batch, RecordKind
from chunkstore.metadata.keys import table_key
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, Position
from chunkstore_journal import stream
from chunkstore_journal.payloads import encode_ops
from tests.journal.ends import refused
from tests.journal.world import Process, World


def filled(world: World, shelf: MemoryShelf | None = None, count: int = 10) -> Process:
    owner = world.process(shelf).open()
    for i in range(count):
        owner.put(f"k{i}")
    return owner


KEYS = {f"k{i}" for i in range(10)}


def test_a_snapshot_saves_replay(world: World) -> None:
    owner = filled(world)
    name = owner.snapshot()
    owner.put("behind")
    heir = world.process().open()
    assert heir.report.source == "snapshot"
    assert heir.report.findings == ()
    assert heir.keys() == KEYS | {"behind"}
    assert heir.report.replayed_records < 5
    link = world.opened(2).payload.snapshot
    assert link is not None
    assert link.name == name


def test_a_cache_whose_records_were_collected_is_discarded(world: World) -> None:
    shelf = MemoryShelf()
    filled(world, shelf).store.close(clean=True)
    settings = world.settings
    for round_number in range(5):
        owner = world.process(settings=settings).open()
        owner.put(f"round {round_number}")
        owner.snapshot()
    collected, _ = owner.service.collect(head=owner.store.head(), epoch=owner.journal.epoch, dry_run=False)
    assert collected > 0
    back = world.process(shelf).open()
    assert back.report.source == "snapshot"
    assert any("cache" in finding for finding in back.report.findings)
    assert back.keys() == owner.keys()


def plant_cache(world: World, shelf: MemoryShelf, position: Position) -> None:
    """A current cache at ``position`` with a row that was never committed."""
    cache = MemoryMetadataCache(world.format.uuid, "here", shelf=shelf)
    store = cache.create()
    store.load([(table_key("t", b"phantom"), b"v")])
    store.finish_load(Head(position, 4711))
    cache.make_current(store)
    store.close(clean=True)


def test_a_cache_with_another_history_is_discarded(world: World) -> None:
    """A cache that stands on a record which history does not have is thrown away, never merged; nobody loses it without a word."""
    shelf = MemoryShelf()
    owner = world.process(shelf).open()
    places = [owner.put(key) for key in sorted(KEYS)]
    plant_cache(world, shelf, places[4]._replace(hash=b"x" * 16))
    assert isinstance(refused(world, shelf), RolledBack)
    heir = world.process(shelf)
    heir.ownership = heir.service.take_over(own=None, accept_rollback=True)
    assert heir.keys() == KEYS
    assert heir.report.source == "journal"
    assert any("cache" in finding for finding in heir.report.findings)


def test_a_cache_with_wrong_rows_is_found_by_the_digest(world: World) -> None:
    shelf = MemoryShelf()
    owner = filled(world, shelf)
    plant_cache(world, shelf, owner.store.head().position)
    other = world.process().open()
    other.put("elsewhere")
    heir = world.process(shelf).open()
    assert heir.keys() == KEYS | {"elsewhere"}
    assert heir.report.source == "journal"


def test_a_damaged_newest_snapshot_falls_back(world: World) -> None:
    owner = filled(world)
    older = owner.snapshot()
    owner.put("between")
    newer = owner.snapshot()
    raw = bytearray(world.whole(newer))
    raw[len(raw) // 2] ^= 1
    world.overwrite(newer, bytes(raw))
    heir = world.process().open()
    assert heir.keys() == KEYS | {"between"}
    assert heir.report.source == "snapshot"
    assert any(newer in finding for finding in heir.report.findings)
    link = world.opened(2).payload.snapshot
    assert link is not None
    assert link.name == older


def test_no_snapshot_and_no_beginning_is_damage(world: World) -> None:
    owner = filled(world)
    owner.snapshot()
    world.process().open().put("x")
    last = world.process().open()
    last.snapshot()
    for _ in range(3):
        last.put("y")
        last.snapshot()
    last.service.collect(head=last.store.head(), epoch=last.journal.epoch, dry_run=False)
    fresh = world.process().open()
    assert "y" in set(fresh.keys())
    for info in world.storage.list(world.names.snapshot_prefix()).items:
        if info.name.endswith(".sn"):
            world.storage.delete(info.name)
    with pytest.raises(Damaged):
        world.process().open()


@pytest.mark.parametrize("left", ["nothing", "a part", "zeros"])
def test_a_cache_that_has_seen_more_makes_a_short_log_damage(append_world: World, left: str) -> None:
    world = append_world
    shelf = MemoryShelf()
    owner = filled(world, shelf)
    end = owner.journal.head.end
    owner.put("acknowledged")
    raw = world.whole(world.names.log(1))
    tail = {"nothing": b"", "a part": raw[end : end + 100], "zeros": bytes(len(raw) - end)}[left]
    world.overwrite(world.names.log(1), raw[:end] + tail)
    with pytest.raises(RolledBack, match="older than what the local cache has seen"):
        world.process(shelf).open()


def test_a_slot_that_the_cache_has_seen_and_is_gone_is_damage(slot_world: World) -> None:
    world = slot_world
    shelf = MemoryShelf()
    owner = filled(world, shelf)
    lost = world.names.slot(1, owner.journal.head.index - 1)
    world.storage.delete(lost)
    with pytest.raises(RolledBack, match="older than what the local cache has seen"):
        world.process(shelf).open()
    assert not world.storage.exists(lost), "no SEAL may take the place of a lost record: restoring must stay possible"


def test_a_log_shorter_than_its_recorded_end_is_damage(append_world: World) -> None:
    world = append_world
    filled(world)
    world.process().open().put("x")
    raw = world.whole(world.names.log(1))
    world.overwrite(world.names.log(1), raw[: world.opened(2).payload.end_byte - 1])
    with pytest.raises(Damaged) as raised:
        world.process().open()
    assert raised.value.object == world.names.log(1)


def test_a_damaged_slot_is_damage(slot_world: World) -> None:
    """A4: a SLOT object is atomic, so an invalid one is never a torn write."""
    world = slot_world
    filled(world)
    name = world.names.slot(1, 10)
    world.overwrite(name, world.whole(name)[:-1])
    with pytest.raises(Damaged) as raised:
        world.process().open()
    assert raised.value.object == name


def test_a_vanished_claim_is_damage(world: World) -> None:
    shelf = MemoryShelf()
    filled(world, shelf)
    world.process(shelf).open()
    world.storage.delete(world.names.epoch(2))
    with pytest.raises(RolledBack) as raised:
        world.process(shelf).open()
    assert raised.value.object == world.names.epoch(2)


def test_power_cut_between_the_log_file_and_open(append_world: World) -> None:
    world = append_world
    filled(world)
    world.process().die_at_open(2)
    heir = world.process().open()
    assert world.storage.exists(world.names.log(2))
    assert (heir.report.previous_epoch, heir.keys()) == (1, KEYS)


@pytest.mark.parametrize("kind", [RecordKind.OPS, RecordKind.SNAPSHOT_NOTE])
def test_a_record_that_says_nonsense_is_named_where_it_begins(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: RecordKind
) -> None:
    """Sound by its checksums, and not what a record says: written by a broken owner."""
    owner = world.process().open()
    before = owner.put("a")
    # Behind what an OPS record has, a note's own part: nonsense there is found by whoever looks for snapshots.
    payload = b"nonsense" if kind is RecordKind.OPS else encode_ops([], [])
    with monkeypatch.context() as patch:
        patch.setattr(stream, "encode_batch", lambda _batch: payload)
        owner.journal.append(Batch(kind, [], [], owner.store.head().digest, 0))
    owner.journal.append(Batch(RecordKind.HEARTBEAT, [], [], owner.store.head().digest, 0))
    with pytest.raises(Damaged) as raised:
        world.process().open()
    place = (world.names.log(1), before.end) if world.mode == "append" else (world.names.slot(1, 2), 0)
    assert (raised.value.object, raised.value.position) == place
