"""Back and forth at random: whatever happened between, the moment's state comes back, or the restore is refused and nothing changes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from chunkstore.config import DefragPolicy
from chunkstore.errors import ChunksMissing, PastCollected
from tests.backup_restore.in_place import TWO_WORLDS, described, head, rewound
from tests.support.data import problems
from tests.support.worlds import World

NAMES = ("a", "b", "c")


class Story:
    """A container, and what it held at each lsn that is on history now."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.ghosts: dict[int, dict[str, Any]] = {}
        self.store: Any = None

    def open(self) -> None:
        self.store = self.world.open(rolling=16, gc_grace_s=0)
        self.world.still(self.store)
        self.note()

    def note(self) -> None:
        self.ghosts[head(self.store)] = described(self.store)

    def step(self) -> None:
        chosen, store = self.random, self.store
        name = chosen.choice(NAMES)
        for info in [info for info in store.segments() if info.sealed]:
            store.unseal(info.name)
            self.note()
        there = {info.name: info for info in store.segments()}
        verb = chosen.choice(
            ("append",) * 6 + ("truncate", "delete", "concat", "defrag", "table", "snapshot", "reopen", "collect")
        )
        if verb == "append":
            if name not in there:
                store.create(name)
                self.note()
            store.append(name, chosen.randbytes(chosen.randrange(1, 24)))
        elif verb == "table":
            store.table("rows").put(name.encode(), chosen.randbytes(3))
        elif verb == "snapshot":
            store.snapshot()
        elif verb == "collect":
            if chosen.random() < 0.3:
                store.collect()
        elif verb == "reopen":
            if chosen.random() < 0.5:
                store.close()
            if chosen.random() < 0.3:
                self.world.forget_cache()
            self.open()
        elif name in there:
            info = there[name]
            if verb == "truncate":
                store.truncate(name, chosen.randrange(info.start_offset, info.length + 1))
            elif verb == "delete":
                store.delete(name)
            elif verb == "defrag":
                store.defrag(name, policy=DefragPolicy(fanout=2))
            else:
                other = chosen.choice([other for other in NAMES if other != name])
                if other in there and not there[other].start_offset:
                    store.seal(other)
                    self.note()
                    store.concat(name, info.length, other)
        self.note()

    def restore(self) -> bool:
        lsn = self.random.choice(sorted(self.ghosts))
        epoch, then = self.store.epoch, self.ghosts[lsn]
        if self.random.random() < 0.5:
            self.store.close()
        try:
            report = rewound(self.world, lsn=lsn)
        except (ChunksMissing, PastCollected):
            # Before anything happened: whoever owned the container still does.
            with self.world.replica() as replica:
                assert replica.epoch == epoch
            self.open()
            return False
        if report.epoch:
            # What a former owner removed it may delete at any time.
            for name in garbage(self.world):
                self.world.remove(name)
        self.ghosts = {at: ghost for at, ghost in self.ghosts.items() if at <= lsn}
        self.open()
        assert described(self.store) == then, lsn
        assert problems(self.store.check("deep")) == []
        return True


def garbage(world: World) -> list[str]:
    """The chunk objects that no segment's list names."""
    with world.replica() as replica:
        held = {chunk.name for info in replica.segments() for chunk in replica.layout(info.name)}
    return [name for name in world.chunks() if name not in held]


@TWO_WORLDS
@pytest.mark.parametrize("seed", [0])
def test_any_moment(world: World, seed: int) -> None:
    story = Story(world, seed)
    story.open()
    restored = 0
    for _ in range(4):
        for _ in range(12):
            story.step()
        restored += story.restore()
    assert restored
