"""Foreign chunks: adopted by reference, read everywhere, changed nowhere (protocol 3.14.8, decision 0021)."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore import DefragPolicy, RollingPolicy, open_replica
from chunkstore.backup import backup, export, restore, verify
from chunkstore.blocks import Borders
from chunkstore.changes import Adopt, AdoptedChunk, Create
from chunkstore.checksum import crc32c
from chunkstore.deadline import Deadline
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Conflict, Damaged, InvalidArgument, NotOwner, RootUnavailable, Unsupported
from chunkstore.invariants import ROOTS
from chunkstore.metadata.roots import scan_roots
from chunkstore.records import ACTIVE, CLOSED, RootRecord
from chunkstore.spark.batches import Column, read_task
from chunkstore.spark.options import parse_options
from chunkstore.spark.plan import plan_read
from tests.support.adopted import PIECE, SOURCE, adopt, adopt_segment, another_format, build_source, chunks_of, url_of
from tests.support.worlds import World


@pytest.fixture(autouse=True)
def _named(world: World) -> None:
    """The roots that are adopted from here are named by all that read."""
    world.defaults["foreign_roots"] = (url_of(world), f"file://{world.tmp_path}")


def test_what_is_adopted_is_read_and_stays(world: World) -> None:
    data = build_source(world)
    theirs = world.chunks("there")
    with world.open() as store:
        adopt_segment(world, store)
        assert store.read("s", 0, 100) == data
        assert store.check("deep") == []
        assert {chunk.kind for chunk in store.layout("s")} == {"foreign"}
        store.append("s", b"ours")
        assert store.usage().foreign_bytes == len(data)
        assert world.replica().read("s", 0, 100) == data + b"ours"
        store.truncate("s", 17)
        assert store.read("s", 17, 100) == (data + b"ours")[17:]
        assert store.check("deep") == []
    assert world.chunks("there") == theirs


def _released(store: ChunkedSegmentStorage) -> list[str]:
    """The pins that the store gives up from now on; nobody is asked."""
    pins: list[str] = []

    def release(root: RootRecord) -> bool:
        pins.append(root.pin)
        return True

    store._container.release_root = release
    return pins


def _roots(store: ChunkedSegmentStorage) -> list[RootRecord | Damaged]:
    return [root for _, root in store.look(lambda view: list(scan_roots(view)))]


def test_collecting_drops_rows_and_nothing_there(world: World) -> None:
    data = build_source(world)
    theirs = world.objects("there/d/")
    with world.open(gc_grace_s=0.0) as store:
        adoption = adopt_segment(world, store)
        pins = _released(store)
        store.truncate("s", 40)
        assert store.collect().chunks == 2
        (root,) = _roots(store)
        assert isinstance(root, RootRecord) and (root.references, root.size_bytes) == (2, 32)
        assert store.read("s", 40, 100) == data[40:]
        assert pins == []
        store.delete("s")
        assert store.collect().chunks == 2
        assert (pins, _roots(store)) == ([adoption.pin], [])
        assert store.check("deep") == []
        assert store.sweep(age_s_min=0.0).deleted == 0
    assert world.objects("there/d/") == theirs
    with world.open("there") as owner:
        assert [pin.name for pin in owner.pins()] == [adoption.pin]  # nobody was asked
        assert owner.read("s", 0, 100) == data


def test_a_pin_is_given_up_by_whoever_owns_the_source(world: World) -> None:
    build_source(world)
    with world.open(gc_grace_s=0.0) as store:
        adoption = adopt_segment(world, store)
        store.delete("s")
        store._container.release_root = lambda _root: (
            False
        )  # as if nobody answered: the root waits, and nobody adopts from it
        store.collect()
        (root,) = _roots(store)
        assert isinstance(root, RootRecord) and (root.references, root.state) == (0, CLOSED)
        with pytest.raises(Conflict):
            store.commit([Create("late"), Adopt("late", adoption.root, (AdoptedChunk("x", 1, None),))])
    with world.open(SOURCE, ask_s=0.05) as owner, world.open(gc_grace_s=0.0) as store:
        assert [pin.name for pin in owner.pins()] == [adoption.pin]
        deadline = Deadline(60.0)
        while _roots(store) and deadline.left_s():
            store._container.roots_asked_s.clear()
            store.collect()
        assert (_roots(store), owner.pins()) == ([], [])


def test_take_overs_crashes_and_replicas(world: World) -> None:
    data = build_source(world)
    first = world.open(gc_grace_s=0.0)
    adopt_segment(world, first)
    world.crash(first)
    second = world.open(gc_grace_s=0.0)  # a take-over, with a cache
    assert second.read("s", 0, 100) == data
    replica = world.replica()
    assert replica.read("s", 0, 100) == data
    second.seal("s")
    second.create("t")
    second.append("t", b"ours")
    second.concat("t", 4, "s")
    # The pin is given up, and the owner dies before it has said so.
    second.truncate("t", 4 + len(data))
    second._container.release_root = lambda _root: False
    second.collect()
    world.crash(second)
    world.forget_cache()
    with world.open(gc_grace_s=0.0) as third:  # without a cache
        (root,) = _roots(third)
        assert isinstance(root, RootRecord) and (root.references, root.state) == (0, CLOSED)
        pins = _released(third)
        third.collect()
        assert (len(pins), _roots(third), third.check("deep")) == (1, [], [])
        replica.refresh()
        assert replica.info("t").start_offset == 4 + len(data)
        assert replica.check("deep") == []


def test_a_deposed_owner_adopts_nothing(world: World) -> None:
    build_source(world)
    zombie = world.open()
    adoption = adopt(world, zombie)
    chunks = chunks_of(adoption, "s")
    adoption.close()
    with world.open() as store:
        with pytest.raises(NotOwner):
            zombie.commit([Create("s"), Adopt("s", adoption.root, chunks)])
        assert not store.exists("s")
        assert store.check("deep") == []


# ---- what is not as it was


def _break(world: World, how: str) -> None:
    name = world.names(SOURCE).format
    if how == "gone":
        world.remove(name)
    else:
        world.overwrite(name, another_format(world))


@pytest.mark.parametrize("how", ["gone", "another"])
def test_a_root_that_cannot_be_read_stops_nothing_else(world: World, how: str) -> None:
    build_source(world)
    with world.open() as store:
        adopt_segment(world, store)
        for name in ("a", "z"):
            store.create("small", rolling=RollingPolicy(chunk_size_bytes_max=16))
            for _ in range(3):
                store.append("small", PIECE)
            store.seal("small")
            store.create(name)
            store.concat(name, 0, "small")
    _break(world, how)
    with world.open(gc_grace_s=0.0) as store:
        for reads in (store, world.replica()):
            with pytest.raises(RootUnavailable) as caught:
                reads.read("s", 0, 10)
            assert caught.value.root == url_of(world) and url_of(world) in caught.value.message
            assert reads.read("a", 0, 100) == PIECE * 3
            findings = reads.check("deep")
            assert [(item.invariant, item.severity, item.segment) for item in findings] == [(ROOTS, "warning", "s")]
        report = store.scrub()
        assert report.ok and report.done and {item.segment for item in report.findings} == {"s"}
        merged = store.defrag(policy=MERGE)
        assert {action.segment for action in merged.actions} == {"a", "z"} and merged.refused == ("s",)
        assert store.sweep(age_s_min=0.0).deleted == 0
        assert store.collect().chunks == 6
        with pytest.raises(RootUnavailable):
            store.read("s", 0, 10)
        store.delete("s")
        assert store.collect().chunks == 4
        assert store.check("deep") == []


def test_changed_bytes_are_damage(world: World) -> None:
    build_source(world)
    with world.open() as store:
        adopt_segment(world, store)
        second = list(store.layout("s"))[1].name
        world.overwrite(second.partition("/")[2], b"X" * len(PIECE))
        with pytest.raises(Damaged) as caught:
            store.read("s", 0, 100)
        assert (caught.value.object, caught.value.start, caught.value.stop) == (second, 16, 32)
        assert [(item.invariant, item.object) for item in store.check("deep")] == [(20, second)]
        world.remove(second.partition("/")[2])
        with pytest.raises(Damaged, match="absent"):
            store.read("s", 16, 1)


# ---- upkeep, backups, exports, Spark

MERGE = DefragPolicy(fanout=2)


def test_merging_copies_into_chunks_of_ours(world: World) -> None:
    data = build_source(world)
    theirs = world.objects("there/d/")
    with world.open(gc_grace_s=0.0) as store:
        adopt_segment(world, store)
        store.append("s", b"ours")
        pins = _released(store)
        store.defrag("s", policy=MERGE)
        assert "foreign" not in {chunk.kind for chunk in store.layout("s")}
        assert store.read("s", 0, 100) == data + b"ours"
        assert world.objects("default/tmp/") == []
        store.collect()
        assert (len(pins), _roots(store), store.check("deep")) == (1, [], [])
        assert store.usage().foreign_bytes == 0
    assert world.objects("there/d/") == theirs


def test_what_is_not_merged_becomes_ours_where_that_is_wanted(world: World) -> None:
    """Chunks of the rolling size, which no merge takes, and one alone between ours."""
    data = build_source(world)
    with world.open(gc_grace_s=0.0, rolling=len(PIECE)) as store:
        adopt_segment(world, store)
        store.create("ours")
        store.truncate("s", 17)
        pins = _released(store)
        assert store.defrag(policy=MERGE).actions == ()
        policy = replace(MERGE, foreign=True)
        assert len(store.defrag(policy=policy, dry_run=True).actions) == 3
        report = store.defrag(policy=policy)
        assert [(action.action, action.chunks) for action in report.actions] == [("relocate", 1)] * 3
        assert report.bytes_moved == len(data) - 17
        assert {chunk.kind for chunk in store.layout("s")} == {"object"}
        assert store.defrag(policy=policy).actions == ()
        store.collect()
        assert (store.usage().foreign_bytes, len(pins), _roots(store)) == (0, 1, [])
        assert (store.read("s", 17, 100), store.check("deep")) == (data[17:], [])


def test_backups_copy_and_exports_verify(world: World, tmp_path: Path) -> None:
    data = build_source(world)
    vault = f"file://{tmp_path}/vault"
    with world.open(rolling=16) as store:
        adopt_segment(world, store, "gone")
        store.delete("gone")
        adopt_segment(world, store)
        store.create("t")
        store.append("t", PIECE)
        export(store, tmp_path / "all", pin=False)
        export(store, tmp_path / "part", ["s"], pin=False)
        backup(store, vault)
    for name, chunks in (("all", 5), ("part", 4)):
        found = verify(tmp_path / name, url_of(world), deep=True, settings=world.settings())
        assert (found.ok, found.chunks) == (True, chunks)
    world.overwrite(world.chunks(SOURCE)[0], b"X" * len(PIECE))
    assert not verify(tmp_path / "part", url_of(world), deep=True, settings=world.settings()).ok
    for name in world.objects("there/"):
        world.remove(name)
    found = verify(tmp_path / "part", url_of(world), settings=world.settings())
    assert {item.severity for item in found.findings} == {"warning"}
    settings = world.settings(metadata="lmdb")
    with open_replica(vault, settings=settings) as view:
        assert (view.read("s", 0, 100), view.check("deep")) == (data, [])
        assert {chunk.kind for chunk in view.layout("s")} == {"object"}
    restore(vault, f"file://{tmp_path}/new", settings=settings)
    with open_replica(f"file://{tmp_path}/new", settings=settings) as made:
        assert (made.read("s", 0, 100), made.check("deep")) == (data, [])


def test_a_scrub_puts_back_what_a_backup_has(world: World, tmp_path: Path) -> None:
    data = build_source(world)
    vault = f"file://{tmp_path}/vault"
    with world.open() as store:
        adopt_segment(world, store)
        backup(store, vault)
        second = list(store.layout("s"))[1].name.partition("/")[2]
        world.overwrite(second, b"X" * len(PIECE))
        report = store.scrub(repair_from=vault)
        assert [item.repaired for item in report.findings] == [True]
        assert store.read("s", 0, 100) == data
        assert [chunk.kind for chunk in store.layout("s")] == ["foreign", "object", "foreign", "foreign"]
        assert store.check("deep") == []


def test_tasks_of_spark_name_the_root(world: World) -> None:
    data = build_source(world)
    with world.open() as store:
        adopt_segment(world, store)
        store.append("s", b"ours")
    url = url_of(world)
    options = replace(parse_options({"path": "file:///x", "segments": "s", "foreignRoots": url}), path=url)
    tasks = pickle.loads(pickle.dumps(plan_read(world.replica(), options)))
    rows = [row for task in tasks for batch in read_task(task, [Column("value")]) for row in batch["value"].to_pylist()]
    assert b"".join(rows) == data + b"ours"


# ---- rows


def test_parts_of_objects_and_our_own_root(world: World) -> None:
    world.raw_storage().create_if_absent("old/whole", b"-0123456789-")
    with world.open() as store:
        root = RootRecord("", "", "", b"", "", 0, 0, ACTIVE, 0)
        assert (store.add_root(root), store.add_root(root)) == (0, 0)
        with pytest.raises(Conflict, match="prefix"):
            store.add_root(root._replace(prefix="old/"))
        known = Borders((0, 5), (0, crc32c(b"12345")))
        chunks = (AdoptedChunk("old/whole", 5, known, offset=2), AdoptedChunk("old/whole", 3, None, offset=8))
        store.commit([Create("s"), Adopt("s", 0, chunks)])
        assert [chunk.name for chunk in store.layout("s")] == ["@0+2/old/whole", "@0+8/old/whole"]
        assert store.read("s", 0, 10) == b"12345789"[:5] + b"789"
        assert store.check("deep") == []
        with pytest.raises(InvalidArgument, match="its own"):
            store.commit([Adopt("s", 0, (AdoptedChunk("default/FORMAT", 1, None),))])
        with pytest.raises(Unsupported):
            store.read_context.storage.delete("@0/old/whole")
