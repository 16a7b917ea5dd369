"""``defrag``: the same bytes in fewer chunks, whatever happens to the segment, the journal or the storage while it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from chunkstore import DefragPolicy, RollingPolicy, StorageUnavailable
from chunkstore.config import MIB, Limits
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged, OutcomeUnknown
from chunkstore.operations.commit_queue import CommitQueue
from chunkstore.upkeep import defrag as module
from chunkstore.upkeep.defrag import defrag_step
from tests.support.data import lengths, pattern, problems, refused
from tests.support.forwarding import Hooked
from tests.support.hooked import is_commit, open_hooked
from tests.support.rot import flip
from tests.support.worlds import World


def small_chunks(
    store: ChunkedSegmentStorage, name: str = "a", count: int = 20, size: int = 5, target: int = 1000
) -> None:
    """``count`` chunks of ``size`` bytes in a segment whose chunks may have ``target``."""
    store.create("small", rolling=RollingPolicy(chunk_size_bytes_max=size))
    store.append("small", pattern(0, count * size))
    store.seal("small")
    store.create(name, rolling=RollingPolicy(chunk_size_bytes_max=target))
    store.concat(name, 0, "small")


def all_is_well(store: ChunkedSegmentStorage, length: int, start: int = 0, name: str = "a") -> None:
    assert store.read(name, start, 1 << 30) == pattern(start, length - start)
    assert problems(store.check("deep")) == []


def test_small_chunks_become_one(world: World) -> None:
    store = world.open(gc_grace_s=0)
    small_chunks(store)
    small_chunks(store, "b", 7)
    store.append("a", pattern(100, 3))
    replica = world.replica()
    would = store.defrag(dry_run=True)
    assert would == replica.due_defrag()
    assert (would.segments, would.chunks_before, would.bytes_moved) == (2, 28, 100 + (0 if world.appends else 3))
    assert lengths(store) == [5] * 20 + [3]
    seen = list[object]()
    done = store.defrag(progress=seen.append)
    assert done._replace(carried_bytes=0) == would and done.actions == tuple(seen)
    assert (done.chunks_before - done.chunks_after, done.refused) == (19 + (not world.appends), ())
    # The active chunk is never part of a run, and goes on growing.
    assert lengths(store) == ([100, 3] if world.appends else [103])
    assert lengths(store, "b") == [5] * 7
    store.append("a", pattern(103, 9))
    replica.refresh()
    assert replica.read("a", 0, 999) == pattern(0, 112)
    assert store.collect().chunks == 20 + (not world.appends)
    all_is_well(store, 112)
    again = store.defrag("a")
    assert (again.actions, again.chunks_before, again.chunks_after) == ((), again.chunks_after, again.chunks_before)
    world.crash(store)
    world.forget_cache()
    all_is_well(world.open(), 112)


def test_a_step_is_bounded_and_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 chunks a step reads 40 rows, and does 2 runs."""
    store = world.open()
    small_chunks(store, count=300, target=50)
    monkeypatch.setattr(module, "_RUNS_OF_A_STEP", 2)
    monkeypatch.setattr(module, "LIMITS", Limits(defrag_chunks_max=40))
    position: int | None = 0
    steps, before = 0, -1
    while position is not None:
        step = defrag_step(store._container, store._context, "a", DefragPolicy(), position)
        assert len(step.actions) <= 2 and position > before
        before, position, steps = position, step.position, steps + 1
    assert steps >= 15 and lengths(store) == [50] * 30
    all_is_well(store, 1500)
    beyond = defrag_step(store._container, store._context, "a", DefragPolicy(), 99_999)
    assert (beyond.actions, beyond.position) == ((), None)


@pytest.mark.parametrize(("cut", "moves"), [(8 * MIB - 1, False), (9 * MIB, True), (12 * MIB + 77, True)])
def test_a_mostly_dead_first_chunk_is_written_anew(world: World, cut: int, moves: bool) -> None:
    store = world.open(gc_grace_s=0)
    store.create("a")
    store.append("a", pattern(0, 16 * MIB + 5))
    store.seal("a")
    store.truncate("a", cut)
    report = store.defrag("a")
    assert [action.action for action in report.actions] == ["relocate"] * moves
    assert report.bytes_moved == (16 * MIB + 5 - cut if moves else 0)
    assert store.usage().dead_head_bytes == (0 if moves else cut)
    assert store.defrag("a").actions == ()
    store.collect()
    all_is_well(store, 16 * MIB + 5, cut)


# ---- what happens meanwhile


def _roll(store: ChunkedSegmentStorage) -> None:
    store._container.current.end(Damaged("for the test", object="journal"))
    store.append("other", b"x")


def _collect(store: ChunkedSegmentStorage) -> None:
    store.truncate("a", 52)
    store.collect()


