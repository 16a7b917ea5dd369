"""Merging small chunks: how often a byte is written in a day of small appends, and how fast many chunks become few.

``store.defrag`` goes against a plain loop that reads the same files and writes the same large ones with one fsync each. Ours besides
commits, and with ``verify`` reads what it made and compares it. They alternate; sources are in the page cache for both.

``python -m benchmarks.bench_defrag [--dir DIR] [--quick]``
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import NamedTuple

import chunkstore
from benchmarks.harness import Report, median, scratch, time_s
from chunkstore.config import KIB, MIB, DefragPolicy, RollingPolicy
from chunkstore.upkeep.defrag_plan import DefragChunk, plan_runs

__all__ = ["main"]

SOURCE_BYTES = 64 * KIB
TARGET_BYTES = 128 * MIB
_PART_BYTES = 64 * MIB


def plain_loop(root: Path, sources: list[str], target: str) -> None:
    """Copy the sources into one file, with one sync at its end."""
    with open(root / target, "wb", buffering=0) as into:
        for source in sources:
            with open(root / source, "rb", buffering=0) as file:
                into.write(file.read())
        os.fsync(into.fileno())


def day(report: Report, append_bytes: int, appends: int, *, each: int) -> None:
    """So many chunks of one append each, and a pass behind every ``each`` of them."""
    policy, lengths, moved = DefragPolicy(), list[int](), 0
    most = 0
    for number in range(1, appends + 1):
        lengths.append(append_bytes)
        if number % each and number < appends:
            continue
        most = max(most, len(lengths))
        chunks = [DefragChunk(b"", 0, length, 0, True) for length in lengths]
        for first, last in reversed(plan_runs(chunks, policy, TARGET_BYTES, growing=number < appends)):
            size = sum(lengths[first:last])
            moved += size
            lengths[first:last] = [size]
    total = append_bytes * appends
    report.add(
        f"{appends} appends of {append_bytes // KIB} KiB, a pass every {each}: bytes written for one appended",
        1 + moved / total,
        "ratio",
        at_most=1 + log(TARGET_BYTES / append_bytes, policy.fanout),
        detail=f"{len(lengths)} chunks are left, of {-(-total // TARGET_BYTES)} at least; {most} at most meanwhile",
    )


def files(report: Report, root: Path, count: int, rounds: int) -> None:
    """So many chunks of 64 KiB into chunks of 128 MiB."""
    spent: dict[str, list[_Spent]] = {"verified": [], "unverified": [], "plain": []}
    for number in range(rounds + 1):
        for turn in ("verified", "unverified") if number % 2 else ("unverified", "verified"):
            ours, plain = _both(
                root / f"{turn}-{number}", count, verify=turn == "verified", plain_first=number % 2 == 0
            )
            # The first round warms everything up.
            if number:
                spent[turn].append(ours)
                spent["plain"].append(plain)
    took_s = {turn: median([item.clock_s for item in found]) for turn, found in spent.items()}
    busy_s = {turn: median([item.processor_s for item in found]) for turn, found in spent.items()}
    what, size = f"{count} chunks of 64 KiB into chunks of 128 MiB", count * SOURCE_BYTES / 1e6
    for turn in ("verified", "unverified"):
        report.add(
            f"{what}, {turn}: speed to a plain loop's",
            took_s["plain"] / took_s[turn],
            "ratio",
            at_least=0.6,
            detail=f"ours {size / took_s[turn]:.0f} MB/s, plain {size / took_s['plain']:.0f} MB/s",
        )
        ratio = busy_s["plain"] / busy_s[turn]
        report.add(f"{what}, {turn}: plain loop's processor time to ours", ratio, "ratio")


class _Spent(NamedTuple):
    clock_s: float
    processor_s: float


def _both(place: Path, count: int, *, verify: bool, plain_first: bool) -> tuple[_Spent, _Spent]:
    """What ours takes, and a plain loop, over the same chunks."""
    step, data = TARGET_BYTES // SOURCE_BYTES, os.urandom(_PART_BYTES)
    settings = chunkstore.Settings(cache_dir=str(place / "cache"), lease_s=0)
    with chunkstore.open(place.as_uri(), settings=settings) as store:
        store.create("small", rolling=RollingPolicy(chunk_size_bytes_max=SOURCE_BYTES))
        for begin in range(0, count * SOURCE_BYTES, _PART_BYTES):
            store.append("small", data[: count * SOURCE_BYTES - begin])
        store.seal("small")
        store.create("a", rolling=RollingPolicy(chunk_size_bytes_max=TARGET_BYTES))
        store.concat("a", 0, "small")
        names = [chunk.name for chunk in store.layout("a")]

        def ours() -> None:
            made = store.defrag("a", policy=DefragPolicy(verify=verify))
            assert (made.chunks_before, made.chunks_after) == (count, -(-count // step))

        def plain() -> None:
            for first in range(0, count, step):
                plain_loop(place, names[first : first + step], f"plain-{first}")

        spent = dict[Callable[[], None], _Spent]()
        for call in (plain, ours) if plain_first else (ours, plain):
            began_s, began_processor_s = time_s(), time.process_time()
            call()
            spent[call] = _Spent(time_s() - began_s, time.process_time() - began_processor_s)
    shutil.rmtree(place)
    return spent[ours], spent[plain]


def main() -> None:
    """Run all and save ``results/defrag.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    report = Report("defrag-quick" if options.quick else "defrag")
    for append_bytes in (4 * KIB, 64 * KIB, 1 * MIB):
        day(report, append_bytes, 86_400 // (10 if options.quick else 1), each=60)
    with scratch(options.dir) as path:
        files(report, path, 1000 if options.quick else 10_000, 2 if options.quick else 5)
    report.save()


if __name__ == "__main__":
    main()
