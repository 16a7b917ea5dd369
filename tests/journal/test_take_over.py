"""Opening, fail-over and self-take-over: claims, ends of streams, what is adopted (protocol 3.4, 3.9, A1, A15)."""

from __future__ import annotations

import pytest

from chunkstore.checksum import BytesLike
from chunkstore.errors import (
    ChunkstoreError,
    Damaged,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.journal import JournalBroken, RecordKind
from chunkstore.metadata.memory import MemoryShelf
from chunkstore_journal.lease import write_lease
from tests.journal.world import World, keys_of, let_pass, nothing


def test_the_first_owner_starts_at_genesis(world: World) -> None:
    owner = world.process().open()
    assert owner.report.source == "genesis"
    assert (owner.journal.epoch, owner.journal.head.lsn, owner.journal.mode) == (1, 1, world.mode)
    assert owner.store.head().position.epoch == 1
    assert owner.store.head().position == owner.journal.head


def test_records_are_numbered_and_chained(world: World) -> None:
    owner = world.process().open()
    positions = [owner.put(f"k{i}") for i in range(3)]
    assert [position.lsn for position in positions] == [2, 3, 4]
    assert [position.index for position in positions] == [2, 3, 4]
    assert owner.journal.records_written == 3
    assert owner.journal.bytes_written > 0
    assert owner.store.head().position == owner.journal.head


@pytest.mark.parametrize("same_machine", [True, False])
def test_the_next_owner_has_everything_acknowledged(world: World, same_machine: bool) -> None:
    shelf = MemoryShelf()
    owner = world.process(shelf).open()
    positions = [owner.put(f"k{i}") for i in range(40)]
    owner.store.close(clean=True)
    heir = world.process(shelf if same_machine else None).open()
    assert all(heir.service.resolve(position) for position in positions)
    assert heir.service.resolve(positions[-1]._replace(lsn=positions[-1].lsn + 1, hash=b"")) is False
    assert heir.keys() == {f"k{i}" for i in range(40)}
    assert heir.report.source == ("cache" if same_machine else "journal")
    assert heir.journal.epoch == 2
    heir.put("more")
    third = world.process().open()
    assert third.keys() == {f"k{i}" for i in range(40)} | {"more"}


def test_an_owner_that_was_overtaken_is_told_so(world: World) -> None:
    shelf = MemoryShelf()
    zombie = world.process(shelf).open()
    zombie.put("before")
    heir = world.process(shelf).open()
    with pytest.raises(world.told_when_fenced):
        zombie.put("after")
    with pytest.raises(NotOwner) as raised:
        zombie.put("for ever")
    assert (raised.value.epoch, raised.value.owner) == (1, 2)
    with pytest.raises(NotOwner):
        zombie.journal.check_fence()
    heir.journal.check_fence()
    with pytest.raises(NotOwner):
        zombie.again()
    heir.put("heir's")
    assert world.process().open().keys() == {"before", "heir's"}


def test_zombie_append_before_the_tail_is_read_is_adopted(append_world: World) -> None:
    world = append_world
    zombie = world.process().open()
    zombie.put("kept")
    heir = world.process()

    def overtake(operation: str, _name: str) -> None:
        if operation == "sync":
            zombie.wire.before = nothing
            heir.open()

    zombie.wire.before = overtake
    with pytest.raises(OutcomeUnknown):
        zombie.put("unknown")
    assert heir.keys() == {"kept", "unknown"}
    position = zombie.journal.head._replace(lsn=zombie.journal.head.lsn + 1, hash=b"")
    assert heir.service.resolve(position) is True
    opened = world.opened(2)
    assert opened.embedded is not None
    assert opened.payload.end_index == 2


@pytest.mark.parametrize("told", ["nothing", "its end", "an end of another history"])
def test_what_the_cache_stands_on_is_embedded_unless_its_owner_told_that_it_was_synced(
    append_world: World, told: str
) -> None:
    world, shelf = append_world, MemoryShelf()
    owner = world.process(shelf).open()
    before, end = owner.put("a"), owner.put("b")
    if told != "nothing":
        lease_end = end if told == "its end" else end._replace(hash=bytes(16))
        write_lease(world.storage, world.names, epoch=1, counter=1, released=True, end=lease_end)
    owner.store.close(clean=True)
    heir = world.process(shelf)
    heir.ownership = heir.service.take_over(own=None, accept_rollback=told == "an end of another history")
    opened = world.opened(2)
    if told == "its end":
        assert opened.embedded is None
        assert (opened.payload.end_byte, opened.payload.last_lsn) == (end.end, end.lsn)
    else:
        assert opened.embedded is not None and opened.embedded.hash == end.hash
        assert (opened.payload.end_byte, opened.payload.last_lsn) == (before.end, end.lsn)
    assert heir.report.source == "cache"
    assert heir.keys() == world.process().open().keys() == {"a", "b"}


def test_two_claimants_race_for_one_epoch(world: World) -> None:
    world.process().open().put("a")
    slow, fast = world.process(), world.process()

    def race(operation: str, name: str) -> None:
        if operation == "create_if_absent" and name == world.names.epoch(2):
            slow.wire.before = nothing
            fast.open()

    slow.wire.before = race
    slow.open()
    assert (fast.journal.epoch, slow.journal.epoch) == (2, 3)
    with pytest.raises(world.told_when_fenced):
        fast.put("b")
    slow.put("c")
    assert world.process().open().keys() == {"a", "c"}


@pytest.mark.parametrize(
    ("error", "happened"), [(StorageFull("no space left"), False), (StorageUnavailable("EIO"), None)]
)
def test_what_a_failed_write_of_a_record_means(
    append_world: World, error: ChunkstoreError, happened: bool | None
) -> None:
    """Half of it is there all the same, and is cut by the self-take-over."""
    owner = append_world.process().open()
    owner.put("a")

    def tear(operation: str, name: str, data: BytesLike) -> None:
        if operation == "write":
            length = append_world.storage.stat(name).length
            append_world.storage.write(append_world.storage.open_write(name), length, bytes(data)[:48])
            raise error

    owner.wire.override = tear
    with pytest.raises(JournalBroken) as raised:
        owner.put("b")
    assert raised.value.happened is happened
    assert type(raised.value.error) is type(error)
    owner.again()
    assert owner.report.tail_cut is not None
    assert owner.report.tail_cut.bytes == 48
    assert owner.keys() == {"a"}


def test_a_self_take_over_that_failed_half_way_goes_on(world: World) -> None:
    """Every storage call of a self-take-over may fail once, before or after taking effect; the next call continues."""
    for late in (False, True):
        nth = 0
        while True:
            owner = world.process().open()
            key = f"{late}-{nth}"
            owner.put(key)
            epoch = owner.journal.epoch
            owner.wire.calls.clear()
            failed: list[str] = []

            def fail(
                operation: str,
                name: str,
                nth: int = nth,
                failed: list[str] = failed,
                calls: list[tuple[str, str]] = owner.wire.calls,
            ) -> None:
                if len(calls) > nth and not failed:
                    failed.append(operation)
                    raise StorageUnavailable("once", object=name)

            if late:
                owner.wire.after = fail
            else:
                owner.wire.before = fail
            for _ in range(3):
                try:
                    owner.again()
                    break
                except StorageUnavailable:
                    continue
            assert owner.journal.epoch == epoch + 1, (late, nth, failed)
            owner.wire.before = owner.wire.after = nothing
            assert key in set(owner.keys())
            owner.put(key + "'")
            if not failed:
                break
            nth += 1
        assert nth > 5


def test_close_record_protects_the_last_data_record(append_world: World) -> None:
    """A4: with a CLOSE behind it, damage in the last data record is damage, not a torn tail."""
    world = append_world
    owner = world.process().open()
    owner.put("a")
    start = owner.journal.head.end
    owner.put("b")
    owner.note(RecordKind.CLOSE)
    log = world.names.log(1)
    raw = bytearray(world.whole(log))
    raw[start + 150] ^= 1
    world.overwrite(log, bytes(raw))
    with pytest.raises(Damaged) as raised:
        world.process().open()
    assert raised.value.object == log


def test_errors_of_the_journal_are_typed(world: World) -> None:
    owner = world.process().open()
    owner.journal.close()
    with pytest.raises(ChunkstoreError):
        owner.put("a")
    assert keys_of(owner.store) == set()


def test_another_record_of_our_own_epoch_in_our_slot_deposes_nobody(slot_world: World) -> None:
    """A binding forgot an attempt, said that nothing happened, and it lands after all. What is offered for that slot then has
    not happened, and the owner goes on, behind what is there."""
    world = slot_world
    owner = world.process().open()
    forgotten: list[tuple[str, bytes]] = []

    def forget(_operation: str, name: str, data: BytesLike) -> bool | None:
        owner.wire.override = land
        forgotten.append((name, bytes(data)))
        raise InvalidArgument("nothing was sent, says the binding")

    def land(_operation: str, _name: str, _data: BytesLike) -> bool | None:
        owner.wire.override = let_pass
        assert world.storage.create_if_absent(*forgotten[0])
        return None

    owner.wire.override = forget
    with pytest.raises(InvalidArgument):
        owner.put("first")
    with pytest.raises(JournalBroken) as raised:
        owner.put("second")
    assert raised.value.happened is False
    owner.again()
    assert owner.keys() == {"first"}
    owner.put("third")
    assert world.process().open().keys() == {"first", "third"}


def test_a_last_record_that_lies_elsewhere_is_damage(append_world: World) -> None:
    """It is whole, so bytes in front of it are gone: this is no torn write."""
    world = append_world
    owner = world.process().open()
    end = owner.put("a").end
    after = owner.put("b").end
    owner.put("c")
    log = world.names.log(1)
    raw = world.whole(log)
    world.overwrite(log, raw[:end] + raw[after:])
    with pytest.raises(Damaged, match=f"written at byte {after}, not here") as raised:
        world.process().open()
    assert (raised.value.object, raised.value.position) == (log, end)
