"""Kafka's metadata manager: look-ups at a replica and fenced, and events next to one SQLite transaction an event.

``python -m benchmarks.bench_kafka_metadata [--quick]``. One partition of 1,000,000 finished segments; the rows are committed as events
leave them, many to a commit. Events: add and finish, on one thread and on 32 (a partition each); SQLite keeps one row a segment in WAL
mode, synced at each commit. Rounds alternate, and the median round counts: of look-ups in the
thread's processor time, of events in wall time.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import chunkstore
from benchmarks.harness import Report, median, scratch, time_s
from chunkstore.changes import TablePut
from chunkstore.kafka import rows
from chunkstore.kafka.metadata import RemoteLogMetadataManager, RemoteLogMetadataReader
from chunkstore.kafka.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from tests.support.data import run_threads

__all__ = ["main"]

EPOCH, LENGTH = 7, 100
BIG = TopicIdPartition(bytes(16), "bench", 0)


def segment(partition: TopicIdPartition, number: int, state: RemoteLogSegmentState) -> RemoteLogSegmentMetadata:
    """The ``number``-th segment of a partition, of one epoch."""
    identity, start = RemoteLogSegmentId(partition, number.to_bytes(16, "big")), LENGTH * number
    size, stamp = 1 << 27, 1_700_000_000_000
    return RemoteLogSegmentMetadata(
        identity, start, start + LENGTH - 1, stamp, 1, stamp, size, {EPOCH: start}, None, state
    )


def fill(store: chunkstore.ChunkedSegmentStorage, count: int) -> None:
    """Commit the rows of ``count`` finished segments."""
    identities = rows.partition_key(BIG) + rows.ID
    mapped = rows.epoch_key(BIG, EPOCH, rows.MAPPED)
    for first in range(0, count, 4000):
        changes = []
        for number in range(first, min(first + 4000, count)):
            item = segment(BIG, number, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
            value = rows.encode_segment(item)
            changes.append(TablePut(rows.NAMESPACE, identities + item.remote_log_segment_id.id, value))
            changes.append(TablePut(rows.NAMESPACE, mapped + rows.number_key(item.start_offset), value))
        store.commit(changes)


def lookup_us(reader: RemoteLogMetadataReader, count: int, lookups: int) -> tuple[float, float]:
    """Microseconds of a look-up at a random offset: of this thread's processor time, and of wall time."""
    offsets = [random.randrange(LENGTH * count) for _ in range(lookups)]
    begin, cpu = time_s(), thread_time()
    for offset in offsets:
        found = reader.remote_log_segment_metadata(BIG, EPOCH, offset)
        assert found is not None
        assert found.start_offset <= offset <= found.end_offset
    return (thread_time() - cpu) / lookups * 1e6, (time_s() - begin) / lookups * 1e6


def ours(manager: RemoteLogMetadataManager, partition: TopicIdPartition, first: int, count: int) -> None:
    """Add and finish ``count`` segments."""
    token = manager.token(partition)
    for number in range(first, first + count):
        begun = segment(partition, number, RemoteLogSegmentState.COPY_SEGMENT_STARTED)
        manager.add_remote_log_segment_metadata(begun, token=token).result()
        done = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        update = RemoteLogSegmentMetadataUpdate(begun.remote_log_segment_id, 1, None, done, 1)
        manager.update_remote_log_segment_metadata(update, token=token).result()


def sqlite(path: Path, thread: int, first: int, count: int) -> None:
    """The same in SQLite: one row a segment, one transaction an event."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS t (id BLOB PRIMARY KEY, part, epoch, start, state, value BLOB)")
    connection.execute("CREATE INDEX IF NOT EXISTS i ON t (part, epoch, start)")
    for number in range(first, first + count):
        item = segment(BIG, number, RemoteLogSegmentState.COPY_SEGMENT_STARTED)
        identity = b"%d %d" % (thread, number)
        row = (identity, thread, EPOCH, item.start_offset, 0, rows.encode_segment(item))
        connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", row)
        connection.execute("UPDATE t SET state = 1, value = ? WHERE id = ?", (row[-1], identity))
    connection.close()


def many(places: Sequence[Any], work: Callable[[Any], None]) -> None:
    """``work`` for each place, each on a thread."""
    run_threads(len(places), lambda number: work(places[number]), timeout_s=600)


def per_s(call: Callable[[], object], events: int) -> float:
    """Events a second."""
    begin = time_s()
    call()
    return events / (time_s() - begin)


def main() -> None:
    """Run it and save the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dir")
    arguments = parser.parse_args()
    count, lookups, events, rounds = (20_000, 2000, 50, 3) if arguments.quick else (1_000_000, 20_000, 300, 7)
    report = Report("kafka_metadata")
    with scratch(arguments.dir) as path:
        store = chunkstore.open(f"file://{path}/root")
        manager = RemoteLogMetadataManager(store)
        small = [TopicIdPartition(bytes(16), "small", number) for number in range(33)]
        manager.on_partition_leadership_changes([BIG, *small])
        fill(store, count)
        figures: dict[str, list[float]] = {"ours 1": [], "SQLite 1": [], "ours 32": [], "SQLite 32": []}
        few = max(events // 10, 2)
        for first in range(0, rounds * events, events):
            for name, call, done in (
                ("ours 1", partial(ours, manager, small[32], first, events), 2 * events),
                ("SQLite 1", partial(sqlite, path / "1.db", 0, first, events), 2 * events),
                ("ours 32", partial(many, small[:32], partial(ours, manager, first=first, count=few)), 64 * few),
                (
                    "SQLite 32",
                    partial(many, range(32), partial(sqlite, path / "32.db", first=first, count=few)),
                    64 * few,
                ),
            ):
                figures[name].append(per_s(call, done))
        for threads, least in (("1", 0.8), ("32", 3.0)):
            rate, peer = median(figures["ours " + threads]), median(figures["SQLite " + threads])
            report.add(f"add and finish, threads: {threads}", rate, "events/s", detail=f"SQLite: {peer:.0f}")
            report.add(f"add and finish, threads: {threads}, of SQLite", rate / peer, "x", at_least=least)
        replica = chunkstore.open_replica(f"file://{path}/root")
        readers = {"at a replica": RemoteLogMetadataReader(replica), "fenced": manager}
        for name, limit in (("at a replica", 25.0), ("fenced", 50.0)):
            taken = [lookup_us(readers[name], count, lookups) for _ in range(rounds)]
            wall = f"wall {median([wall for _, wall in taken]):.1f} us"
            report.add(
                f"look-up {name}, {count} segments", median([cpu for cpu, _ in taken]), "us", at_most=limit, detail=wall
            )
        replica.close()
        store.close()
    report.save()


if __name__ == "__main__":
    main()
