"""Many threads, one owner, bad weather: random calls fail, replies are lost, the storage is away for a while.

Whatever happens, each acknowledged append is there once, at its offset; one that was said not to have happened is not
there; one of unknown outcome is there at most once. The same holds for table rows. Seeds are printed with a failure.
"""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chunkstore import changes
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Conflict,
    DeadlineExceeded,
    OutcomeUnknown,
    StorageFull,
    StorageUnavailable,
)
from tests.faults.ground import FULL_RUN, Ground
from tests.support.data import problems, run_threads
from tests.support.faulty import Outcome
from tests.support.hooked import within
from tests.support.segment_model import State, apply
from tests.support.worlds import USUAL, Kind, Mode

pytestmark = pytest.mark.proof

SEEDS = range(30) if FULL_RUN else range(2)
THREADS = 4
SEGMENTS = ("a", "b", "c")
RUN_S = 0.8
HASTY: dict[str, Any] = {
    "op_deadline_s": 0.3,
    "undecided_s_max": 0.3,
    "log_roll_bytes": 20_000,
    "slot_roll_records": 60,
    "roll_interval_s_min": 0.1,
}
TAG = re.compile(rb"\[(\d+)\.(\d+)(x*)\]")


@pytest.fixture(params=USUAL, ids="-".join)
def variant(request: pytest.FixtureRequest) -> tuple[Kind, Mode]:
    kind, mode = request.param
    return kind, mode


class Log:
    """What the callers were told."""

    def __init__(self) -> None:
        self.done: dict[tuple[str, bytes], int] = {}
        self.failed: set[tuple[str, bytes]] = set()
        self.unknown: set[tuple[str, bytes]] = set()
        self.rows: dict[bytes, list[bytes]] = {}
        self.errors: Counter[str] = Counter()


def client(number: int, seed: int, store: ChunkedSegmentStorage, log: Log, until_s: float) -> None:
    chance = random.Random(f"{seed} {number}")
    count = 0
    row = b"row %d" % number
    log.rows[row] = [b""]
    while time.monotonic() < until_s:
        count += 1
        name = chance.choice(SEGMENTS)
        data = b"[%d.%d%s]" % (number, count, b"x" * chance.choice((0, 3, 60)))
        try:
            if chance.random() < 0.15:
                put_row(store, row, b"%d" % count, log)
                continue
            offset = store.append(
                name, data, expected_offset=store.info(name).length if chance.random() < 0.2 else None
            )
            log.done[name, data] = offset
        except OutcomeUnknown:
            log.unknown.add((name, data))
            log.errors["OutcomeUnknown"] += 1
        except (StorageUnavailable, StorageFull, DeadlineExceeded, BadOffset) as error:
            log.failed.add((name, data))
            log.errors[type(error).__name__] += 1
            if not isinstance(error, BadOffset):
                time.sleep(0.002)


def put_row(store: ChunkedSegmentStorage, row: bytes, value: bytes, log: Log) -> None:
    """Replace a row of one's own; ``log.rows`` keeps what it may be now."""
    entry = store.table("rows").get(row)
    try:
        store.table("rows").put(row, value, expected_version=entry.version if entry is not None else 0)
        log.rows[row] = [value]
    except OutcomeUnknown:
        log.rows[row].append(value)
        log.errors["OutcomeUnknown of a row"] += 1
    except Conflict:
        # An earlier one of unknown outcome has happened in between.
        assert len(log.rows[row]) > 1
    except (StorageUnavailable, StorageFull, DeadlineExceeded) as error:
        log.errors[type(error).__name__] += 1


def weather(ground: Ground, seed: int, rate: float, until_s: float) -> None:
    """Storms, outages and full disks, one after the other, with fine weather between."""
    chance = random.Random(seed)
    while time.monotonic() < until_s:
        kind = chance.choice(("storm", "storm", "outage", "full"))
        if kind == "storm":
            ground.wire.storm(chance.randrange(1 << 30), rate)
        else:
            ground.wire.begin(Outcome.OUTAGE if kind == "outage" else Outcome.STAYS_FULL)
        time.sleep(chance.uniform(0.01, 0.25))
        ground.wire.heal()
        time.sleep(chance.uniform(0.0, 0.05))
    ground.wire.heal()


def in_bad_weather(ground: Ground, seed: int, rate: float, *clients: Callable[[float], None]) -> None:
    """Let the clients work in it until a moment that each is told."""
    until_s = time.monotonic() + RUN_S
    works: list[Callable[[float], None]] = [*clients, partial(weather, ground, seed, rate)]
    run_threads(len(works), lambda number: works[number](until_s), timeout_s=180)


def verify(store: ChunkedSegmentStorage, log: Log) -> None:
    assert problems(store.check("deep")) == []
    for name in SEGMENTS:
        info = store.info(name)
        data = store.read(name, 0, info.length)
        found: Counter[bytes] = Counter()
        position = 0
        while position < len(data):
            match = TAG.match(data, position)
            assert match is not None, f"{name} at {position}: {data[position : position + 40]!r}"
            found[match[0]] += 1
            assert (name, match[0]) not in log.failed, f"{match[0]!r} in {name} was said not to have happened"
            if (name, match[0]) in log.done:
                assert log.done[name, match[0]] == position, f"{match[0]!r} in {name}"
            else:
                assert (name, match[0]) in log.unknown
            position = match.end()
        assert [tag for tag, times in found.items() if times > 1] == []
        lost = [tag for segment, tag in log.done if segment == name and not found[tag]]
        assert lost == [], f"acknowledged and lost in {name}"
    rows = {entry.key: entry.value for entry in store.table("rows").scan()}
    for row, values in log.rows.items():
        assert rows.get(row, b"") in values, row


