"""Following: a prefix of history at all times, across epochs, holes and zombies (protocol 3.13, P9)."""

from __future__ import annotations

import pytest

from chunkstore import runtime
from chunkstore.config import Settings, Tuning
from chunkstore.errors import CacheDamaged, Damaged, RolledBack, StorageUnavailable
from chunkstore.journal import JournalBroken
from chunkstore.metadata.memory import MemoryShelf
from chunkstore.metadata.port import Head
from chunkstore.storage import ChunkHandle
from chunkstore_journal.follower import Follower
from tests.journal.ends import Objects, become, close, objects_of
from tests.journal.world import Process, World, keys_of, let_pass, nothing


def rotten() -> None:
    raise CacheDamaged("rotten", object="cache")


def test_it_follows_commit_by_commit(world: World) -> None:
    follower = world.follower()
    owner = world.process().open()
    for i in range(5):
        position = owner.put(f"k{i}")
        head = follower.catch_up()
        assert head.position == position
        assert keys_of(follower.store) == owner.keys()


def test_a_record_whose_sync_failed_waits_for_the_next_open(append_world: World) -> None:
    world = append_world
    owner = world.process().open()
    owner.put("a")
    follower = world.follower()

    def fail(operation: str, name: str) -> None:
        if operation == "sync":
            owner.wire.before = nothing
            raise StorageUnavailable("I/O error", object=name)

    owner.wire.before = fail
    with pytest.raises(JournalBroken) as raised:
        owner.put("b")
    assert raised.value.happened is None
    with pytest.raises(JournalBroken) as raised:
        owner.put("c")
    assert raised.value.happened is False
    follower.catch_up()
    owner.again()
    owner.put("c")
    assert follower.catch_up().position == owner.journal.head
    assert keys_of(follower.store) == {"a", "b", "c"}
    assert follower.findings == ()


