"""Durable appends: against a bare write+fdatasync of the same size, with many threads, and in processor time against a floor.

Engine and bare loop alternate append by append in random order, because the disk's own speed drifts by far more than what
is measured. ``python -m benchmarks.bench_append [--dir DIR] [--quick]``.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chunkstore
from benchmarks.append_floor import Floor, settle_cache
from benchmarks.harness import Report, median, scratch, time_s
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append
from chunkstore.config import KIB, MIB
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage

__all__ = ["main"]

SLOW_SYNC_S = 0.005
FAST_BLOCK_BYTES_PER_S = 1e9


class SlowSync(FilesystemChunkStorage):
    """The filesystem binding with every sync of a file made to take 5 ms longer, as on ordinary disks."""

    def _sync_file(self, name: str) -> None:
        super()._sync_file(name)
        time.sleep(SLOW_SYNC_S)


def settings(path: Path, **more: object) -> chunkstore.Settings:
    return chunkstore.Settings(cache_dir=str(path / "cache"), journal_mode="append", lease_s=0, **more)  # type: ignore[arg-type]


def against_bare(report: Report, path: Path, size: int, count: int, target_fast: float, target_slow: float) -> None:
    """Medians of engine and bare appends of one size, alternating in random order."""
    data = os.urandom(size)
    store = chunkstore.open(f"file://{path}/root", settings=settings(path))
    store.create("s", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=64 * MIB))
    bare_file = 0
    fd = os.open(path / f"bare-{bare_file}", os.O_CREAT | os.O_WRONLY)
    written = 0
    engine_s: list[float] = []
    bare_s: list[float] = []
    order = random.Random(1)
    for number in range(count + 10):
        turns = ["engine", "bare"]
        order.shuffle(turns)
        for turn in turns:
            if turn == "bare" and written + size > 64 * MIB:
                # A new file for each 64 MiB, like the engine's chunks.
                os.close(fd)
                bare_file += 1
                fd = os.open(path / f"bare-{bare_file}", os.O_CREAT | os.O_WRONLY)
                written = 0
            began = time_s()
            if turn == "engine":
                store.append("s", data)
            else:
                os.write(fd, data)
                os.fdatasync(fd)
                written += size
            took = time_s() - began
            if number >= 10:
                (engine_s if turn == "engine" else bare_s).append(took)
    os.close(fd)
    store.close()
    bare = median(bare_s)
    fast = size < MIB or size / bare > FAST_BLOCK_BYTES_PER_S
    report.add(
        f"append {size // KIB} KiB, ratio of medians to bare",
        bare / median(engine_s),
        "ratio",
        at_least=target_fast if fast else target_slow,
        detail=f"engine {median(engine_s) * 1e3:.3f} ms, bare {bare * 1e3:.3f} ms, {'fast' if fast else 'slow'} blocks",
    )


def appends_per_s(store: chunkstore.ChunkedSegmentStorage, names: Sequence[str], threads: int, seconds: float) -> float:
    """Appends of 1 KiB per second by ``threads`` threads over the named segments."""
    data = os.urandom(KIB)
    counts = [0] * threads
    begin, stop = threading.Event(), threading.Event()

    def work(number: int) -> None:
        name = names[number % len(names)]
        begin.wait()
        while not stop.is_set():
            store.append(name, data)
            counts[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    began = time_s()
    begin.set()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time_s() - began)


def threads_on_disk(report: Report, path: Path, seconds: float, rounds: int) -> None:
    """32 threads against one thread, alternating, on this disk as it is."""
    store = chunkstore.open(f"file://{path}/threads", settings=settings(path))
    names = [f"t{number}" for number in range(32)]
    for name in names:
        store.create(name)
    one, many = [], []
    for _ in range(rounds):
        one.append(appends_per_s(store, names[:1], 1, seconds))
        many.append(appends_per_s(store, names, 32, seconds))
    store.close()
    report.add("append 1 KiB, 32 threads on 32 segments", median(many), "/s", at_least=10_000)
    report.add("append 1 KiB, 32 threads to one thread", median(many) / median(one), "ratio", at_least=3)


def threads_with_slow_sync(report: Report, path: Path, seconds: float) -> None:
    """The same with every sync made to take 5 ms: what group commit is for."""
    storage = SlowSync(str(path / "slow"))
    store = open_store_on(storage, settings=settings(path))
    names = [f"t{number}" for number in range(32)]
    for name in names:
        store.create(name)
    one = appends_per_s(store, names[:1], 1, seconds)
    many = appends_per_s(store, names, 32, seconds)
    single = appends_per_s(store, names[:1], 32, seconds)
    store.close()
    report.add("5 ms syncs: 32 threads on 32 segments", many, "/s", at_least=1_800)
    report.add(
        "5 ms syncs: 32 segments to one thread", many / one, "ratio", at_least=20, detail=f"one thread {one:.0f}/s"
    )
    report.add("5 ms syncs: 32 threads on one segment to one thread", single / one, "ratio", at_least=10)


def against_floor(report: Report, path: Path, rounds: int) -> None:
    """Processor time of the engine to that of the same stored bytes made by hand (``append_floor``), in alternating blocks."""
    data = os.urandom(KIB)
    names = [f"b{number}" for number in range(64)]
    together = [Append(name, data) for name in names]
    source = MemoryChunkStorage("memory://bench-append")
    store = open_store_on(source, settings=settings(path, inline_bytes_max=0))
    for name in names:
        store.create(name)
        store.append(name, data)
    settle_cache(store)
    cache: Any = store._container.current.store
    floor = Floor(source, MemoryChunkStorage("memory://bench-append-floor"), cache.path, path / "floor")
    tails = [floor.tail(name) for name in names]
    one = tails[:1]
    sides: dict[str, tuple[int, Callable[[], object], Callable[[], object]]] = {
        "single": (
            200,
            lambda: store.append("b0", data),
            lambda: floor.append(one, data, time.time_ns() // 1_000_000),
        ),
        "together": (
            10,
            lambda: store.commit(together),
            lambda: floor.append(tails, data, time.time_ns() // 1_000_000),
        ),
    }
    engine_us: dict[str, list[float]] = {kind: [] for kind in sides}
    floor_us: dict[str, list[float]] = {kind: [] for kind in sides}
    for number in range(-2, rounds):
        for kind, (count, by_engine, by_floor) in sides.items():
            turns = [(by_engine, engine_us[kind]), (by_floor, floor_us[kind])]
            for action, took in turns if number % 2 else reversed(turns):
                began = time.process_time()
                for _ in range(count):
                    action()
                if number >= 0:
                    took.append((time.process_time() - began) / count * 1e6)
    store.close()
    floor.lmdb.close()
    for kind, name, each, at_most in (
        ("single", "append 1 KiB, engine to floor in processor time", 1, 4.0),
        ("together", "append 1 KiB, 64 in one commit, engine to floor", 64, 2.0),
    ):
        report.add(
            name,
            median([a / b for a, b in zip(engine_us[kind], floor_us[kind], strict=True)]),
            "ratio",
            at_most=at_most,
            detail=f"engine {median(engine_us[kind]) / each:.1f} us, floor {median(floor_us[kind]) / each:.1f} us",
        )


def main() -> None:
    """Run all and save ``results/append.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, to see that it runs")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    report = Report("append-quick" if options.quick else "append")
    with scratch(options.dir) as path:
        for size, count, fast, slow in (
            (KIB, 4000, 0.4, 0.4),
            (64 * KIB, 2000, 0.5, 0.5),
            (MIB, 600, 0.65, 0.65),
            (8 * MIB, 200, 0.85, 0.92),
        ):
            sub = path / f"size-{size}"
            sub.mkdir()
            against_bare(report, sub, size, count // scale, fast, slow)
        threads_on_disk(report, path, 2.0 / scale, 5)
        threads_with_slow_sync(report, path, 4.0 / scale)
        against_floor(report, path, 40 // scale)
    report.save()


if __name__ == "__main__":
    main()
