"""Attaching what a session has written, in one commit or in many, by an owner or by somebody who asks one: exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from chunkstore.changes import Create, EndSession, TablePut
from chunkstore.engine import owner as owners
from chunkstore.engine.owner import Owner, Written, attach_written, find_session
from chunkstore.engine.reading import read_view
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    Conflict,
)
from chunkstore.metadata.keys import SEGMENT, VISIBLE_SEGMENTS
from tests.support.data import pattern, problems, refused
from tests.support.worlds import World

BOTH = pytest.mark.parametrize("who", ["owner", "asker"])
WAIT_S = 60.0
Opened = Callable[[str], tuple[ChunkedSegmentStorage, Owner]]


class Stopped(Exception):
    """The process ends here."""


class Batch(NamedTuple):
    """What a sink commits: ten chunks for a segment that is there, and four for a new one."""

    session_id: int
    written: tuple[Written, ...]

    def attach(self, target: Owner, value: bytes = b"1", expected: int = 0) -> int:
        once = TablePut("sink", b"q", value, expected)
        return attach_written(target, self.session_id, self.written, once, end_session=True, wait_s=WAIT_S)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps: [a a a] [a a a] [a a a] [a b b] [b b]."""
    monkeypatch.setattr(owners, "_COMMIT_CHUNKS", 3)


@pytest.fixture
def opened(world: World) -> Iterator[Opened]:
    """Opens the container: its owner, and who attaches to it."""
    with ExitStack() as stack:

        def open_it(who: str) -> tuple[ChunkedSegmentStorage, Owner]:
            store = world.open(ask_s=0.01, gc_grace_s=0, collect_s=0)
            return store, store if who == "owner" else stack.enter_context(world.asker())

        yield open_it


def make(world: World, target: Owner, holder: str = "q/1", first: int = 0) -> Batch:
    session = find_session(target, holder, wait_s=WAIT_S)
    assert find_session(target, holder, wait_s=WAIT_S) == session
    storage = world.storage()
    chunks = [session.write_chunk(storage, first + number, pattern(number * 7, 7)) for number in range(14)]
    new = Written("b", tuple(chunks[10:]), Create("b"))
    return Batch(session.session_id, (Written("a", tuple(chunks[:10])), new))


def staged(store: ChunkedSegmentStorage) -> int:
    return read_view(store, lambda view: len([*view.scan(SEGMENT, VISIBLE_SEGMENTS)]))


def assert_attached_once(store: ChunkedSegmentStorage) -> None:
    assert store.read("a", 0, 999) == b"before" + pattern(0, 70)
    assert store.read("b", 0, 999) == pattern(70, 28)
    assert [info.name for info in store.segments()] == ["a", "b"]
    assert problems(store.check("deep")) == []


@BOTH
@pytest.mark.parametrize("at_once", [True, False])
def test_everything_appears_at_once_and_one_time(
    world: World, opened: Opened, who: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once:
        monkeypatch.setattr(owners, "_COMMIT_CHUNKS", 14)
    store, target = opened(who)
    store.create("a")
    store.append("a", b"before")
    batch = make(world, target)
    version = batch.attach(target)
    assert_attached_once(store)
    assert staged(store) == 0 and store.sessions() == []
    entry = store.table("sink").get(b"q")
    assert entry is not None and entry.version == version
    head = store._container.current.queue.head.lsn
    assert batch.attach(target) == version, "again"
    other = make(world, target, "q/1 again")
    assert other.attach(target) == version, "again, with other chunks"
    refused(Conflict, lambda: other.attach(target, b"2"))
    assert staged(store) == 0 and store.table("sink").get(b"q") == entry
    assert_attached_once(store)
    assert store._container.current.queue.head.lsn <= head + 3  # the other session, and heartbeats


def before_step(kind: Any, patch: pytest.MonkeyPatch, step: int, call: Callable[[], object]) -> None:
    """Behind so many commits of whoever attaches next, ``call`` comes first, one time."""
    done = [0]

    def counted(method: Callable[..., object]) -> Callable[..., object]:
        def instead(*args: object, **options: object) -> object:
            done[0] += 1
            if done[0] == step + 1:
                call()
            return method(*args, **options)

        return instead

    patch.setattr(kind, "run", counted(kind.run))


def stop() -> None:
    raise Stopped


@BOTH
@pytest.mark.parametrize("step", range(6))
def test_whoever_dies_between_two_commits_is_gone_on_for(world: World, opened: Opened, who: str, step: int) -> None:
    store, target = opened(who)
    store.create("a")
    store.append("a", b"before")
    batch = make(world, target)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        before_step(type(target), patch, step, stop)
        batch.attach(target)
    assert store.read("a", 0, 999) == b"before" and [info.name for info in store.segments()] == ["a"]
    store.collect()
    assert problems(store.check("deep")) == [] and staged(store) == min(step, 3) + 2 * (step > 3) + (step > 4)
    store.close()
    world.forget_cache()
    store, target = opened(who)
    version = batch.attach(target)
    assert_attached_once(store)
    entry = store.table("sink").get(b"q")
    assert staged(store) == 0 and entry is not None and entry.version == version


@BOTH
def test_what_nobody_goes_on_with_is_deleted_when_its_session_ends(world: World, opened: Opened, who: str) -> None:
    store, target = opened(who)
    store.create("a")
    store.append("a", b"before")
    batch = make(world, target)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        before_step(type(target), patch, 5, stop)
        batch.attach(target)
    again = make(world, target, "q/1 again")
    again.attach(target)
    assert_attached_once(store)
    store.collect()
    assert staged(store) == 6 and len(world.chunks()) == 1 + 2 * 14
    store.commit([EndSession(batch.session_id)])
    refused(Conflict, lambda: attach_written(target, batch.session_id, batch.written, TablePut("sink", b"x", b"1", 0)))
    store.collect()
    assert staged(store) == 0 and len(world.chunks()) == 1 + 14
    assert_attached_once(store)


@BOTH
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("step", [0, 2, 5])
def test_of_two_with_the_same_row_one_happens_and_both_are_told(
    world: World, opened: Opened, who: str, same: bool, step: int
) -> None:
    """The second one goes all the way while the first is between two of its steps."""
    store, target = opened(who)
    store.create("a")
    store.append("a", b"before")
    batch = make(world, target)
    twin = batch if same else make(world, target, "twin", 100)
    versions: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        before_step(type(target), patch, step, lambda: versions.append(twin.attach(target)))
        assert batch.attach(target) == versions[0]
    assert_attached_once(store)
    entry = store.table("sink").get(b"q")
    assert entry is not None and entry.version == versions[0]
