"""Links to snapshots may say anything: in LATEST, in notes and in OPENs they lead to snapshots of their own container, or nowhere."""

from __future__ import annotations

import pytest

from chunkstore.config import Settings, Tuning
from chunkstore.journal import RecordKind
from chunkstore.metadata.memory import MemoryShelf
from chunkstore.records.names import ContainerNames
from chunkstore_journal.check import check_journal
from chunkstore_journal.objects import LatestHint, decode_latest, encode_latest
from chunkstore_journal.payloads import SnapshotLink
from chunkstore_journal.takeover import TakeOver
from tests.journal.world import Process, World

OTHER = ContainerNames("other")
HOSTILE = (
    "",
    "..",
    "../x",
    "/etc/passwd",
    "orders/FORMAT",
    "orders/epoch/0000000000000000/0000000000000001",
    "orders/snap/LATEST",
    "orders/snap/../../other/FORMAT",
    "orders/snap/0000000000000001-0000000000000001-00.sn\n",
    "orders/d/00/1-1-1-00000000",
    OTHER.format,
    OTHER.snapshot(1, 1, "00"),
    "orders/snap/\x1b[2J",
    "\0",
)


def process(world: World, shelf: MemoryShelf | None = None) -> Process:
    return world.process(
        shelf, settings=Settings(journal_mode=world.mode, op_deadline_s=60.0, tuning=Tuning(snapshots_kept=1))
    )


def hostile_links(world: World, real: SnapshotLink) -> list[SnapshotLink]:
    lied = world.names.snapshot(real.lsn + 1, real.epoch, "00")
    return [real._replace(name=name) for name in (*HOSTILE, lied)]


def strays(process: Process, wrong: SnapshotLink) -> list[tuple[str, str]]:
    names = process.world.names
    usual = {"orders/", names.format, names.epoch(1), names.latest}  # asked for by those whose business they are
    return [
        (operation, name)
        for operation, name in process.wire.calls
        if not name.startswith("orders/") or (name == wrong.name and (name not in usual or operation == "delete"))
    ]


def prepared(world: World) -> tuple[Process, SnapshotLink]:
    owner = process(world).open()
    for number in range(3):
        owner.put(f"k{number}")
    owner.snapshot()
    latest = decode_latest(world.whole(world.names.latest), object="LATEST")
    owner.put("behind")
    # The other container's objects are there to be read and deleted.
    for name in (OTHER.format, OTHER.snapshot(1, 1, "00")):
        world.storage.put(name, b"theirs")
    return owner, latest.snapshot


def judge(world: World, owner: Process, shelf: MemoryShelf, wrong: SnapshotLink) -> None:
    """Whoever opens next comes to the state, goes nowhere else, and hands the link to nobody."""
    for machine in (MemoryShelf(), shelf):
        heir = process(world, machine).open()
        assert heir.keys() == owner.keys()
        link = world.opened(heir.journal.epoch).payload.snapshot
        assert link is None or link.name != wrong.name
        heir.service.collect(head=heir.store.head(), epoch=heir.journal.epoch, dry_run=False)
        heir.snapshot()
        heir.service.collect(head=heir.store.head(), epoch=heir.journal.epoch, dry_run=False)
        assert strays(heir, wrong) == []
        follower = world.follower()
        follower.catch_up()
    assert world.whole(OTHER.format) == world.whole(OTHER.snapshot(1, 1, "00")) == b"theirs"


@pytest.mark.parametrize("number", range(len(HOSTILE) + 1))
def test_in_latest(memory_world: World, number: int) -> None:
    world = memory_world
    owner, real = prepared(world)
    wrong = hostile_links(world, real)[number]
    world.overwrite(world.names.latest, encode_latest(LatestHint(wrong, 1)))
    assert any(found.invariant == 11 for found in check_journal(world.streams, owner.store.head()))
    judge(world, owner, owner.shelf, wrong)


@pytest.mark.parametrize("number", range(len(HOSTILE) + 1))
def test_in_a_note(memory_world: World, number: int) -> None:
    world = memory_world
    owner, real = prepared(world)
    wrong = hostile_links(world, real)[number]
    owner.note(RecordKind.SNAPSHOT_NOTE, tuple(wrong))
    judge(world, owner, owner.shelf, wrong)


@pytest.mark.parametrize("number", range(len(HOSTILE) + 1))
def test_in_an_open(memory_world: World, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = memory_world
    owner, real = prepared(world)
    wrong = hostile_links(world, real)[number]
    with monkeypatch.context() as patch:
        patch.setattr(TakeOver, "_newest_snapshot", lambda *_: wrong)
        owner = process(world, owner.shelf).open()
    assert world.opened(owner.journal.epoch).payload.snapshot == wrong
    owner.put("more")
    owner.service.collect(head=owner.store.head(), epoch=owner.journal.epoch, dry_run=False)
    assert strays(owner, wrong) == []
    assert any(found.invariant == 11 for found in check_journal(world.streams, owner.store.head()))
    judge(world, owner, owner.shelf, wrong)