def settle(store: ChunkedSegmentStorage) -> None:
    """Changes succeed again soon after the weather has cleared."""
    end_s = time.monotonic() + 120
    while True:
        try:
            store.update_attributes("a", {"settled": 1})
            return
        except (OutcomeUnknown, StorageUnavailable, StorageFull, DeadlineExceeded):
            assert time.monotonic() < end_s
            time.sleep(0.01)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rate", [0.01, 0.1], ids=["light", "heavy"])
def test_nothing_is_lost_or_doubled_in_bad_weather(
    variant: tuple[Kind, Mode], rate: float, seed: int, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    ground = Ground(*variant, folder / "storm", **HASTY, rolling=256)
    log = Log()
    try:
        store = ground.open(ground.wire)
        with within(store, 60.0):
            for name in SEGMENTS:
                store.create(name)
        clients = [partial(client, number, seed, store, log) for number in range(THREADS)]
        in_bad_weather(ground, seed, rate, *clients)
        # In fine weather everything succeeds, also where a thread is held up for longer than the deadline of before.
        with within(store, 60.0):
            settle(store)
            verify(store, log)
            store.close()
        if seed % 2:
            ground.world.forget_cache()
        with ground.open() as successor:
            verify(successor, log)
    except ChunkstoreError as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        ground.close()
    record_property("appends", len(log.done))
    print(f"{'-'.join(variant)} seed {seed}: {len(log.done)} appends, {dict(log.errors)}")


Seen = dict[str, tuple[int, bytes, bool]]
"""Segments of one client: start offset, bytes from there on, sealed."""


def seen_of(state: State) -> Seen:
    return {name: (each.start, each.data[each.start :], each.sealed) for name, each in state.segments.items()}


class Builder:
    """A client with segments of its own, whom nobody else disturbs: it always knows what must be there."""

    def __init__(self, number: int, seed: int, store: ChunkedSegmentStorage) -> None:
        self.chance = random.Random(f"{seed} builder {number}")
        self.number = number
        self.names = (f"{number}-x", f"{number}-y")
        self.store = store
        self.state = State()
        self.count = 0
        self.errors: Counter[str] = Counter()

    def plan(self) -> tuple[list[changes.Change], State]:
        """One or two changes that are right, and what they lead to."""
        planned: list[changes.Change] = []
        after = self.state.copy()
        for _ in range(self.chance.choice((1, 1, 2))):
            change = self._one(after)
            if apply(after, change) is None:
                planned.append(change)
        return planned, after

    def _one(self, state: State) -> changes.Change:
        chance = self.chance
        name, other = chance.sample(self.names, 2)
        segment = state.segments.get(name)
        if segment is None:
            return changes.Create(name)
        self.count += 1
        kind = chance.choice(("append", "append", "append", "truncate", "seal", "concat", "delete"))
        if kind == "truncate":
            return changes.Truncate(name, chance.randint(segment.start, len(segment.data)))
        if kind == "seal":
            return changes.Unseal(name) if segment.sealed else changes.Seal(name)
        if kind == "concat":
            return changes.Concat(name, other)
        if kind == "delete" and chance.random() < 0.3:
            return changes.Delete(name)
        more = b"[%d.%d]" % (self.number, self.count) * chance.choice((1, 3, 40))
        return changes.Append(name, more, expected_offset=len(segment.data))

    def run(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            planned, after = self.plan()
            if planned:
                self.commit(planned, after)

    def commit(self, planned: list[changes.Change], after: State) -> None:
        try:
            self.store.commit(planned)
            self.state = after
        except OutcomeUnknown:
            self.errors["OutcomeUnknown"] += 1
            settle(self.store)
            found = self.look()
            assert found in (seen_of(self.state), seen_of(after)), (planned, found)
            self.state = after if found == seen_of(after) else self.state
        except (StorageUnavailable, StorageFull, DeadlineExceeded) as error:
            self.errors[type(error).__name__] += 1
            time.sleep(0.002)

    def look(self) -> Seen:
        while True:
            try:
                found: Seen = {}
                for info in self.store.segments(prefix=f"{self.number}-"):
                    data = self.store.read(info.name, info.start_offset, info.length - info.start_offset)
                    found[info.name] = (info.start_offset, data, info.sealed)
                return found
            except (StorageUnavailable, DeadlineExceeded):
                time.sleep(0.005)


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_of_structure_in_bad_weather(variant: tuple[Kind, Mode], seed: int, folder: Path) -> None:
    ground = Ground(*variant, folder / "builders", **HASTY, rolling=100)
    try:
        store = ground.open(ground.wire)
        with within(store, 60.0):
            store.create("a")
        builders = [Builder(number, seed, store) for number in range(THREADS)]
        in_bad_weather(ground, seed, 0.05, *(builder.run for builder in builders))
        store._container.settings = dataclasses.replace(store._container.settings, op_deadline_s=60.0)  # as above
        settle(store)
        assert [builder.look() for builder in builders] == [seen_of(builder.state) for builder in builders]
        assert problems(store.check("deep")) == []
        store.collect()
        assert problems(store.check("deep")) == []
        store.close()
        if seed % 2:
            ground.world.forget_cache()
        with ground.open() as successor:
            for builder in builders:
                builder.store = successor
                assert builder.look() == seen_of(builder.state)
            assert problems(successor.check("deep")) == []
    finally:
        ground.close()
    print(f"{'-'.join(variant)} seed {seed}: {[builder.count for builder in builders]}, {builders[0].errors}")
