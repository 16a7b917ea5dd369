"""What appends in records cost besides their speed: memory with many active segments, take-overs, and what spilling takes from appenders.

``python -m benchmarks.bench_inline [--dir DIR] [--quick]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import chunkstore
from benchmarks.harness import Report, anonymous_kib, in_fresh_process, median, peak_resident_kib, scratch, time_s
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append, Create
from chunkstore.config import KIB
from chunkstore_bindings.filesystem import FilesystemChunkStorage

__all__ = ["main"]

_DATA = os.urandom(KIB)
_NEVER_S = 86_400.0
_TOGETHER = 1_000


def _settings(path: Path, **more: object) -> chunkstore.Settings:
    return chunkstore.Settings(cache_dir=str(path / "cache"), journal_mode="append", lease_s=0, **more)  # type: ignore[arg-type]


def _open(path: Path, **more: object) -> chunkstore.ChunkedSegmentStorage:
    return open_store_on(FilesystemChunkStorage(str(path / "store")), settings=_settings(path, **more))


def _create(store: chunkstore.ChunkedSegmentStorage, names: list[str]) -> None:
    for begin in range(0, len(names), _TOGETHER):
        store.commit([Create(name) for name in names[begin : begin + _TOGETHER]])


def measure_memory(path: Path, segments: int) -> dict[str, float]:
    """Peak memory of this process with so many segments that each get appends, in records, in turn."""
    store = _open(path, spill_s=_NEVER_S)
    names = [f"active/{number:08d}" for number in range(segments)]
    _create(store, names)
    for _ in range(4):
        for name in names:
            store.append(name, _DATA)
    found = {"anonymous_mib": anonymous_kib() / KIB, "peak_mib": peak_resident_kib() / KIB}
    store.close()
    return found


def memory(report: Report, path: Path, segments: int) -> None:
    """In a fresh process."""
    found = in_fresh_process("benchmarks.bench_inline", "--memory", path, segments)
    report.add(f"peak memory, {segments} active segments", found["peak_mib"], "MiB", at_most=450)
    report.add("anonymous memory then", found["anonymous_mib"], "MiB")


def take_overs(report: Report, path: Path, extents: int, rounds: int) -> None:
    """A take-over with so many live extents to one of the same bytes in chunks, each from its journal without a cache, and with it."""
    took: dict[tuple[str, str], list[float]] = {}
    for name, more in (("extents", {"spill_s": _NEVER_S, "spill_bytes": 1 << 30}), ("chunks", {"inline_bytes_max": 0})):
        folder = path / name
        with _open(folder, **more) as store:
            names = [f"s{number}" for number in range(100)]
            _create(store, names)
            small = _DATA[:128]
            for _ in range(extents // len(names)):
                store.commit([Append(segment, small) for segment in names])
    for number in range(rounds):
        for name in ("extents", "chunks") if number % 2 else ("chunks", "extents"):
            folder = path / name
            for cache in ("warm", "cold"):
                where = path / "caches" / f"{name}-{number}"
                settings = _settings(folder if cache == "warm" else where, spill_s=_NEVER_S, spill_bytes=1 << 30)
                began = time_s()
                store = open_store_on(FilesystemChunkStorage(str(folder / "store")), settings=settings)
                took.setdefault((name, cache), []).append(time_s() - began)
                store.close()
    for cache in ("warm", "cold"):
        with_extents, without = median(took["extents", cache]), median(took["chunks", cache])
        report.add(
            f"take-over, {cache} cache, {extents} extents to chunks",
            with_extents / without,
            "ratio",
            at_most=1.5,
            detail=f"{with_extents:.3f} s, {without:.3f} s",
        )


def _by_turns(
    stores: dict[str, chunkstore.ChunkedSegmentStorage],
    seconds: float,
    rounds: int,
    append: Callable[[chunkstore.ChunkedSegmentStorage, int], object],
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Appends in short blocks by turns: how many a second, and the processor time of each in microseconds, of each store and round."""
    rates: dict[str, list[float]] = {name: [] for name in stores}
    used: dict[str, list[float]] = {name: [] for name in stores}
    for number in range(rounds):
        for name in ("on", "off") if number % 2 else ("off", "on"):
            count, began, processor = 0, time_s(), time.process_time()
            while time_s() - began < seconds:
                append(stores[name], count)
                count += 1
            rates[name].append(count / (time_s() - began))
            used[name].append((time.process_time() - processor) / count * 1e6)
    return rates, used


def spilling(report: Report, path: Path, seconds: float, rounds: int) -> None:
    """Appends of one thread beside spilling, to those beside none: in short blocks by turns, on two stores; and whether it keeps up."""
    stores = {
        "on": _open(path / "on"),
        "off": _open(path / "off", spill_s=_NEVER_S, spill_bytes=1 << 30, inline_rows_max=10_000_000),
    }
    names = [f"s{number}" for number in range(8)]
    for store in stores.values():
        _create(store, names)
    rates, used = _by_turns(
        stores, seconds, rounds, lambda store, count: store.append(names[count % len(names)], _DATA)
    )
    waiting = sum(item.size_bytes for item in stores["on"]._container.backlog.held().values())
    for store in stores.values():
        store.close()
    report.add(
        "appends beside spilling to without",
        median([a / b for a, b in zip(rates["on"], rates["off"], strict=True)]),
        "ratio",
        detail=f"{median(rates['on']):.0f}/s, {median(rates['off']):.0f}/s",
    )
    report.add(
        "processor time of an append, spilling on to off",
        median(used["on"]) / median(used["off"]),
        "ratio",
        detail=f"{median(used['on']):.0f} us, {median(used['off']):.0f} us",
    )
    report.add("left in the journal at the end", waiting / KIB, "KiB", at_most=2 * len(names) * KIB)


def mixed(report: Report, path: Path, seconds: float, rounds: int) -> None:
    """Small and large appends by turns in one segment, to the same with none in records: how fast, and what chunks they leave."""
    stores = {"on": _open(path / "on"), "off": _open(path / "off", inline_bytes_max=0)}
    sizes = random.Random(1).choices((100, 1_000, 4_000, 30_000), k=1_000)
    data = os.urandom(max(sizes))
    for store in stores.values():
        store.create("s")
    rates, _ = _by_turns(stores, seconds, rounds, lambda store, n: store.append("s", data[: sizes[n % len(sizes)]]))
    stores["on"].spill()
    chunks = {name: stores[name].info("s").chunk_count for name in stores}
    for store in stores.values():
        store.close()
    report.add(
        "appends of 100 B to 30 kB by turns, to none in records",
        median([a / b for a, b in zip(rates["on"], rates["off"], strict=True)]),
        "ratio",
        detail=f"{median(rates['on']):.0f}/s, {median(rates['off']):.0f}/s",
    )
    report.add("chunks that they leave, once spilled", chunks["on"], "chunks", detail=f"{chunks['off']} else")


def main() -> None:
    """Run all and save ``results/inline.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, to see that it runs")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        json.dump(measure_memory(Path(options.memory[0]), int(options.memory[1])), sys.stdout)
        return
    scale = 10 if options.quick else 1
    report = Report("inline-quick" if options.quick else "inline")
    with scratch(options.dir) as path:
        memory(report, path / "memory", 25_000 // scale)
        take_overs(report, path / "take-over", 100_000 // scale, 5)
        spilling(report, path / "spilling", 5.0 / scale, 12)
        mixed(report, path / "mixed", 3.0 / scale, 8)
    report.save()


if __name__ == "__main__":
    main()
