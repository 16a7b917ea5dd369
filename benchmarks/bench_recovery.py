"""Opening: with an intact cache, from a snapshot, from the journal; with many extents; memory; 25,000 active segments.

``python -m benchmarks.bench_recovery [--dir DIR] [--quick]``.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import chunkstore
from benchmarks.big import build, open_big, settings_for
from benchmarks.harness import (
    Report,
    anonymous_kib,
    in_fresh_process,
    median,
    peak_resident_kib,
    scratch,
    time_s,
    tuned,
)
from benchmarks.turns import add_ratio
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append, Create
from chunkstore_bindings.memory import MemoryChunkStorage

__all__ = ["main"]


_child = partial(in_fresh_process, "benchmarks.bench_recovery", "--child")


def child_open(path: str) -> None:
    """In a fresh process: open, read once, report times and memory."""
    import_kib = anonymous_kib()
    began = time_s()
    store = open_big(Path(path))
    opened = time_s() - began
    store.read("s", 0, 4096)
    kib = anonymous_kib()
    report = store.report
    rows = store.info("s").chunk_count
    store.close()
    print(
        json.dumps(
            {"open_s": opened, "kib": kib, "import_kib": import_kib, "rows": rows, "replayed": report.replayed_records}
        )
    )


def reopen(report: Report, path: Path, many: int, rounds: int) -> None:
    """An intact cache must cost nothing to open, however large; and memory must not grow with it."""
    sizes = {"ten": 10, "thousand": 1_000, "many": many}
    for name, chunks in sizes.items():
        (path / name).mkdir()
        build(path / name, chunks, snapshot=True)
    opened: dict[str, list[float]] = {name: [] for name in sizes}
    memory: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(rounds):
        for name in sizes:
            found = _child("open", path / name)
            opened[name].append(found["open_s"])
            memory[name].append(found["kib"])
    report.add(
        f"re-open, {many:,} chunks more than 10",
        (median(opened["many"]) - median(opened["ten"])) * 1e3,
        "ms",
        at_most=20,
        detail=f"{median(opened['many']) * 1e3:.1f} ms to {median(opened['ten']) * 1e3:.1f} ms",
    )
    report.add(
        f"anonymous memory, {many:,} chunks above 1,000",
        (median(memory["many"]) - median(memory["thousand"])) / 1024,
        "MiB",
        at_most=20,
    )
    rates = []
    for _ in range(3):
        shutil.rmtree(path / "many" / "cache")
        found = _child("open", path / "many")
        rates.append(found["rows"] / found["open_s"])
    report.add("rebuild from a snapshot, whole open", median(rates), "rows/s", at_least=300_000)


def child_hold(path: str) -> None:
    """Own the container, say so, and stay."""
    store = open_big(Path(path))
    store.create("held")
    print("held", flush=True)
    threading.Event().wait()


def beside_a_zombie(report: Report, path: Path, many: int, rounds: int) -> None:
    """Taking over while the former owner, on this machine, lives: its cache is its own, and another is built."""
    command = [sys.executable, "-m", "benchmarks.bench_recovery", "--child", "hold", str(path)]
    for what, number in (("stopped", signal.SIGSTOP), ("serving", signal.SIGCONT)):
        opened = []
        for _ in range(rounds):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as zombie, ExitStack() as stack:
                stack.callback(zombie.kill)  # a stopped one would be waited for for ever
                assert zombie.stdout is not None
                assert zombie.stdout.readline()
                zombie.send_signal(number)
                began = time_s()
                store = open_big(path)
                opened.append(time_s() - began)
                store.delete("held")
                built: Any = store._container.current.store
                store.close()
                shutil.rmtree(built.path)  # so that the next round finds one store, too
        report.add(f"take-over beside a {what} owner, {many:,} chunks", median(opened), "s", at_most=2)


def take_overs(report: Report, path: Path, extents: int, rounds: int) -> None:
    """With so many live extents, to none (the same bytes in chunks): by turns, from the journal without a cache, and with it."""
    kinds: dict[str, dict[str, Any]] = {"extents": {}, "chunks": {"inline_bytes_max": 0}}
    took: dict[tuple[str, str], list[float]] = {}

    def opened(kind: str, cache: str, **more: Any) -> chunkstore.ChunkedSegmentStorage:
        settings = tuned(cache_dir=str(path / cache / kind), lease_s=0, spill_s=86_400.0, spill_bytes=1 << 30, **more)
        return chunkstore.open(f"file://{path}/{kind}", settings=settings)

    for kind, more in kinds.items():
        with opened(kind, "warm", **more) as store:
            names = [f"s{number}" for number in range(100)]
            store.commit([Create(name) for name in names])
            for _ in range(extents // len(names)):
                store.commit([Append(name, b"x" * 128) for name in names])
    for number in range(rounds):
        for kind in sorted(kinds, reverse=bool(number % 2)):
            for cache in ("warm", "cold"):
                began = time_s()
                store = opened(kind, cache)
                took.setdefault((kind, cache), []).append(time_s() - began)
                store.close()
            shutil.rmtree(path / "cold" / kind)
    for cache in ("warm", "cold"):
        with_extents, without = took["extents", cache], took["chunks", cache]
        detail = f"; {median(with_extents):.3f} s, {median(without):.3f} s"
        figure = f"take-over, {cache} cache, {extents} extents to none"
        add_ratio(report, figure, with_extents, without, detail, at_most=1.5)


def journal_replay(report: Report, path: Path, operations: int) -> None:
    """Rebuild from the journal alone: records of one operation, and of 64."""
    data = b"x" * 100
    for per_record, target in ((1, 150_000.0), (64, 150_000.0)):
        where = path / f"journal-{per_record}"
        where.mkdir()
        settings = settings_for(where)
        storage = MemoryChunkStorage(f"memory://bench-journal-{per_record}")
        store = open_store_on(storage, settings=settings)
        names = [f"n{number}" for number in range(per_record)]
        store.commit([Create(name) for name in names])
        for _ in range(operations // per_record):
            if per_record == 1:
                store.append(names[0], data)
            else:
                store.commit([Append(name, data) for name in names])
        store.close()
        rates = []
        for _ in range(3):
            shutil.rmtree(where / "cache")
            began = time_s()
            store = open_store_on(storage, settings=settings)
            took = time_s() - began
            assert store.report.replayed_records >= operations // per_record
            rates.append(operations / took)
            store.close()
        report.add(
            f"rebuild from the journal, {per_record} operations a record", median(rates), "ops/s", at_least=target
        )


def child_segments(path: str, count: str) -> None:
    """In a fresh process with 1,024 files: create, one append each, re-open; prints seconds and peak memory."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    total = int(count)
    settings = chunkstore.Settings(cache_dir=f"{path}/cache", lease_s=0)
    root = f"file://{path}/root"
    names = [f"segment-{number:06}" for number in range(total)]
    with chunkstore.open(root, settings=settings) as store:
        for begin in range(0, total, 1000):
            store.commit([Create(name) for name in names[begin : begin + 1000]])
    began = time_s()
    with chunkstore.open(root, settings=settings) as store:

        def work(share: int) -> None:
            for name in names[share::32]:
                store.append(name, b"one append of a small event")

        workers = [threading.Thread(target=work, args=(share,)) for share in range(32)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    with chunkstore.open(root, settings=settings) as store:
        count_found = sum(1 for _ in store.segments())
        assert count_found == total
        assert store.info(names[-1]).length == 27
    took = time_s() - began
    print(json.dumps({"s": took, "rss_mib": peak_resident_kib() / 1024}))


def active_segments(report: Report, path: Path, count: int) -> None:
    """Very many active segments under a small file limit."""
    found = _child("segments", path, count)
    report.add(f"{count:,} active segments: open, one append each, re-open", found["s"], "s", at_most=30)
    report.add(f"{count:,} active segments: peak resident memory", found["rss_mib"], "MiB", at_most=300)


def main() -> None:
    """Run all and save ``results/recovery.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        if options.child[0] == "open":
            child_open(options.child[1])
        elif options.child[0] == "hold":
            child_hold(options.child[1])
        else:
            child_segments(options.child[1], options.child[2])
        return
    report = Report("recovery-quick" if options.quick else "recovery")
    with scratch(options.dir) as path:
        reopen(report, path, 20_000 if options.quick else 1_000_000, 3 if options.quick else 9)
        beside_a_zombie(report, path / "many", 20_000 if options.quick else 1_000_000, 3 if options.quick else 9)
        journal_replay(report, path, 6_400 if options.quick else 256_000)
        (path / "take-over").mkdir()
        take_overs(report, path / "take-over", 10_000 if options.quick else 100_000, 3 if options.quick else 9)
        (path / "segments").mkdir()
        active_segments(report, path / "segments", 1_000 if options.quick else 25_000)
    report.save()


if __name__ == "__main__":
    main()
