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
from chunkstore_journal.history import Sealed
from tests.journal.world import World, keys_of, let_pass, nothing


def test_the_first_owner_starts_at_genesis(world: World) -> None:
    owner = world.process().open()
    assert owner.report.source == "genesis"
    assert (owner.journal.epoch, owner.journal.head.lsn, owner.journal.mode) == (1, 1, world.mode)
    assert owner.store.head().owner_epoch == 1
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
    for i in range(40):
        owner.put(f"k{i}")
    heir = world.process(shelf if same_machine else None).open()
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
    with pytest.raises(NotOwner) as raised:
        zombie.put("after")
    assert (raised.value.epoch, raised.value.owner) == (1, 2)
    with pytest.raises(NotOwner):
        zombie.put("for ever")
    with pytest.raises(NotOwner):
        zombie.journal.check_fence()
    heir.journal.check_fence()
    with pytest.raises(NotOwner):
        zombie.again()
    heir.put("heir's")
    assert world.process().open().keys() == {"before", "heir's"}


def test_zombie_append_after_the_tail_was_read(append_world: World) -> None:
    """#1: the record lands behind the cut: never acknowledged, never history."""
    world = append_world
    zombie = world.process().open()
    zombie.put("kept")
    heir = world.process()
    zombie.wire.before = lambda operation, _name: overtake() if operation == "write" else None

    def overtake() -> None:
        zombie.wire.before = nothing
        heir.open()

    with pytest.raises(OutcomeUnknown):
        zombie.put("late")
    assert heir.keys() == {"kept"}
    assert heir.service.resolve(zombie.journal.head._replace(lsn=zombie.journal.head.lsn + 1, hash=b"")) is False
    heir.put("next")
    third = world.process().open()
    assert third.keys() == {"kept", "next"}
    assert world.follower().catch_up().digest == third.store.head().digest


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


