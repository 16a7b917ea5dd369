"""What it costs in requests and money, on S3: a container at rest, a follower at rest, small appends all day.

Appends are measured with and without appends in the journal's records (``inline_bytes_max``), spilling included.
Measured on a virtual clock: the S3 binding itself over a simulated server (``tests.simulator``), where each request is counted and takes
30 ms there and back, so that a day passes in seconds and twice the same. Where a shorter stretch stands for a day,
or fewer appends for more, the figure's detail says how long it was. At rest a stretch repeats itself; under appends it is steady, but
snapshots do not come in step with it. Prices are those of ``prices.json``: list prices, which nobody compared with a bill. A month has
30 days. Leaves out: bytes stored and moved; snapshots of states that are larger than these.

``python -m benchmarks.bench_cost [--quick]``.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

from benchmarks.harness import Report
from chunkstore import runtime
from chunkstore.config import KIB, Settings
from chunkstore.engine.store import ChunkedSegmentStorage
from tests.simulator.wire import Call
from tests.simulator.world import Process, World

__all__ = ["main"]

PRICES = Path(__file__).parent / "prices.json"
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
MONTH_DAYS = 30
ROUND_TRIP_S = 0.03
SEGMENTS = 100
RATE = 10
OFF = Settings(inline_bytes_max=0)
INLINE = Settings()
SHARES = {f"{SEGMENTS} segments at {RATE} appends/s": 1 / 20, "a million appends of 1 KiB": None}
"""Of the bill with inline off, at most; one writer alone needs half the requests, since no record has company."""
_VERBS = {"PUT*": "PUT"}
"""Put-if-absent is a PUT."""


class Bill:
    """Requests by verb, and what they cost."""

    def __init__(self, requests: Counter[str], scale: float) -> None:
        self.by_verb = {verb: count * scale for verb, count in sorted(requests.items())}
        prices = json.loads(PRICES.read_text(encoding="utf-8"))["per_1000_requests"]
        self.money = sum(count / 1000 * prices[verb] for verb, count in self.by_verb.items())

    def __str__(self) -> str:
        return ", ".join(f"{count:,.0f} {verb}" for verb, count in self.by_verb.items()) or "none"


class Metered:
    """A world at rest but for what a test begins in it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.world = World(1, "s3", bindings=True, latency_s=ROUND_TRIP_S / 2, settings=settings or Settings())
        self._counts: dict[str, Counter[str]] = {}
        self.world.observers.append(self._count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.world.close()

    def _count(self, call: Call, _result: Any, _late: bool) -> None:
        counts = self._counts.setdefault(call.process.name, Counter())
        counts[_VERBS.get(call.step, call.step)] += 1

    def owner(self) -> tuple[Process, ChunkedSegmentStorage]:
        process = self.world.process("owner", "here")
        return process, process.open()

    def during(self, process: Process, seconds: float, *, of_s: float) -> Bill:
        """What the process asks for in so much time, for ``of_s``."""
        counts = self._counts.setdefault(process.name, Counter())
        counts.clear()
        self.world.advance(seconds)
        return Bill(counts, of_s / seconds)

    def spent(self, process: Process, scale: float) -> Bill:
        return Bill(self._counts[process.name], scale)

    def forget(self, process: Process) -> None:
        self._counts.setdefault(process.name, Counter()).clear()


def idle_owner(quick: bool) -> tuple[Bill, str]:
    """One that has written, and then nothing for an hour."""
    with Metered() as metered:
        process, store = metered.owner()
        process.run(lambda: store.append(store.create("s"), b"x" * KIB))
        metered.world.advance(HOUR_S)
        stretch_s = HOUR_S if quick else DAY_S
        return metered.during(process, stretch_s, of_s=DAY_S), f"{stretch_s / HOUR_S:.0f} h metered"


def idle_follower(_quick: bool) -> tuple[Bill, str]:
    """One that waits at the end of a segment, to which nothing has come for an hour."""
    with Metered() as metered:
        owning, store = metered.owner()
        owning.run(lambda: store.append(store.create("s"), b"x" * KIB))
        process = metered.world.process("follower", "there")
        replica = process.replica()
        process.start(lambda: list(replica.reader("s", follow=True, prefetch_bytes=0)), "follow")
        metered.world.advance(HOUR_S)
        stretch_s = HOUR_S / 6
        return metered.during(process, stretch_s, of_s=DAY_S), "10 min metered"


def lag(quick: bool) -> float:
    """The longest time from an answered append to its bytes at a follower, one append a second."""
    worst_s = 0.0
    with Metered() as metered:
        owning, store = metered.owner()
        owning.run(lambda: store.create("s"))
        process = metered.world.process("follower", "there")
        replica = process.replica()
        got: list[int] = []
        scheduler = metered.world.scheduler

        def follow() -> None:
            for piece in replica.reader("s", follow=True, prefetch_bytes=0):
                got.append(scheduler.now)
                assert piece

        process.start(follow, "follow")
        for number in range(10 if quick else 100):
            owning.run(lambda: store.append("s", b"x" * KIB))
            answered = scheduler.now
            metered.world.advance(1.0 + number % 7 * 0.1)
            while len(got) <= number:
                metered.world.advance(0.1)
            worst_s = max(worst_s, (got[number] - answered) / 1e9)
    return worst_s


def many_segments(quick: bool, settings: Settings = OFF) -> tuple[Bill, str]:
    """Every segment has a writer of its own, which appends ten times a second, if it may. With appends in records the stretch begins once
    memory is as full as it gets, and holds spills of all of them."""
    before_s, stretch_s = (10.0, 10.0) if quick else (90.0, 120.0) if settings is INLINE else (10.0, 30.0)
    with Metered(settings) as metered:
        process, store = metered.owner()
        done = [0]

        def write(name: str) -> Callable[[], None]:
            def write_on() -> None:
                store.create(name)
                next_s = runtime.monotonic_s()
                while True:
                    store.append(name, b"x" * KIB)
                    done[0] += 1
                    next_s += 1 / RATE
                    runtime.sleep_s(max(0.0, next_s - runtime.monotonic_s()))

            return write_on

        for number in range(SEGMENTS):
            process.start(write(f"s{number:03}"), "writer")
        metered.world.advance(before_s)
        done[0] = 0
        bill = metered.during(process, stretch_s, of_s=DAY_S)
        return bill, f"{stretch_s:.0f} s metered, {done[0] / stretch_s:.0f} appends/s"


def a_million(quick: bool, settings: Settings = OFF) -> tuple[Bill, str]:
    """One writer, one append of 1 KiB after the other, through ``append``. What is left in records at the end is spilled, too."""
    count = 1_000 if quick else 10_000
    with Metered(settings) as metered:
        process, store = metered.owner()
        process.run(lambda: store.create("s"))
        metered.forget(process)

        def write() -> None:
            for _ in range(count):
                store.append("s", b"x" * KIB)
            store.seal("s")

        process.run(write)
        return metered.spent(process, 1_000_000 / count), f"{count:,} metered"


def main() -> None:
    """Run all and save ``results/cost.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fraction of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    report = Report("cost-quick" if options.quick else "cost")
    bills: dict[str, float] = {}

    for name, measure, days, at_most in (
        ("idle owner", idle_owner, MONTH_DAYS, 0.5),
        ("idle follower", idle_follower, MONTH_DAYS, 1.0),
        (f"{SEGMENTS} segments at {RATE} appends/s, inline off", many_segments, MONTH_DAYS, None),
        (f"{SEGMENTS} segments at {RATE} appends/s", partial(many_segments, settings=INLINE), MONTH_DAYS, None),
        ("a million appends of 1 KiB, inline off", a_million, 0, None),
        ("a million appends of 1 KiB", partial(a_million, settings=INLINE), 0, None),
    ):
        bill, how = measure(options.quick)
        period = "a day" if days else "in all"
        bills[name] = bill.money
        report.add(f"{name}: requests {period}", sum(bill.by_verb.values()), "requests", detail=f"{bill}; {how}")
        money, value = ("money a month", bill.money * days) if days else ("money", bill.money)
        report.add(f"{name}: {money}", value, "$", at_most=at_most, detail=how)
    for name, at_most in SHARES.items():
        share = bills[name] / bills[f"{name}, inline off"]
        report.add(f"{name}: bill by that with inline off", share, "", at_most=at_most, detail="same run")
    lag_s = lag(options.quick)
    report.add("follower's longest lag, one append a second", lag_s, "s", at_most=1.0, detail="virtual time")
    report.save()


if __name__ == "__main__":
    main()
