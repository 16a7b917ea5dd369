"""``Settings(headers="import")``: a segment is imported from its header file when it is first named, in every world."""

from __future__ import annotations

import pytest

from chunkstore.backup import import_headers
from chunkstore.changes import Append, Create
from chunkstore.errors import Damaged, SegmentExists, SegmentNotFound
from chunkstore.records.names import HEADERS_NAMESPACE
from tests.support.header_files import EPOCH_SEGMENT, facts, old_root, put
from tests.support.worlds import World


def at_root(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("importing", "exporting"):
        monkeypatch.setattr(f"chunkstore.headers.{module}.open_storage", lambda *_: world.raw_storage())


def test_by_default_header_files_are_ignored(world: World) -> None:
    old_root(world)
    before = {name: world.content(name) for name in world.objects()}
    with world.open() as store:
        assert not store.exists("a")
        store.create("a")
        assert facts(store) == {"a": (0, 0, False, b"")}
    assert {name: world.content(name) for name in before} == before


def test_a_segment_is_imported_when_it_is_asked_for(world: World) -> None:
    expected = old_root(world)
    before = {name: world.content(name) for name in world.objects()}
    with world.open(headers="import") as store:
        assert [*store.segments()] == []
        assert store.read("a", 5, 6) == b"56789a"
        assert [info.name for info in store.segments()] == ["a"]
        with pytest.raises(SegmentExists):
            store.create("empty")
        with pytest.raises(SegmentExists):
            store.commit([Create(EPOCH_SEGMENT), Append(EPOCH_SEGMENT, b"x")])
        assert facts(store) == expected
        with pytest.raises(SegmentNotFound):
            store.info("unborn")
        store.create("unborn")
        assert store.check("deep") == []
    world.forget_cache()
    with world.open() as store:
        assert facts(store) == expected | {"unborn": (0, 0, False, b"")}
    assert {name: world.content(name) for name in before} == before


def test_a_replica_imports_nothing(world: World) -> None:
    old_root(world)
    world.open().close()
    with world.replica(headers="import") as replica:
        assert not replica.exists("a")


def test_a_deleted_segment_does_not_come_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old_root(world)
    at_root(world, monkeypatch)
    with world.open(headers="import") as store:
        store.delete("a")
        assert not store.exists("a")
    world.forget_cache()
    with world.open(headers="import") as store:
        assert store.table(HEADERS_NAMESPACE).get(b"a") is not None
        assert not store.exists("a")
        store.create("a")
        store.append("a", b"another")
        assert store.read("a", 0, 100) == b"another"
        store.delete("a")
        assert import_headers(store, "file:///root", ["a"]).segments == ("a",), "an import by name is one"


def test_headers_that_name_files_of_containers_or_backups_are_not_imported(world: World) -> None:
    """What is stored at a root gives one container nothing of its neighbours, and nothing of its own journal."""
    put(
        world,
        **{"other/FORMAT": b"", "backups/BACKUP": b"", "other/d/00/secret": b"secret", "backups/secret": b"secret"},
    )
    put(
        world,
        peek_header=b"0=other/d/00/secret&",
        spy_header=b"0=backups/secret&",
        own_header=f"0={world.names().format}&".encode(),
    )
    with world.open(headers="import") as store:
        assert [name for name in ("peek", "spy", "own") if store.exists(name)] == []
        store.create("peek")
        assert store.read("peek", 0, 100) == b""


def test_hostile_headers_are_refused_by_position_and_nothing_is_imported(world: World) -> None:
    old_root(world)
    put(world, bad_header=b"maxsize=10&x=y&", short_header=b"0=s0&10=s1&", s0=b"123", s1=b"")
    with world.open(headers="import") as store:
        for _ in range(2):
            with pytest.raises(Damaged) as refused:
                store.append("bad", b"1")
            assert (refused.value.object, refused.value.position) == ("bad$header", 11)
            with pytest.raises(Damaged) as refused:
                store.create("short")
            assert (refused.value.object, refused.value.position) == ("s0", 3)
        assert [*store.segments()] == []
