"""Kafka's log segments: validation against plain CRC32C at 64 KiB batches, and records of 100 B into Arrow against kafka-python.

``python -m benchmarks.bench_kafka_records [--quick]``. Needs the extras ``arrow``, ``kafka`` and ``dev``. One core; rounds of all cases
alternate, and the median round counts, in processor time. The log is in memory; plain CRC32C reads the same bytes, batch by batch. Rows
are counted in every round.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from time import process_time

from benchmarks.harness import Report, median
from chunkstore.checksum import crc32c_of_bytes
from chunkstore.codec.kafka.batches import validate
from chunkstore.codec.kafka.record_batches import record_batches
from chunkstore.codec.kafka.records import iter_records
from tests.kafka.support_batches import Made, MemoryRecords, batch_of, source_of

__all__ = ["main"]

BATCH = 100
BATCH_BYTES = 64 << 10


def log_of(batches: int, codec: str, headers: int = 0) -> bytes:
    """Batches of 100 records of 100 B; half of a value is noise."""
    noise = random.Random(5).randbytes(5000)
    pairs = [(b"header-%d" % number, b"value") for number in range(headers)]

    def made(number: int) -> Made:
        at = number * 37 % 4900
        return Made(noise[at : at + 50] + b"%050d" % number, b"key-%d" % (number % 1000), pairs, number % BATCH)

    return b"".join(
        batch_of([made(base + place) for place in range(BATCH)], base, codec)
        for base in range(0, batches * BATCH, BATCH)
    )


def theirs(log: bytes) -> int:
    """How many records kafka-python finds."""
    memory, count = MemoryRecords(log), 0
    while (batch := memory.next_batch()) is not None:
        count += sum(1 for _ in batch)
    return count


def medians(cases: dict[str, Callable[[], int]], expected: int, rounds: int) -> dict[str, float]:
    """Seconds of the median round of each case, alternating."""
    spent: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            began = process_time()
            found = run()
            spent[name].append(process_time() - began)
            assert found == expected, name
    return {name: median(times) for name, times in spent.items()}


def speeds(report: Report, batches: int, rounds: int) -> None:
    """Records a second."""
    for name, codec, headers in (("uncompressed", "none", 0), ("two headers", "none", 2), ("zstd", "zstd", 0)):
        log = log_of(batches, codec, headers)

        def arrow(columns: list[str] | None = None, log: bytes = log) -> int:
            return sum(batch.num_rows for batch in record_batches(source_of(log), "topic", 0, columns=columns))

        cases: dict[str, Callable[[], int]] = {
            "kafka-python": lambda log=log: theirs(log),  # type: ignore[misc]
            "Arrow, all columns": arrow,
            "Arrow, key and value": lambda arrow=arrow: arrow(["key", "value"]),  # type: ignore[misc]
            "Arrow, offset": lambda arrow=arrow: arrow(["offset"]),  # type: ignore[misc]
            "one by one": lambda log=log: sum(1 for _ in iter_records(source_of(log), "topic", 0)),  # type: ignore[misc]
        }
        found = medians(cases, BATCH * batches, rounds)
        for case, seconds in found.items():
            report.add(f"kafka records, {name}: {case}", BATCH * batches / seconds / 1e6, "M records/s")
        ratio = found["kafka-python"] / found["Arrow, all columns"]
        report.add(f"kafka records, {name}: Arrow by kafka-python", ratio, "x", at_least=3.0 if not headers else None)


def validation(report: Report, batches: int, rounds: int) -> None:
    """Bytes a second of validation, and of plain CRC32C over batches that are objects of their own."""
    noise = random.Random(7).randbytes(BATCH_BYTES)
    pieces = [batch_of([Made(noise)], base) for base in range(batches)]
    log = b"".join(pieces)

    def plain() -> int:
        for piece in pieces:
            crc32c_of_bytes(piece)
        return batches

    views = source_of(log)._replace(read=lambda offset, length: memoryview(log)[offset : offset + length])
    cases: dict[str, Callable[[], int]] = {
        "plain CRC32C": plain,
        "validate": lambda: validate(views).batches,
        "validate, a source that copies what it reads": lambda: validate(source_of(log)).batches,
    }
    found = medians(cases, batches, rounds)
    for case, seconds in found.items():
        share = found["plain CRC32C"] / seconds
        least = 0.7 if case == "validate" else None
        report.add(f"kafka batches of 64 KiB: {case}, by plain CRC32C", share, "x", at_least=least)
        report.add(f"kafka batches of 64 KiB: {case}", len(log) / seconds / 1e9, "GB/s")


def main() -> None:
    """Run all and save ``results/kafka_records.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    report = Report("kafka_records-quick" if options.quick else "kafka_records")
    speeds(report, 50 if options.quick else 1000, 3 if options.quick else 9)
    validation(report, 200 if options.quick else 2000, 3 if options.quick else 15)
    report.save()


if __name__ == "__main__":
    main()
