"""``Settings(headers="import")``: a segment is imported from its header file when it is first named, in every world."""

from __future__ import annotations

from typing import Any

import pytest

import chunkstore
from chunkstore.backup import export_headers, import_headers
from chunkstore.changes import Append, Create
from chunkstore.errors import Damaged, DeadlineExceeded, SegmentExists, SegmentNotFound
from chunkstore.headers.importing import HeaderSource
from chunkstore.names import HEADERS_NAMESPACE
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


def test_changing_an_unknown_segment_imports_it(world: World) -> None:
    old_root(world)
    with world.open(headers="import") as store:
        store.append(EPOCH_SEGMENT, b"!")
        assert store.read(EPOCH_SEGMENT, 5, 100) == b"deep down!"
        store.delete("empty")
        assert not store.exists("empty")


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


def test_what_was_imported_by_hand_does_not_come_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old_root(world)
    at_root(world, monkeypatch)
    with world.open(headers="import") as store:
        assert import_headers(store, "file:///root").segments == ("a", "empty", EPOCH_SEGMENT)
        store.delete("a")
        assert not store.exists("a")


def test_headers_of_an_export_are_not_imported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that list chunks of the container, collected or not, nor those that list copies only."""
    at_root(world, monkeypatch)
    with world.open(headers="import", gc_grace_s=0) as store:
        for name in ("whole", "cut"):
            store.create(name)
            store.append(name, b"0123456789")
        store.truncate("cut", 3)
        assert export_headers(store, "file:///root").segments == 2
        for name in ("whole", "cut"):
            store.delete(name)
            assert not store.exists(name)
        store.collect()
        assert not store.exists("whole")
        store.create("whole")


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


def test_names_that_no_header_can_have_are_unknown_segments(world: World) -> None:
    with world.open(headers="import") as store:
        for name in ("../a", "a&b", "x" * 250):
            assert not store.exists(name)


def test_an_import_that_lasts_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old_root(world)
    go_on = chunkstore.runtime.event()
    real = HeaderSource.read

    def slow(self: Any, plan: Any) -> Any:
        go_on.wait(60)
        return real(self, plan)

    monkeypatch.setattr(HeaderSource, "read", slow)
    with world.open(headers="import", op_deadline_s=0.2) as store:
        with pytest.raises(DeadlineExceeded, match="which continues"):
            store.info("a")
        go_on.set()
        for _ in range(100):
            try:
                assert store.info("a").length == 13
                return
            except DeadlineExceeded:
                continue
        raise AssertionError("it never came")
