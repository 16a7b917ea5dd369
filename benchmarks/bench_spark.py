"""Spark reading a container, against uncompressed parquet of the very same rows in the same run.

``python -m benchmarks.bench_spark [--dir DIR] [--quick] [--part PART] [--size MIB]``; needs Java 17 or newer and the extra ``spark``. Every
round runs every case once, in random order; a figure is the median over the rounds of parquet's time to the case's in that round, by the
clock, and by the processor time of the JVM and all Python processes together: on a busy machine only the latter means much,
since a task of ours is two processes where parquet's is one. The session is ``local[2]`` with 1 GiB for the JVM.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import chunkstore
from benchmarks.harness import Report, median, processor_s, scratch, time_s
from chunkstore.config import KIB, MIB
from chunkstore.pulsar import OffloadWriter, plan
from chunkstore.pulsar.contexts import NAMESPACE, EntryRange, encode_context, key_of, new_context
from chunkstore.spark import map_batches
from chunkstore.spark.source import DefaultSource
from tests.support.spark import missing, start_session

__all__ = ["main"]

TOPIC = "public/default/persistent/bench"
ENTRY_BYTES = 1 * KIB
"""Of the cases that are measured with one length only."""
FILE_BYTES = 64 * MIB
BLOCK_BYTES = 8 * MIB
TARGETS = {100: (0.55, 0.75), KIB: (0.65, 1.0), 10 * KIB: (0.8, 1.05)}
"""Of ledgers and of ``map_batches``, by the length of entries."""
IDS_ENTRY_BYTES = 64 * KIB
COUNTED, COUNTED_EACH = 100_000_000, 50_000
PARTS = ["counted", "ids", "speed"]


def _payloads(pool: bytes, count: int, entry_bytes: int) -> pa.Array:
    at = [number * 7919 % (len(pool) - entry_bytes) for number in range(count)]
    return pa.array([pool[begin : begin + entry_bytes] for begin in at], pa.binary())


def build(path: Path, total: int, entry_bytes: int) -> tuple[str, list[str], Path]:
    """A container with one ledger to each data segment of 64 MiB, these segments' names, and parquet files of the same rows."""
    pool = os.urandom(8 * MIB)
    root = f"file://{path}/root"
    parquet = path / "parquet"
    parquet.mkdir(parents=True)
    per_file = FILE_BYTES // entry_bytes
    payloads = _payloads(pool, per_file, entry_bytes)
    with chunkstore.open(root, settings=chunkstore.Settings(cache_dir=str(path / "cache"), lease_s=0)) as store:
        writer = OffloadWriter(store, TOPIC, segment_bytes_max=2 * FILE_BYTES, block_bytes=BLOCK_BYTES)
        for number in range(total // FILE_BYTES):
            writer.append_batch(number, 0, payloads)
            writer.complete()
            table = pa.table(
                {
                    "topic": pa.repeat(TOPIC, per_file),
                    "ledger": pa.repeat(pa.scalar(number, pa.int64()), per_file),
                    "entry": pa.array(range(per_file), pa.int64()),
                    "payload": payloads,
                }
            )
            pq.write_table(table, parquet / f"{number}.parquet", compression="none", use_dictionary=["topic", "ledger"])
        segments = [part.segment for part in plan(store, TOPIC)]
    return root, segments, parquet


class Taken(NamedTuple):
    """What one run of a case took."""

    clock_s: float
    processor_s: float


def sums(batches: Any) -> Any:
    """One row of a task: how many entries, and how many bytes they have."""
    count = total = 0
    for batch in batches:
        count += batch.num_rows
        total += pc.sum(pc.binary_length(batch.column("payload"))).as_py() or 0
    yield pa.record_batch({"count": [count], "total": [total]})


def measure(
    report: Report, spark: Any, built: tuple[str, list[str], Path], total: int, rounds: int, entry_bytes: int
) -> None:
    """Run the cases; every one must see all the rows."""
    count = total // FILE_BYTES * (FILE_BYTES // entry_bytes)
    root, segments, parquet = built

    def ledgers(*expressions: str, **options: str) -> Any:
        reader = spark.read.format("chunkstore").options(topic=TOPIC, **options)
        return reader.load(root).selectExpr(*expressions).first()

    def raw(*expressions: str) -> Any:
        reader = spark.read.format("chunkstore").options(segments=",".join(segments))
        return reader.load(root).selectExpr(*expressions).first()

    def peer(*expressions: str) -> Any:
        return spark.read.parquet(str(parquet)).selectExpr(*expressions).first()

    def mapped() -> Any:
        options = {"path": root, "topic": TOPIC, "columns": "payload"}
        return (
            map_batches(spark, sums, "count LONG, total LONG", **options).selectExpr("sum(count)", "sum(total)").first()
        )

    all_bytes = "sum(length(payload))"
    cases: dict[str, Callable[[], Any]] = {
        "parquet": lambda: peer("count(entry)", all_bytes),
        "ledgers": lambda: ledgers("count(entry)", all_bytes),
        "map_batches": mapped,
        "ledgers, two columns": lambda: ledgers("count(entry)", all_bytes, columns="entry,payload"),
        "segments": lambda: raw("count(offset)", "sum(length(value))"),
        "parquet, entry ids": lambda: peer("count(entry)", "sum(entry)"),
        "ledgers, entry ids": lambda: ledgers("count(entry)", "sum(entry)", columns="entry"),
    }
    if entry_bytes != ENTRY_BYTES:
        cases = {name: cases[name] for name in ("parquet", "ledgers", "map_batches")}
    times: dict[str, list[Taken]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(cases), len(cases)):
            began, used = time_s(), processor_s()
            found = cases[name]()
            if number:  # the first round warms the JVM up
                times[name].append(Taken(time_s() - began, processor_s() - used))
            assert name == "segments" or found[0] == count, f"{name}: {found} rows of {count}"
    plain, by_function = TARGETS[entry_bytes]
    targets = {"ledgers": plain, "ledgers, two columns": plain, "map_batches": by_function}
    for name in [name for name in cases if "parquet" not in name and "ids" not in name]:
        shown = f"{'ledgers by map_batches' if name == 'map_batches' else name}, {entry_bytes} B entries"
        _ratio(report, shown, times["parquet"], times[name], total, targets.get(name))
    if entry_bytes != ENTRY_BYTES:
        return
    _ratio(report, "ledgers, entry ids only", times["parquet, entry ids"], times["ledgers, entry ids"], total, None)


def measure_ids(report: Report, spark: Any, path: Path, total: int, rounds: int) -> None:
    """Entry ids of a dense ledger of 64 KiB entries, against all that is in it."""
    root, per_segment = f"file://{path}/ids", FILE_BYTES // IDS_ENTRY_BYTES
    payloads = _payloads(os.urandom(8 * MIB), per_segment, IDS_ENTRY_BYTES)
    with chunkstore.open(root, settings=chunkstore.Settings(cache_dir=str(path / "cache-ids"), lease_s=0)) as store:
        writer = OffloadWriter(store, TOPIC, segment_bytes_max=2 * FILE_BYTES, block_bytes=BLOCK_BYTES)
        for number in range(total // FILE_BYTES):
            writer.append_batch(1, number * per_segment, payloads)
            writer.complete()
    count = total // IDS_ENTRY_BYTES
    taken: dict[str, list[float]] = {"entry": [], "topic,ledger,entry,payload": []}
    for number in range(rounds + 1):
        for columns, times in taken.items():
            began = time_s()
            frame = spark.read.format("chunkstore").options(topic=TOPIC, columns=columns).load(root)
            wanted = "sum(entry)" if columns == "entry" else "sum(length(payload))"
            found = frame.selectExpr("count(entry)", wanted).first()
            if number:  # the first round warms the JVM up
                times.append(time_s() - began)
            assert found[0] == count, f"{found} of {count}"
    ids, everything = (median(times) for times in taken.values())
    report.add(
        f"Spark reads entry ids of a dense ledger, {total // MIB} MiB of 64 KiB entries, speed to reading all",
        everything / ids,
        "ratio",
        at_least=20,
        detail=f"{ids:.3f} s, all {everything:.2f} s",
    )


def measure_counted(report: Report, path: Path, rounds: int) -> None:
    """100 million entries of ledgers counted by ``metadata=ledgers``: our own time, planning and reading, without the JVM's."""
    root, ledgers = f"file://{path}/counted", COUNTED // COUNTED_EACH
    with chunkstore.open(root, settings=chunkstore.Settings(cache_dir=str(path / "cache-counted"), lease_s=0)) as store:
        table = store.table(NAMESPACE)
        for number in range(ledgers):  # rows alone: nothing else is looked at
            context = new_context(TOPIC, number)
            ranges = (EntryRange(number, 0, COUNTED_EACH - 1, COUNTED_EACH),)
            table.put(key_of(TOPIC, number), encode_context(context.completed(FILE_BYTES, 4 * KIB, ranges)))
    times: list[float] = []
    for _ in range(rounds):
        began, total = time_s(), 0
        source = DefaultSource({"path": root, "metadata": "ledgers", "columns": "topic,ledger,entries"})
        reader = source.reader(source.schema())
        for partition in reader.partitions():
            total += sum(pc.sum(batch.column("entries")).as_py() for batch in reader.read(partition))
        times.append(time_s() - began)
        assert total == COUNTED, f"{total} of {COUNTED}"
    report.add(f"metadata=ledgers counts {COUNTED:,} entries in {ledgers:,} ledgers", median(times), "s", at_most=1.0)


def _ratio(
    report: Report,
    name: str,
    peer: list[Taken],
    own: list[Taken],
    total: int,
    target: float | None,
    who: str = "parquet",
) -> None:
    pairs = list(zip(peer, own, strict=True))
    clock, theirs = median([item.clock_s for item in own]), median([item.clock_s for item in peer])
    report.add(
        f"Spark reads {name}, speed to {who}'s",
        median([theirs.clock_s / ours.clock_s for theirs, ours in pairs]),
        "ratio",
        at_least=target,
        detail=f"{total / clock / 1e6:.0f} MB/s, {who} {total / theirs / 1e6:.0f} MB/s",
    )
    used, used_by_peer = median([item.processor_s for item in own]), median([item.processor_s for item in peer])
    report.add(
        f"Spark reads {name}, {who}'s processor time to ours",
        median([theirs.processor_s / ours.processor_s for theirs, ours in pairs]),
        "ratio",
        at_least=target,
        detail=f"{used:.2f} s for {total // MIB} MiB, {who} {used_by_peer:.2f} s",
    )


def main() -> None:
    """Run all and save ``results/spark.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one, printed, not saved")
    parser.add_argument("--size", type=int, help="MiB of each case of speed, 1024 unless given; not saved")
    options = parser.parse_args()
    parts = options.part or PARTS
    if missing():
        print(f"spark: not measured; {missing()}")
        return
    report = Report("spark-quick" if options.quick else "spark")
    rounds = 3 if options.quick else 7
    total = (options.size or (128 if options.quick else 1024)) * MIB
    with scratch(options.dir) as path:
        if "counted" in parts:
            measure_counted(report, path, rounds)
        if parts == ["counted"]:
            return
        spark = start_session(path, java_options="-XX:+UseParallelGC")
        if "ids" in parts:
            measure_ids(report, spark, path, (256 if options.quick else 4096) * MIB, rounds)
            shutil.rmtree(path / "ids")
        for entry_bytes in TARGETS if "speed" in parts else ():
            built = build(path / str(entry_bytes), total, entry_bytes)
            measure(report, spark, built, total, rounds, entry_bytes)
            shutil.rmtree(path / str(entry_bytes))
        spark.stop()
    if parts == PARTS and options.size is None:
        report.save()


if __name__ == "__main__":
    main()
