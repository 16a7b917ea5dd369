"""``Settings.layout``: what each of the four values does with header files of the old layout, in every world."""

from __future__ import annotations

from typing import Any

import pytest

import chunkstore
from chunkstore.backup import export_headers, headers, import_headers
from chunkstore.backup.header_keeper import HeaderKeeper
from chunkstore.changes import Append, Create
from chunkstore.codec.rolling_header import ChunkEntry, MaxSizeEntry, decode_entries, decode_header, encode_header
from chunkstore.config import LAYOUTS, OptimiserPolicy
from chunkstore.errors import (
    Conflict,
    ContainerNotFound,
    Damaged,
    InvalidArgument,
    NotOwner,
    SegmentExists,
    SegmentNotFound,
)
from chunkstore.metadata.layouts import find_layout
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore.upkeep.jobs import Job, Step
from chunkstore_journal.container import create_container
from tests.support.worlds import World

SMALL = chunkstore.RollingPolicy(chunk_size_bytes_max=10)
CODE_ONLY, LAYOUT = "CODE_ONLY_UPGRADE", "LAYOUT_UPGRADE"
EPOCH_SEGMENT = "scope/stream/0.#epoch.0"


def put(world: World, **files: bytes) -> None:
    for name, data in files.items():
        world.raw_storage().put(name.replace("_header", "$header"), data)


def old_root(world: World) -> dict[str, tuple[int, int, bool, bytes]]:
    """Three segments of the old layout, as the old code left them: the facts of each."""
    put(
        world,
        a_header=b"maxsize=10&0=a$offset.0&10=a$offset.10&",
        **{"a$offset.0": b"0123456789", "a$offset.10": b"abc"},
        empty_header=b"maxsize=7&",
        unborn_header=b"",
        **{f"{EPOCH_SEGMENT}_header": b"0=gone&5=deep/file&", "deep/file": b"deep down"},
    )
    if world.raw_storage().capabilities.set_read_only:
        world.raw_storage().set_read_only(ChunkHandle("a$header", True), True)
    sealed = world.raw_storage().capabilities.set_read_only
    return {
        "a": (0, 13, sealed, b"0123456789abc"),
        "empty": (0, 0, False, b""),
        EPOCH_SEGMENT: (5, 14, False, b"deep down"),
    }


def opened(world: World, container: str = "default", **settings: Any) -> chunkstore.ChunkedSegmentStorage:
    """An owner whose headers follow when the test says so."""
    store = world.open(container, **settings)
    store.optimiser.pause()
    return store


def facts(store: Any) -> dict[str, tuple[int, int, bool, bytes]]:
    return {
        info.name: (info.start_offset, info.length, info.sealed, store.read(info.name, info.start_offset, 1000))
        for info in store.segments()
    }


def follow(store: chunkstore.ChunkedSegmentStorage) -> list[str]:
    """Let the headers follow, as the optimiser does; what was found remarkable."""
    step = Step(float("inf"), lambda: False)
    assert not job_of(store, "headers").step(step)
    return step.findings


def job_of(store: chunkstore.ChunkedSegmentStorage, name: str) -> Job:
    assert isinstance(store.old_layout, HeaderKeeper)
    return next(job for job, _ in store.old_layout.jobs(imports=True) if job.name == name)


def header_of(world: World, name: str) -> tuple[ChunkEntry, ...]:
    return decode_header(world.content(f"{name}$header")).chunks


def old_view(world: World, name: str) -> tuple[int, bytes]:
    """What the old code reads: by the header and the lengths of its files alone."""
    chunks = header_of(world, name)
    ends = [chunk.offset for chunk in chunks[1:]]
    parts = [world.content(chunk.name) for chunk in chunks]
    for at, end in enumerate(ends):
        parts[at] = parts[at][: end - chunks[at].offset]
    return chunks[0].offset if chunks else 0, b"".join(parts)


def recorded(store: Any) -> str | None:
    return store.look(find_layout)  # type: ignore[no-any-return]


# ---- no choice


