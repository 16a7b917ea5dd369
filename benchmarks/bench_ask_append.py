"""Appends from other processes through the live owner: how many a second four of them reach together, each one after the other.

On a local disk, fsync on, 100 bytes each. The floor is what one exchange costs without a wait: the calls of asker and owner in a row, in
one process.

``python -m benchmarks.bench_ask_append [--dir DIR] [--quick]``
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import chunkstore
from benchmarks.harness import Report, median, scratch, time_s
from chunkstore import runtime
from chunkstore.asks import Answer, AskCommit, Event, Request
from chunkstore.assembly import open_asker
from chunkstore.changes import Append
from chunkstore.config import Tuning

__all__ = ["main"]

PROCESSES = 4
DATA = bytes(100)


def ask(root: str, cache: str, name: str, count: int) -> None:
    """A child: says that it is ready, and begins when it is told to."""
    with chunkstore.open_asker(root, settings=chunkstore.Settings(cache_dir=cache)) as asker:
        asker.append("a", DATA, writer_id=name, event_number=1)
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(count):
            asker.append("a", DATA, writer_id=name, event_number=2 + number)


def asked_rate(root: str, path: Path, count: int) -> float:
    """Appends a second of all processes together."""
    command = [sys.executable, "-m", "benchmarks.bench_ask_append", "--child"]
    children = [
        subprocess.Popen(
            [*command, root, str(path / f"asker-{number}"), f"w{time_s()}-{number}", str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise SystemExit("a process could not append")
    began = time_s()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.close()
    if any(child.wait() for child in children):
        raise SystemExit("a process could not append")
    return PROCESSES * count / (time_s() - began)


def floor_rate(root: str, path: Path, count: int) -> float:
    """Exchanges a second, without a wait: the owner does not look."""
    settings = chunkstore.Settings(cache_dir=str(path / "floor"), tuning=Tuning(ask_s=0))
    with chunkstore.open(root, settings=settings) as store, open_asker(root, settings=settings) as asker:
        store.create("a")
        asker.replica.refresh()
        box, identity, began = asker._box, asker.replica.info("a").id, time_s()
        for number in range(1, count + 1):
            token = runtime.token(16).hex()
            ask = AskCommit((Append("a", DATA),), Event(identity, b"w", number))
            box.send(token, Request(ask, runtime.now_ms(), 60_000))
            box.ring()
            box.bell()
            (waiting,) = box.waiting(256)
            request = box.request(waiting)
            assert request is not None
            box.respond(waiting, Answer(store.epoch, None, store.run(request.ask)))
            assert box.answer(token) is not None
            box.withdraw(token, keep_answer=False)
        return count / (time_s() - began)


def main() -> None:
    """Run all and save ``results/ask_append.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.child:
        root, cache, name, count = options.child
        ask(root, cache, name, int(count))
        return
    report = Report("ask_append-quick" if options.quick else "ask_append")
    rounds, count = (1, 40) if options.quick else (5, 300)
    asked, floor = list[float](), list[float]()
    with scratch(options.dir) as path:
        root = (path / "root").as_uri()
        with chunkstore.open(root, settings=chunkstore.Settings(cache_dir=str(path / "owner"))) as store:
            store.create("a")
            for number in range(rounds):
                floor.append(floor_rate((path / f"floor-{number}").as_uri(), path, count))
                asked.append(asked_rate(root, path, count))
            if store.info("a").length != len(DATA) * PROCESSES * rounds * (count + 1):
                raise SystemExit("appends are missing, or there twice")
    what = f"{PROCESSES} processes, 100 bytes each, one after the other"
    report.add(f"{what}: appends through the owner", median(asked), "1/s", at_least=200.0)
    detail = f"medians {median(asked):.0f}/s, {median(floor):.0f}/s"
    report.add(
        f"{what}: to exchanges of one process without a wait", median(asked) / median(floor), "ratio", detail=detail
    )
    report.save()


if __name__ == "__main__":
    main()
