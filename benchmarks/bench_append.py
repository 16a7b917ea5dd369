"""Durable appends of one thread: to a bare write and fdatasync of the same bytes, on disk and in memory, and to those of another checkout.

On disk the clock counts. In memory (``/dev/shm``), where a sync takes nothing, the processor time counts: that is our own work. Many
threads, and what others take for the same, are ``bench_peers``.

``python -m benchmarks.bench_append [--dir DIR] [--quick] [--against CHECKOUT ...]``.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import chunkstore
from benchmarks.harness import Report, scratch, tuned
from benchmarks.turns import Contender, Operation, parse_options, take_turns, with_others
from chunkstore.assembly import open_store_on
from chunkstore.changes import Append
from chunkstore.config import KIB, MIB
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage

__all__ = ["bare", "main", "ours"]

MEMORY = Path("/dev/shm")
UNSPILLED = {"spill_s": 86_400.0, "spill_bytes": 1 << 30}


def ours(path: Path, sizes: list[int], segments: int = 1, sync_s: float = 0, **settings: Any) -> Operation:
    """Appends of these sizes by turns; each sync takes ``sync_s`` longer, as on slower disks."""
    if sync_s:
        sync = os.fdatasync

        def slow_sync(file: int) -> None:
            sync(file)
            time.sleep(sync_s)

        os.fdatasync = slow_sync  # type: ignore[assignment]
    given = tuned(cache_dir=str(path / "cache"), lease_s=0, **settings)
    store = chunkstore.open(f"file://{path}/root", settings=given)
    names = [f"s{number}" for number in range(segments)]
    for name in names:
        store.create(name)
    pieces = cycle([os.urandom(size) for size in sizes])
    return lambda thread: store.append(names[thread % segments], next(pieces))


def bare(path: Path, size: int) -> Operation:
    """A file for each thread. No checksum, no fence, no index."""
    data = os.urandom(size)
    files: dict[int, int] = {}

    def append(thread: int) -> None:
        file = files.get(thread)
        if file is None:
            file = files[thread] = os.open(path / f"{thread}", os.O_CREAT | os.O_WRONLY)
        os.write(file, data)
        os.fdatasync(file)

    return append


def by_size(report: Report, path: Path, others: dict[str, Path], scale: int) -> None:
    """On disk."""
    for size, at_least in ((KIB, 0.4), (16 * KIB, 0.4), (64 * KIB, 0.5), (MIB, 0.65), (8 * MIB, 0.92)):
        each = min(128, 32 * MIB // size)
        engines = with_others({"ours": Contender(ours, {"sizes": [size]}, each=each)}, others)
        contenders = {**engines, "bare": Contender(bare, {"size": size}, each=each)}
        turns = take_turns(path, contenders, 40 // scale)
        _, *peers = contenders
        for peer in reversed(peers):
            target = at_least if peer == "bare" else None
            turns.speed(report, f"append {size // KIB} KiB, to {peer}", "ours", peer, at_least=target)


def in_memory(report: Report, others: dict[str, Path], scale: int) -> None:
    """Our own work, in processor time and in Python calls."""
    engines = with_others({"ours": Contender(ours, {"sizes": [KIB]})}, others)
    turns = take_turns(MEMORY, {**engines, "bare": Contender(bare, {"size": KIB})}, 200 // scale)
    _, *peers = turns.calls
    for peer in reversed(peers):
        turns.cost(report, f"append 1 KiB in memory, to {peer}", "ours", peer)
    for name in engines:
        report.add(f"Python calls of an append, {name}", turns.calls[name], "calls")


def in_long_slices(report: Report, path: Path, scale: int) -> None:
    """What happens now and then (spilling) is in each slice."""
    mixed = random.Random(1).choices((100, 1_000, 4_000, 30_000), k=1_000)
    cases: dict[str, tuple[list[int], dict[str, Any]]] = {
        "append 1 KiB beside spilling, to none": ([KIB], UNSPILLED),
        "appends of 100 B to 30 kB, to none in records": (mixed, {"inline_bytes_max": 0}),
    }
    for figure, (sizes, settings) in cases.items():
        each = 4096 // scale
        contenders = {
            "ours": Contender(ours, {"sizes": sizes}, each=each),
            "other": Contender(ours, {"sizes": sizes, **settings}, each=each),
        }
        turns = take_turns(path, contenders, 8)
        turns.speed(report, figure, "ours", "other")
        turns.cost(report, figure, "ours", "other")


def bytes_written(report: Report, path: Path, appends: int) -> None:
    """What reaches the storage for the user's bytes: in the journal, and until everything is spilled."""
    data = os.urandom(KIB)
    for batch, at_most in ((1, 2.8), (32, 2.1)):
        root = path / f"written-{batch}"
        root.mkdir()
        storage = MeteredChunkStorage(FilesystemChunkStorage(str(root / "store")))
        settings = tuned(cache_dir=str(root / "cache"), lease_s=0, **UNSPILLED)
        with open_store_on(storage, settings=settings) as store, storage.counting() as counting:
            store.create("s")
            for _ in range(appends // batch):
                if batch == 1:
                    store.append("s", data)
                else:
                    store.commit([Append("s", data)] * batch)
            size_bytes = store.info("s").length
            what = f"to data, {batch} in a record"
            report.add(f"journal bytes {what}", counting.total.sent_bytes / size_bytes, "ratio")
            store.spill()
            report.add(f"all bytes {what}", counting.total.sent_bytes / size_bytes, "ratio", at_most=at_most)


def main() -> None:
    """Run all and save ``results/append.json``."""
    options = parse_options(argparse.ArgumentParser(description=__doc__))
    scale = 10 if options.quick else 1
    report = Report("append-quick" if options.quick else "append")
    with scratch(options.dir) as path:
        by_size(report, path, options.others, scale)
        in_memory(report, options.others, scale)
        in_long_slices(report, path, scale)
        bytes_written(report, path, 8_000 // scale)
    report.save()


if __name__ == "__main__":
    main()
