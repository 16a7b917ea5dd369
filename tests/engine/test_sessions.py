"""Writers outside the owner: sessions, their chunks, and attaching them (protocol A9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chunkstore.changes import Append, Attach, EndSession, Truncate
from chunkstore.changes.sessions import SessionChunk
from chunkstore.errors import Conflict, InvalidArgument
from tests.support.data import pattern, problems, refused
from tests.support.forwarding import Hooked, nothing
from tests.support.hooked import hold_first, in_thread, is_commit, open_hooked
from tests.support.worlds import World


def test_attach_and_end_in_one_commit(world: World) -> None:
    store = world.open()
    store.create("a")
    store.append("a", pattern(0, 10))
    session = store.session("spark-job-1", ttl_s=60)
    assert session.holder == "spark-job-1" and session.id > 0
    outside = world.storage()
    tasks = [session.writer(task << 32) for task in range(3)]
    chunks: list[SessionChunk] = []
    position = 10
    for task in tasks:
        for number in range(2):
            chunks.append(task.write_chunk(outside, number, pattern(position, 7)))
            position += 7
    assert store.read("a", 0, 99) == pattern(0, 10)
    results = store.commit(
        [Attach("a", session.id, tuple(chunks), 10), EndSession(session.id), Append("a", pattern(52, 3))]
    )
    session.mark_ended()
    assert results == [10, None, 52]
    assert store.read("a", 0, 99) == pattern(0, 55)
    listed = [*store.layout("a")]
    assert [chunk.length for chunk in listed] == [10, *[7] * 6, 3]
    assert all("/s" in chunk.name for chunk in listed[1:7])
    assert problems(store.check("deep")) == []
    world.forget_cache()
    store.close()
    store = world.open(gc_grace_s=0)
    assert store.read("a", 0, 99) == pattern(0, 55)
    assert problems(store.check("deep")) == []
    store.truncate("a", 20)
    store.collect()
    assert len(world.chunks()) == 6 and store.read("a", 20, 99) == pattern(20, 35)
    store.delete("a")
    store.collect()
    assert world.chunks() == [] and problems(store.check("deep")) == []


def test_an_ended_session_is_refused(world: World) -> None:
    store = world.open()
    store.create("a")
    with store.session("me") as session:
        chunk = session.writer().write_chunk(world.storage(), 0, b"data")
    refused(
        Conflict,
        lambda: store.commit([Attach("a", session.id, (chunk,))]),
        lambda: store.commit([EndSession(session.id)]),
        session.end,
        lambda: store.commit([Attach("a", session.id, ())]),
    )
    other = store.session("other")
    mine = other.writer().write_chunk(world.storage(), 0, b"mine")
    refused(
        Conflict,
        lambda: store.commit([EndSession(other.id), Attach("a", other.id, (mine,))]),
        lambda: store.commit([EndSession(other.id), EndSession(other.id)]),
    )
    assert store.info("a").length == 0
    assert store.commit([Attach("a", other.id, (mine,)), EndSession(other.id)]) == [0, None]
    other.mark_ended()


def test_foreign_and_repeated_chunks_are_refused(world: World) -> None:
    store = world.open()
    store.create("a")
    store.append("a", b"own chunk")
    session, other = store.session("me"), store.session("other")
    outside = world.storage()
    mine = session.writer().write_chunk(outside, 0, b"mine")
    foreign = other.writer().write_chunk(outside, 0, b"foreign")
    own = world.names().parse_chunk(next(store.layout("a")).name)
    assert own is not None
    bad: list[tuple[object, ...]] = [
        (foreign,),
        (mine, foreign),
        (mine, mine),
        (SessionChunk(own, 9, 0),),
        (mine._replace(length=0),),
        (mine._replace(length=-1),),
        (mine._replace(crc32c=-1),),
        (mine._replace(crc32c=1 << 32),),
        (mine._replace(id=b"short"),),
        (mine._replace(id="text"),),  # type: ignore[arg-type]
        ("chunk",),
        (mine[:2],),
    ]
    for chunks in bad:
        refused(InvalidArgument, lambda: store.commit([Attach("a", session.id, chunks)]))  # type: ignore[arg-type]  # noqa: B023
    assert store.commit([Attach("a", session.id, (mine,))]) == [9]
    refused(
        InvalidArgument,
        lambda: store.commit([Attach("a", session.id, (mine,))]),
        lambda: store.commit([Attach("a", session.id, (mine,)), Truncate("a", 13)]),
    )
    assert store.read("a", 0, 99) == b"own chunkmine"
    store.create("b")
    more = session.writer(1).write_chunk(outside, 0, b"more")
    refused(InvalidArgument, lambda: store.commit([Attach("a", session.id, (more,)), Attach("b", session.id, (more,))]))
    assert problems(store.check("deep")) == []


def test_a_session_outlives_its_owner(world: World) -> None:
    with world.open() as store:
        store.create("a")
        session = store.session("me")
        chunk = session.writer().write_chunk(world.storage(), 0, b"data")
    world.forget_cache()
    store = world.open()
    assert store.commit([Attach("a", session.id, (chunk,)), EndSession(session.id)]) == [0, None]
    assert store.read("a", 0, 9) == b"data"
    assert problems(store.check("deep")) == []


@pytest.mark.parametrize("rivals", ["attach-attach", "attach-end", "end-attach", "end-end"])
def test_attach_and_end_are_ordered_also_when_they_race(world: World, rivals: str) -> None:
    """The second is planned while the first is on its way to the journal: exactly one of the two may happen."""
    store, storage = open_hooked(world, Hooked, keeper=True)
    store.create("a")
    store.create("b")
    session = store.session("me")
    chunk = session.writer().write_chunk(world.raw_storage(), 0, b"data")
    held, going = hold_first(storage, is_commit)

    def commit(what: str, segment: str) -> str:
        try:
            store.commit([EndSession(session.id) if what == "end" else Attach(segment, session.id, (chunk,))])
        except (Conflict, InvalidArgument):
            return "refused"
        return "done"

    first, second = rivals.split("-")
    calls = [in_thread(lambda: commit(first, "a"))]
    assert held.wait(60)
    calls.append(in_thread(lambda: commit(second, "b")))
    calls[1][0].join(0.2)
    going.set()
    for thread, _ in calls:
        thread.join(60)
    outcomes = [found[0] for _, found in calls]
    if rivals == "attach-end":
        assert outcomes == ["done", "done"]
    else:
        assert outcomes in (["done", "refused"], ["refused", "done"])
    assert problems(store.check("deep")) == []


def test_a_chunk_that_was_collected_is_not_attached_again(world: World) -> None:
    """Attached, deleted and collected while its session is open: nothing is left of it, not even a row that could say so."""
    store = world.open(gc_grace_s=0)
    store.create("a")
    session = store.session("me")
    writer = session.writer()
    outside = world.storage()
    first, second = (writer.write_chunk(outside, number, b"0123456789") for number in range(2))
    store.commit([Attach("a", session.id, (first,))])
    store.delete("a")
    store.collect()
    store.create("a")
    for chunks in ((first,), (second, first), (first, second)):
        with pytest.raises(InvalidArgument, match=r"is not in the storage.*collected"):
            store.commit([Attach("a", session.id, chunks)])
    assert store.info("a").length == 0
    longer = second._replace(length=11)
    with pytest.raises(InvalidArgument, match=r"has 10 bytes in the storage, not 11"):
        store.commit([Attach("a", session.id, (longer,))])
    never = second._replace(id=second.id[:-1] + bytes((second.id[-1] ^ 1,)))
    with pytest.raises(InvalidArgument, match="is not in the storage"):
        store.commit([Attach("a", session.id, (never,))])
    store.commit([Attach("a", session.id, (second,))])
    assert store.read("a", 0, 99) == b"0123456789"
    assert problems(store.check("deep")) == []


def during_the_look(storage: Hooked, call: Callable[[], object]) -> None:
    """The first look at a chunk's object from now on has its answer, and is held up there by ``call``."""

    def after(operation: str, names: tuple[str, ...]) -> None:
        if operation == "stat" and "/d/" in names[0]:
            storage.after = nothing
            call()

    storage.after = after


