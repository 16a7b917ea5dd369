"""The messages inside Pulsar's entries: batches of 100 messages of 100 B with LZ4, as Arrow batches and one by one.

``python -m benchmarks.bench_messages [--quick]``. Needs the extras ``arrow`` and ``messages``. One core; rounds of all cases alternate,
and the median round counts, in processor time. Half of a payload is noise. Rows are counted in every round, and compared with the
iterator's once.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from time import process_time
from typing import Any

from benchmarks.harness import Report, median
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.message_batches import message_batches
from chunkstore.codec.pulsar.messages import Transactions, iter_messages, scan_transactions
from tests.support.pulsar_entries import message, single

__all__ = ["main"]

BATCH = 100
KNOWN = Transactions()
PROPERTIES = [[], [("source", "bench"), ("number", "1")]]


def entries_of(count: int, kind: str) -> list[Entry]:
    """Entries of ``kind``: batches of messages with keys, the same with more fields in every second message, or single messages."""
    chance = random.Random(5)
    noise = chance.randbytes(5000)

    def content(number: int) -> tuple[bytes, dict[str, Any]]:
        at = chance.randrange(4900)
        more = {"properties": PROPERTIES[number % 2], "ordering_key": b"o"} if kind == "mixed" else {}
        fields = {"key": f"key-{chance.randrange(1000)}", "event_time": 1_700_000_000_000 + number, **more}
        return noise[at : at + 50] + b"%050d" % number, fields

    made = []
    for entry in range(count):
        if kind == "single":
            payload, fields = content(entry)
            made.append(message(payload, at=(1, entry), codec="LZ4", broker=(1_700_000_000_000, entry), **fields))
        else:
            several = [content(BATCH * entry + number) for number in range(BATCH)]
            pieces = [
                single(payload, sequence_id=7 + place, **fields) for place, (payload, fields) in enumerate(several)
            ]
            made.append(
                message(pieces, at=(1, entry), codec="LZ4", broker=(1_700_000_000_000, BATCH * entry + BATCH - 1))
            )
    return made


def speeds(report: Report, batches: int, rounds: int) -> None:
    """Messages a second of each case, alternating."""
    alike, mixed, alone = entries_of(batches, "alike"), entries_of(batches, "mixed"), entries_of(10 * batches, "single")
    few = alike[: batches // 10]
    for entries in (few, mixed[:20], alone[:50]):
        columns = [row for batch in message_batches(entries, known=KNOWN) for row in batch["payload"].to_pylist()]
        assert columns == [row.payload for row in iter_messages(entries, known=KNOWN)]

    def arrow(entries: list[Entry], columns: list[str] | None = None) -> int:
        return sum(batch.num_rows for batch in message_batches(entries, known=KNOWN, columns=columns))

    cases: dict[str, tuple[Callable[[], int], int, float | None]] = {
        "Arrow, all columns": (lambda: arrow(alike), BATCH * batches, 0.4),
        "Arrow, key and payload": (lambda: arrow(alike, ["key", "payload"]), BATCH * batches, 1.0),
        "Arrow, all columns, two properties in every second message": (lambda: arrow(mixed), BATCH * batches, None),
        "Arrow, all columns, entries of one message": (lambda: arrow(alone), len(alone), None),
        "one by one": (lambda: sum(1 for _ in iter_messages(few, known=KNOWN)), BATCH * len(few), None),
    }
    spent: dict[str, list[float]] = {name: [] for name in cases}
    scans: list[float] = []
    for _ in range(rounds):
        for name, (run, rows, _) in cases.items():
            began = process_time()
            found = run()
            spent[name].append(process_time() - began)
            assert found == rows
        began = process_time()
        scan_transactions(alike)
        scans.append(process_time() - began)
    for name, (_, rows, target) in cases.items():
        best = rows / min(spent[name]) / 1e6
        report.add(
            f"messages: {name}",
            rows / median(spent[name]) / 1e6,
            "M messages/s",
            at_least=target,
            detail=f"best {best:.2f}",
        )
    report.add("messages: scan of transactions", len(alike) / median(scans) / 1e6, "M entries/s")


def main() -> None:
    """Run all and save ``results/messages.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    report = Report("messages-quick" if options.quick else "messages")
    speeds(report, 200 if options.quick else 4000, 3 if options.quick else 9)
    report.save()


if __name__ == "__main__":
    main()
