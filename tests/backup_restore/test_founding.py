"""What a new container begins with: the snapshot that its first record carries, and what tries that died have left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chunkstore.errors import Damaged
from chunkstore.storage import ChunkStorage
from tests.backup_restore.test_restore import described, restored, target
from tests.support.data import pattern, problems, refused
from tests.support.forwarding import Hooked
from tests.support.worlds import World

__all__ = ["target"]

_OPEN = f"/{0:016x}.s"


class KilledError(BaseException):
    """Nothing handles it."""


class Calls:
    """What reaches the new root; ``dies`` in front of the first record. ``rots``: what becomes of a snapshot that is written."""

    def __init__(self, *, dies: bool = False, rots: Callable[[str], object] | None = None) -> None:
        self.dies = dies
        self.rots = rots
        self.created: list[str] = []
        self.synced: set[str] = set()

    def _before(self, operation: str, names: tuple[str, ...]) -> None:
        if operation == "create_if_absent" and names[0].endswith(_OPEN):
            self.missing = {name for name in self.created if "/epoch/" not in name} - self.synced
            if self.dies:
                raise KilledError

    def _after(self, operation: str, names: tuple[str, ...]) -> None:
        if operation == "create" and ("/d/" in names[0] or "/snap/" in names[0]):
            self.created.append(names[0])
            if self.rots is not None and names[0].endswith(".sn"):
                self.rots(names[0])
        elif operation == "sync":
            self.synced |= {*names}

    def around(self, inner: ChunkStorage) -> ChunkStorage:
        made = Hooked(inner)
        made.before, made.after = self._before, self._after
        return made

    @property
    def chunks(self) -> list[str]:
        return [name for name in self.created if "/d/" in name]


def filled(world: World) -> int:
    """Segments of single chunks and of one long one; the lsn."""
    store = world.open(rolling=8)
    world.still(store)
    store.create("a", attributes={"k": 1})
    store.append("a", pattern(0, 40), writer_id="w", event_number=3)
    store.truncate("a", 11)
    store.create("b")
    store.append("b", pattern(3, 7))
    return store.pin("before").lsn


def test_everything_is_durable_before_the_first_record(world: World, target: World) -> None:
    lsn, calls = filled(world), Calls()
    restored(world, target, wrap=calls.around, lsn=lsn)
    assert len(calls.chunks) == 5 and any("/snap/" in name for name in calls.created)
    assert not target.appends or not calls.missing


def test_a_state_that_somebody_left_is_on_no_history(world: World, target: World) -> None:
    """A try of another moment died in front of its record: its snapshot lies there, and is nobody's beginning."""
    lsn = filled(world)
    with world.open() as store:
        world.still(store)
        store.delete("b")
        later = store.pin("later").lsn
        expected = described(store)
    died = Calls(dies=True)
    with pytest.raises(KilledError):
        restored(world, target, wrap=died.around, lsn=lsn)
    target.forget_cache()
    restored(world, target, lsn=later)
    with target.open() as new:
        world.still(new)
        assert described(new) == expected
        new.create("next")
        assert problems(new.check("deep")) == []
    for forget in (True, False):
        if forget:
            target.forget_cache()
        with target.replica(at_lsn=1) as first, target.replica() as present:
            assert described(first) == expected
            assert {*described(present)} == {*expected, "next"}


def test_without_its_beginning_a_container_is_never_shown_empty(world: World, target: World) -> None:
    """The snapshot rots before anything else leads to the state: owners, replicas and views of the past say so."""
    restored(world, target, lsn=filled(world))
    (name,) = (name for name in target.objects() if "/snap/" in name and name.endswith(".sn"))
    sound = target.content(name)
    target.forget_cache()
    for bad in (sound[:-1], sound[:-40] + bytes((sound[-40] ^ 1,)) + sound[-39:]):
        target.overwrite(name, bad)
        refused(Damaged, target.open, target.replica, lambda: target.replica(at_lsn=1))
        target.forget_cache()
    target.overwrite(name, sound)
    with target.open() as new:
        assert new.read("b", 0, 9) == pattern(3, 7)


def test_what_cannot_be_read_back_is_no_beginning(world: World, target: World) -> None:
    """The storage takes the snapshot and keeps something else: then there is no first record."""
    lsn = filled(world)

    def rot(name: str) -> None:
        target.overwrite(name, target.content(name)[:-1])

    with pytest.raises(Damaged):
        restored(world, target, wrap=Calls(rots=rot).around, lsn=lsn)
    target.forget_cache()
    restored(world, target, lsn=lsn)
    with target.open() as new:
        assert problems(new.check("deep")) == []
