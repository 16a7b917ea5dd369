"""Segments out of a container as header files, and into one, in every world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import chunkstore
from chunkstore.backup import export_headers, import_headers, survey_headers
from chunkstore.config import Settings
from chunkstore.errors import (
    Damaged,
    InvalidArgument,
    SegmentNotFound,
)
from chunkstore.headers import exporting, importing
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from tests.support.worlds import World, world

__all__ = ["world"]

SMALL = chunkstore.RollingPolicy(chunk_size_bytes_max=10)
DATA = bytes(range(256))


class Old:
    """A folder with header files."""

    def __init__(self, opened: Callable[[], ChunkStorage], url: str) -> None:
        self.storage = opened()
        self.url = url

    def put(self, **files: bytes) -> None:
        for name, data in files.items():
            self.storage.put(name.replace("_header", "$header"), data)

    def seal(self, name: str) -> None:
        self.storage.set_read_only(ChunkHandle(name, True), True)

    def content(self, name: str) -> bytes:
        return self.storage.read(ChunkHandle(name, False), 0, self.storage.stat(name).length)


@pytest.fixture
def old(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty folder beside the world's root, of the same kind."""
    url = f"{world.url}-old" if world.kind == "memory" else (world.tmp_path / "old").as_uri()

    def opened(where: str, settings: Settings) -> ChunkStorage:
        if where == "root":
            return world.raw_storage()
        return (
            MemoryChunkStorage(where, append=world.appends) if world.kind == "memory" else open_storage(where, settings)
        )

    for module in (exporting, importing):
        monkeypatch.setattr(module, "open_storage", opened)
        monkeypatch.setattr(module, "root_url", lambda where, _argument: where)
    made = Old(partial(opened, url, Settings()), url)
    yield made
    made.storage.close()
    forget_memory(url)


def filled(world: World) -> chunkstore.ChunkedSegmentStorage:
    """Segments of every kind."""
    store = world.open()
    for name in ("open", "sealed", "cut", "cut-all", "empty", "scope/stream/0.#epoch.0"):
        store.create(name, rolling=SMALL)
        for at in range(0, 0 if name == "empty" else 45, 9):
            store.append(name, DATA[at : at + 9])
    store.create("source")
    store.append("source", b"concatenated")
    store.seal("source")
    store.concat("open", 45, "source")
    store.seal("sealed")
    store.truncate("cut", 23)
    store.truncate("cut-all", 45)
    return store


def facts(store: chunkstore.ChunkedSegmentStorage) -> dict[str, tuple[int, int, bool, bytes]]:
    return {
        info.name: (info.start_offset, info.length, info.sealed, store.read(info.name, info.start_offset, 1000))
        for info in store.segments()
    }


def test_all_segments_there_and_back(world: World, old: Old) -> None:
    with filled(world) as store:
        wanted = facts(store)
        report = export_headers(store, "root")
        assert report.segments == len(wanted)
        assert report.copied <= 2
        other = world.open("other")
        found = import_headers(other, "root")
        assert sorted(found.segments) == sorted(wanted)
        assert [item for item in found.findings if item.severity != "info"] == []
        assert facts(other) == wanted
        assert other.check("deep") == []
        other.append("cut-all", b"goes on")
        assert other.read("cut-all", 45, 100) == b"goes on"
        other.close()
        assert facts(world.open("other")) == wanted | {"cut-all": (45, 52, False, b"goes on")}


def test_headers_are_replaced_only_when_that_is_asked_for(world: World, old: Old) -> None:
    with filled(world) as store:
        export_headers(store, old.url, ["cut"])
        before = old.content("cut$header")
        with pytest.raises(InvalidArgument, match="replace=True"):
            export_headers(store, old.url)
        assert [item.name for item in old.storage.list().items if item.name.endswith("$header")] == ["cut$header"]
        store.append("cut", b"more")
        store.seal("cut")
        for _ in range(2):
            export_headers(store, old.url, ["cut"], replace=True)
        assert old.content("cut$header") != before
        assert not old.storage.open_write("cut$header").writable
        assert len(old.storage.list().items) == 2, "the former copies are gone"


def test_foreign_files_are_never_deleted(world: World, old: Old) -> None:
    old.put(**{"cut_header": b"0=cut$offset.0&9=cut$offset.9.x&12=cut$offset.12&", "cut$offset.0": b"x" * 9})
    with filled(world) as store:
        export_headers(store, old.url, ["cut"], replace=True)
    assert old.content("cut$offset.0") == b"x" * 9


# In


def test_segments_of_header_files(world: World, old: Old) -> None:
    old.put(
        t_header=b"maxsize=10&0=t$offset.0&10=t$offset.10&concat=2@14&maxsize=7&0=s$offset.0&7=s$offset.7&",
        **{"t$offset.0": DATA[:10], "t$offset.10": DATA[10:14], "s$offset.0": DATA[14:21], "s$offset.7": DATA[21:25]},
        cut_header=b"maxsize=5&0=gone&5=gone too&10=cut$offset.10&15=cut$offset.15&",
        **{"cut$offset.10": b"eleve", "cut$offset.15": b"16"},
        unborn_header=b"",
        hollow_header=b"maxsize=5&",
        pre_rolling=b"older than headers",
    )
    old.seal("cut$header")
    with world.open() as store:
        found = import_headers(store, old.url)
        assert facts(store) == {
            "cut": (10, 17, True, b"eleve16"),
            "hollow": (0, 0, False, b""),
            "t": (0, 25, False, DATA[:25]),
        }
        assert found.length == 32
        assert {(item.segment, item.severity) for item in found.findings} == {("cut", "info"), ("unborn", "info")}
        import_headers(store, old.url, ["pre_rolling"])
        assert store.read("pre_rolling", 0, 100) == b"older than headers"
        assert store.check("deep") == []
        with pytest.raises(SegmentNotFound, match="did not finish"):
            import_headers(store, old.url, ["unborn"])
        with pytest.raises(SegmentNotFound, match="neither"):
            import_headers(store, old.url, ["nothing"])


def test_damage_is_found_before_anything_happens(world: World, old: Old) -> None:
    old.put(a_header=b"0=x&", x=b"abc", b_header=b"0=y&3=z&", y=b"def", c_header=b"0=../x&", d_header=b"0=x&5=x&")
    with world.open() as store:
        with pytest.raises(Damaged, match="3 cannot be imported") as refused:
            import_headers(store, old.url)
        assert (refused.value.object, refused.value.position) == ("z", 0)
        assert not list(store.segments())
        found = survey_headers(old.url)
        assert found.segments == ("a",)
        assert [(item.segment, item.object, item.position) for item in found.findings if item.severity == "damage"] == [
            ("b", "z", 0),
            ("c", "c$header", 0),
            ("d", "d$header", 4),
        ]
