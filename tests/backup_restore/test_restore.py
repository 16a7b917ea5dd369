"""Restoring into another root: the state of that moment, whole and ours, or nothing that anybody takes for a container."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore.backup import copy_in, founding, survey
from chunkstore.backup.restore import RestoreReport, restore
from chunkstore.config import RetentionPolicy, RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunksMissing,
    ContainerNotFound,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
    SegmentSealed,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.metadata import index
from chunkstore.storage import ChunkStorage
from tests.support.data import pattern, problems, refused
from tests.support.forwarding import Hooked
from tests.support.worlds import ShelfCache, World


@pytest.fixture
def target(world: World, tmp_path: Path) -> Iterator[World]:
    """Another root, of the same kind."""
    made = World(world.kind, world.mode, tmp_path / "target")
    yield made
    made.close()


def restored(
    world: World, target: World, wrap: Callable[[ChunkStorage], ChunkStorage] | None = None, **given: Any
) -> RestoreReport:
    """``restore`` with the caches of these worlds."""
    old, new = world.storage(), target.storage(wrap)
    settings = target.settings(rolling=given.pop("rolling", None))
    if world.kind == "filesystem":
        return restore(old, new, settings=settings, **given)
    sides = {"owner": (new, target), "past": (old, world), "replica": (old, world)}

    def caches(role: str) -> ShelfCache:
        storage, of = sides[role]
        container = given.get("new_container") or given.get("container", "default")
        return ShelfCache(storage, container if role == "owner" else given.get("container", "default"), role, of._shelf)

    return restore(old, new, settings=settings, caches=caches, **given)


def described(store: Any) -> dict[str, Any]:
    """Everything that a restore keeps, in words that know no ids."""
    found: dict[str, Any] = {}
    for info in store.segments():
        found[info.name] = (
            info.start_offset, info.length, info.sealed, dict(info.attributes), info.created_at, info.modified_at,
            store.read(info.name, info.start_offset, info.length),
            [(chunk.offset, chunk.length) for chunk in store.layout(info.name)],
            store.offset_at(info.name, info.created_at),
        )  # fmt: skip
    return found


def filled(world: World) -> ChunkedSegmentStorage:
    """A container with one of everything."""
    store = world.open(rolling=8)
    world.still(store)
    store.create("a", attributes={"k": "v", "n": 7})
    store.append("a", pattern(0, 30), writer_id="w", event_number=4)
    store.truncate("a", 11)
    store.create("b", rolling=RollingPolicy(chunk_size_bytes_max=1 << 20))
    store.append("b", pattern(0, 200_000))
    store.seal("b")
    store.create("empty", attributes={"x": b"\0"})
    store.create("gone")
    store.append("gone", b"xyz")
    store.truncate("gone", 3)
    store.create("joined")
    store.append("joined", pattern(5, 20))
    store.create("part")
    store.append("part", pattern(25, 20))
    store.seal("part")
    store.concat("joined", 20, "part")
    store.create("ü/☂")
    store.append("ü/☂", b"utf-8")
    store.table("t").put(b"k", b"v")
    store.table("a longer name").put(b"\xff\0", b"")
    store.set_retention("orders-*", RetentionPolicy(size_bytes_max=5))
    store.set_quota(1 << 30)
    store.pin("nightly")
    store.delete("empty")
    store.create("empty", attributes={"x": b"\1"})
    return store


def test_a_state_without_chunks_is_restored(world: World, target: World) -> None:
    store = world.open()
    world.still(store)
    store.create("empty", attributes={"x": b"\0"})
    assert restored(world, target, dry_run=True).chunks == 0
    assert restored(world, target).segments == 1
    new = target.open()
    assert described(new) == described(store)
    assert new.check("deep") == []


def test_everything_of_that_moment_is_there(world: World, target: World) -> None:
    store = filled(world)
    lsn = store.pin("before").lsn
    expected = described(store)
    last = store.last_event_number("a", "w")
    store.delete("b")
    store.append("a", b"later")
    store.table("t").put(b"k", b"changed")
    report = restored(world, target, lsn=lsn)
    assert (report.container, report.lsn, report.dry_run, report.missing) == ("default", lsn, False, ())
    assert report.segments == len(expected)
    new = target.open()
    assert described(new) == expected
    assert new.check("deep") == []
    assert new.last_event_number("a", "w") == last == 4
    assert new.append("a", pattern(0, 30), writer_id="w", event_number=4) == 0
    assert new.table("t").get(b"k").value == b"v"  # type: ignore[union-attr]
    assert [entry.key for entry in new.table("a longer name").scan()] == [b"\xff\0"]
    assert new.retention() == {"orders-*": RetentionPolicy(size_bytes_max=5)}
    assert new.usage().quota_bytes == 1 << 30
    assert new.pins() == [] and new.usage().garbage_bytes == 0
    assert all(info.id >> 32 == 1 for info in new.segments())
    refused(SegmentSealed, lambda: new.append("b", b"x"))
    assert new.append("a", b"more") == 30 and new.read("a", 30, 9) == b"more"
    new.truncate("a", 20)
    new.delete("joined")
    new.snapshot()
    new.collect()
    assert problems(new.check("deep")) == []
    # The other one is as it was.
    assert store.read("a", 30, 9) == b"later" and problems(store.check("deep")) == []


def test_by_pin_by_time_and_now(world: World, target: World) -> None:
    store = world.open()
    world.still(store)
    store.create("a")
    store.append("a", b"x")
    pin = store.pin("nightly")
    store.append("a", b"y")
    assert restored(world, target, snapshot="nightly", new_container="pinned").lsn == pin.lsn
    assert restored(world, target, time=pin.created_at, new_container="timed").lsn >= pin.lsn
    assert restored(world, target, new_container="now").lsn > pin.lsn
    for container, expected in (("pinned", b"x"), ("now", b"xy")):
        assert target.open(container).read("a", 0, 9) == expected
    refused(
        InvalidArgument,
        lambda: restored(world, target, snapshot="other", new_container="c"),
        lambda: restored(world, target, snapshot="nightly", lsn=3, new_container="c"),
        lambda: restored(world, target, lsn=3, time=3, new_container="c"),
        lambda: restored(world, target, lsn=10_000, new_container="c"),
        lambda: restored(world, target, new_container="../c"),
    )
    assert "c" not in {name.split("/")[0] for name in target.objects()}


def test_a_target_that_exists_is_left_alone(world: World, target: World) -> None:
    store = filled(world)
    store.close()
    there = target.open()
    there.create("mine")
    objects = target.objects()
    refused(InvalidArgument, lambda: restored(world, target))
    assert target.objects() == objects and there.append("mine", b"x") == 0
    there.close()
    refused(InvalidArgument, lambda: restored(world, target))
    empty = target.open("empty")
    empty.close()
    refused(InvalidArgument, lambda: restored(world, target, new_container="empty"))
    refused(InvalidArgument, lambda: restored(world, world))


def test_missing_chunks_are_listed_before_anything_is_made(world: World, target: World) -> None:
    store = filled(world)
    lsn = store.pin("before").lsn
    lost = [next(iter(store.layout(name))).name for name in ("b", "joined")]
    world.remove(lost[0])
    world.overwrite(lost[1], world.content(lost[1])[:-1])
    report = restored(world, target, lsn=lsn, dry_run=True)
    assert report.dry_run and report.missing_chunks == 2
    assert [item.chunk for item in report.missing] == lost
    with pytest.raises(ChunksMissing) as caught:
        restored(world, target, lsn=lsn)
    error = caught.value
    assert error.count == 2 and error.chunks == report.chunks
    assert [item["segment"] for item in error.missing] == ["b", "joined"]
    assert error.missing[0]["reason"] == "absent" and (error.missing[0]["start"], error.missing[0]["stop"]) == (
        0,
        200_000,
    )
    assert target.objects() == []
    refused(ContainerNotFound, lambda: target.open(create=False))


def test_rot_is_found_on_the_way_and_nobody_sees_what_is_half_made(world: World, target: World) -> None:
    store = filled(world)
    lsn = store.pin("before").lsn
    expected = described(store)
    (chunk,) = (chunk.name for chunk in store.layout("b"))
    sound = world.content(chunk)
    world.overwrite(chunk, sound[:-1] + bytes((sound[-1] ^ 1,)))
    with pytest.raises(Damaged) as caught:
        restored(world, target, lsn=lsn)
    assert caught.value.object == chunk
    refused(Unsupported, target.open, target.replica)
    world.overwrite(chunk, sound)
    restored(world, target, lsn=lsn)
    assert described(target.open()) == expected


def test_what_an_earlier_try_has_copied_is_compared_and_used(
    world: World, target: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_PAGE", 2)
    store = filled(world)
    lsn = store.pin("before").lsn
    expected = described(store)
    (chunk,) = (chunk.name for chunk in store.layout("b"))
    sound = world.content(chunk)
    world.overwrite(chunk, sound[:-1] + bytes((sound[-1] ^ 1,)))
    with pytest.raises(Damaged):
        restored(world, target, lsn=lsn)
    rotten, *first = (name for name in target.objects("default/d/") if len(target.content(name)) < 9)
    target.overwrite(rotten, bytes(8))
    world.overwrite(chunk, sound)
    restored(world, target, lsn=lsn)
    new = target.open()
    used = {chunk.name for name in expected for chunk in new.layout(name)}
    assert first and used >= {*first} and rotten not in used
    assert described(new) == expected
    assert problems(new.check("deep")) == []


class Cut:
    """The storage fails at the call of this number that changes anything, once."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, operation: str, names: tuple[str, ...]) -> None:
        if operation in ("create", "create_if_absent", "put", "write", "sync") and self.left:
            self.left -= 1
            if not self.left:
                raise StorageUnavailable("cut", object=names[0])

    def around(self, *, after: bool) -> Callable[[ChunkStorage], ChunkStorage]:
        def wrap(inner: ChunkStorage) -> ChunkStorage:
            made = Hooked(inner)
            setattr(made, "after" if after else "before", self)
            return made

        return wrap


