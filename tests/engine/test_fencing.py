"""Two owners in one process: the older one changes nothing and answers nothing (protocol 3.5, 3.13, A5)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from chunkstore.changes import Append, TablePut
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, NotOwner, OutcomeUnknown
from chunkstore.storage import ChunkStorage
from tests.support.data import pattern, problems, refused, run_threads
from tests.support.forwarding import Hooked
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


def test_whatever_the_deposed_owner_is_asked_first_it_says_so(world: World) -> None:
    """Each call meets an owner that does not know yet."""
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


def test_without_a_fence_reads_are_answered_from_yesterday(world: World) -> None:
    old = world.open(read_fence="none", metadata="memory")
    prepare(old)
    world.forget_cache()
    new = world.open(metadata="memory")
    new.append("a", b"456")
    for call in READS.values():
        try:
            call(old)
        except NotOwner:
            pytest.fail("an unfenced read asked who owns the container")
        except ChunkstoreError:
            continue
    assert old.read("a", 0, 99) == b"123"
    refused(NotOwner, lambda: old.append("a", b"x"))
    # Now it knows, and reading goes on all the same.
    assert old.read("a", 0, 99) == b"123" and new.read("a", 0, 99) == b"123456"


def test_ping_pong(world: World) -> None:
    expected = b""
    stores: list[ChunkedSegmentStorage] = []
    for number in range(8):
        if number % 3 == 2:
            world.forget_cache()
        store = world.open()
        if number == 0:
            store.create("a", rolling=None)
        assert store.read("a", 0, 9_999) == expected
        for old in stores[-2:]:
            refused(NotOwner, lambda: old.append("a", b"zombie"), lambda: old.read("a", 0, 1))  # noqa: B023
        store.append("a", pattern(len(expected), 7))
        expected = pattern(0, len(expected) + 7)
        stores.append(store)
    assert [store.epoch for store in stores] == sorted({store.epoch for store in stores})
    assert [chunk.length for chunk in stores[-1].layout("a")] == [7] * 8
    assert problems(stores[-1].check("deep")) == []


def test_a_zombies_bytes_are_never_seen(world: World) -> None:
    old = world.open(rolling=1_000)
    old.create("a")
    old.append("a", b"12345")
    new = world.open()
    refused(NotOwner, lambda: old.append("a", b"ZOMBIE" * 10))
    assert new.append("a", b"67890") == 5
    # Even bytes that reached the old tail chunk stay behind it.
    tail = next(new.layout("a"))
    world.overwrite(tail.name, world.content(tail.name)[:5] + b"ZOMBIE")
    assert new.read("a", 0, 99) == b"1234567890"
    assert problems(new.check("deep")) == []


class Holding:
    """Stops the first journal write behind the claim, until the test lets it go."""

    def __init__(self, *, after: bool) -> None:
        self.held, self.going = threading.Event(), threading.Event()
        self.armed = False
        self.after = after
        self.hooked: Hooked | None = None

    def wrap(self, storage: ChunkStorage) -> Hooked:
        self.hooked = Hooked(storage)
        if self.after:
            self.hooked.after = self._stop
        else:
            self.hooked.before = self._stop
        return self.hooked

    def _stop(self, operation: str, names: tuple[str, ...]) -> None:
        if self.armed and "/j/" in names[0] and operation in ("write", "create_if_absent"):
            self.armed = False
            self.held.set()
            assert self.going.wait(30)


@pytest.mark.parametrize("after", [False, True], ids=["before the record is written", "after the record is written"])
def test_a_commit_that_a_take_over_overtakes_has_a_known_outcome(world: World, after: bool) -> None:
    """The successor's OPEN decides; the old owner reads it before it answers (A5)."""
    holding = Holding(after=after)
    old = world.open(wrap=holding.wrap)
    old.create("a")
    old.append("a", b"first")
    holding.armed = True
    outcomes: list[object] = []

    def body() -> None:
        try:
            outcomes.append(old.append("a", b"second"))
        except ChunkstoreError as error:
            outcomes.append(type(error))

    thread = threading.Thread(target=body)
    thread.start()
    assert holding.held.wait(20)
    new = world.open()
    happened = new.info("a").length == 11
    holding.going.set()
    thread.join(20)
    assert not thread.is_alive()
    assert outcomes == [5 if happened else NotOwner]
    assert happened == after
    assert new.read("a", 0, 99) == (b"firstsecond" if happened else b"first")
    refused(NotOwner, lambda: old.append("a", b"x"))
    assert problems(new.check("deep")) == []


def test_take_overs_under_load_lose_and_double_nothing(world: World) -> None:
    """Writers with event numbers, retrying on whatever owner there is; five owners follow each other."""
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