def test_zombie_append_during_the_read_of_the_tail(append_world: World) -> None:
    """#2: half a record is visible to the successor; the late half is outside history."""
    world = append_world
    zombie = world.process().open()
    zombie.put("kept")
    log = world.names.log(1)
    halves: list[bytes] = []

    def tear(operation: str, name: str, data: object) -> None:
        if operation == "write" and name == log and not halves:
            assert isinstance(data, bytes)
            halves.append(data)
            length = world.storage.stat(log).length
            handle = world.storage.open_write(log)
            world.storage.write(handle, length, data[: len(data) // 2])
            heir.open()
            world.storage.write(handle, length + len(data) // 2, data[len(data) // 2 :])

    heir = world.process()
    zombie.wire.override = tear
    with pytest.raises(JournalBroken):
        zombie.put("torn")
    assert heir.keys() == {"kept"}
    assert heir.report.tail_cut is not None
    assert heir.report.tail_cut.bytes == len(halves[0]) // 2
    assert world.process().open().keys() == {"kept"}


def test_check_then_claim(append_world: World) -> None:
    """#3: the successor claims right after the owner's check: the record is acknowledged and in history."""
    world = append_world
    owner = world.process().open()
    heir = world.process()
    checks = 0

    def overtake(operation: str, _name: str) -> None:
        nonlocal checks
        checks += operation == "exists"
        if checks == 2:
            owner.wire.after = nothing
            heir.open()

    owner.wire.after = overtake
    position = owner.journal.append(owner.batch("k", b"v"))
    assert heir.keys() == {"k"}
    assert heir.service.resolve(position) is True


def test_third_owner_reads_a_longer_tail(world: World) -> None:
    """#4: the second claimant dies before its OPEN; only the third one's cut counts."""
    zombie = world.process().open()
    zombie.put("a")
    world.process().die_at_open(2)
    with pytest.raises((NotOwner, OutcomeUnknown)):
        zombie.put("b")
    third = world.process().open()
    assert third.journal.epoch == 3
    assert third.report.previous_epoch == 1
    assert "a" in set(third.keys())
    assert isinstance(world.streams.slot0(2), Sealed)


def test_an_opener_that_was_voided_halts(world: World) -> None:
    """#5: n stalls before OPEN, n2 voids its slot 0, n resumes."""
    first = world.process().open()
    first.put("a")
    slow, fast = world.process(), world.process()

    def stall(operation: str, name: str) -> None:
        if operation == "create_if_absent" and name == world.names.slot(2, 0):
            slow.wire.before = nothing
            fast.open()

    slow.wire.before = stall
    with pytest.raises(NotOwner) as raised:
        slow.open()
    assert (raised.value.epoch, raised.value.owner) == (2, 3)
    fast.put("b")
    assert world.process().open().keys() == {"a", "b"}


def test_a_delayed_open_arrives_too_late(world: World) -> None:
    """#6: the OPEN's PUT is delayed past the void; the name is taken, for ever."""
    world.process().open().put("a")
    delayed: list[tuple[str, bytes]] = []
    dead = world.process(settings=world.impatient)

    def delay(operation: str, name: str, data: object) -> bool | None:
        if operation == "create_if_absent" and name == world.names.slot(2, 0):
            assert isinstance(data, bytes)
            delayed.append((name, data))
            raise StorageUnavailable("no answer", object=name)
        return None

    dead.wire.override = delay
    with pytest.raises(StorageUnavailable):
        dead.open()
    assert len({data for _, data in delayed}) == 1, "the bytes of an undecided OPEN must not change"
    heir = world.process().open()
    assert heir.journal.epoch == 3
    assert world.storage.create_if_absent(*delayed[0]) is False
    heir.put("b")
    assert world.process().open().keys() == {"a", "b"}


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
    with pytest.raises(NotOwner):
        fast.put("b")
    slow.put("c")
    assert world.process().open().keys() == {"a", "c"}


@pytest.mark.parametrize("what", ["claim", "open"])
def test_a_lost_reply_is_recognised_as_our_own(world: World, what: str) -> None:
    """#9: stored, reply lost, the retry finds the name taken: by us."""
    lose_reply(world, world.names.epoch(1) if what == "claim" else world.names.slot(1, 0))


def test_a_lost_reply_of_a_record_is_recognised(slot_world: World) -> None:
    lose_reply(slot_world, slot_world.names.slot(1, 1))


def lose_reply(world: World, target: str) -> None:
    process = world.process()
    lost = 0

    def lose(operation: str, name: str) -> None:
        nonlocal lost
        if operation == "create_if_absent" and name == target and not lost:
            lost += 1
            raise StorageUnavailable("reply lost", object=name)

    process.wire.after = lose
    process.open()
    process.put("once")
    assert lost == 1
    assert process.journal.epoch == 1
    heir = world.process().open()
    assert heir.keys() == {"once"}
    assert heir.journal.head.lsn == 3


def test_a_delayed_put_keeps_its_bytes_until_decided(slot_world: World) -> None:
    """#10: time-out, nothing there on read-back, and then the PUT lands: one operation, once."""
    world = slot_world
    owner = world.process().open()
    offered: list[bytes] = []

    def delay(_operation: str, name: str, data: object) -> bool | None:
        if name != world.names.slot(1, 1):
            return None
        assert isinstance(data, bytes)
        offered.append(data)
        if len(offered) == 3:
            world.storage.create_if_absent(name, offered[0])
            return None
        raise StorageUnavailable("time-out", object=name)

    owner.wire.override = delay
    position = owner.put("once")
    assert position.index == 2
    assert len(set(offered)) == 1
    assert world.process().open().keys() == {"once"}


def test_an_undecided_record_is_decided_by_the_self_take_over(slot_world: World) -> None:
    world = slot_world
    for lands in (True, False):
        owner = world.process(settings=world.impatient).open()
        name = world.names.slot(owner.journal.epoch, 1)
        kept: list[bytes] = []

        def never(_operation: str, found: str, data: object, name: str = name, kept: list[bytes] = kept) -> bool | None:
            if found != name:
                return None
            assert isinstance(data, bytes)
            kept.append(data)
            raise StorageUnavailable("time-out", object=found)

        owner.wire.override = never
        with pytest.raises(JournalBroken) as raised:
            owner.put(f"lands {lands}")
        assert raised.value.happened is None
        if lands:
            world.storage.create_if_absent(name, kept[0])
        owner.wire.override = let_pass
        before = owner.journal.head
        owner.again()
        assert (f"lands {lands}" in set(owner.keys())) is lands
        assert owner.adopted.lsn == before.lsn + lands
        if not lands:
            assert world.storage.create_if_absent(name, kept[0]) is False, "the SEAL holds the slot"


def test_a_doomed_seal_fences_a_live_owner(slot_world: World) -> None:
    """#8: a dead claimant's SEAL lands in front of a live owner, which halts; what it acknowledged stays."""
    world = slot_world
    first = world.process().open()
    first.put("a")
    dead = world.process(settings=world.impatient)
    seals: list[tuple[str, bytes]] = []

    def delay(_operation: str, name: str, data: object) -> bool | None:
        if name == world.names.slot(1, 2):
            assert isinstance(data, bytes)
            seals.append((name, data))
            raise StorageUnavailable("no answer", object=name)
        return None

    dead.wire.override = delay
    with pytest.raises(StorageUnavailable):
        dead.open()
    assert world.storage.create_if_absent(*seals[0])
    with pytest.raises(NotOwner) as raised:
        first.put("b")
    assert raised.value.owner == 2
    with pytest.raises(NotOwner):
        first.again()
    assert world.process().open().keys() == {"a"}


def test_self_take_over_against_a_foreign_claim(world: World) -> None:
    """#48: the owner has trouble while somebody claims the next epoch: the owner halts, the claimant serves."""
    shelf = MemoryShelf()
    owner = world.process(shelf).open()
    owner.put("a")
    heir = world.process(shelf).open()
    with pytest.raises(NotOwner):
        owner.again()
    assert not world.storage.exists(world.names.epoch(3)), "a deposed owner must not climb"
    heir.put("b")
    assert heir.keys() == {"a", "b"}


def test_self_take_over_after_a_failed_sync(append_world: World) -> None:
    """#20: the record was written, its sync failed: the epoch ends, and what is read is embedded in our next OPEN."""
    world = append_world
    owner = world.process().open()
    owner.put("a")

    def fail(operation: str, name: str) -> None:
        if operation == "sync" and name == world.names.log(1):
            raise StorageUnavailable("I/O error", object=name)

    owner.wire.before = fail
    with pytest.raises(JournalBroken) as raised:
        owner.put("b")
    assert raised.value.happened is None
    with pytest.raises(JournalBroken):
        owner.put("c")
    before = owner.journal.head
    owner.again()
    assert owner.journal.epoch == 2
    assert owner.keys() == {"a", "b"}
    assert owner.adopted.lsn == before.lsn + 1
    opened = world.opened(2)
    assert opened.embedded is not None
    # Whatever becomes of the bytes behind the cut: OPEN holds the record.
    world.storage.truncate(world.storage.open_write(world.names.log(1)), opened.payload.end_byte)
    assert world.process().open().keys() == {"a", "b"}


def test_no_space_in_the_log_did_not_happen(append_world: World) -> None:
    """#23: a short write is cut by the self-take-over."""
    world = append_world
    owner = world.process().open()
    owner.put("a")

    def full(operation: str, name: str, data: object) -> None:
        if operation == "write":
            assert isinstance(data, bytes)
            length = world.storage.stat(name).length
            world.storage.write(world.storage.open_write(name), length, data[:50])
            raise StorageFull("no space left", object=name)

    owner.wire.override = full
    with pytest.raises(JournalBroken) as raised:
        owner.put("b")
    assert raised.value.happened is False
    assert isinstance(raised.value.error, StorageFull)
    owner.again()
    assert owner.report.tail_cut is not None
    assert owner.report.tail_cut.bytes == 50
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


def test_two_owners_on_one_machine_share_one_cache(world: World) -> None:
    """#35: the deposed owner's apply is refused by the cache itself."""
    shelf = MemoryShelf()
    zombie = world.process(shelf).open()
    zombie.put("a")
    batch = zombie.batch("late", b"v")
    position = zombie.journal.append(batch)
    heir = world.process(shelf).open()
    from chunkstore.metadata.port import Commit

    commit = Commit(position, zombie.store.head().position.hash, batch.digest, batch.ops, batch.rows)
    assert zombie.store.apply([commit], owner_epoch=1, verify=True) is False
    assert heir.keys() == {"a", "late"}


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


def test_one_strange_byte_in_front_of_a_record_is_damage(append_world: World) -> None:
    """The search for what lies behind a torn record begins one byte on, and began two."""
    world = append_world
    owner = world.process().open()
    end = owner.put("a").end
    owner.put("b")
    log = world.names.log(1)
    raw = world.whole(log)
    world.overwrite(log, raw[:end] + b"\0" + raw[end:])
    with pytest.raises(Damaged) as raised:
        world.process().open()
    assert (raised.value.object, raised.value.position) == (log, end)
