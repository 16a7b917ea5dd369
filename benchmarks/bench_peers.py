"""Small durable appends by one thread and by 32, next to what people compare them with. What is durable when a call returns:

* *bare*: the bytes, by write and fdatasync of one file for each thread. No checksum, no fence, no index.
* *ours*: the bytes and the metadata, by one record of the journal and one fdatasync; fenced against every other owner, with checksums.
* *chunks*: the same with ``inline_bytes_max=0``: bytes in a chunk, metadata in the journal, two fdatasyncs one after the other.
* *SQLite*: one row in one transaction, WAL mode, ``synchronous=FULL``: one fdatasync of the WAL; a checkpoint now and then writes it again.
* *LMDB*: one row in one transaction, ``sync=True``: data pages and the meta page.

``python -m benchmarks.bench_peers [--dir DIR] [--quick] [--against CHECKOUT ...]``.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb

from benchmarks.bench_append import bare, ours
from benchmarks.harness import Report, scratch
from benchmarks.turns import Contender, Operation, parse_options, take_turns, with_others
from chunkstore.config import KIB

__all__ = ["main"]

THREADS = 32
TOGETHER = 8_192
"""A slice of many threads: short ones would be what SQLite's threads sleep when they meet and when they end."""
SLOW_SYNC_S = 0.005
_WAL_ROWS = 1_200
_BUSY_S = 60


def sqlite(path: Path) -> Operation:
    """A connection for each thread, one database."""
    data = os.urandom(KIB)

    def connect() -> sqlite3.Connection:
        made = sqlite3.connect(path / "db", isolation_level=None, check_same_thread=False, timeout=_BUSY_S)
        made.execute("PRAGMA journal_mode=WAL")
        made.execute("PRAGMA synchronous=FULL")
        return made

    connections = [connect() for _ in range(THREADS)]
    connections[0].execute("CREATE TABLE t (id INTEGER PRIMARY KEY, segment INTEGER, data BLOB)")

    def insert(thread: int) -> None:
        connections[thread].execute("INSERT INTO t (segment, data) VALUES (?, ?)", (thread, data))

    for _ in range(_WAL_ROWS):  # from then on it writes over its log
        insert(0)
    return insert


def lmdb_sync(path: Path) -> Operation:
    """One environment; a number counts the rows of a thread."""
    data = os.urandom(KIB)
    environment = lmdb.open(str(path), map_size=1 << 34)
    counts = [0] * THREADS

    def put(thread: int) -> None:
        counts[thread] += 1
        with environment.begin(write=True) as txn:
            txn.put(b"%d %016d" % (thread, counts[thread]), data)

    return put


def _by_threads(contenders: dict[str, Contender], each: int) -> dict[str, Contender]:
    """Each alone, and in many threads."""
    found: dict[str, Contender] = {}
    for name, given in contenders.items():
        found[f"{name} 1"] = given
        found[f"{name} 32"] = replace(given, threads=THREADS, each=each)
    return found


def _ours(**more: Any) -> dict[str, Any]:
    return {"sizes": [KIB], "segments": THREADS, **more}


def on_disk(report: Report, path: Path, others: dict[str, Path], *, quick: bool) -> None:
    """On this disk as it is."""
    contenders = {
        **with_others({"ours": Contender(ours, _ours())}, others),
        "ours/1": Contender(ours, _ours(segments=1)),
        "chunks": Contender(ours, _ours(inline_bytes_max=0)),
        "bare": Contender(bare, {"size": KIB}),
        "SQLite": Contender(sqlite),
        "LMDB": Contender(lmdb_sync),
    }
    turns = take_turns(path, _by_threads(contenders, TOGETHER // 8 if quick else TOGETHER), 3 if quick else 20)
    for name, peer, at_least in (
        ("ours 1", "bare 1", 0.85),
        ("ours 1", "SQLite 1", 0.85),
        ("ours 1", "LMDB 1", None),
        ("ours 1", "chunks 1", None),
        ("ours 32", "SQLite 32", 4.0),
        ("ours 32", "LMDB 32", None),
        ("ours 32", "bare 32", None),
        ("ours 32", "chunks 32", None),
        ("ours 32", "ours 1", 5.0),
        ("ours/1 32", "ours/1 1", 3.0),
        *((f"ours {threads}", f"ours of {other} {threads}", None) for other in others for threads in (1, THREADS)),
    ):
        turns.speed(report, f"{name} to {peer}", name, peer, at_least=at_least)


def with_slow_syncs(report: Report, path: Path, *, quick: bool) -> None:
    """Every sync takes 5 ms longer, as on slower disks: what group commit is for."""
    contenders = {
        f"{count} segments": Contender(ours, _ours(segments=count, sync_s=SLOW_SYNC_S)) for count in (THREADS, 1)
    }
    turns = take_turns(path, _by_threads(contenders, TOGETHER // 8), 2 if quick else 10)
    if min(map(min, (turns.wall_s["1 segments 1"], turns.wall_s["32 segments 1"]))) < SLOW_SYNC_S:
        raise SystemExit("the syncs were not slowed")
    turns.speed(report, "5 ms syncs: 32 segments to one thread", "32 segments 32", "32 segments 1", at_least=25)
    turns.speed(report, "5 ms syncs: one segment to one thread", "1 segments 32", "1 segments 1")


def main() -> None:
    """Run all and save ``results/peers.json``."""
    options = parse_options(argparse.ArgumentParser(description=__doc__))
    report = Report("peers-quick" if options.quick else "peers")
    with scratch(options.dir) as path:
        on_disk(report, path, options.others, quick=options.quick)
        with_slow_syncs(report, path, quick=options.quick)
    report.save()


if __name__ == "__main__":
    main()
