"""The past: a view at a past position beside a rebuild from the same snapshot.

``python -m benchmarks.bench_past [--dir DIR] [--quick]``.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from benchmarks.big import CHUNK_BYTES, build, open_big, settings_for
from benchmarks.harness import Report, median, scratch, time_s
from benchmarks.length_only import LengthOnlyChunkStorage
from chunkstore.engine.replica import Replica
from chunkstore.following import open_replica_on
from chunkstore_bindings.filesystem import FilesystemChunkStorage

__all__ = ["main"]


def _replica(path: Path, at_lsn: int | None = None) -> Replica:
    storage = LengthOnlyChunkStorage(FilesystemChunkStorage(str(path / "root")), assume_length=CHUNK_BYTES)
    return open_replica_on(storage, settings=settings_for(path), close_storage=True, at_lsn=at_lsn)


def view_of_the_past(report: Report, path: Path, many: int, behind: int, rounds: int) -> None:
    """Both start from the same snapshot and replay as many records."""
    build(path, many, snapshot=True)
    with open_big(path) as store:
        for number in range(behind):
            store.table("t").put(b"k", b"%d" % number)
    rebuilt, viewed = [], []
    for _ in range(rounds):
        shutil.rmtree(path / "cache")
        began = time_s()
        with _replica(path) as replica:
            rebuilt.append(time_s() - began)
            lsn = replica.lsn
        began = time_s()
        with _replica(path, lsn - 1) as view:
            viewed.append(time_s() - began)
            assert view.lsn == lsn - 1
    report.add(
        f"a view of the past, {many:,} chunks and {behind:,} records, to a rebuild",
        median(viewed) / median(rebuilt),
        "x",
        at_most=1.5,
        detail=f"{median(viewed):.2f} s to {median(rebuilt):.2f} s",
    )


def main() -> None:
    """Run all and save ``results/past.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options = parser.parse_args()
    report = Report("past-quick" if options.quick else "past")
    many, behind, rounds = (20_000, 2_000, 3) if options.quick else (1_000_000, 50_000, 3)
    with scratch(options.dir) as path:
        view_of_the_past(report, path, many, behind, rounds)
    report.save()


if __name__ == "__main__":
    main()
