"""Chunks that go between the plan and the reading, as often as it takes: merges of merges without grace, and readers that lag."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged, DeadlineExceeded
from tests.support.clock import jumping_clock
from tests.support.data import pattern
from tests.support.forwarding import Hooked
from tests.support.hooked import Remote
from tests.support.worlds import World

ROUNDS = 5


class Replacing:
    """Before a chunk is read for the first time, the segment of that name is made anew of other chunks, and the old ones collected."""

    def __init__(
        self, owner: ChunkedSegmentStorage, rounds: int, replaced_by_now: Callable[[int], None] = lambda _: None
    ) -> None:
        self._owner = owner
        self._replaced_by_now = replaced_by_now
        self._met: set[str] = set()
        self._lock = threading.Lock()
        self.left = rounds
        self.replaced = 0

    def __call__(self, operation: str, names: tuple[str, ...]) -> None:
        if operation == "read" and "/d/" in names[0]:
            with self._lock:
                self._replace(names[0])

    def _replace(self, name: str) -> None:
        if name in self._met or not self.left:
            return
        self._met.update(chunk.name for chunk in self._owner.layout("s"))
        self.left -= 1
        self.replaced += 1
        self._owner.delete("s")
        fill(self._owner)
        self._owner.collect()
        self._replaced_by_now(self.replaced)


def fill(owner: ChunkedSegmentStorage) -> None:
    owner.create("s")
    owner.append("s", pattern(0, 30))


def reader_of(
    world: World, kind: str
) -> tuple[ChunkedSegmentStorage, Callable[[], bytes], Hooked, Replica | ChunkedSegmentStorage]:
    """An owner without grace, and who reads its segment: itself, a replica, or one of the two across a network."""
    made: list[Hooked] = []

    def wrap(inner: object) -> Hooked:
        made.append((Remote if "remote" in kind else Hooked)(inner))  # type: ignore[arg-type]
        return made[-1]

    settings = {"rolling": 10, "gc_grace_s": 0, "snapshots_kept": 1}
    if "owner" in kind:
        owner = reading = world.open(wrap=wrap, **settings)  # type: ignore[arg-type]
        fill(owner)
    else:
        owner = world.open(**settings)  # type: ignore[arg-type]
        fill(owner)
        reading = world.replica(wrap=wrap)  # type: ignore[assignment]
    world.still(owner)
    return owner, lambda: reading.read("s", 0, 100), made[-1], reading


@pytest.mark.parametrize("kind", ["owner", "replica", "remote owner", "remote replica"])
def test_a_reader_goes_on_as_long_as_the_plan_changes(world: World, kind: str) -> None:
    owner, read, storage, reading = reader_of(world, kind)
    storage.before = hook = Replacing(owner, ROUNDS)
    assert read() == pattern(0, 30)
    assert hook.replaced == ROUNDS
    # Once nothing replaces them any more, a chunk that is lost is damage.
    lost = next(iter(reading.layout("s"))).name
    owner._container.storage.delete(lost)
    with pytest.raises(Damaged) as caught:
        read()
    assert (caught.value.object, caught.value.segment, caught.value.start, caught.value.stop) == (lost, "s", 0, 10)


@pytest.mark.parametrize("kind", ["owner", "replica"])
def test_chunks_that_go_faster_than_they_are_read_end_at_the_deadline(world: World, kind: str) -> None:
    owner, read, storage, reading = reader_of(world, kind)
    reading._context.op_deadline_s = 600.0
    with jumping_clock() as clock:
        storage.before = hook = Replacing(owner, 1_000_000, lambda count: clock.jump(601) if count == ROUNDS else None)
        with pytest.raises(DeadlineExceeded):
            read()
    assert hook.replaced >= ROUNDS
