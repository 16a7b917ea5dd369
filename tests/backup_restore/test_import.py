"""Importing: an export, a backup or a container, or a part of it, as a new container or merged into one that works."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chunkstore import backup
from chunkstore.backup import importing
from chunkstore.backup.imports import merge_source
from chunkstore.backup.renaming import NamePlan, plan_names
from chunkstore.backup.restore import RestoreReport
from chunkstore.backup.sources import Moment, open_past
from chunkstore.config import RetentionPolicy
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunksMissing,
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    StorageUnavailable,
)
from chunkstore.metadata.importing import hidden_prefix
from chunkstore.metadata.keys import segment_key
from chunkstore.storage import ChunkStorage
from tests.backup_restore.test_restore import Cut, described, filled
from tests.support.data import pattern, problems, refused
from tests.support.worlds import ShelfCache, World


@pytest.fixture
def target(world: World, tmp_path: Path) -> Iterator[World]:
    """Another root, of the same kind."""
    made = World(world.kind, world.mode, tmp_path / "target")
    yield made
    made.close()


def caches(world: World, storage: ChunkStorage, role: str) -> ShelfCache:
    return ShelfCache(storage, "default", role, world._shelf)


@contextmanager
def state_of(world: World, plan: NamePlan, lsn: int | None = None) -> Iterator[Any]:
    storage = world.storage()
    made = None if world.kind == "filesystem" else lambda role: caches(world, storage, role)
    settings = world.settings()
    moment = Moment(lsn)
    with open_past(
        storage, container="default", moment=moment, settings=settings, caches=made, plan=plan, merges=True
    ) as source:
        yield source


def merged(
    world: World,
    store: ChunkedSegmentStorage,
    segments: tuple[str, ...] = (),
    rename: dict[str, str] | None = None,
    prefix: str = "",
    lsn: int | None = None,
    **given: Any,
) -> RestoreReport:
    """``merge_file`` of a world, with the caches of these worlds."""
    with state_of(world, plan_names(segments, rename, prefix), lsn) as source:
        return merge_source(source, store, **given)


def hidden(store: ChunkedSegmentStorage) -> int:
    """Segments that have no names yet."""
    start = segment_key("\0")
    return store.look(lambda view: len(list(view.scan(start, start + b"\xff" * 9))))


def test_everything_is_merged_beside_what_is_there(world: World, target: World) -> None:
    source = filled(world)
    expected = described(source)
    store = target.open(rolling=8)
    world.still(store)
    store.create("mine")
    store.append("mine", b"before")
    store.table("t").put(b"other", b"row")
    report = merged(world, store)
    assert (report.container, report.segments, report.missing) == ("default", len(expected), ())
    found = described(store)
    assert found.pop("mine")[6] == b"before"
    assert found == expected
    assert store.last_event_number("a", "w") == 4
    assert store.append("a", b"again", writer_id="w", event_number=4) == 0
    assert store.table("t").get(b"k").value == b"v"  # type: ignore[union-attr]
    # A policy of a prefix would be one of other segments here.
    assert store.retention() == {}
    assert backup.pending_imports(store) == [] and hidden(store) == 0
    assert problems(store.check("deep")) == []
    assert store.append("a", b"more") == 30 and store.read("a", 30, 9) == b"more"
    store.delete("joined")
    store.collect()
    assert problems(store.check("deep")) == []
    store.close()
    target.forget_cache()
    again = target.open(create=False)
    assert described(again)["b"] == expected["b"] and problems(again.check("deep")) == []


def test_names_are_given_as_planned(world: World, target: World) -> None:
    source = filled(world)
    source.set_retention("a", RetentionPolicy(size_bytes_max=9_999))
    expected = described(source)
    store = target.open()
    merged(world, store, ("a", "jo*"), {"a": "A"}, "old/")
    assert described(store) == {"A": expected["a"], "old/joined": expected["joined"]}
    assert store.retention() == {"A": RetentionPolicy(size_bytes_max=9_999)}
    assert [entry.key for entry in store.table("t").scan()] == []
    merged(world, store, ("a",))
    refused(
        InvalidArgument,
        lambda: merged(world, store, ("a",)),
        lambda: merged(world, store, ("b",), {"b": "A"}),
        lambda: merged(world, store, ("b",), {"b": "a"}),
        lambda: merged(world, store, ("b",), {"a": "c"}),
        lambda: merged(world, store, ("b", "joined"), {"b": "joined"}),
        lambda: merged(world, store, ("b", "joined"), {"b": "x", "joined": "x"}),
        lambda: merged(world, store, ("b",), prefix="x" * 255),
        lambda: merged(world, store, ("b",), prefix="\0"),
        lambda: merged(world, store, ("b",), {"b": ""}),
    )
    refused(SegmentNotFound, lambda: merged(world, store, ("b", "nowhere")), lambda: merged(world, store, ("no*",)))
    refused(Conflict, lambda: _with_row(store, lambda: merged(world, store, prefix="all/")))
    assert set(described(store)) == {"A", "old/joined", "a"} and backup.pending_imports(store) == []


def _with_row(store: ChunkedSegmentStorage, call: Any) -> None:
    store.table("t").put(b"k", b"something else")
    call()


def test_one_segment_comes_back_from_the_past_of_its_own_container(world: World) -> None:
    store = filled(world)
    lsn = store.pin("before").lsn
    expected = described(store)
    store.set_retention("a", RetentionPolicy(size_bytes_max=5))
    store.delete("a")
    merged(world, store, ("a",), lsn=lsn)
    assert described(store) == expected
    assert store.retention()["a"] == RetentionPolicy(size_bytes_max=5)
    assert store.last_event_number("a", "w") == 4
    assert problems(store.check("deep")) == []


def test_what_is_missing_is_listed_before_anything_happens(world: World, target: World) -> None:
    source = filled(world)
    lost = next(iter(source.layout("b"))).name
    kept = world.content(lost)
    world.remove(lost)
    store = target.open()
    world.still(store)
    before, lsn = target.objects(), store.look(lambda view: view.head.position.lsn)
    assert [item.chunk for item in merged(world, store, dry_run=True).missing] == [lost]
    refused(ChunksMissing, lambda: merged(world, store))
    assert target.objects() == before and store.look(lambda view: view.head.position.lsn) == lsn
    assert merged(world, store, ("a",)).segments == 1
    world.raw_storage().put(lost, kept[:-1] + bytes((kept[-1] ^ 1,)))
    refused(Damaged, lambda: merged(world, store, ("b",)))
    assert set(described(store)) == {"a"} and problems(store.check("deep")) == []
    world.raw_storage().put(lost, kept)
    merged(world, store, ("b",))
    assert store.read("b", 0, 1 << 20) == pattern(0, 200_000)


@pytest.mark.proof
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_merge_goes_on_wherever_it_was_interrupted(
    world: World, target: World, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """The storage fails once at the n-th call that changes anything; then the same call again, by the next owner."""
    for name, few in (("_CHUNKS", 3), ("_ROWS", 1), ("_NAMES", 2)):
        monkeypatch.setattr(importing, name, few)
    source = filled(world)
    lsn = source.pin("before").lsn
    expected = described(source)
    chance, tried = random.Random(11), 0
    for number in range(1, 1 << 20):
        if chance.random() < (0.97 if world.kind == "filesystem" else 0.8):
            continue
        container = f"c{number}"
        target.open(container).close()
        cut = Cut(0)
        store = target.open(container, wrap=cut.around(after=after), rolling=8)
        cut.left = number
        try:
            merged(world, store, lsn=lsn)
        except StorageUnavailable:
            names = {info.name for info in store.segments()}
            assert names <= set(expected)
            store.close()
            target.forget_cache()
            store = target.open(container, rolling=8)
            merged_or_whole(world, store, lsn, expected)
        assert described(store) == expected
        assert backup.pending_imports(store) == [] and hidden(store) == 0
        assert store.last_event_number("a", "w") == 4
        assert problems(store.check("deep")) == []
        store.close()
        tried += 1
        if cut.left:
            break
    assert tried


def merged_or_whole(world: World, store: ChunkedSegmentStorage, lsn: int, expected: dict[str, Any]) -> None:
    """Go on; where the last record was committed, but its answer lost, everything is there."""
    if not backup.pending_imports(store) and described(store) == expected:
        refused(InvalidArgument, lambda: merged(world, store, lsn=lsn))
        return
    merged(world, store, lsn=lsn)


def test_what_is_not_whole_is_not_seen_and_can_be_dropped(
    world: World, target: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_CHUNKS", 3)
    source = filled(world)
    rotten = next(iter(source.layout("joined"))).name
    sound = world.content(rotten)
    world.overwrite(rotten, bytes(len(sound)))
    store = target.open(rolling=8, gc_grace_s=0)
    world.still(store)
    store.create("a")
    store.append("a", b"mine")
    refused(Damaged, lambda: merged(world, store, prefix="x/"))
    (pending,) = backup.pending_imports(store)
    assert pending.phase == "segments" and hidden(store) > 0
    assert [info.name for info in store.segments()] == [info.name for info in store.segments(after="")] == ["a"]
    store.set_retention("*", RetentionPolicy(size_bytes_max=1))
    assert store.apply_retention().segments <= 1
    assert problems(store.check("deep")) == []
    # Names that begin so cannot be said, and an export of a prefix has none of them.
    name = hidden_prefix(bytes.fromhex(pending.id)) + "0"
    refused(InvalidArgument, lambda: store.info(name), lambda: store.delete(name))
    store.defrag()
    refused(InvalidArgument, lambda: backup.drop_import(store, "00" * 16), lambda: backup.drop_import(store, "x"))
    backup.drop_import(store, pending.id)
    assert backup.pending_imports(store) == [] and hidden(store) == 0 and store.garbage()[0] > 0
    store.collect()
    assert store.garbage()[0] == 0 and problems(store.check("deep")) == []
    world.overwrite(rotten, sound)
    expected = {f"x/{name}": found for name, found in described(source).items()}
    merged(world, store, prefix="x/")
    found = described(store)
    found.pop("a")
    assert found == expected


def test_a_name_that_is_taken_meanwhile_stops_it_and_it_goes_on_once_it_is_free(world: World, target: World) -> None:
    filled(world)
    store = target.open(rolling=8)
    world.still(store)
    refused(SegmentExists, lambda: merged(world, store, progress=lambda _: store.exists("a") or store.create("a")))
    assert len(backup.pending_imports(store)) == 1
    assert [info.name for info in store.segments()] == ["a"]
    refused(InvalidArgument, lambda: merged(world, store))
    store.delete("a")
    merged(world, store)
    assert store.read("a", 11, 99) == pattern(0, 30)[11:] and problems(store.check("deep")) == []


def test_the_owner_works_meanwhile_and_two_imports_do_not_mix(
    world: World, target: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_CHUNKS", 3)
    source = filled(world)
    expected = described(source)
    store = target.open(rolling=8)
    world.still(store)
    store.create("mine")
    done = list[int]()

    def meanwhile(_: int) -> None:
        store.append("mine", b"more")
        if not done:
            done.append(1)
            merged(world, store, ("b", "a"), prefix="other/")
            refused(InvalidArgument, lambda: merged(world, store, ("b", "a"), prefix="other/"))

    merged(world, store, progress=meanwhile)
    found = described(store)
    assert found.pop("mine")[6].startswith(b"moremore")
    assert {name: value for name, value in found.items() if not name.startswith("other/")} == expected
    assert found["other/a"] == expected["a"] and found["other/b"] == expected["b"]
    assert problems(store.check("deep")) == []


def test_the_same_import_twice_at_once_ends_once(world: World, target: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever moves the mark goes on; the other one is told, and has changed nothing."""
    monkeypatch.setattr(importing, "_CHUNKS", 3)
    expected = described(filled(world))
    store = target.open(rolling=8)
    world.still(store)
    inner = list[RestoreReport]()

    def other(_: int) -> None:
        if not inner:
            inner.append(RestoreReport("", 0, 0, 0, 0, 0, (), 0, False))
            inner[0] = merged(world, store)

    refused(Conflict, lambda: merged(world, store, progress=other))
    assert inner[0].segments == len(expected) and described(store) == expected
    assert problems(store.check("deep")) == []


def test_dropped_meanwhile_it_stops(world: World, target: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_CHUNKS", 3)
    filled(world)
    store = target.open(rolling=8)
    world.still(store)

    def drop(_: int) -> None:
        for item in backup.pending_imports(store):
            backup.drop_import(store, item.id)

    refused(Conflict, lambda: merged(world, store, progress=drop))
    assert hidden(store) == 0 and backup.pending_imports(store) == [] and not list(store.segments())


def test_an_owner_that_is_deposed_meanwhile_stops_and_the_next_one_goes_on(world: World, target: World) -> None:
    expected = described(filled(world))
    store = target.open(rolling=8)
    world.still(store)
    opened = list[ChunkedSegmentStorage]()

    def claim(_: int) -> None:
        if not opened:
            opened.append(target.open(rolling=8))
            merged(world, opened[0])

    with pytest.raises(Exception) as caught:
        merged(world, store, progress=claim)
    assert type(caught.value).__name__ in ("NotOwner", "OutcomeUnknown")
    assert described(opened[0]) == expected and problems(opened[0].check("deep")) == []