def test_what_only_the_page_cache_holds_waits_for_a_record_behind_it(
    append_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good sync proves nothing of pages that somebody else's sync has failed to write: they count as clean."""
    owner = append_world.process().open()
    owner.put("a")
    follower = append_world.follower()
    before = follower.catch_up()
    lost = owner.journal.head.end
    owner.put("b")

    def read_stored(handle: ChunkHandle, offset: int, length: int) -> bytes:
        data = append_world.storage.read(handle, offset, length)
        return data[: max(lost - offset, 0)].ljust(len(data), b"\0")

    with monkeypatch.context() as patched:
        patched.setattr(follower._storage, "read_uncached", read_stored)
        for _ in range(3):
            assert follower.catch_up() == before
        owner.put("c")
        assert follower.catch_up().position.lsn == owner.journal.head.lsn - 1
    assert follower.catch_up().position == owner.journal.head
    assert keys_of(follower.store) == {"a", "b", "c"}


def test_a_hole_means_start_from_a_newer_snapshot(world: World) -> None:
    sleeper = world.follower()
    owner = world.process().open()
    owner.put("a")
    sleeper.catch_up()
    for i in range(5):
        owner = world.process(settings=Settings(journal_mode=world.mode, tuning=Tuning(snapshots_kept=1))).open()
        owner.put(f"k{i}")
        owner.snapshot()
    collected, _ = owner.service.collect(head=owner.store.head(), epoch=owner.journal.epoch, dry_run=False)
    assert collected
    head = sleeper.catch_up()
    assert head.position == owner.journal.head
    assert keys_of(sleeper.store) == owner.keys()
    assert sleeper.findings


def test_what_was_shown_stays_when_the_cache_that_showed_it_is_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by seed 7053: the last record, which nobody had claimed behind, was shown, and gone when the cache was rebuilt behind a claim
    without an OPEN."""
    owner = world.process().open()
    owner.put("a")
    owner.put("b")
    follower = world.follower()
    shown = follower.catch_up()
    assert shown.position == owner.journal.head
    world.process().die_at_open(2)
    monkeypatch.setattr(follower.store, "head", rotten)
    assert follower.catch_up() == shown
    assert keys_of(follower.store) == {"a", "b"}


def test_what_was_shown_does_not_go_away(memory_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without its end, as in a restored backup, or as old answers show it. Found by seed 2022000665: a replica that made its
    cache anew went back."""
    world = memory_world
    owner = world.process().open()
    before = owner.put("a")
    end = owner.put("b")
    follower = world.follower()
    shown = follower.catch_up()
    whole = objects_of(world.storage)
    if world.mode == "append":
        world.overwrite(world.names.log(1), whole[world.names.log(1)][: before.end])
    else:
        world.storage.delete(world.names.slot(1, end.index - 1))
    monkeypatch.setattr(follower.store, "head", rotten)
    for _ in range(2):
        with pytest.raises(RolledBack) as raised:
            follower.catch_up()
        assert (raised.value.lsn_seen, raised.value.lsn_now) == (end.lsn, before.lsn)
        assert "repair" not in str(raised.value), "nothing here is damaged"
        with pytest.raises(RolledBack):
            follower.store  # noqa: B018
    anew = world.follower()
    assert anew.catch_up().position.lsn == before.lsn
    assert keys_of(anew.store) == {"a"}
    become(world, whole)
    assert follower.catch_up() == shown
    assert keys_of(follower.store) == {"a", "b"}


def rolled_back_under(world: World, count: int) -> tuple[Process, Follower, Head, Objects]:
    """An older state is put in the root's place, without the newest epoch, of ``count`` records. Its owner, a replica, what that has shown,
    and the newer state."""
    world.process().open().put("a")
    older = objects_of(world.storage)
    owner = world.process().open()
    for number in range(count):
        owner.put(f"b{number}")
    follower = world.follower()
    shown = follower.catch_up()
    newer = objects_of(world.storage)
    become(world, older)
    return owner, follower, shown, newer


@pytest.mark.parametrize("later", [0, 1, 3])
@pytest.mark.parametrize("strangers", [1, 2, 4])
def test_a_live_replica_does_not_go_over_to_another_history(memory_world: World, strangers: int, later: int) -> None:
    """An older state in the root's place that somebody has opened, and that has grown to what was shown and beyond."""
    world = memory_world
    owner, follower, shown, newer = rolled_back_under(world, 6)
    for number in range(strangers):
        other = world.process().open()
        while other.journal.head.lsn < shown.position.lsn - strangers + number + later:
            other.put(f"c{other.journal.head.lsn}")
    for _ in range(2):
        with pytest.raises(RolledBack) as raised:
            follower.catch_up()
        assert raised.value.lsn_seen == shown.position.lsn
        assert keys_of(follower.store) == owner.keys()
    anew = world.follower()
    assert anew.catch_up().position.lsn <= other.journal.head.lsn
    assert keys_of(anew.store) == other.keys()
    become(world, newer)
    assert follower.catch_up() == shown
    again = world.process().open()
    again.put("d")
    assert follower.catch_up().position == again.journal.head
    assert keys_of(follower.store) == owner.keys() | {"d"}


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("grown", [1, 9])
def test_a_live_replica_does_not_follow_an_accepted_rollback(memory_world: World, grown: int, later: int) -> None:
    """What it has shown is gone. One that is opened anew follows what is there."""
    world, shelf = memory_world, MemoryShelf()
    owner = world.process(shelf).open()
    owner.put("a")
    close(owner)
    older = objects_of(world.storage)
    for number in range(3):
        owner = world.process(shelf).open()
        owner.put(f"b{number}")
        owner.put(f"c{number}")
        close(owner)
    follower = world.follower()
    follower.catch_up()
    become(world, older)
    heir = world.process(shelf)
    runtime.sleep_s(0.002)
    heir.ownership = heir.service.take_over(own=None, accept_rollback=True)
    for number in range(grown):
        heir.put(f"d{number}")
    close(heir)
    for number in range(later):
        heir = world.process(shelf).open()
        heir.put(f"e{number}")
    shown = keys_of(follower.store)
    for _ in range(2):
        with pytest.raises(RolledBack):
            follower.catch_up()
    assert keys_of(follower.store) == shown
    anew = world.follower()
    assert anew.catch_up().position == heir.journal.head
    assert keys_of(anew.store) == heir.keys()


def test_a_container_that_is_gone_is_not_shown_empty(memory_world: World) -> None:
    owner = memory_world.process().open()
    owner.put("a")
    follower = memory_world.follower()
    follower.catch_up()
    for info in memory_world.storage.list("", limit=10_000).items:
        memory_world.storage.delete(info.name)
    with pytest.raises(RolledBack):
        follower.catch_up()
    assert keys_of(follower.store) == {"a"}


def test_half_a_record_is_not_yet_there(append_world: World) -> None:
    world = append_world
    owner = world.process().open()
    owner.put("a")
    follower = world.follower()

    def look(operation: str, name: str, data: object) -> None:
        if operation == "write":
            assert isinstance(data, bytes)
            length = world.storage.stat(name).length
            handle = world.storage.open_write(name)
            world.storage.write(handle, length, data[: len(data) // 2])
            follower.catch_up()
            assert keys_of(follower.store) == {"a"}
            world.storage.truncate(handle, length)

    owner.wire.override = look
    owner.put("b")
    owner.wire.override = let_pass
    follower.catch_up()
    assert keys_of(follower.store) == {"a", "b"}


def test_damage_does_not_look_like_an_idle_owner(append_world: World) -> None:
    world = append_world
    owner = world.process().open()
    owner.put("a")
    at = owner.journal.head.end
    owner.put("b")
    owner.put("c")
    raw = bytearray(world.whole(world.names.log(1)))
    raw[at] ^= 1
    world.overwrite(world.names.log(1), bytes(raw))
    with pytest.raises(Damaged):
        world.follower().catch_up()
