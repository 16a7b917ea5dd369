"""Opening again: after a close, after a crash, with and without the cache, after many epochs."""

from __future__ import annotations

import pytest

from chunkstore.changes import Append, Concat, TableDelete, TablePut
from chunkstore.engine.store import ChunkedSegmentStorage
from tests.support.data import pattern
from tests.support.worlds import EVERY_WORLD, World

pytestmark = EVERY_WORLD


def everything(store: ChunkedSegmentStorage) -> object:
    """All there is to see, labels included."""
    return (
        [*store.segments()],
        [[*store.layout(info.name)] for info in store.segments()],
        [store.read(info.name, info.start_offset, 1 << 20) for info in store.segments()],
        [*store.table("t").scan()],
    )


def without_growing(state: object) -> object:
    """A take-over closes what was growing, and nothing else."""
    segments, layouts, contents, rows = state  # type: ignore[misc]
    closed = [[chunk._replace(state="closed") for chunk in layout] for layout in layouts]  # type: ignore[has-type]
    return segments, closed, contents, rows  # type: ignore[has-type]


def do_a_bit_of_everything(store: ChunkedSegmentStorage) -> None:
    for number in range(8):
        name = f"s{number}"
        store.create(name, attributes={"number": number})
        store.append(name, pattern(0, 10 * number + 5, number), writer_id=b"w", event_number=number + 1)
    store.truncate("s1", 7)
    store.truncate("s2", 25)
    store.seal("s3")
    store.seal("s4")
    store.unseal("s4")
    store.append("s4", b"again")
    store.delete("s5")
    store.create("s5")
    store.seal("s6")
    store.concat("s7", 75, "s6")
    store.update_attributes("s7", {"number": None, "joined": "yes"})
    store.commit([Append("s0", b"in a commit"), TablePut("t", b"k", b"v"), TablePut("t", b"gone", b"v")])
    store.commit([TableDelete("t", b"gone"), Concat("s0", "s3")])
    store.table("t").put(b"l", b"w")


@pytest.mark.parametrize("cache", ["kept", "lost"])
@pytest.mark.parametrize("end", ["closed", "crashed"])
@pytest.mark.parametrize("snapshots", [0, 1])
def test_everything_is_there_again(world: World, cache: str, end: str, snapshots: int) -> None:
    store = world.open(rolling=16)
    do_a_bit_of_everything(store)
    if snapshots:
        report = store.snapshot()
        assert report.name in world.objects("default/snap/") and report.rows > 30 and report.size_bytes > 0
        store.append("s0", b"behind the snapshot")
        store.truncate("s7", 40)
    before = without_growing(everything(store))
    if end == "closed":
        store.close()
    else:
        world.crash(store)
    if cache == "lost":
        world.forget_cache()
    again = world.open()
    assert without_growing(everything(again)) == before
    assert again.check("deep") == []
    expected_source = "cache" if (cache, end) == ("kept", "closed") else "snapshot" if snapshots else "journal"
    assert again.report.source == expected_source
    assert again.report.tail_cut is None and again.report.findings == ()
    assert again.report.epoch == again.epoch == store.epoch + 1
    if expected_source == "snapshot":
        assert again.report.replayed_records < 10
    assert again.last_event_number("s7", b"w") == 8
    again.append("s0", b"goes on")
    assert again.check("deep") == []


def test_containers_are_apart(world: World) -> None:
    stores = {name: world.open(name) for name in ("one", "two", "One")}
    for name, store in stores.items():
        store.create("a")
        store.append("a", name.encode())
    for name, store in stores.items():
        assert store.read("a", 0, 99) == name.encode()
        store.close()
    world.forget_cache()
    for name in stores:
        with world.open(name, create=False) as store:
            assert store.read("a", 0, 99) == name.encode() and store.epoch == 2


def test_bytes_without_a_record_are_cut_off(world: World) -> None:
    """What an owner wrote, but never committed, is not there; its chunks are orphans, never read."""
    store = world.open(rolling=8)
    store.create("a")
    store.append("a", pattern(0, 12))
    tail = [*store.layout("a")][-1]
    world.overwrite(tail.name, world.content(tail.name) + b"never committed")
    world.crash(store)
    again = world.open()
    assert again.read("a", 0, 99) == pattern(0, 12)
    again.append("a", pattern(12, 6))
    assert again.read("a", 0, 99) == pattern(0, 18)
    assert again.check("deep") == []
