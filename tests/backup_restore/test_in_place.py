"""Going back in place: the moment is the present again, on copies of what was removed, and everybody notices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkstore.backup.restore import restore
from chunkstore.changes import Attach
from chunkstore.config import LIMITS, DefragPolicy
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunksMissing,
    Conflict,
    ContainerBusy,
    Damaged,
    InvalidArgument,
    NotOwner,
    Unsupported,
)
from chunkstore.operations import bring_back
from chunkstore.storage import ChunkStorage
from tests.backup_restore.in_place import TWO_WORLDS, described, head, rewound
from tests.support.data import pattern, problems
from tests.support.forwarding import Hooked
from tests.support.worlds import ShelfCache, World


def test_everything_is_as_it_was(world: World) -> None:
    with world.open(rolling=8) as store:
        store.create("a", attributes={"k": 1})
        store.append("a", pattern(1, 30), writer_id="till", event_number=3)
        store.truncate("a", 3)
        store.create("b")
        for number in range(5):
            store.append("b", bytes((number,)) * 3)
        store.create("c")
        store.append("c", b"of c")
        store.table("rows").put(b"key", b"value")
        lsn = store.pin("before").lsn
        then = described(store)
        store.append("a", b"later" * 5, writer_id="till", event_number=4)
        store.truncate("a", 40)
        store.defrag("b", policy=DefragPolicy(fanout=2))
        store.seal("c")
        store.concat("b", store.info("b").length, "c")
        store.create("new")
        store.append("new", b"bytes")
        store.delete("a")
        store.table("rows").put(b"key", b"another")
        store.pin("behind")
        last = head(store)
    dry = rewound(world, lsn=lsn, dry_run=True)
    assert dry.epoch == 0 and dry.last_lsn >= last
    report = rewound(world, lsn=lsn)
    assert report == dry._replace(dry_run=False, epoch=report.epoch)
    assert report.epoch == 2
    assert {item.segment for item in report.segments} == {"a", "b", "c", "new"}
    assert report.rows == (("rows", b"key"),)
    assert report.pins == ("behind",) and report.pins_given_up == ()
    [writer] = report.writers
    assert writer[:2] == ("a", b"till") and writer.then_event_number == 3
    with world.open(rolling=8) as store:
        assert described(store) == then
        assert problems(store.check("deep")) == []
        assert store.last_event_number("a", "till") == 3
        store.append("a", b"goes on", writer_id="till", event_number=4)
        store.append("b", b"goes on")
        assert store.read("a", 30, 99) == b"goes on"
        assert store.collect().chunks == 0, "the pin keeps what was copied"
        assert problems(store.check("deep")) == []
    world.forget_cache()
    with world.open() as store:
        assert store.read("b", 15, 99) == b"goes on"
        assert problems(store.check("deep")) == []


def small(world: World, **settings: Any) -> ChunkedSegmentStorage:
    """An owner for whom garbage goes at once."""
    store = world.open(rolling=8, gc_grace_s=0, **settings)
    world.still(store)
    return store


def test_what_a_former_owner_deletes_is_not_what_came_back(world: World) -> None:
    """Originals may go at any time, before and behind the copies; a pin below keeps them from us (schedule 50, by hand)."""
    store = small(world)
    store.create("a")
    store.append("a", pattern(0, 40))
    pin = store.pin("low")
    lsn = store.append("a", pattern(40, 8)) and head(store)
    originals = [chunk.name for chunk in store.layout("a")]
    store.delete("a")
    last = head(store)
    report = rewound(world, lsn=lsn)
    assert report.copied_chunks == len(originals) and report.copied_bytes == 48 and report.last_lsn >= last
    with pytest.raises(NotOwner):
        store.create("b")
    with world.open(gc_grace_s=0) as after:
        copies = [chunk.name for chunk in after.layout("a")]
        assert not {*copies} & {*originals} and after.read("a", 0, 99) == pattern(0, 48)
        assert after.collect().pinned == len(originals)
        assert problems(after.check("deep")) == []
        with world.replica(at_lsn=pin.lsn) as past:
            assert past.read("a", 0, 99) == pattern(0, 40)
        after.unpin("low")
        for name in originals[:2]:
            world.remove(name)  # by a zombie, whose view knows of no pin
        assert after.collect().chunks == len(originals)
        assert not {*world.chunks()} & {*originals} and after.read("a", 0, 99) == pattern(0, 48)
        assert problems(after.check("deep")) == []


@TWO_WORLDS
def test_what_is_gone_is_listed_before_anything_happens(world: World) -> None:
    with small(world) as store:
        store.create("a")
        store.append("a", pattern(0, 20))
        store.append("a", pattern(20, 20))
        lsn = head(store)
        store.create("b")
        store.truncate("a", 20)
        gone = store.collect().chunks
        before = world.objects()
    dry = rewound(world, lsn=lsn, dry_run=True)
    assert dry.missing_chunks == len(dry.missing) == gone and {item.reason for item in dry.missing} == {"absent"}
    with pytest.raises(ChunksMissing) as caught:
        rewound(world, lsn=lsn)
    assert caught.value.count == gone and not [
        name for name in world.objects() if "/epoch/" in name and name not in before
    ]
    with world.open() as store:
        assert store.read("a", 20, 99) == pattern(20, 20)


@TWO_WORLDS
def test_gone_while_it_is_copied(world: World) -> None:
    """A collection of the owner that is fenced was faster: nothing has changed, and the next owner goes on."""
    with small(world) as store:
        store.create("a")
        store.append("a", pattern(0, 20))
        lsn = head(store)
        store.delete("a")
        store.create("b")

    def wrap(storage: ChunkStorage) -> ChunkStorage:
        hooked = Hooked(storage)

        def before(operation: str, names: tuple[str, ...]) -> None:
            if operation == "compose":
                for name in world.chunks():
                    world.remove(name)

        hooked.before = before
        return hooked

    with pytest.raises(ChunksMissing):
        rewound(world, wrap, lsn=lsn)
    with world.open() as store:
        assert [info.name for info in store.segments()] == ["b"] and problems(store.check("deep")) == []


@TWO_WORLDS
def test_a_rotten_chunk_comes_back_nowhere(world: World) -> None:
    world.defaults["inline_bytes_max"] = 0
    with small(world) as store:
        store.create("a")
        store.append("a", pattern(0, 8))
        lsn = head(store)
        [chunk] = store.layout("a")
        store.delete("a")
    world.overwrite(chunk.name, bytes(8))
    with pytest.raises(Damaged) as caught:
        rewound(world, lsn=lsn)
    assert caught.value.object == chunk.name
    with world.open() as store:
        assert not [*store.segments()]


def test_a_chunk_that_grew_is_cut_in_the_metadata_only(world: World) -> None:
    """Bytes behind the recorded length are handed to nobody, and nothing is appended behind them."""
    world.defaults["inline_bytes_max"] = 0
    with world.open() as store:
        store.create("a")
        store.append("a", b"then;")
        lsn = head(store)
        store.append("a", b"later;")
    assert rewound(world, lsn=lsn).copied_chunks == 0
    with world.open() as store:
        assert store.read("a", 0, 99) == b"then;"
        store.append("a", b"again;")
        assert store.read("a", 0, 99) == b"then;again;"
    with world.open() as store:
        assert store.defrag("a", policy=DefragPolicy(fanout=2)).actions
        assert store.read("a", 0, 99) == b"then;again;" and problems(store.check("deep")) == []
        store.sweep(delete=True, age_s_min=0)
        assert store.read("a", 0, 99) == b"then;again;"


@TWO_WORLDS
def test_sessions_end(world: World) -> None:
    """A holder could attach again what was attached, removed and collected behind the moment."""
    with small(world) as store:
        store.create("a")
        session = store.session("job", ttl_s=3600)
        lsn = head(store)
        chunk = session.writer(0).write_chunk(world.storage(), 0, b"bytes")
        store.commit([Attach("a", session.id, (chunk,), 0)])
        store.delete("a")
        store.session("another", ttl_s=3600)
    report = rewound(world, lsn=lsn)
    assert report.sessions == ("another", "job")
    with world.open() as store:
        assert store.sessions() == []
        with pytest.raises(Conflict):
            store.commit([Attach("a", session.id, (chunk,), 0)])
        assert problems(store.check("deep")) == []


@TWO_WORLDS
def test_pins(world: World) -> None:
    with small(world, snapshots_kept=1) as store:
        store.create("a")
        store.append("a", b"1" * 8)
        stays = store.pin("stays").lsn
        store.pin("given up")
        store.append("a", b"2" * 8)
        lsn = head(store)
        store.unpin("given up")
        store.pin("given up")
        store.pin("behind")
        store.truncate("a", 8)
    report = rewound(world, snapshot="stays", dry_run=True)
    assert report.lsn == stays
    report = rewound(world, lsn=lsn)
    assert report.pins == ("behind", "given up") and report.pins_given_up == ()
    with small(world, snapshots_kept=1) as store:
        assert [pin.name for pin in store.pins()] == ["stays"]
        store.truncate("a", 16)
        store.snapshot()
        store.collect()
        assert problems(store.check("deep")) == []
        with world.replica(at_lsn=stays) as past:
            assert past.read("a", 0, 99) == b"1" * 8


@TWO_WORLDS
def test_snapshots_that_were_cut_off_count_for_nothing(world: World) -> None:
    """Two good ones stay: were the one that was cut off one of them, nothing would lead to the present once the newest is lost."""
    with small(world) as store:
        store.create("a")
        lsn = head(store)
        for _ in range(20):
            store.append("a", b"-")
        cut_off = store.snapshot().lsn
    rewound(world, lsn=lsn)
    with small(world) as store:
        store.append("a", b"then")
        assert store.snapshot().lsn < cut_off
        for _ in range(30):
            store.append("a", b".")
        newest = store.snapshot().lsn
        assert newest > cut_off
    with small(world, snapshots_kept=2) as store:
        assert store.collect().journal_objects
        assert problems(store.check("deep")) == []
    found = {world.names().parse_snapshot(name)[0]: name for name in world.objects() if name.endswith(".sn")}  # type: ignore[index]
    world.remove(found[newest])
    world.forget_cache()
    with world.open() as store:
        assert store.read("a", 0, 99) == b"then" + b"." * 30


@TWO_WORLDS
def test_a_live_owner_is_asked_for_patience(world: World) -> None:
    with world.open(lease_s=0.2) as store:
        store.create("a")
        store.create("b")
        with pytest.raises(ContainerBusy):
            rewound(world, lsn=2, wait_s=60)
        assert rewound(world, lsn=2, wait_s=0).epoch == 2
        with pytest.raises(NotOwner):
            store.create("c")


@TWO_WORLDS
def test_too_much_for_one_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.open(rolling=8) as store:
        store.create("a")
        store.append("a", pattern(0, 800))
        lsn = head(store)
        store.delete("a")
    monkeypatch.setattr(bring_back, "LIMITS", replace(LIMITS, record_bytes_max=70_000))
    before = world.objects()
    for dry_run in (True, False):
        with pytest.raises(Unsupported, match="into another root"):
            rewound(world, lsn=lsn, dry_run=dry_run)
    assert world.objects() == before


@TWO_WORLDS
def test_moments_that_are_none(world: World) -> None:
    with world.open() as store:
        store.create("a")
        last = head(store)
    calls: list[dict[str, Any]] = [{}, {"lsn": 0}, {"lsn": 99}, {"lsn": 1, "time": 5}, {"snapshot": "nothing"}]
    for given in calls:
        with pytest.raises(InvalidArgument):
            rewound(world, **given)
    report = rewound(world, lsn=last + 1)
    assert report.epoch == 0 and report.lsn == report.last_lsn == last + 1, "it is the present: nothing is cut off"
    with world.open() as store:
        assert store.epoch == 2


@TWO_WORLDS
def test_to_the_state_that_history_begins_with(world: World, tmp_path: Path) -> None:
    with world.open() as store:
        store.create("a")
        store.append("a", b"bytes")
    target = World(world.kind, world.mode, tmp_path / "target")
    try:
        old, new = world.raw_storage(), target.raw_storage()
        sides = {"owner": (new, target), "past": (old, world), "replica": (old, world)}

        def cache(role: str) -> ShelfCache:
            storage, of = sides[role]
            return ShelfCache(storage, "default", role, of._shelf)

        restore(old, new, settings=target.settings(), caches=None if world._uses_lmdb(None) else cache)
        with target.open() as made:
            made.delete("a")
        rewound(target, lsn=1)
        with target.open() as made:
            assert made.read("a", 0, 9) == b"bytes"
            assert [item for item in made.check("deep") if item.severity == "damage"] == []
    finally:
        target.close()
