"""Replacing a run of chunks: what it commits, and everything that may have happened to the run since it was copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chunkstore.changes import (
    Append,
    Concat,
    Create,
    EndSession,
    NewChunk,
    Replace,
)
from chunkstore.config import RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Conflict, Damaged, InvalidArgument, NotOwner
from chunkstore.metadata.keys import is_row
from chunkstore.operations.replace import replace as commit_replace
from chunkstore.records.names import chunk_id
from tests.support.data import pattern, problems, refused
from tests.support.forwarding import Hooked
from tests.support.hooked import open_hooked
from tests.support.merging import merge
from tests.support.worlds import World

FIVE = RollingPolicy(chunk_size_bytes_max=5)


def filled(store: ChunkedSegmentStorage, name: str = "a") -> None:
    """Ten chunks of five bytes, and one of one byte, which is active where chunks grow."""
    store.create(name, rolling=FIVE)
    for offset in range(0, 50, 5):
        store.append(name, pattern(offset, 5))
    store.append(name, pattern(50, 1))


def rows(store: ChunkedSegmentStorage) -> dict[bytes, bytes]:
    with store._container.current.store.view() as view:
        return {key: raw for key, raw in view.scan(b"\x01", b"\xff") if is_row(key)}


def _into_another(store: ChunkedSegmentStorage) -> None:
    store.seal("a")
    store.create("b")
    store.commit([Concat("b", "a"), Create("a", FIVE), Append("a", pattern(0, 51))])


def _again(store: ChunkedSegmentStorage) -> None:
    store.delete("a")
    filled(store)


def _another_epoch(store: ChunkedSegmentStorage) -> None:
    """A take-over from ourselves, as after an error, or for a roll."""
    store._container.current.end(Damaged("for the test", object="journal"))
    store.append("a", b"")
    store.append("a", pattern(51, 1))


MEANWHILE: dict[str, Callable[[ChunkedSegmentStorage], object]] = {
    "truncated": lambda store: store.truncate("a", 21),
    "all truncated": lambda store: store.truncate("a", 51),
    "moved": _into_another,
    "deleted and made again": _again,
    "replaced": lambda store: store.commit([merge(store, "a", 3, 4)]),
    "overlapped below": lambda store: store.commit([merge(store, "a", 2, 2)]),
    "overlapped above": lambda store: store.commit([merge(store, "a", 6, 2)]),
    "replaced inside, the same lengths": lambda store: store.commit([merge(store, "a", 4, 2, parts=2)]),
    "another epoch": _another_epoch,
}


def test_new_chunks_are_durable_before_the_record_that_names_them(world: World) -> None:
    """Whoever wrote them: a record that outlives its chunks would be a loss."""
    if not world.appends:
        pytest.skip("what is written is durable here")
    store, storage = open_hooked(world, Hooked)
    filled(store)
    change = merge(store, "a", 2, 3)
    calls: list[tuple[str, str]] = []
    storage.before = lambda operation, names: calls.extend((operation, name) for name in names)
    store.commit([change])
    new = store._container.names.chunk(change.new[0].id)
    record = next(number for number, (operation, name) in enumerate(calls) if "/j/" in name and operation != "exists")
    assert ("sync", new) in calls[:record]


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_the_list_says_something_else_by_now(world: World, meanwhile: str) -> None:
    """The copy of chunks 3 to 6 is not committed, nor what stands beside it in a commit."""
    store = world.open()
    world.still(store)
    filled(store)
    run = merge(store, "a", 3, 4)
    MEANWHILE[meanwhile](store)
    before = rows(store)
    refused(Conflict, lambda: store.commit([run]), lambda: commit_replace(store._container, run))
    refused(Conflict, lambda: store.commit([Create("c"), Append("a", b"x"), run]))
    assert rows(store) == before
    assert problems(store.check("deep")) == []


def test_chunks_that_this_epoch_may_not_commit(world: World) -> None:
    store = world.open()
    filled(store)
    run = merge(store, "a", 3, 4)
    [chunk] = run.new
    assert isinstance(chunk, NewChunk)
    segment_id, epoch, storage = store.info("a").id, store.epoch, world.raw_storage()

    def with_id(identity: bytes) -> Replace:
        storage.create(world.names().chunk(identity), pattern(15, 20))
        return replace(run, new=(chunk._replace(id=identity),))

    ids = [(segment_id, epoch - 1), (segment_id, epoch + 1), (segment_id, 0), (segment_id + 1, epoch), (0, epoch)]
    for number, (segment, of) in enumerate(ids):
        strange = with_id(chunk_id(segment, of, 900 + number, 1))
        refused(Conflict, lambda: store.commit([strange]))  # noqa: B023
        storage.delete(world.names().chunk(strange.new[0].id))
    session = store.session("s")
    outside = session.writer().write_chunk(storage, 0, pattern(15, 20))
    ours = replace(run, new=(outside,), session_id=session.id)
    refused(Conflict, lambda: store.commit([EndSession(session.id), ours]))
    refused(InvalidArgument, lambda: store.commit([replace(ours, session_id=None)]))
    refused(InvalidArgument, lambda: store.commit([replace(ours, session_id=session.id + 1)]))
    store.commit([ours, EndSession(session.id)])
    assert store.read("a", 0, 99) == pattern(0, 51)
    filled(store, "b")
    again = replace(merge(store, "b", 3, 4), new=(outside,), session_id=session.id)
    refused(Conflict, lambda: store.commit([again]))
    assert problems(store.check("deep")) == []


def test_chunks_that_are_not_what_is_said(world: World) -> None:
    """Each in the metadata once, in the storage, and in its length: the old ones are deleted for them."""
    store = world.open()
    filled(store)
    filled(store, "b")
    run = merge(store, "a", 3, 4)
    [chunk] = run.new
    name, storage = world.names().chunk(chunk.id), world.raw_storage()
    session = store.session("s")
    outside = session.writer().write_chunk(storage, 0, pattern(15, 20))
    store.commit([replace(merge(store, "b", 3, 4), new=(outside,), session_id=session.id)])
    refused(InvalidArgument, lambda: store.commit([replace(run, new=(outside,), session_id=session.id)]))
    content = world.content(name)
    for present in (None, content[:-1], content + b"x"):
        storage.delete(name)
        if present is not None:
            storage.create(name, present)
        refused(InvalidArgument, lambda: store.commit([run]))
        if present is None:
            storage.create(name, b"")
    storage.delete(name)
    storage.create(name, content)
    store.commit([run])
    # Its row is there until it is collected, as garbage too.
    store.commit([merge(store, "a", 3, 1)])
    known = replace(merge(store, "a", 3, 1), new=run.new)
    refused(InvalidArgument, lambda: store.commit([known]))
    assert problems(store.check("deep")) == []


def test_a_deposed_owner_whose_chunk_was_swept_is_told_that_it_is_deposed(world: World) -> None:
    """Found by seed 1310100180: it was told that its arguments were wrong."""
    zombie = world.open(rolling=10)
    zombie.create("a")
    zombie.append("a", b"0123456789" * 3)
    change = merge(zombie, "a", 0, 2)
    heir = world.open(rolling=10)
    assert heir.sweep(delete=True, age_s_min=0).deleted == 1
    with pytest.raises(NotOwner):
        zombie.commit([change])
    assert heir.read("a", 0, 99) == b"0123456789" * 3