def test_without_a_choice_a_root_of_the_old_layout_is_refused_and_left_as_it_is(world: World) -> None:
    old_root(world)
    before = world.objects()
    for attempt in (world.open, lambda: opened(world, create=False), world.replica):
        with pytest.raises(InvalidArgument) as refused:
            attempt()
        assert refused.value.argument == "layout"
        assert all(layout in str(refused.value) for layout in LAYOUTS)
    assert world.objects() == before


def test_a_container_that_was_made_and_no_more_is_no_choice(world: World) -> None:
    old_root(world)
    create_container(world.raw_storage(), world.names(), world.settings())
    with pytest.raises(InvalidArgument, match="CODE_ONLY_UPGRADE"):
        opened(world)
    with opened(world, layout=CODE_ONLY) as store:
        assert store.info("a").length == 13
    with opened(world) as store:
        assert recorded(store) == CODE_ONLY


def test_a_container_with_segments_does_not_look_for_headers(world: World) -> None:
    with opened(world) as store:
        store.create("ours")
    old_root(world)
    with opened(world) as store:
        assert recorded(store) is None
        assert store.old_layout is None
        assert not store.exists("a")
        store.create("a")


def test_headers_of_others_beside_it_and_files_of_other_names_are_none(world: World) -> None:
    put(world, plain=b"1")
    opened(world, "first").close()
    put(world, **{"first/d/hidden_header": b"maxsize=1&"})
    with opened(world) as store:
        assert recorded(store) is None
    # These may be the first one's.
    put(world, log_header=b"maxsize=1&")
    with opened(world, "third") as store:
        assert recorded(store) is None


# ---- NO_UPGRADE


def test_no_upgrade_reads_headers_without_a_container_and_writes_nothing(world: World) -> None:
    expected = old_root(world)
    before = {name: world.content(name) for name in world.objects()}
    with world.replica(layout="NO_UPGRADE") as replica:
        assert facts(replica) == expected
        assert replica.read(EPOCH_SEGMENT, 6, 3) == b"eep"
        assert replica.check("deep") == []
        assert [chunk.name for chunk in replica.layout("a")] == ["a$offset.0", "a$offset.10"]
        with pytest.raises(SegmentNotFound):
            replica.info("unborn")
        put(world, **{"a$offset.10": b"abcdef"})
        assert replica.info("a").length == 13
        replica.refresh()
        assert replica.read("a", 10, 100) == b"abcdef"
        lsn = replica.lsn
        assert replica.refresh() == lsn
    with pytest.raises(InvalidArgument, match="open_replica"):
        opened(world, layout="NO_UPGRADE")
    assert {name: world.content(name) for name in world.objects()} == before | {"a$offset.10": b"abcdef"}


def test_no_upgrade_shows_what_is_sound_and_refuses_the_rest_by_position(world: World) -> None:
    expected = old_root(world)
    put(world, bad_header=b"maxsize=10&x=y&", short_header=b"0=s0&10=s1&", s0=b"123", s1=b"")
    with world.replica(layout="NO_UPGRADE") as replica:
        assert facts(replica) == expected
        with pytest.raises(Damaged) as refused:
            replica.read("bad", 0, 1)
        assert (refused.value.object, refused.value.position) == ("bad$header", 11)
        with pytest.raises(Damaged) as refused:
            replica.info("short")
        assert (refused.value.object, refused.value.position) == ("s0", 3)
        assert sorted(item.segment for item in replica.check()) == ["bad", "short"]


def test_no_upgrade_where_nothing_lies_finds_nothing_and_where_a_container_lies_shows_it(world: World) -> None:
    with pytest.raises(ContainerNotFound):
        world.replica(layout="NO_UPGRADE")
    with opened(world) as store:
        store.create("ours")
        with world.replica(layout="NO_UPGRADE") as replica:
            assert replica.exists("ours")


# ---- importing on the fly


@pytest.mark.parametrize("layout", [CODE_ONLY, LAYOUT])
def test_a_segment_is_imported_when_it_is_asked_for(world: World, layout: str) -> None:
    expected = old_root(world)
    with opened(world, layout=layout) as store:
        assert recorded(store) == layout
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
    world.forget_cache()
    with opened(world) as store:
        assert facts(store) == expected | {"unborn": (0, 0, False, b"")}
        assert recorded(store) == layout


