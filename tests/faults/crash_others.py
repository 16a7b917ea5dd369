"""Interrupted: a replica that follows, and a ledger that is offloaded (``crash_runs`` has the rest)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, SegmentTruncated, StorageUnavailable
from chunkstore.pulsar import LedgerReader, OffloadWriter
from chunkstore.replica import Replica
from tests.faults.crash_runs import END, Case, Interrupted, mend, perform
from tests.faults.ground import TABLES, Ground, Place
from tests.faults.scenarios import SMALL
from tests.support.disk import POWER_CUTS
from tests.support.faulty import Call
from tests.support.worlds import Mode

__all__ = ["FOLLOWINGS", "FollowRun", "OffloadRun"]

FOLLOWINGS = ("the same owner", "another owner", "two owners and a collection")
TOPIC, LEDGER = "orders", 7
BLOCK_BYTES = 4096
ENTRIES = [b"entry %d " % number * 60 for number in range(24)]


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


class OffloadRun(Interrupted):
    """One interrupted offload of a ledger: several blocks, two offload segments, each completed by a commit."""

    def __init__(self, kind: Place, mode: Mode, folder: Path) -> None:
        self.ground = Ground(kind, mode, folder, rolling=3000)
        self.store = self.ground.open(self.ground.wire)
        self.acknowledged = -1

    def offload(self, store: ChunkedSegmentStorage) -> None:
        """Everything behind what is there already. ``acknowledged`` is what a caller knows to be there."""
        writer = OffloadWriter(store, TOPIC, block_bytes=BLOCK_BYTES, segment_bytes_max=6000)
        try:
            self.acknowledged = max(self.acknowledged, writer.last_entry(LEDGER))
            for entry in range(writer.last_entry(LEDGER) + 1, len(ENTRIES)):
                writer.append(LEDGER, entry, ENTRIES[entry])
            writer.flush()
            self.acknowledged = max(self.acknowledged, writer.last_entry(LEDGER))
            writer.complete()
        finally:
            self.acknowledged = max(self.acknowledged, writer.last_entry(LEDGER))

    def read(self, store: ChunkedSegmentStorage) -> list[bytes]:
        """The ledger's entries; that ids follow one another is checked on the way."""
        reader = LedgerReader(store)
        if TOPIC not in reader.topics():
            return []
        found = list(reader.read(TOPIC, LEDGER))
        assert [item.entry for item in found] == list(range(len(found)))
        return [item.payload for item in found]

    def trace(self) -> tuple[list[Call], None]:
        self.ground.wire.watch()
        self.offload(self.store)
        trace = self.ground.wire.trace
        self.ground.wire.heal()
        assert self.read(self.store) == ENTRIES
        self.clean(self.store)
        return trace, None

    def run(self, case: Case, expected: None) -> None:
        ground, wire = self.ground, self.ground.wire
        self.arm(wire, case)
        perform(lambda: self.offload(self.store))
        if case.call is END:
            self.end_by_power(wire, case, [self.store])
        elif wire.dead:
            ground.abandon(self.store)
        else:
            wire.heal()
            mend_twice(self.store)
            self.check(self.store)
            self.store.close()
        if case.outcome in POWER_CUTS or case.number % 2:
            ground.world.forget_cache()
        with ground.open() as store:
            self.check(store)

    def check(self, store: ChunkedSegmentStorage) -> None:
        """What was acknowledged is there; going on leads to the whole ledger, each entry once."""
        self.clean(store)
        found = self.acknowledged_now(store)
        assert found >= self.acknowledged, f"{self.acknowledged} was acknowledged, {found} is there"
        self.offload(store)
        assert self.read(store) == ENTRIES
        self.clean(store)

    @staticmethod
    def acknowledged_now(store: ChunkedSegmentStorage) -> int:
        return OffloadWriter(store, TOPIC, block_bytes=BLOCK_BYTES, segment_bytes_max=6000).last_entry(LEDGER)

    def close(self) -> None:
        if self.ground.wire.dead and self.store in self.ground.world._open:
            self.ground.abandon(self.store)
        self.ground.wire.heal()
        self.ground.close()


def mend_twice(store: ChunkedSegmentStorage) -> None:
    """A broken journal may say so once."""
    try:
        mend(store)
    except ChunkstoreError:
        mend(store)
