"""Segments out of a container as header files, and into one, in every world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import chunkstore
from chunkstore.backup import export_headers, import_headers, survey_headers
from chunkstore.changes import Append, Create
from chunkstore.codec.rolling_header import ChunkEntry
from chunkstore.config import Settings
from chunkstore.errors import (
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
    StorageUnavailable,
)
from chunkstore.headers import exporting, importing
from chunkstore.headers.importing import HeaderSource
from chunkstore.operations.read import find_segment
from chunkstore.owner import attach_written
from chunkstore.reading import context_of
from chunkstore.registry import open_storage
from chunkstore.sessions import SessionChunk, SessionWriter
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from tests.support.header_files import decode_entries
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


def test_a_replica_exports(world: World, old: Old) -> None:
    with filled(world), world.replica() as replica:
        assert export_headers(replica, old.url, ["open", "open"]).segments == 1
        assert old.content("open$header").startswith(b"maxsize=10&0=default/d/")


def test_a_last_chunk_that_is_longer_than_its_record_is_copied(world: World, old: Old) -> None:
    with filled(world) as store:
        last = list(store.layout("sealed"))[-1]
        world.overwrite(last.name, world.content(last.name) + b"never acknowledged")
        report = export_headers(store, old.url, ["sealed"])
        assert (report.copied, report.copied_bytes) == (1, last.length)
        entry = decode_entries(old.content("sealed$header"))[-1]
        assert isinstance(entry, ChunkEntry)
        assert old.content(entry.name) == DATA[last.offset : 45]


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


def test_exports_that_are_refused_write_nothing(world: World, old: Old) -> None:
    with filled(world) as store:
        with pytest.raises(SegmentNotFound):
            export_headers(store, old.url, ["open", "none"])
        store.create("a&b")
        with pytest.raises(InvalidArgument, match="export the other segments by name"):
            export_headers(store, old.url)
        store.delete("a&b")
        store.create("default/FORMAT")
        with pytest.raises(InvalidArgument, match="container 'default'"):
            export_headers(store, "root")
        with pytest.raises(InvalidArgument):
            export_headers(store, old.url, "open")
    assert old.storage.list().items == ()


def test_a_last_chunk_that_is_too_short_is_damage(world: World, old: Old) -> None:
    with filled(world) as store:
        last = list(store.layout("sealed"))[-1]
        world.overwrite(last.name, b"")
        with pytest.raises(Damaged, match="run check"):
            export_headers(store, old.url, ["sealed"])
    assert old.storage.list().items == ()


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


def long_segment(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not fit a single commit: pieces of 16 bytes, across files of 10."""
    monkeypatch.setattr(importing, "PIECE_BYTES", 16)
    old.put(
        s_header=b"maxsize=10&0=gone&" + b"".join(b"%d=n%d&" % (at, at) for at in range(10, 60, 10)),
        **{f"n{at}": DATA[at : at + 10] for at in range(10, 60, 10)},
    )


