"""Asking the owner: how long an answer takes, against taking the container over for the same commit, measured in the same run.

On a local disk and on S3 (Ceph's gateway, started here), with the owner's usual pauses: while it commits, and on S3 also when nothing
has happened for a while.

``python -m benchmarks.bench_ask [--dir DIR] [--quick]``
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import chunkstore
from benchmarks.harness import Report, median, scratch, time_s
from chunkstore.changes import TablePut
from tests.support.servers.base import ServerMissing
from tests.support.servers.rgw import Rgw
from tests.support.servers.s3server import CREDENTIALS

__all__ = ["main"]

IDLE_S = 130.0
"""Behind a network: a minute until the owner takes itself for idle, and until its pauses have grown."""


def settings(path: Path, name: str) -> chunkstore.Settings:
    return chunkstore.Settings(cache_dir=str(path / name))


def answers(report: Report, root: str, path: Path, where: str, rounds: int, at_most_s: float) -> None:
    """Commits of one row each, beside an owner that appends now and then; then the same by take-overs."""
    taken: list[float] = []
    asked: list[float] = []
    with chunkstore.open(root, settings=settings(path, "owner")) as store:
        store.create("a")
        time.sleep(1.0)  # its first look comes half a second after it has opened
        with chunkstore.open_asker(root, settings=settings(path, "asker")) as asker:
            for number in range(rounds):
                store.append("a", b"traffic")
                began = time_s()
                asker.commit((), TablePut("bench", b"%d" % number, b"1", 0))
                asked.append(time_s() - began)
    for number in range(rounds):
        began = time_s()
        with chunkstore.open(root, settings=settings(path, "owner")) as store:
            store.table("bench").put(b"other %d" % number, b"1", expected_version=0)
        taken.append(time_s() - began)
    detail = f"medians {median(asked):.3f} s, {median(taken):.3f} s"
    ratio = median(asked) / median(taken)
    report.add(f"{where}: an answer, to opening, committing and closing", ratio, "ratio", detail=detail)
    report.add(f"{where}: slowest answer of {rounds} while there is traffic", max(asked), "s", at_most=at_most_s)


def idle(report: Report, root: str, path: Path, rounds: int) -> None:
    """The owner has done nothing for a while."""
    spent = []
    with (
        chunkstore.open(root, settings=settings(path, "owner")),
        chunkstore.open_asker(root, settings=settings(path, "asker")) as asker,
    ):
        for number in range(rounds):
            time.sleep(IDLE_S)
            began = time_s()
            asker.commit((), TablePut("bench", b"idle %d" % number, b"1", 0))
            spent.append(time_s() - began)
    report.add(f"S3: slowest answer of {rounds} of an idle owner", max(spent), "s", at_most=25.0)


def main() -> None:
    """Run all and save ``results/ask.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    os.environ.update(CREDENTIALS)
    report = Report("ask-quick" if options.quick else "ask")
    rounds = 5 if options.quick else 40
    with scratch(options.dir) as path:
        answers(report, (path / "root").as_uri(), path, "local disk", rounds, 0.2)
        try:
            server = Rgw(parent=path)
        except ServerMissing as why:
            print(f"S3 is not measured: {why}")
            return
        try:
            root = server.root(server.make_bucket(), "asked")
            answers(report, root, path / "s3", "S3", rounds, 2.0)
            if not options.quick:
                idle(report, root, path / "s3", 3)
        finally:
            server.stop()
    report.save()


if __name__ == "__main__":
    main()