@pytest.mark.parametrize("layout", [CODE_ONLY, LAYOUT])
def test_changing_an_unknown_segment_imports_it(world: World, layout: str) -> None:
    old_root(world)
    with opened(world, layout=layout) as store:
        store.append(EPOCH_SEGMENT, b"!")
        assert store.read(EPOCH_SEGMENT, 5, 100) == b"deep down!"
        store.delete("empty")
        assert not store.exists("empty")


def test_a_deleted_segment_does_not_come_back_by_the_header_that_is_left(world: World) -> None:
    old_root(world)
    with opened(world, layout=LAYOUT) as store:
        store.delete("a")
        assert not store.exists("a")
    assert world.content("a$header").startswith(b"maxsize=10&")
    with opened(world) as store:
        assert not store.exists("a")
        store.create("a")
        store.append("a", b"another")
        assert store.read("a", 0, 100) == b"another"
        store.delete("a")
        # Whoever names it means it.
        assert import_root(world, store, "a") == ("a",)


def import_root(world: World, store: chunkstore.ChunkedSegmentStorage, *names: str) -> tuple[str, ...]:
    with pytest.MonkeyPatch.context() as patched:
        for module in ("headers", "header_import"):
            patched.setattr(f"chunkstore.backup.{module}.open_storage", lambda *_: world.raw_storage())
        return import_headers(store, "file:///root", names).segments


def export_root(world: World, store: Any, *names: str) -> headers.HeadersReport:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("chunkstore.backup.headers.open_storage", lambda *_: world.raw_storage())
        return export_headers(store, "file:///root", names, replace=True)


def test_hostile_headers_are_refused_by_position_and_nothing_is_imported(world: World) -> None:
    old_root(world)
    put(world, bad_header=b"maxsize=10&x=y&", short_header=b"0=s0&10=s1&", s0=b"123", s1=b"")
    with opened(world, layout=LAYOUT) as store:
        for _ in range(2):
            with pytest.raises(Damaged) as refused:
                store.append("bad", b"1")
            assert (refused.value.object, refused.value.position) == ("bad$header", 11)
            with pytest.raises(Damaged) as refused:
                store.create("short")
            assert (refused.value.object, refused.value.position) == ("s0", 3)
        assert [*store.segments()] == []


def test_the_optimiser_imports_all(world: World) -> None:
    expected = old_root(world)
    put(world, bad_header=b"nonsense")
    with opened(world, layout=LAYOUT) as store:
        job = job_of(store, "import")
        steps, more = 0, True
        while more:
            steps += 1
            step = Step(float("inf"), lambda: True)  # begins nothing more behind its first piece
            more = job.step(step)
        assert steps > len(expected)
        assert facts(store) == expected
        assert not store.exists("a$header")
    assert OptimiserPolicy(import_headers=True).import_headers


# ---- CODE_ONLY_UPGRADE: headers follow


def test_headers_follow_the_journal_and_the_old_code_reads_them(world: World) -> None:
    expected = old_root(world)
    with opened(world, layout=CODE_ONLY, rolling=10) as store:
        store.append(EPOCH_SEGMENT, b", and on")
        store.create("new")
        for at in range(0, 36, 9):
            store.append("new", bytes(range(at, at + 9)))
        store.create("cut", rolling=SMALL)
        for _ in range(3):
            store.append("cut", b"123456789")
        store.truncate("cut", 13)
        store.info("a")
        store.info("empty")
        assert follow(store) == []
        assert old_view(world, "a") == (0, expected["a"][3])
        assert old_view(world, EPOCH_SEGMENT) == (5, b"deep down, and on")
        assert old_view(world, "new") == (0, bytes(range(36)))
        assert old_view(world, "empty") == (0, b"")
        start, data = old_view(world, "cut")
        assert data == (b"123456789" * 3)[start:]
        assert start <= 13
        chunks = set(world.chunks())
        assert all(entry.name in chunks for name in ("a", "new", "cut") for entry in header_of(world, name))
        store.delete("new")
        store.seal("cut")
        store.unseal("cut")
        store.seal("cut")
        assert follow(store) == []
        assert "new$header" not in world.objects()
        if world.raw_storage().capabilities.set_read_only:
            assert not world.raw_storage().open_write("cut$header").writable


