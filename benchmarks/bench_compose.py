"""Composing files: many small chunks into large ones, against a plain loop that reads them and writes one with one fsync.

Both leave the same files behind; ours besides appear whole or not at all, replace nothing, and have durable names. They alternate, round
by round; sources are in the page cache for both. What S3 costs is in ``bench_s3``.

``python -m benchmarks.bench_compose [--dir DIR] [--quick]``
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.harness import Report, median, scratch, time_s
from chunkstore.config import KIB, MIB
from chunkstore.storage import ChunkRange
from chunkstore_bindings.filesystem import FilesystemChunkStorage

__all__ = ["main"]

SOURCE_BYTES = 64 * KIB
TARGET_BYTES = 128 * MIB


def plain_loop(root: Path, sources: list[str], target: str) -> None:
    """What somebody would write who needs no more than the bytes."""
    with open(root / target, "wb", buffering=0) as into:
        for source in sources:
            with open(root / source, "rb", buffering=0) as file:
                into.write(file.read())
        os.fsync(into.fileno())


def files(report: Report, root: Path, count: int, rounds: int) -> None:
    """So many chunks of 64 KiB into chunks of 128 MiB."""
    storage = FilesystemChunkStorage(root)
    names = [f"c/s/{number:05}" for number in range(count)]
    for name in names:
        storage.create(name, os.urandom(SOURCE_BYTES))
    (root / "plain").mkdir()
    step = TARGET_BYTES // SOURCE_BYTES
    groups = [names[start : start + step] for start in range(0, count, step)]
    spent: dict[str, list[float]] = {"ours": [], "plain": []}
    carried = 0
    for number in range(rounds + 1):
        for turn in ("ours", "plain") if number % 2 else ("plain", "ours"):
            began = time_s()
            for at, group in enumerate(groups):
                if turn == "plain":
                    plain_loop(root, group, f"plain/{number}-{at}")
                else:
                    ranges = [ChunkRange(name, 0, SOURCE_BYTES) for name in group]
                    carried += storage.compose(f"c/d/{number}-{at}", ranges).carried_bytes
            # The first round warms everything up.
            if number:
                spent[turn].append(time_s() - began)
        for at in range(len(groups)):
            ours, theirs = root / f"c/d/{number}-{at}", root / f"plain/{number}-{at}"
            assert number or ours.read_bytes() == theirs.read_bytes()
            ours.unlink()
            theirs.unlink()
    storage.close()
    ours_s, plain_s = median(spent["ours"]), median(spent["plain"])
    moved = count * SOURCE_BYTES / 1e6
    report.add(
        f"{count} files of 64 KiB into files of 128 MiB: speed to a plain loop's",
        plain_s / ours_s,
        "ratio",
        at_least=0.6,
        detail=f"ours {moved / ours_s:.0f} MB/s, plain {moved / plain_s:.0f} MB/s",
    )
    report.add("users' bytes through the process on the way", carried, "bytes")


def main() -> None:
    """Run all and save ``results/compose.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    report = Report("compose-quick" if options.quick else "compose")
    with scratch(options.dir) as path:
        files(report, path, 1000 if options.quick else 10_000, 3 if options.quick else 9)
    report.save()


if __name__ == "__main__":
    main()
