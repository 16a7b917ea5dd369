"""Durable appends: against a bare write+fdatasync of the same size, and in processor time against a floor. Many threads, and what others
take for the same, are ``bench_peers``.

Engine and bare loop alternate append by append in random order, because the disk's own speed drifts by far more than what
is measured. ``python -m benchmarks.bench_append [--dir DIR] [--quick]``.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chunkstore
from benchmarks.harness import Report, median, scratch, time_s
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append
from chunkstore.config import KIB, MIB
from chunkstore_bindings.memory import MemoryChunkStorage
from tests.support.append_floor import Floor

__all__ = ["main"]

FAST_BLOCK_BYTES_PER_S = 1e9


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
    cache: Any = store._container.current.store
    floor = Floor(source, MemoryChunkStorage("memory://bench-append-floor"), cache, path / "floor")
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
        against_floor(report, path, 40 // scale)
    report.save()


if __name__ == "__main__":
    main()