MEANWHILE: dict[str, tuple[Callable[[ChunkedSegmentStorage], object], int, int | None]] = {
    "append": (lambda store: store.append("a", pattern(100, 9)), 0, 109),
    "truncate": (lambda store: store.truncate("a", 12), 12, 100),
    "truncate the head": (lambda store: store.truncate("a", 3), 3, 100),
    "truncate all": (lambda store: store.truncate("a", 100), 100, 100),
    "seal": (lambda store: store.seal("a"), 0, 100),
    "delete": (lambda store: store.delete("a"), 0, None),
    "collect": (_collect, 52, 100),
    "defrag": (lambda store: store.defrag("a"), 0, 100),
    "epoch": (_roll, 0, 100),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_happens_while_a_chunk_is_composed(world: World, meanwhile: str, when: str) -> None:
    store, storage = open_hooked(world, Hooked, gc_grace_s=0)
    store.create("other")
    small_chunks(store)
    change, start, length = MEANWHILE[meanwhile]
    seen: list[str] = []

    def hook(operation: str, names: tuple[str, ...]) -> None:
        if operation == "compose":
            seen.append(names[0])
            if len(seen) == 1:
                change(store)

    setattr(storage, when, hook)
    store.defrag()
    if length is None:
        assert not store.exists("a")
    else:
        all_is_well(store, length, start)
        assert start == length or len(lengths(store)) <= 2
    # What was made for nothing is deleted.
    store.collect()
    used = [chunk.name for info in store.segments() for chunk in store.layout(info.name)]
    assert sorted(world.chunks()) == sorted(used)


def test_an_unknown_outcome_deletes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.open()
    small_chunks(store)
    before = len(world.chunks())
    real = CommitQueue.wait

    def unknown(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        raise OutcomeUnknown("for the test")

    with monkeypatch.context() as patch:
        patch.setattr(CommitQueue, "wait", unknown)
        refused(OutcomeUnknown, store.defrag)
    assert len(world.chunks()) == before + 1 and lengths(store) == [100]
    all_is_well(store, 100)


@pytest.mark.parametrize("operation", ["compose", "stat", "read", "record"])
def test_errors_of_the_storage(world: World, operation: str) -> None:
    """Whatever fails, the call says so, nothing has changed, and the chunk that was made is gone."""
    store, storage = open_hooked(world, Hooked)
    small_chunks(store)
    before = world.chunks()
    armed = [True]

    def hook(called: str, names: tuple[str, ...]) -> None:
        ours = chunk_in(names) and called == operation
        if armed and (ours or (operation == "record" and is_commit(called, names[0]))):
            armed.clear()
            raise StorageUnavailable("for the test")

    def chunk_in(names: tuple[str, ...]) -> bool:
        return any("/d/" in name for name in names)

    storage.before = hook
    with suppress(StorageUnavailable):
        store.defrag()
    assert not armed
    if operation != "record":
        assert world.chunks() == before and lengths(store) == [5] * 20
    store.defrag()
    assert lengths(store) == [100]
    all_is_well(store, 100)


# ---- bytes that are not what was written


@pytest.mark.parametrize("verify", [True, False])
def test_rot_is_never_laundered(world: World, verify: bool) -> None:
    """A flipped bit of an old chunk: found before the merge, or at every read behind it."""
    store = world.open()
    small_chunks(store)
    small_chunks(store, "b", 20)
    flip(world, [*store.layout("a")][7].name, 2)
    report = store.defrag(policy=DefragPolicy(verify=verify))
    assert report.refused == (("a",) if verify else ())
    assert lengths(store) == ([5] * 20 if verify else [100]) and lengths(store, "b") == [100]
    with pytest.raises(Damaged) as caught:
        store.read("a", 0, 100)
    assert caught.value.start <= 37 < caught.value.stop
    if verify:
        assert store.read("a", 0, 35) == pattern(0, 35)
        assert len(world.chunks()) == 20 + 20 + 1, "the new chunk is gone"


def test_a_storage_that_copies_wrongly_is_found_out(world: World) -> None:
    store, storage = open_hooked(world, Hooked)
    small_chunks(store)

    def hook(operation: str, names: tuple[str, ...]) -> None:
        if operation == "compose":
            flip(world, names[0], 50)

    storage.after = hook
    assert store.defrag().refused == ("a",)
    assert lengths(store) == [5] * 20
    all_is_well(store, 100)


def test_a_truncated_block_is_verified_before_it_gets_a_new_crc(world: World) -> None:
    """The one place where bytes of an old chunk get a CRC of their own: what is left of a block that is truncated in its middle."""
    store = world.open()
    small_chunks(store, count=9, size=100, target=10_000)
    store.truncate("a", 50)
    flip(world, next(iter(store.layout("a"))).name, 70)
    assert store.defrag(policy=DefragPolicy(verify=False)).refused == ("a",)
    assert lengths(store) == [100] * 9


# ---- all at once