@pytest.mark.parametrize("ends", ["attached", "removed", "collected"])
def test_what_happens_to_a_chunk_behind_the_look_is_seen_under_the_locks(world: World, ends: str) -> None:
    """The look finds a chunk that somebody else attaches, removes and collects before the commit is planned."""
    store, storage = open_hooked(world, Hooked, gc_grace_s=0, collect_s=0)
    store.create("a")
    store.create("b")
    session = store.session("me")
    writer = session.writer()
    chunk, other = (writer.write_chunk(world.raw_storage(), number, b"0123456789") for number in range(2))

    def meanwhile() -> None:
        store.commit([Attach("b", session.id, (chunk,))])
        if ends != "attached":
            store.delete("b")
        if ends == "collected":
            store.collect()

    during_the_look(storage, meanwhile)
    why = "is not in the storage" if ends == "collected" else "is attached already"
    with pytest.raises(InvalidArgument, match=f"chunk 0 {why}"):
        store.commit([Attach("a", session.id, (chunk,))])
    assert store.info("a").length == 0 and store.commit([Attach("a", session.id, (other,))]) == [0]
    assert store.read("a", 0, 99) == b"0123456789" and problems(store.check("deep")) == []


def test_a_look_into_a_collection_that_has_begun(world: World) -> None:
    """A collection is about to delete the chunk, and has not dropped its row, when the look begins."""
    store, storage = open_hooked(world, Hooked, gc_grace_s=0, collect_s=0)
    store.create("a")
    session = store.session("me")
    writer = session.writer()
    chunk, other = (writer.write_chunk(world.raw_storage(), number, b"0123456789") for number in range(2))
    store.commit([Attach("a", session.id, (chunk,))])
    store.truncate("a", 10)
    held, going = hold_first(storage, lambda operation, name: operation == "delete" and "/d/" in name)
    thread, _ = in_thread(store.collect)
    assert held.wait(60)

    def let_go() -> None:
        going.set()
        thread.join(60)

    during_the_look(storage, let_go)
    with pytest.raises(InvalidArgument, match="chunk 0 is not in the storage"):
        store.commit([Attach("a", session.id, (chunk, other))])
    assert going.is_set() and store.info("a").length == 10 and problems(store.check("deep")) == []
