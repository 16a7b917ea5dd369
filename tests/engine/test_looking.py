"""info, segments, layout, offset_at and wait."""

from __future__ import annotations

import time

import pytest

from chunkstore.changes import Append, Create
from chunkstore.errors import Closed, NotOwner, SegmentNotFound
from chunkstore.records.segments import SegmentInfo
from tests.support.data import pattern, refused
from tests.support.hooked import in_thread
from tests.support.worlds import World


def test_info_times(world: World) -> None:
    store = world.open()
    before = time.time_ns() // 1_000_000
    store.create("a")
    made = store.info("a")
    assert before <= made.created_at <= time.time_ns() // 1_000_000
    last = made
    for change in (
        lambda: store.append("a", b"x"),
        lambda: store.update_attributes("a", {"k": 1}),
        lambda: store.truncate("a", 1),
        lambda: store.seal("a"),
        lambda: store.unseal("a"),
    ):
        time.sleep(0.003)
        change()
        now = store.info("a")
        assert now.created_at == made.created_at
        assert now.modified_at > last.modified_at
        last = now
    for nothing in (lambda: store.append("a", b""), lambda: store.truncate("a", 0), lambda: store.read("a", 1, 1)):
        nothing()
        assert store.info("a") == last


def test_owner_epoch_is_that_of_the_last_append(world: World) -> None:
    with world.open() as first:
        first.create("a")
        first.append("a", b"x")
    with world.open() as second:
        assert second.info("a").owner_epoch == first.epoch
        second.update_attributes("a", {"k": 1})
        assert second.info("a").owner_epoch == first.epoch
        second.append("a", b"y")
        assert second.info("a").owner_epoch == second.epoch > first.epoch


ODD = [
    "a",
    "a\x01",
    "aa",
    "a/",
    "b",
    "z",
    "é",
    "e\u0301",
    "\u7fff",
    "\uffee",
    "\U0001f600",
    "\U0010ffff",
    "~",
    "A",
    "😀x",
]


def test_listing_is_in_order_of_utf8_bytes(world: World) -> None:
    store = world.open()
    store.commit([Create(name) for name in ODD])
    expected = sorted(ODD, key=str.encode)
    assert [info.name for info in store.segments()] == expected
    for name in ODD:
        position = expected.index(name)
        assert [info.name for info in store.segments(after=name)] == expected[position + 1 :]
        assert [info.name for info in store.segments(name)] == [item for item in expected if item.startswith(name)]
    assert [info.name for info in store.segments(after="aaa", limit=3)] == expected[expected.index("aa") + 1 :][:3]
    assert [info.name for info in store.segments("a", after="\U0010ffff")] == []
    assert [info.name for info in store.segments("b", after="a")] == ["b"]
    assert [*store.segments("nothing")] == [] and [*store.segments(limit=0)] == []


def test_paging_over_2500_names(world: World) -> None:
    store = world.open()
    names = [f"{chr(ord('a') + number % 7)}/{number:05}" for number in range(2_500)]
    store.commit([Create(name) for name in names])
    names.sort()
    assert [info.name for info in store.segments()] == names
    for prefix in ("a/", "d/0", "g/02499", "c"):
        assert [info.name for info in store.segments(prefix)] == [name for name in names if name.startswith(prefix)]
    for limit in (1, 999, 1_000, 1_001, 2_000, 2_499, 2_500, 2_501):
        assert [info.name for info in store.segments(limit=limit)] == names[:limit]
    paged: list[str] = []
    after: str | None = None
    while page := [info.name for info in store.segments(after=after, limit=333)]:
        paged += page
        after = page[-1]
    assert paged == names
    # No view stays open between pages: what is deleted behind the first page is not listed any more.
    listing = store.segments()
    assert next(listing).name == names[0]
    store.delete(names[2_000])
    rest = [info.name for info in listing]
    assert names[2_000] not in rest and len(rest) == 2_498


def test_offset_at(world: World) -> None:
    store = world.open(rolling=4)
    store.create("a")
    assert store.offset_at("a", 0) == 0
    started: list[int] = []
    for number in range(12):
        time.sleep(0.003)
        started.append(time.time_ns() // 1_000_000)
        time.sleep(0.003)
        store.append("a", pattern(4 * number, 4))
    assert store.offset_at("a", 0) == 0
    assert store.offset_at("a", started[-1] + 60_000) == 44
    for number in range(1, 12):
        # Between two appends: the chunk of the earlier one was the newest.
        assert store.offset_at("a", started[number]) == 4 * (number - 1)
    store.truncate("a", 18)
    assert store.offset_at("a", 0) == store.offset_at("a", started[3]) == 18
    assert store.offset_at("a", started[7]) == 24
    store.truncate("a", 48)
    assert store.offset_at("a", started[7]) == 48


@pytest.mark.parametrize("event", ["append", "seal", "delete", "close", "take-over", "concat", "commit"])
def test_wait_is_woken(world: World, event: str) -> None:
    store = world.open()
    store.create("a")
    store.append("a", b"12345")
    store.create("source")
    store.append("source", b"678")
    store.seal("source")
    thread, results = in_thread(lambda: store.wait("a", 5, 600))
    thread.join(0.05)
    assert thread.is_alive()
    if event == "append":
        store.append("a", b"6")
    elif event == "seal":
        store.seal("a")
    elif event == "delete":
        store.delete("a")
    elif event == "close":
        store.close()
    elif event == "concat":
        store.concat("a", 5, "source")
    elif event == "commit":
        store.commit([Append("a", b"6")])
    else:
        world.open()
    thread.join(60)
    assert not thread.is_alive()
    result = results[0]
    if event in ("delete", "close", "take-over"):
        assert type(result) is {"delete": SegmentNotFound, "close": Closed, "take-over": NotOwner}[event]
    else:
        assert isinstance(result, SegmentInfo)
        assert result.sealed == (event == "seal")
        assert result.length == {"append": 6, "commit": 6, "seal": 5, "concat": 8}[event]


def test_wait_returns_at_once_or_when_the_time_is_over(world: World) -> None:
    store = world.open(op_deadline_s=600.0)
    store.create("a")
    store.append("a", b"12345")
    began = time.monotonic()
    assert store.wait("a", 4, 600).length == 5
    assert store.wait("a", 5, 0).length == 5
    assert store.wait("a", 99, 0.1).length == 5
    store.seal("a")
    assert store.wait("a", 99, 600).sealed
    refused(SegmentNotFound, lambda: store.wait("missing", 0, 600))
    assert 0.1 <= time.monotonic() - began < 60
