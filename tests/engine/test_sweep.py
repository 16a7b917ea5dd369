"""``sweep``: orphans go, and nothing that anybody may still refer to, whatever else is wrong with the place."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.changes import Attach, EndSession
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged, InvalidArgument, StorageUnavailable
from chunkstore.metadata.keys import chunk_key
from chunkstore.records.names import BackupNames, ContainerNames, chunk_id, session_chunk_id
from chunkstore.storage import ChunkInfo, ListPage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from chunkstore_bindings.wrappers.throttled import ThrottledChunkStorage, ThrottleLimits
from tests.support.clock import jumping_clock
from tests.support.data import pattern, problems
from tests.support.forwarding import Forwarding, Hooked
from tests.support.planted import plant as put_rows
from tests.support.worlds import World

DAY_S = 86_400


def filled(world: World, **settings: Any) -> ChunkedSegmentStorage:
    """An owner of epoch 2, some live chunks of epoch 1 and some garbage."""
    with world.open(rolling=10) as first:
        first.create("a")
        first.append("a", pattern(0, 50))
        first.create("b")
        first.append("b", pattern(0, 30))
        first.truncate("a", 20)
    return world.open(rolling=10, **settings)


def plant(world: World, identity: bytes, data: bytes = b"orphan") -> str:
    name = world.names().chunk(identity)
    world.raw_storage().create(name, data)
    return name


def own(epoch: int, number: int = 77) -> bytes:
    return chunk_id(1, epoch, number, 7)


def of_session(epoch: int, number: int = 9) -> bytes:
    return session_chunk_id((epoch << 32) + number, 1, 7)


def test_orphans_go_and_nothing_else(world: World) -> None:
    store = filled(world)
    before = world.chunks()
    dead = [plant(world, identity) for identity in (own(1), of_session(1))]
    alive = [plant(world, identity) for identity in (own(2), own(3), of_session(2), of_session(3), own(0))]
    told = store.sweep(age_s_min=0)
    assert (told.orphans, told.orphan_bytes, told.deleted, told.waiting, told.waiting_bytes) == (2, 12, 0, 5, 30)
    assert {kind: tuple(swept) for kind, swept in told.by_kind.items()} == {"chunk": (1, 6), "session chunk": (1, 6)}
    assert set(world.chunks()) == {*before, *dead, *alive}
    done = store.sweep(delete=True, age_s_min=0)
    assert done == told._replace(deleted=2, deleted_bytes=12)
    assert set(world.chunks()) == {*before, *alive}
    assert store.sweep(delete=True, age_s_min=0).orphans == 0
    assert store.read("a", 20, 99) == pattern(20, 30) and store.read("b", 0, 99) == pattern(0, 30)
    assert {item.invariant for item in store.check("deep")} == {23}


def test_age_is_a_margin(world: World) -> None:
    with jumping_clock() as clock:
        store = filled(world)
        name = plant(world, own(1))
        assert (store.sweep(delete=True).deleted, store.sweep().waiting) == (0, 1)
        if world.kind == "filesystem":
            # There ages are differences of this clock and the file system's.
            clock.jump(DAY_S + 1)
            assert store.sweep(delete=True).deleted == 1 and name not in world.chunks()


def test_what_has_no_age_stays_unless_told_otherwise(world: World) -> None:
    store = filled(world)
    plant(world, own(1))

    class Ageless(Forwarding):
        def stat(self, name: str) -> ChunkInfo:
            return self.inner.stat(name)._replace(modified_ms=None)

    store._context.storage = Ageless(store._context.storage)
    assert store.sweep(delete=True, age_s_min=0.001).waiting == 1
    assert store.sweep(delete=True, age_s_min=0).deleted == 1


def test_hostile_names_stay(world: World) -> None:
    store = filled(world)
    prefix = world.names().data_prefix()
    listed = world.chunks()[0]
    strange = [
        prefix + "zz/1-1-1-00000001",
        prefix + "00/what is this",
        prefix + "1-1-1-00000001",
        listed + "x",
        listed.replace("-", "-0", 1),
        prefix + "00/\N{SNOWMAN}",
    ]
    for name in strange:
        world.raw_storage().create(name, b"x")
    before = world.objects()
    assert store.sweep(delete=True, age_s_min=0).strangers == len(strange)
    assert [name for name in before if name not in world.objects()] == []


def test_sessions_open_ended_and_unknown(world: World) -> None:
    with world.open() as first:
        first.create("a")
        sessions = [first.session(str(number)) for number in range(3)]
        storage = world.raw_storage()
        chunks = [[session.writer().write_chunk(storage, n, b"bytes") for n in (0, 1)] for session in sessions]
        first.commit([Attach("a", sessions[1].id, (chunks[1][0],)), EndSession(sessions[1].id)])
        sessions[1].mark_ended()
        first.commit([Attach("a", sessions[2].id, (chunks[2][0],))])
        assert first.sweep(delete=True, age_s_min=0).deleted == 0, "also of an ended one: it began in this very epoch"
    store = world.open()
    report = store.sweep(delete=True, age_s_min=0)
    assert (report.deleted, report.waiting) == (1, 0)
    names = world.names()
    assert names.chunk(chunks[1][1].id) not in world.chunks()
    # What is still open may attach what it wrote, in the next epoch, too.
    store.commit([Attach("a", sessions[0].id, tuple(chunks[0])), Attach("a", sessions[2].id, (chunks[2][1],))])
    assert store.read("a", 0, 99) == b"bytes" * 5 and problems(store.check("deep")) == []


def test_what_is_committed_during_the_listing_is_wanted(world: World) -> None:
    """The rows are read behind the LIST: what was attached meanwhile is there, and its session is not any more."""
    with world.open() as first:
        first.create("a")
        session = first.session("me")
        chunk = session.writer().write_chunk(world.raw_storage(), 0, b"bytes")
    store = world.open()

    class Late(Forwarding):
        done = False

        def list(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> ListPage:
            found = self.inner.list(prefix, after=after, limit=limit)
            if not self.done:
                self.done = True
                store.commit([Attach("a", session.id, (chunk,)), EndSession(session.id)])
            return found

    store._context.storage = Late(store._context.storage)
    assert store.sweep(delete=True, age_s_min=0).deleted == 0
    assert store.read("a", 0, 99) == b"bytes"


def test_a_zombies_list_of_victims_harms_nothing_at_any_delay(world: World) -> None:
    """It has looked at the fence, and deletes a week later what it chose: its successor refers to none of it."""
    store = filled(world)
    plant(world, own(1))
    zombie = store._container.storage
    hook = Hooked(zombie)
    machine = world.machine

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation == "delete":
            hook.before = lambda operation, names: None
            world.forget_cache()
            successor = world.open(rolling=10)
            successor.append("b", pattern(30, 30))
            successor.create("c")
            successor.append("c", pattern(0, 30))
            world.wake(machine)

    hook.before = before
    store._container.storage = hook
    assert store.sweep(delete=True, age_s_min=0).deleted == 1
    world.forget_cache()
    again = world.open()
    assert again.read("b", 0, 99) == pattern(0, 60) and again.check("deep") == []


@pytest.mark.parametrize("at", range(6))
def test_a_crash_in_the_middle_is_gone_on_with(world: World, at: int) -> None:
    store = filled(world, io_workers=1)
    names = [plant(world, own(1, number)) for number in range(3)]
    hook = Hooked(store._container.storage)
    left = [at]

    def before(operation: str, _names: tuple[str, ...]) -> None:
        if operation in ("delete", "compose"):
            left[0] -= 1
            if left[0] < 0:
                raise StorageUnavailable("the process dies here")

    hook.before = before
    store._container.storage = hook
    store._context.storage = hook
    with pytest.raises(StorageUnavailable):
        store.sweep(delete=True, age_s_min=0, keep_in="lost")
    kept = {world.names().kept("lost", own(1, number)): name for number, name in enumerate(names)}
    for copy, name in kept.items():
        assert name in world.chunks() or world.content(copy) == b"orphan", "never without a copy"
    world.forget_cache()
    again = world.open()
    left_over = len(set(names) & set(world.chunks()))
    assert again.sweep(delete=True, age_s_min=0, keep_in="lost").deleted == left_over
    assert not set(names) & set(world.chunks())
    assert world.objects("default/lost/") == sorted(kept)
    assert problems(again.check("deep")) == []


@pytest.mark.parametrize("what", ["row", "rubbish"])
def test_nothing_is_swept_by_metadata_that_do_not_hold(world: World, what: str) -> None:
    """A row that is missing makes an orphan of what is wanted."""
    with filled(world) as store:
        live = [chunk.name for chunk in store.layout("b")]
    name = plant(world, own(1))
    identity = world.names().parse_chunk(live[1])
    assert identity is not None
    row = None if what == "row" else b"?"
    put_rows(world.raw_storage(), world.settings(metadata="memory"), {chunk_key(identity): row})
    store = world.open()
    with pytest.raises(Damaged):
        store.sweep(delete=True, age_s_min=0)
    assert {name, *live} <= set(world.chunks())
    assert store.sweep(age_s_min=0).orphans >= 1, "looking is allowed"


def test_no_name_of_a_container_or_of_its_backups_is_a_folder_for_orphans(world: World) -> None:
    store, backups = filled(world), BackupNames("c")
    made = [getattr(backups, item) for item in (*ContainerNames.__slots__, "newest")]
    made += [backups.done(""), backups.running(""), backups.stored_prefix(), backups.growing_prefix()]
    made += [backups.epoch_prefix(), backups.journal_prefix(), backups.snapshot_prefix(), backups.temporary("")]
    folders = {name.split("/")[1] for name in made if name.startswith("c/")}
    assert len(folders) > 12
    for folder in folders:
        with pytest.raises(InvalidArgument):
            store.sweep(delete=True, keep_in=folder)


@pytest.mark.parametrize("answer", [3, None])
def test_unfinished_uploads_are_part_of_it(world: World, answer: int | None) -> None:
    class Uploading(ThrottledChunkStorage):
        def sweep_uploads(self) -> int:
            if answer is None:
                raise StorageUnavailable("the server does not list uploads")
            return answer

    limits = ThrottleLimits()
    with world.open(wrap=lambda inner: MeteredChunkStorage(Uploading(inner, limits))) as store:
        assert store.sweep().uploads == 0
        assert store.sweep(delete=True).uploads == answer
    with world.open() as store:
        assert store.sweep(delete=True).uploads == 0, "most storages know none"
