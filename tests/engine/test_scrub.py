"""Scrubbing: what is planted is found, with its range; where it goes on; and what a copy can put back."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from chunkstore.metadata.reserved import BEGINNING, find_mark
from chunkstore.upkeep.scrub import ScrubFinding, scrub_step
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from tests.support.data import pattern, problems, refused
from tests.support.rot import flip
from tests.support.worlds import World

BLOCK = 65_536
_numbers = itertools.count(1)


@pytest.fixture
def copies(world: World) -> Iterator[list[str]]:
    """The roots of copies that a test makes; those in memory are forgotten behind it."""
    made: list[str] = []
    yield made
    for url in made:
        if url.startswith("memory:"):
            forget_memory(url)


def copy_of(world: World, copies: list[str]) -> str:
    """A copy of the root as it is now."""
    if world.kind == "filesystem":
        target = world.tmp_path / f"copy-{len(copies)}"
        shutil.copytree(world.root, target)
        copies.append(target.as_uri())
    else:
        copies.append(f"memory://copy-{os.getpid()}-{next(_numbers)}")
        there = MemoryChunkStorage(copies[-1])
        for name in world.objects():
            there.put(name, world.content(name))
        there.close()
    return copies[-1]


def filled(world: World, **settings: Any) -> ChunkedSegmentStorage:
    """Segments of three chunks of several blocks each, "a" with a dead head, of an earlier epoch, and an empty one."""
    with world.open(rolling=4 * BLOCK, **settings) as store:
        for name in ("a", "b", "c"):
            store.create(name)
            store.append(name, pattern(0, 11 * BLOCK))
        store.truncate("a", 2 * BLOCK + 5)
        store.create("empty")
    return world.open(rolling=4 * BLOCK, **settings)


def mark(store: ChunkedSegmentStorage) -> Any:
    return store._context.look(find_mark)


def ranges(findings: tuple[ScrubFinding, ...]) -> list[tuple[str, int, int]]:
    return [(found.segment, found.start, found.stop) for found in findings]


def test_nothing_is_wrong(world: World) -> None:
    store = filled(world)
    world.still(store)
    before = store._container.current.store.head().position.lsn
    seen: list[int] = []
    report = store.scrub(progress=seen.append)
    assert report.ok and report.done and report.position is None and not report.findings
    # The block that the start offset lies in is read, and none below it.
    assert (report.chunks, report.size_bytes, sum(seen)) == (9, 31 * BLOCK, 31 * BLOCK)
    assert mark(store).position == BEGINNING and mark(store).began_ms == report.began_at > 0
    assert store._container.current.store.head().position.lsn == before + 1, "one record for all of it"
    replica = world.replica()
    replica.refresh()
    assert replica.read("b", 0, 11 * BLOCK) == pattern(0, 11 * BLOCK)


def test_damage_is_found_and_stops_nothing(world: World) -> None:
    """Flipped bits, a lost object, a short one: each a finding with its range; what lies side by side is one."""
    store = filled(world)
    a, b, c = (list(store.layout(name)) for name in "abc")
    flip(world, a[0].name, 10)  # below the start offset, in a block of its own
    flip(world, a[1].name, BLOCK)
    flip(world, a[1].name, 3 * BLOCK - 1)
    world.remove(b[0].name)
    flip(world, c[0].name, 4 * BLOCK - 1)
    world.overwrite(c[1].name, world.content(c[1].name)[: BLOCK + 7])
    report = store.scrub()
    assert not report.ok and report.done and report.chunks == 9
    assert ranges(report.findings) == [
        ("a", 5 * BLOCK, 7 * BLOCK),
        ("b", 0, 4 * BLOCK),
        ("c", 3 * BLOCK, 4 * BLOCK),
        ("c", 5 * BLOCK, 8 * BLOCK),
    ]
    first, absent, _, short = report.findings
    assert (first.invariant, first.severity, first.object, first.position) == (20, "damage", a[1].name, BLOCK)
    assert f"bytes [{5 * BLOCK}, {7 * BLOCK})" in first.message and not first.repaired
    assert "absent" in absent.message and f"{BLOCK + 7} bytes long" in short.message
    # Behind a network several at a time, by the deadline.
    store._container.remote = True
    assert store.scrub().findings == report.findings
    # The same in the smallest steps, and no more of what is absent than once.
    position, found = BEGINNING, list[ScrubFinding]()
    steps = 0
    while not steps or position != BEGINNING:
        steps += 1
        step = scrub_step(store._container, store._context, position, 1)
        assert step.size_bytes <= BLOCK
        found += step.findings
        position = step.position
    assert 20 < steps <= 33
    covered = {(item.segment, at) for item in found for at in range(item.start // BLOCK, item.stop // BLOCK)}
    assert covered == {
        (item.segment, at) for item in report.findings for at in range(item.start // BLOCK, item.stop // BLOCK)
    }
    assert sum("absent" in item.message for item in found) == 1


# Repairing


def test_a_copy_puts_back_what_is_damaged(world: World, copies: list[str]) -> None:
    """Whole chunks, single blocks, and blocks of which either side has some; the old chunks are garbage, and readers see nothing of it."""
    store = filled(world, gc_grace_s=0)
    a, b, c = (list(store.layout(name)) for name in "abc")
    copy = copy_of(world, copies)
    flip(world, a[0].name, 3 * BLOCK)  # the first chunk: its dead head is left out
    world.remove(b[1].name)
    world.overwrite(b[2].name, world.content(b[2].name)[:5])
    flip(world, c[1].name, 0)
    flip(world, c[1].name, 2 * BLOCK)
    replica = world.replica()
    refused(Damaged, lambda: replica.read("c", 0, 12 * BLOCK))
    report = store.scrub(repair_from=copy)
    assert replica.read("c", 0, 12 * BLOCK) == pattern(0, 11 * BLOCK), (
        "it looks for newer rows before it calls bytes damaged"
    )
    assert report.ok and report.repaired == 4 and len(report.findings) == 5
    assert all(found.repaired for found in report.findings)
    for _ in range(2):
        for name, start in (("a", 2 * BLOCK + 5), ("b", 0), ("c", 0)):
            assert store.read(name, start, 12 * BLOCK) == pattern(start, 11 * BLOCK - start)
        assert problems(store.check("deep")) == [] and store.scrub().findings == ()
        store.close()
        world.forget_cache()
        store = world.open(gc_grace_s=0)
    assert store.layout("a").__next__().offset == 2 * BLOCK, "from the block that the start offset lies in"
    gone = {a[0].name, b[1].name, b[2].name, c[1].name}
    assert store.collect().chunks == 4 and not gone & set(world.chunks())


# The call
