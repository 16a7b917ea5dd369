"""Interrupted: a replica that follows (``crash_runs`` has the rest)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import SegmentTruncated, StorageUnavailable
from chunkstore.replica import Replica
from tests.faults.crash_runs import END, Case, Interrupted, perform
from tests.faults.ground import TABLES, Ground, Place
from tests.faults.scenarios import SMALL
from tests.support.disk import POWER_CUTS
from tests.support.faulty import Call
from tests.support.worlds import Mode

__all__ = ["FOLLOWINGS", "FollowRun"]

FOLLOWINGS = ("the same owner", "another owner", "two owners and a collection")
BLOCK_BYTES = 4096


class Shown(NamedTuple):
    """What readers learn from a replica, or an owner."""

    segments: dict[str, tuple[int, bytes, bool]]
    rows: dict[tuple[str, bytes], bytes]


def shown(store: Replica | ChunkedSegmentStorage) -> Shown:
    segments = {
        info.name: (info.start_offset, store.read(info.name, info.start_offset, info.length), info.sealed)
        for info in store.segments()
    }
    rows = {(name, entry.key): entry.value for name in TABLES for entry in store.table(name).scan()}
    return Shown(segments, rows)


class FollowRun(Interrupted):
    """One interrupted ``refresh`` of a replica, while an owner goes on, or others have taken over."""

    def __init__(self, following: str, kind: Place, mode: Mode, folder: Path) -> None:
        self.ground = Ground(kind, mode, folder, **SMALL, snapshots_kept=1)
        world = self.ground.world
        store = world.open()
        store.create("log")
        store.append("log", b"a" * 70)
        self.wire = self.ground.new_wire()
        self.replica = world.replica(wrap=lambda raw: self.wire)
        self.replica.refresh()
        self.states = [shown(self.replica)]
        self.collected = following == FOLLOWINGS[2]

        def does(step: Callable[[ChunkedSegmentStorage], object]) -> None:
            step(store)
            self.states.append(shown(store))

        does(lambda store: store.append("log", b"b" * 50))
        does(lambda store: store.table("rows").put(b"key", b"value"))
        if following != FOLLOWINGS[0]:
            store.close()
            store = world.open()
            does(lambda store: store.truncate("log", 40))
        if self.collected:
            store.snapshot()
            store.close()
            store = world.open()
            store.snapshot()
            store.collect()
        does(lambda store: store.create("other"))
        does(lambda store: store.append("other", b"c" * 40))
        self.owner = store
        self.after = self.states[-1]

    def trace(self) -> tuple[list[Call], None]:
        self.wire.watch()
        self.replica.refresh()
        trace = self.wire.trace
        self.wire.heal()
        assert shown(self.replica) == self.after
        return trace, None

    def run(self, case: Case, expected: None) -> None:
        world, wire, goes_on = self.ground.world, self.wire, False
        self.arm(wire, case)
        perform(self.replica.refresh)
        if case.call is END or case.outcome in POWER_CUTS:
            # The owner's machine is the same one.
            self.ground.abandon(self.owner)
            if case.call is END:
                wire.kill()
                self.ground.power_cut(case.outcome, case.number)
            world.forget_cache()
            self.owner = world.open()
        elif not wire.dead:
            wire.heal()
            # A prefix of history, never anything between (protocol P9); what was collected is asked for once more.
            try:
                assert shown(self.replica) in self.states
            except (SegmentTruncated, StorageUnavailable):
                # What it stood on is gone, and the snapshot it wanted instead could not be read: it says so.
                assert self.collected
            self.replica.refresh()
            # What a sync failed for counts with the next record only: repeated, that sync would prove nothing.
            assert shown(self.replica) in self.states[-2:]
            goes_on = True
        if case.number % 2:
            world.forget_cache()
        with world.replica() as fresh:
            fresh.refresh()
            assert shown(fresh) == self.after
        assert shown(self.owner) == self.after
        self.owner.append("log", b"the owner goes on")
        if goes_on:
            self.replica.refresh()
            assert shown(self.replica) == shown(self.owner)
        self.clean(self.owner)

    def close(self) -> None:
        self.wire.heal()
        self.ground.close()