def test_a_long_segment_appears_whole(world: World, old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    long_segment(old, monkeypatch)
    with world.open() as store:
        import_headers(store, old.url)
        assert facts(store) == {"s": (10, 60, False, DATA[10:60])}
        assert [chunk.length for chunk in store.layout("s")] == [16, 16, 16, 2]
        store.append("s", b"x")
        store.truncate("s", 33)
        assert store.read("s", 33, 100) == DATA[33:60] + b"x"
        assert store.check("deep") == []
    world.forget_cache()
    with world.open() as store:
        assert store.read("s", 33, 100) == DATA[33:60] + b"x"


def test_an_import_that_fails_leaves_nothing(world: World, old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    long_segment(old, monkeypatch)
    with world.open() as store:
        real = SessionWriter.write_chunk

        def fails(self: SessionWriter, storage: ChunkStorage, number: int, data: Any) -> SessionChunk:
            if number == 2:
                raise StorageUnavailable("planted")
            return real(self, storage, number, data)

        with monkeypatch.context() as patched:
            patched.setattr(SessionWriter, "write_chunk", fails)
            with pytest.raises(StorageUnavailable, match="planted"):
                import_headers(store, old.url)
        assert not list(store.segments())
        assert store.sessions() == []
        import_headers(store, old.url)
        assert list(facts(store)) == ["s"]
        assert store.sessions() == []


def test_an_import_that_was_killed_begins_its_segment_anew(
    world: World, old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_segment(old, monkeypatch)
    with world.open() as store:
        session = store.session("header file of s")
        session.writer().write_chunk(world.raw_storage(), 0, b"what a killed import had written")
        import_headers(store, old.url)
        assert facts(store) == {"s": (10, 60, False, DATA[10:60])}
        assert store.sessions() == [], "its session was found, and ended"
        session.mark_ended()


def test_another_import_of_the_same_segment_does_not_mix_in(
    world: World, old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has imported the segment just before the commit, and somebody deleted it."""
    long_segment(old, monkeypatch)
    with world.open() as store:
        real = attach_written

        def late(*given: Any, **more: Any) -> int:
            with monkeypatch.context() as patched:
                patched.setattr(importing, "attach_written", real)
                import_headers(store, old.url)
            store.delete("s")
            return real(*given, **more)

        monkeypatch.setattr(importing, "attach_written", late)
        with pytest.raises(Conflict):
            import_headers(store, old.url)
        assert not store.exists("s")


@pytest.mark.parametrize("long", [False, True])
def test_a_source_that_changes_is_refused(world: World, old: Old, monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    long_segment(old, monkeypatch)
    if not long:
        monkeypatch.setattr(importing, "PIECE_BYTES", 100)
    real = HeaderSource.read

    def changed(self: Any, plan: Any) -> Any:
        yield from real(self, plan)
        old.storage.put("n50", DATA[50:61])

    monkeypatch.setattr(HeaderSource, "read", changed)
    with world.open() as store:
        with pytest.raises(Conflict, match="while it is imported"):
            import_headers(store, old.url)
        assert not list(store.segments())


def test_what_is_there_is_compared(world: World, old: Old) -> None:
    old.put(a_header=b"0=x&", x=b"abc", b_header=b"0=y&", y=b"def")
    with world.open() as store:
        import_headers(store, old.url, ["a"])
        found = import_headers(store, old.url)
        assert (found.segments, found.there) == (("b",), ("a",))
        old.put(x=b"abC")
        with pytest.raises(Conflict, match="bytes 0 to 3"):
            import_headers(store, old.url)
        old.put(x=b"abcd")
        with pytest.raises(Conflict, match="start, length"):
            import_headers(store, old.url)


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


def test_arguments_of_imports(world: World, old: Old) -> None:
    with world.open() as store:
        with pytest.raises(InvalidArgument, match="no file in"):
            import_headers(store, old.url)
        with pytest.raises(InvalidArgument):
            import_headers(store, old.url, "one")
        with pytest.raises(InvalidArgument):
            import_headers(store, old.url, ["a\0b"])
        old.storage.put("$header", b"maxsize=1&")
        with pytest.raises(InvalidArgument, match="segment name"):
            import_headers(store, old.url)


def test_a_segment_may_begin_above_0(world: World) -> None:
    with world.open(rolling=10) as store:
        assert store.commit([Create("s", start_offset=1 << 40), Append("s", DATA[:25])]) == [None, 1 << 40]
        assert facts(store) == {"s": (1 << 40, (1 << 40) + 25, False, DATA[:25])}
        for bad in (-1, 1 << 63, True, None):
            with pytest.raises(InvalidArgument, match="start_offset"):
                store.commit([Create("t", start_offset=bad)])  # type: ignore[arg-type]
        store.commit([Create("bare", start_offset=7)])
        store.create("truncated")
        store.append("truncated", DATA[:7])
        store.truncate("truncated", 7)
        bare, truncated = (
            context_of(store).look(partial(find_segment, name=name, identity=None)) for name in ("bare", "truncated")
        )
        assert bare[2:13] == truncated[2:13], "no other state than a truncation leaves"
        assert store.check("deep") == []
    world.forget_cache()
    with world.open() as store:
        assert store.read("s", (1 << 40) + 12, 100) == DATA[12:25]
        assert store.check("deep") == []


@pytest.mark.parametrize("headers", ["", "keep", None, True])
def test_other_values_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidArgument, match="'ignore' or 'import'"):
        chunkstore.Settings(headers=headers)
