"""``Settings.layout``: what each of the four values does with header files of the old layout, in every world."""

from __future__ import annotations

import pytest

from chunkstore.backup.header_keeper import HeaderKeeper
from chunkstore.changes import Append, Create
from chunkstore.config import LAYOUTS, OptimiserPolicy
from chunkstore.errors import (
    ContainerNotFound,
    Damaged,
    InvalidArgument,
    NotOwner,
    SegmentExists,
    SegmentNotFound,
)
from chunkstore.upkeep.jobs import Step
from chunkstore_journal.container import create_container
from tests.support.old_layout import (
    CODE_ONLY,
    EPOCH_SEGMENT,
    LAYOUT,
    facts,
    follow,
    import_root,
    job_of,
    old_root,
    old_view,
    opened,
    put,
    recorded,
)
from tests.support.worlds import World

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