@pytest.mark.proof
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_it_goes_on_wherever_it_was_interrupted(
    world: World, target: World, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """The storage fails once at the n-th call that changes anything, for every n; then the same call again, on another machine."""
    monkeypatch.setattr(survey, "_PAGE", 3)
    monkeypatch.setattr(copy_in, "_WINDOW_BYTES", 70_000)
    monkeypatch.setattr(copy_in, "_HELD_BYTES", 100_000)
    store = filled(world)
    lsn = store.pin("before").lsn
    expected = {name: found[:7] for name, found in described(store).items()}
    chance = random.Random(7)
    tried = 0
    for number in itertools.count(1):
        if chance.random() < (0.85 if world.kind == "filesystem" else 0.5) and number > 6:
            continue
        container = f"c{number}"
        cut = Cut(number)
        try:
            restored(world, target, wrap=cut.around(after=after), lsn=lsn, new_container=container)
        except StorageUnavailable:
            target.forget_cache()
            restored(world, target, lsn=lsn, new_container=container)
        new = target.open(container)
        assert {name: found[:7] for name, found in described(new).items()} == expected
        assert new.last_event_number("a", "w") == 4
        assert [entry.value for entry in new.table("t").scan()] == [b"v"]
        assert problems(new.check("deep")) == []
        new.close()
        tried += 1
        if cut.left:
            break
    assert tried > 10


def test_a_long_segment_and_many_writers_come_page_by_page(
    world: World, target: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_PAGE", 4)
    monkeypatch.setattr(founding, "_SPOOL_PAGE", 3)
    store = world.open(rolling=4)
    world.still(store)
    store.create("a")
    for number in range(10):
        store.append("a", pattern(number * 4, 4), writer_id=f"w{number}", event_number=number + 1)
    store.create("b")
    store.append("b", b"b", writer_id="w", event_number=1)
    lsn = store.pin("before").lsn
    restored(world, target, lsn=lsn)
    new = target.open()
    assert new.read("a", 0, 99) == pattern(0, 40)
    assert [new.last_event_number("a", f"w{number}") for number in range(10)] == list(range(1, 11))
    assert new.last_event_number("b", "w") == 1
    assert new.check("deep") == []


def test_some_segments_with_what_belongs_to_them(world: World, target: World) -> None:
    store = filled(world)
    store.set_retention("a", RetentionPolicy(size_bytes_max=9_999))
    store.set_retention("unborn", RetentionPolicy(size_bytes_max=1))
    expected = described(store)
    dry = restored(world, target, segments=["a", "jo*"], dry_run=True)
    assert (dry.segments, dry.rows) == (2, 1)
    report = restored(world, target, segments=["a", "jo*"])
    assert report == dry._replace(dry_run=False)
    new = target.open()
    world.still(new)
    assert described(new) == {"a": expected["a"], "joined": expected["joined"]}
    assert new.retention() == {"a": RetentionPolicy(size_bytes_max=9_999)}
    assert [entry.key for entry in new.table("t").scan()] == []
    assert new.append("a", pattern(0, 30), writer_id="w", event_number=4) == 0
    assert problems(new.check("deep")) == []
    refused(
        SegmentNotFound,
        lambda: restored(world, target, segments=["b", "nowhere"], new_container="other"),
        lambda: restored(world, target, segments=["no*"], new_container="other"),
    )
    refused(InvalidArgument, lambda: restored(world, target, segments="a", new_container="other"))
    assert not target.objects("other/")


def test_rows_that_do_not_hold_together_never_become_a_container(
    world: World, target: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(world)
    lsn = store.pin("before").lsn

    def shortened(get: Any, segment: Any) -> Iterator[Any]:
        found = list(index.walk(get, segment))
        yield from found[: len(found) - (segment.name == "joined")]

    monkeypatch.setattr("chunkstore.backup.survey.walk", shortened)
    with pytest.raises(Damaged):
        restored(world, target, lsn=lsn)
    assert not target.storage().list("")[0]


def test_the_source_may_go_on_meanwhile(world: World, target: World) -> None:
    """Its owner appends, removes and collects without grace: a pin keeps the moment, and it is copied as it was."""
    store = world.open(rolling=8, gc_grace_s=0, snapshots_kept=1)
    world.still(store)
    store.create("a")
    store.append("a", pattern(0, 100))
    lsn = store.pin("before").lsn
    count = 0

    def wrap(storage: ChunkStorage) -> ChunkStorage:
        made = Hooked(storage)

        def meddle(operation: str, names: tuple[str, ...]) -> None:
            nonlocal count
            if operation == "create" and "/d/" in names[0]:
                count += 1
                if count == 1:
                    store.delete("a")
                store.snapshot()
                store.collect()

        made.before = meddle
        return made

    restored(world, target, wrap=wrap, lsn=lsn)
    assert count and not store.exists("a")
    assert target.open().read("a", 0, 999) == pattern(0, 100)
