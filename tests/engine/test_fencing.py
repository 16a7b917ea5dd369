"""Two owners in one process: the older one changes nothing and answers nothing (protocol 3.5, 3.13, A5)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from chunkstore.changes import Append, TablePut
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import NotOwner, OutcomeUnknown
from tests.support.data import problems, refused, run_threads
from tests.support.worlds import World

Call = Callable[[ChunkedSegmentStorage], object]

CHANGES: dict[str, Call] = {
    "create": lambda s: s.create("fresh"),
    "write": lambda s: s.write("a", 3, b"x"),
    "append": lambda s: s.append("a", b"x"),
    "append_many": lambda s: s.append_many("a", [b"x"]),
    "writer id": lambda s: s.append("a", b"x", writer_id=b"w", event_number=9),
    "seal": lambda s: s.seal("a"),
    "unseal": lambda s: s.unseal("sealed"),
    "truncate": lambda s: s.truncate("a", 2),
    "concat": lambda s: s.concat("a", 3, "sealed"),
    "delete": lambda s: s.delete("a"),
    "attributes": lambda s: s.update_attributes("a", {"k": 1}),
    "commit": lambda s: s.commit([Append("a", b"x"), TablePut("t", b"k", b"v")]),
    "table put": lambda s: s.table("t").put(b"k", b"v"),
    "session": lambda s: s.session("me"),
    "snapshot": lambda s: s.snapshot(),
}
NO_CHANGES: dict[str, Call] = {
    "append nothing": lambda s: s.append("a", b""),
    "write nothing": lambda s: s.write("a", 3, b""),
    "event known": lambda s: s.append("events", b"x", writer_id=b"w", event_number=1),
    "seal sealed": lambda s: s.seal("sealed"),
    "truncate truncated": lambda s: s.truncate("cut", 1),
    "commit nothing": lambda s: s.commit([]),
    "delete missing row": lambda s: s.table("t").delete(b"missing"),
}
"""Whoever is told "done" relies on the state that made it needless."""
READS: dict[str, Call] = {
    "read": lambda s: s.read("a", 0, 3),
    "read missing": lambda s: s.read("missing", 0, 3),
    "read truncated": lambda s: s.read("cut", 0, 3),
    "read beyond": lambda s: s.read("a", 99, 3),
    "read_into": lambda s: s.read_into("a", 0, bytearray(3)),
    "read_into beyond": lambda s: s.read_into("a", 99, bytearray(3)),
    "info": lambda s: s.info("a"),
    "info missing": lambda s: s.info("missing"),
    "exists": lambda s: s.exists("a"),
    "exists missing": lambda s: s.exists("missing"),
    "open_read": lambda s: s.open_read("a"),
    "open_write missing": lambda s: s.open_write("missing"),
    "segments": lambda s: [*s.segments()],
    "segments missing": lambda s: [*s.segments("missing")],
    "layout": lambda s: [*s.layout("a")],
    "layout missing": lambda s: [*s.layout("missing")],
    "offset_at": lambda s: s.offset_at("a", 0),
    "offset_at missing": lambda s: s.offset_at("missing", 0),
    "wait": lambda s: s.wait("a", 0, 9),
    "table get": lambda s: s.table("t").get(b"k"),
    "table get missing": lambda s: s.table("t").get(b"missing"),
    "table floor": lambda s: s.table("t").floor(b"l"),
    "table scan": lambda s: [*s.table("t").scan()],
    "last event": lambda s: s.last_event_number("a", b"w"),
    "last event missing": lambda s: s.last_event_number("missing", b"w"),
    "check": lambda s: s.check(),
    "reader": lambda s: [*s.reader("a")],
}


def prepare(store: ChunkedSegmentStorage) -> None:
    store.create("a")
    store.append("a", b"123")
    store.create("sealed")
    store.append("sealed", b"456")
    store.seal("sealed")
    store.create("cut")
    store.append("cut", b"123")
    store.truncate("cut", 2)
    store.create("events")
    store.append("events", b"x", writer_id=b"w", event_number=1)
    store.table("t").put(b"k", b"v")


@pytest.mark.parametrize("inline_bytes", [0, None], ids=["chunks", "records"])
def test_whatever_the_deposed_owner_is_asked_first_it_says_so(world: World, inline_bytes: int | None) -> None:
    """Each call meets an owner that does not know yet."""
    world.defaults["inline_bytes_max"] = inline_bytes
    first = world.open()
    prepare(first)
    new = first
    for name, call in {**CHANGES, **NO_CHANGES, **READS}.items():
        # Whoever deposed the one before is the next who does not know yet.
        old, new = new, world.open()
        before = [*new.segments()], [*new.table("t").scan()], new._container.current.journal.head.lsn
        with pytest.raises(NotOwner) as caught:
            call(old)
            pytest.fail(f"{name} was answered")
        assert (caught.value.epoch, caught.value.owner) == (old.epoch, new.epoch), name
        # And ever after.
        refused(NotOwner, lambda: old.append("a", b"x"), lambda: old.read("a", 0, 1))  # noqa: B023
        assert ([*new.segments()], [*new.table("t").scan()], new._container.current.journal.head.lsn) == before, name
        world.crash(old)
    new.close()
    last = world.open()
    assert last.read("a", 0, 99) == b"123"
    assert problems(last.check("deep")) == []


def unaware(world: World) -> ChunkedSegmentStorage:
    """An owner that looks only where its reads do: a keeper may meet the newer claim first."""
    old = world.open(read_fence="tail", metadata="memory")
    world.still(old)
    prepare(old)
    return old


def test_with_a_fence_at_the_tail_only_bytes_before_the_end_are_answered(world: World) -> None:
    """They never change. Everything else that is asked is fenced as ever."""
    old = unaware(world)
    world.forget_cache()
    new = world.open(metadata="memory")
    new.append("a", b"456")
    assert old.read("a", 0, 2) == b"12" == new.read("a", 0, 2)
    with pytest.raises(NotOwner):
        old.read("a", 1, 2)  # up to the end that it knows: there may be more
    refused(NotOwner, lambda: old.read("a", 0, 1))  # now it knows


@pytest.mark.parametrize("ask", ["beyond", "length", "absent"])
def test_what_is_no_byte_before_the_end_is_fenced_at_the_tail(world: World, ask: str) -> None:
    old = unaware(world)
    world.forget_cache()
    world.open(metadata="memory").append("a", b"456")
    asked = {
        "beyond": lambda: old.read("a", 3, 1),
        "length": lambda: old.info("a"),
        "absent": lambda: old.read("no such", 0, 1),
    }
    refused(NotOwner, asked[ask])


@pytest.mark.parametrize("inline_bytes", [0, None], ids=["chunks", "records"])
def test_take_overs_under_load_lose_and_double_nothing(world: World, inline_bytes: int | None) -> None:
    """Writers with event numbers, retrying on whatever owner there is; five owners follow each other."""
    world.defaults["inline_bytes_max"] = inline_bytes
    current = [world.open()]
    current[0].create("a", rolling=None)
    done = threading.Event()

    def work(thread: int) -> None:
        if thread == 0:
            for _ in range(5):
                done.wait(0.05)
                current[0] = world.open()
            return
        for event in range(1, 26):
            while True:
                try:
                    current[0].append("a", b"%d:%02d;" % (thread, event), writer_id=b"%d" % thread, event_number=event)
                    break
                except (NotOwner, OutcomeUnknown):
                    continue

    run_threads(5, work)
    store = current[0]
    pieces = store.read("a", 0, 99_999).split(b";")[:-1]
    for thread in range(1, 5):
        mine = [piece for piece in pieces if piece.startswith(b"%d:" % thread)]
        assert mine == [b"%d:%02d" % (thread, event) for event in range(1, 26)]
    assert problems(store.check("deep")) == []