def test_a_header_grows_by_what_is_written_behind_it_where_the_storage_appends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(world, layout=CODE_ONLY, rolling=10) as store:
        store.create("log")
        store.append("log", b"0123456789")
        follow(store)
        before = world.content("log$header")
        store.append("log", b"0123456789")
        puts: list[str] = []
        real = type(store.read_context.storage).put

        def noted(self: ChunkStorage, name: str, data: bytes) -> None:
            puts.append(name)
            real(self, name, data)

        monkeypatch.setattr(type(store.read_context.storage), "put", noted)
        follow(store)
        after = world.content("log$header")
        assert len(header_of(world, "log")) == 2
        assert after.startswith(before)
        assert ("log$header" in puts) is not world.appends


def test_close_lets_them_follow_and_an_interrupted_owner_s_successor_mends_them(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("one")
        store.append("one", b"first")
    assert old_view(world, "one") == (0, b"first")
    store = opened(world, rolling=5)
    store.append("one", b"second")
    store.create("two")
    store.append("two", b"2")
    store.create("gone")
    follow(store)
    world.crash(store)
    store.append("one", b"third")
    store.delete("gone")
    # Between commit and header.
    assert "gone$header" in world.objects()
    # By default it goes on as it was told to.
    opened(world)
    assert old_view(world, "one") == (0, b"firstsecondthird")
    assert old_view(world, "two") == (0, b"2")
    assert "gone$header" not in world.objects()


@pytest.mark.parametrize("rest", [b"", b"12", b"12=", b"nonsense&", b"maxsize=1&"])
def test_a_header_whose_writer_was_killed_is_mended(world: World, rest: bytes) -> None:
    with opened(world, layout=CODE_ONLY, rolling=4) as store:
        store.create("log")
        store.append("log", b"0123")
        store.append("log", b"4567")
    whole = world.content("log$header")
    put(world, log_header=whole[: whole.rindex(b"4=")] + rest)
    with opened(world) as store:
        assert old_view(world, "log") == (0, b"01234567")
        store.append("log", b"8")
        follow(store)
        assert old_view(world, "log") == (0, b"012345678")


def test_what_a_crash_left_behind_the_last_record_is_not_shown_to_the_old_code(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log")
        store.append("log", b"acknowledged")
        (chunk,) = store.layout("log")
    world.overwrite(chunk.name, b"acknowledged, and not")
    with opened(world) as store:
        assert old_view(world, "log") == (0, b"acknowledged")
        (copy,) = header_of(world, "log")
        assert copy.name.startswith("log$offset.0.")
    with opened(world) as store:
        assert header_of(world, "log") == (copy,), "the copy that is there is as good"
        store.append("log", b"!")
        follow(store)
        assert old_view(world, "log") == (0, b"acknowledged!")
        assert copy.name not in world.objects()


def test_nothing_is_deleted_that_a_header_names(world: World) -> None:
    with opened(world, layout=CODE_ONLY, gc_grace_s=0, rolling=4) as store:
        store.create("log")
        for _ in range(8):
            store.append("log", b"0123")
        follow(store)
        store.defrag(policy=chunkstore.DefragPolicy(fanout=2))
        store.truncate("log", 4)
        assert store.collect().chunks
        start, data = old_view(world, "log")
        assert (b"0123" * 8)[start:] == data


def test_a_deposed_owner_that_writes_late_is_mended(world: World) -> None:
    """Old headers are not fenced: what a zombie puts is an older state, or one of a segment that is gone."""
    with opened(world, layout=CODE_ONLY, rolling=4) as store:
        store.create("log")
        store.append("log", b"0123")
        store.create("gone")
        follow(store)
        old = {name: world.content(name) for name in ("log$header", "gone$header")}
        store.append("log", b"4567")
        store.delete("gone")
    for name, data in old.items():
        world.raw_storage().put(name, data)
    with opened(world) as store:
        assert old_view(world, "log") == (0, b"01234567")
        assert "gone$header" not in world.objects()
        world.raw_storage().put("gone$header", old["gone$header"])
        assert not store.exists("gone"), "it is ours, so nothing is imported of it"


def test_where_the_old_code_has_gone_on_nobody_opens(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log")
        store.append("log", b"0123")
    ours = world.content("log$header")
    theirs = ours + b"4=log$offset.4&"
    put(world, log_header=theirs, **{"log$offset.4": b"4567"})
    for _ in range(2):
        with pytest.raises(Conflict) as refused:
            opened(world)
        assert "log$header" in refused.value.subject
    assert world.content("log$header") == theirs
    with opened(world, "other", layout=LAYOUT) as store:
        assert not store.exists("log"), "it follows another container: only who names it means it"
        assert import_root(world, store, "log") == ("log",)
        assert store.read("log", 0, 100) == b"01234567"
    put(world, log_header=ours)
    with opened(world) as store:
        assert store.read("log", 0, 100) == b"0123"


def test_a_header_that_comes_later_is_not_replaced(world: World) -> None:
    with opened(world) as store:
        store.create("a")
        store.append("a", b"ours")
    old_root(world)
    with pytest.raises(Conflict):
        opened(world, layout=CODE_ONLY)
    with opened(world, layout=LAYOUT) as store:
        assert store.read("a", 0, 10) == b"ours"
        assert store.info(EPOCH_SEGMENT).length == 14


def test_while_it_serves_that_is_a_finding(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log")
        follow(store)
        put(world, log_header=b"0=theirs&", theirs=b"bytes")
        store.append("log", b"1")
        assert any("log$header" in finding for finding in follow(store))
    assert world.content("log$header") == b"0=theirs&"


def test_a_segment_that_was_imported_into_its_own_root_before_may_follow(world: World) -> None:
    expected = old_root(world)
    with opened(world, layout=LAYOUT) as store:
        store.info("a")
    with opened(world, "second", layout=CODE_ONLY) as store:
        assert facts(store) == {}
        assert import_root(world, store, "a") == ("a",)
        assert facts(store) == {"a": expected["a"]}
        follow(store)
        assert old_view(world, "a") == (0, expected["a"][3])


def test_an_export_into_its_own_root_is_what_follows(world: World) -> None:
    with opened(world, layout=CODE_ONLY, rolling=4) as store:
        store.create("log")
        store.create("empty")
        store.append("log", b"01234567")
        store.truncate("log", 2)
        assert export_root(world, store).copied == 1
        assert old_view(world, "log") == (2, b"234567")
    with opened(world) as store:
        assert store.read("log", 2, 100) == b"234567"
        store.delete("empty")
        follow(store)
        assert "empty$header" not in world.objects()
        assert old_view(world, "log")[1].endswith(b"234567")


def test_our_headers_are_marked_by_what_the_old_code_passes_over(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log", rolling=SMALL)
        follow(store)
        entries = decode_entries(world.content("log$header"))
        assert store.old_layout is not None
        assert entries == (MaxSizeEntry(10), MaxSizeEntry(store.old_layout.mark("log")))
        assert decode_header(encode_header(entries)).size_bytes_max == 10


# ---- changes of layout


def test_layout_upgrade_is_irreversible(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log")
    header = world.content("log$header")
    with opened(world, layout=LAYOUT) as store:
        store.append("log", b"1")
    assert world.content("log$header") == header, "no longer written"
    world.forget_cache()
    for layout in ("NO_UPGRADE", CODE_ONLY):
        with pytest.raises(InvalidArgument):
            opened(world, layout=layout)
        with pytest.raises(InvalidArgument, match="irreversible"):
            world.replica(layout=layout)
    for layout in (LAYOUT, "INSTALL_NEW"):
        with opened(world, layout=layout) as store:
            assert recorded(store) == LAYOUT
            assert store.check("deep") == []


def test_nothing_changes_a_layout_by_itself(world: World) -> None:
    for layout in (None, CODE_ONLY, LAYOUT):
        if layout is not None:
            opened(world, layout=layout).close()
        for _ in range(2):
            with opened(world) as store:
                assert recorded(store) == layout
                store.snapshot()
                store.collect()
            world.forget_cache()


def test_an_owner_that_was_deposed_writes_no_header(world: World) -> None:
    """A take-over between commit and header: the successor mends, and the former owner learns that it is none."""
    with opened(world, layout=CODE_ONLY, rolling=4) as first:
        first.optimiser.pause()
        first.create("log")
        first.append("log", b"0123")
        with opened(world) as second:
            second.append("log", b"4567")
            second.create("new")
            follow(second)
            seen = {name: world.content(name) for name in ("log$header", "new$header")}
            with pytest.raises(NotOwner):
                job_of(first, "headers").step(Step(float("inf"), lambda: False))
            with pytest.raises(NotOwner):
                first.collect()
            first.close()
            assert {name: world.content(name) for name in seen} == seen
            assert old_view(world, "log") == (0, b"01234567")


def test_a_damaged_segment_keeps_nobody_from_opening(world: World) -> None:
    with opened(world, layout=CODE_ONLY) as store:
        for name in ("absent", "short", "well"):
            store.create(name)
            store.append(name, b"0123")
        chunks = {name: next(iter(store.layout(name))).name for name in ("absent", "short")}
    world.remove(chunks["absent"])
    world.overwrite(chunks["short"], b"01")
    with opened(world) as store:
        assert store.read("well", 0, 4) == b"0123"
        store.append("well", b"4")
        follow(store)
        assert old_view(world, "well") == (0, b"01234")


def test_files_of_the_old_layout_stay_when_their_segment_is_imported(world: World) -> None:
    """Also those that have the names of copies: they are not ours."""
    put(world, x_header=b"5=x$offset.5.0123abcd&", **{"x$offset.5.0123abcd": b"data"})
    with opened(world, layout=CODE_ONLY) as store:
        assert store.read("x", 5, 10) == b"data"
        follow(store)
        assert old_view(world, "x") == (5, b"data")
        store.delete("x")
        follow(store)
        assert "x$header" not in world.objects()
        assert not store.exists("x")
        assert world.content("x$offset.5.0123abcd") == b"data"


def test_all_headers_are_there_however_many_and_also_behind_a_commit_nobody_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chunkstore.backup.header_keeper._AT_ONCE", 2)
    with world.open() as store:
        for name in "abcdefg":
            store.create(name)
    with opened(world, layout=CODE_ONLY) as store:
        assert [name for name in "abcdefg" if f"{name}$header" not in world.objects()] == []
        store.delete("c")
        keeper = store.old_layout
        assert isinstance(keeper, HeaderKeeper)
        keeper._changed.clear()
        keeper._missed = True
        follow(store)
        assert [name for name in "abcdefg" if f"{name}$header" not in world.objects()] == ["c"]
        store.delete("d")
        keeper._changed.clear()
        keeper._missed = True
        keeper.flush()
        assert "d$header" not in world.objects()


def test_a_root_beneath_this_one_is_left_alone(world: World) -> None:
    """Its headers look like those of segments with a slash, of this very container if it is a copy."""
    with opened(world, layout=CODE_ONLY) as store:
        store.create("log")
        store.append("log", b"0123")
        store.create("empty")
    for name in world.objects():
        world.raw_storage().put(f"copy/{name}", world.content(name))
    put(world, **{"copy/theirs_header": b"0=theirs$offset.0&", "copy/theirs$offset.0": b"1"})
    before = {name: world.content(name) for name in world.objects("copy/")}
    with opened(world) as store:
        store.append("log", b"4567")
        follow(store)
        assert not store.exists("copy/log")
        assert not store.exists("copy/empty")
    assert {name: world.content(name) for name in world.objects("copy/")} == before


def test_the_optimiser_does_both_by_itself(world: World) -> None:
    expected = old_root(world)
    policy = OptimiserPolicy(import_headers=True)
    store = world.open(layout=CODE_ONLY)
    store.optimiser.pause()
    store._make_optimiser(policy)
    assert [job.name for job in store.optimiser.status().jobs] == ["collect", "headers", "import"]
    store.optimiser.run_once(dry_run=True)
    assert [*store.segments()] == []
    store.optimiser.run_once()
    assert facts(store) == expected
    store.optimiser.run_once()
    assert old_view(world, "a") == (0, expected["a"][3])
    assert store.upkeep_figures()["runs"]["headers"] > 0
