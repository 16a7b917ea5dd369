"""Reads: sequential against bare ``os.preadv``, warm small reads, and the first read in segments of very many chunks.

``python -m benchmarks.bench_read [--dir DIR] [--quick]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path

import chunkstore
from benchmarks.big import CHUNK_BYTES, build, build_concats, open_big
from benchmarks.harness import Report, in_fresh_process, median, scratch, time_s
from chunkstore.config import KIB, MIB

__all__ = ["main"]


def sequential(report: Report, path: Path, total: int) -> None:
    """Reads of several sizes into the caller's buffer, alternating with ``preadv`` of the very same files."""
    settings = chunkstore.Settings(cache_dir=str(path / "cache"), lease_s=0)
    with chunkstore.open(f"file://{path}/seq", settings=settings) as store:
        store.create("s", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=64 * MIB))
        piece = os.urandom(8 * MIB)
        for _ in range(total // len(piece)):
            store.append("s", piece)
        chunks = list(store.layout("s"))
        files = {chunk.offset: os.open(path / "seq" / chunk.name, os.O_RDONLY) for chunk in chunks}
        for size, target in ((4 * MIB, 0.85), (8 * MIB, 1.0), (32 * MIB, 1.0)):
            order = random.Random(size)
            buffer = bytearray(size)
            view = memoryview(buffer)
            engine_s: list[float] = []
            bare_s: list[float] = []
            for _ in range(3):
                for offset in range(0, total, size):
                    chunk = next(item for item in reversed(chunks) if item.offset <= offset)
                    # In random order: whoever reads a range second finds it in the processor's cache.
                    for turn in order.sample(("engine", "bare"), 2):
                        began = time_s()
                        if turn == "engine":
                            store.read_into("s", offset, buffer)
                            engine_s.append(time_s() - began)
                        else:
                            os.preadv(files[chunk.offset], [view], offset - chunk.offset)
                            bare_s.append(time_s() - began)
            report.add(
                f"sequential read {size // MIB} MiB, ratio of medians to preadv",
                median(bare_s) / median(engine_s),
                "ratio",
                at_least=target,
                detail=f"engine {size / median(engine_s) / 1e9:.1f} GB/s, bare {size / median(bare_s) / 1e9:.1f} GB/s",
            )
        for descriptor in files.values():
            os.close(descriptor)


def first_read(path: str, chunks: int, seed: int) -> None:
    """In a fresh process: time the first 4 KiB read, then warm ones; prints JSON."""
    store = open_big(Path(path))
    offset = random.Random(seed).randrange(0, chunks * CHUNK_BYTES - 4 * KIB)
    buffer = bytearray(4 * KIB)
    began = time_s()
    store.read_into("s", offset, buffer)
    first = time_s() - began
    offsets = [random.Random(seed + 1).randrange(0, chunks * CHUNK_BYTES - 4 * KIB) for _ in range(2000)]
    warm = []
    for offset in offsets:
        began = time_s()
        store.read_into("s", offset, buffer)
        warm.append(time_s() - began)
    store.close()
    print(json.dumps({"first_s": first, "warm_s": median(warm)}))


def seeks(report: Report, path: Path, many: int, few: int, rounds: int) -> None:
    """First and warm reads with ``many`` and ``few`` chunks, and after 1,000 concats."""
    cases = {"few": few, "many": many, "concats": many}
    for name, chunks in cases.items():
        (path / name).mkdir()
        if name == "concats":
            build_concats(path / name, chunks, 1000)
        else:
            build(path / name, chunks)
    first: dict[str, list[float]] = {name: [] for name in cases}
    warm: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, chunks in cases.items():
            found = in_fresh_process("benchmarks.bench_read", "--first-read", path / name, chunks, number)
            first[name].append(found["first_s"])
            warm[name].append(found["warm_s"])
    base = median(first["few"])
    for name, text in (("many", f"{many:,} chunks"), ("concats", f"{many:,} chunks after 1,000 concats")):
        report.add(
            f"first 4 KiB read, {text} to {few:,}",
            median(first[name]) / base,
            "ratio",
            at_most=1.5,
            detail=f"{median(first[name]) * 1e6:.0f} us to {base * 1e6:.0f} us",
        )
        report.add(f"warm 4 KiB read, {text}", median(warm[name]) * 1e6, "us", at_most=30)


def main() -> None:
    """Run all and save ``results/read.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--first-read", nargs=3, metavar=("PATH", "CHUNKS", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_read:
        path, chunks, seed = options.first_read
        first_read(path, int(chunks), int(seed))
        return
    report = Report("read-quick" if options.quick else "read")
    with scratch(options.dir) as path:
        sequential(report, path, (128 if options.quick else 512) * MIB)
        seeks(report, path, 20_000 if options.quick else 1_000_000, 1_000, 3 if options.quick else 15)
    report.save()


if __name__ == "__main__":
    main()
