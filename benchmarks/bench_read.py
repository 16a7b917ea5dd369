"""Reads: sequential against bare ``os.preadv``, warm small reads, what was just appended in records against the same in a chunk, and the
first read in segments of very many chunks.

``python -m benchmarks.bench_read [--dir DIR] [--quick]``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import chunkstore
from benchmarks.big import CHUNK_BYTES, build, build_concats, open_big
from benchmarks.harness import Report, in_fresh_process, median, scratch, time_s
from chunkstore.checksum import crc32c
from chunkstore.config import KIB, MIB

__all__ = ["main"]

WINDOW_BYTES: Final = 256 * KIB


class _Plain:
    """The same files, read by ``os.preadv``: as they are, or in windows whose CRC32C is compared at once."""

    def __init__(self, root: Path, store: chunkstore.ChunkedSegmentStorage) -> None:
        self._files: list[tuple[int, int]] = []
        self._expected: dict[int, int] = {}
        for chunk in store.layout("s"):
            file = os.open(root / chunk.name, os.O_RDONLY)
            self._files.append((chunk.offset, file))
            for offset in range(0, chunk.length, WINDOW_BYTES):
                self._expected[chunk.offset + offset] = crc32c(os.pread(file, WINDOW_BYTES, offset))

    def read(self, offset: int, view: memoryview) -> None:
        base, file = next(item for item in reversed(self._files) if item[0] <= offset)
        os.preadv(file, [view], offset - base)

    def verify(self, offset: int, view: memoryview) -> None:
        base, file = next(item for item in reversed(self._files) if item[0] <= offset)
        for start in range(0, len(view), WINDOW_BYTES):
            window = view[start : start + WINDOW_BYTES]
            os.preadv(file, [window], offset + start - base)
            assert crc32c(window) == self._expected[offset + start]

    def close(self) -> None:
        for _, file in self._files:
            os.close(file)


def sequential(report: Report, path: Path, total: int) -> None:
    """Reads of several sizes into the caller's buffer, verified and not, alternating with ``preadv`` of the very same files."""
    options: dict[str, Any] = {"cache_dir": str(path / "cache"), "lease_s": 0}
    with chunkstore.open(f"file://{path}/seq", settings=chunkstore.Settings(**options)) as store:
        store.create("s", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=64 * MIB))
        piece = os.urandom(8 * MIB)
        for _ in range(total // len(piece)):
            store.append("s", piece)
    with (
        chunkstore.open(f"file://{path}/seq", settings=chunkstore.Settings(**options)) as store,
        chunkstore.open_replica(
            f"file://{path}/seq", settings=chunkstore.Settings(verify="off", **options)
        ) as unverified,
    ):
        plain = _Plain(path / "seq", store)
        for size, to_verified in ((MIB, 0.95), (4 * MIB, 0.95), (8 * MIB, 1.0), (32 * MIB, 1.0)):
            buffer = bytearray(size)
            view = memoryview(buffer)
            turns: dict[str, Callable[[int], object]] = {
                "verified": lambda offset, buffer=buffer: store.read_into("s", offset, buffer),  # type: ignore[misc]
                "off": lambda offset, buffer=buffer: unverified.read_into("s", offset, buffer),  # type: ignore[misc]
                "bare": lambda offset, view=view: plain.read(offset, view),  # type: ignore[misc]
                "loop": lambda offset, view=view: plain.verify(offset, view),  # type: ignore[misc]
            }
            took = _alternating(turns, [*range(0, total, size)] * 3, random.Random(size))
            speeds = ", ".join(f"{name} {size / seconds / 1e9:.1f} GB/s" for name, seconds in took.items())
            for turn, peer, target in (
                ("verified", "loop", to_verified),
                ("verified", "bare", 0.5),
                ("off", "bare", 0.85),
            ):
                name = {"loop": "a preadv loop that compares the same CRCs", "bare": "preadv"}[peer]
                report.add(
                    f"sequential read {size // MIB} MiB, {turn}, to {name}",
                    took[peer] / took[turn],
                    "ratio",
                    at_least=target,
                    detail=speeds,
                )
        buffer = bytearray(4 * KIB)
        small: dict[str, Callable[[int], object]] = {
            "verified": lambda offset: store.read_into("s", offset, buffer),
            "off": lambda offset: unverified.read_into("s", offset, buffer),
        }
        chance = random.Random(4)
        took = _alternating(small, [chance.randrange(total - 4 * KIB) for _ in range(4000)], chance)
        report.add(
            "warm 4 KiB read in chunks of 64 MiB, verified to not",
            took["verified"] / took["off"],
            "ratio",
            at_most=3,
            detail=f"{took['verified'] * 1e6:.1f} us to {took['off'] * 1e6:.1f} us",
        )
        plain.close()


def _alternating(
    turns: dict[str, Callable[[int], object]], offsets: Sequence[int], order: random.Random
) -> dict[str, float]:
    """The median time of each turn. In random order: whoever reads a range second finds it in the processor's cache."""
    taken: dict[str, list[float]] = {name: [] for name in turns}
    for offset in offsets:
        for name in order.sample([*turns], len(turns)):
            began = time_s()
            turns[name](offset)
            taken[name].append(time_s() - began)
    return {name: median(seconds) for name, seconds in taken.items()}


def appended(report: Report, path: Path, count: int) -> None:
    """Reading back single appends of 1 KiB: from memory, and from the journal's object, against the same appends in one chunk."""
    ways = {"chunk": {"inline_bytes_max": 0}, "memory": {}, "journal": {"tail_cache_bytes": 0}}
    stores: dict[str, chunkstore.ChunkedSegmentStorage] = {}
    try:
        for name, given in ways.items():
            options: dict[str, Any] = {"lease_s": 0, "spill_s": 3600.0, "spill_bytes": 1 << 30, **given}
            chosen = chunkstore.Settings(cache_dir=str(path / f"cache-{name}"), **options)
            stores[name] = chunkstore.open(f"file://{path}/appended-{name}", settings=chosen)
            stores[name].create("s")
        for _ in range(count):
            piece = os.urandom(KIB)
            for store in stores.values():
                store.append("s", piece)
        for size in (KIB, 16 * KIB, 64 * KIB, MIB):
            chance = random.Random(size)
            offsets = [
                chance.randrange((count * KIB - size) // KIB) * KIB for _ in range(max(40, min(2000, 4 * MIB // size)))
            ]
            buffer = bytearray(size)
            turns: dict[str, Callable[[int], object]] = {
                name: lambda offset, store=store, buffer=buffer: store.read_into("s", offset, buffer)  # type: ignore[misc]
                for name, store in stores.items()
            }
            took = _alternating(turns, offsets, chance)
            times = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in took.items())
            for name, least in (("memory", 1.0), ("journal", 0.5)):
                what = f"read {size // KIB} KiB of appends of 1 KiB from {'the ' * (name == 'journal')}{name}, to the chunk"
                report.add(what, took["chunk"] / took[name], "ratio", at_least=least, detail=times)
    finally:
        for store in stores.values():
            store.close()


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
        appended(report, path, 2_000 if options.quick else 8_000)
        seeks(report, path, 20_000 if options.quick else 1_000_000, 1_000, 3 if options.quick else 15)
    report.save()


if __name__ == "__main__":
    main()
