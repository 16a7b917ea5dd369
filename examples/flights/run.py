"""Everything in order, each step as its command, and every number beside the source's.

``python -m examples.flights.run --root file:///tmp/flights --to s3://bucket/flights`` appends a day and brings it to gold; moves the
container to ``--to``, where the application writes on; appends another day, brings it to gold, and does the rest there. Exit code 1 where
a number is not the source's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from examples.flights import compare, gold, ledgers, nightly, silver, source
from examples.flights.departures import AIRCRAFT, generated
from examples.flights.pipeline import (
    CHAINS,
    CHAINS_SCHEMA,
    CONTAINER,
    DELAYS,
    DELAYS_SCHEMA,
    REJECTED,
    SILVER,
    SILVER_SCHEMA,
    command,
    newest,
    records,
    session,
)

STEPS: dict[str, Callable[[list[str]], None]] = {
    module.__name__.rpartition(".")[2]: module.main for module in (silver, gold, compare, ledgers, nightly)
}


class Line(NamedTuple):
    """One number of the table: what the pipeline says, and the source."""

    what: str
    pipeline: object
    source: object


class Feed:
    """The application, a process of its own: commands, and what it answers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(f"application> {line}", flush=True)
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise SystemExit("the application has ended: see what it said above")
        print(said, end="", flush=True)
        answer: dict[str, Any] = json.loads(said)
        return answer


@contextmanager
def feed(*options: str) -> Iterator[Feed]:
    """The application; ended behind the block."""
    words = ["examples.flights.application", *options]
    print("$ python -m", *words, flush=True)
    with subprocess.Popen(
        [sys.executable, "-m", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        running = Feed(process)
        running.answer()
        yield running
        assert process.stdin is not None
        process.stdin.close()
        if process.wait():
            raise SystemExit(f"the application ended with {process.returncode}")


def step(name: str, *options: str) -> None:
    """One step, as from a shell, but in the session that there is."""
    print(f"$ python -m examples.flights.{name}", *options, flush=True)
    STEPS[name](list(options))


def run(root: str, to: str, work: Path, aircraft: int) -> list[Line]:
    """Everything; the numbers."""
    before, behind, backups = (str(work / name) for name in ("before", "behind", "backups"))
    with feed("--root", root, "--aircraft", str(aircraft)) as application:
        application.tell("day")
        step("silver", "--root", root, "--work", before)
        step("gold", "--root", root, "--work", before)
        starting = json.dumps(application.tell(f"move {to}")["starting"])
        yesterday = datetime.now(UTC).isoformat(timespec="milliseconds")
        sleep(0.002)  # whatever comes now is later
        application.tell("day")
        step("silver", "--root", to, "--former", root, "--work", behind, "--starting", starting)
        step("gold", "--root", to, "--former", root, "--work", behind)
        settled = application.tell("settle")
        step("compare", "--root", to, "--former", root, "--yesterday", yesterday)
        step("ledgers", "--root", to, "--first", "20260301", "--last", "20260302")
        step("nightly", "--root", to, "--backups", Path(backups).absolute().as_uri())
    spark = session()
    days = list(generated(2, aircraft=aircraft))
    return [
        Line("bytes at the former root", settled["left"], 0),
        *numbers(spark, to, yesterday, days, root),
    ]


def numbers(spark: SparkSession, root: str, yesterday: str, days: list[Any], former: str) -> Iterator[Line]:
    """Every number of the pipeline beside the same one of the source."""
    first, both = source.numbers(days[:1]), source.numbers(days)
    for what, segments, expected in (
        ("lines that are no departures", REJECTED, len(days)),
        ("departures in silver", f"{SILVER}-.*", both.departures),
    ):
        rows = spark.read.format("chunkstore").options(container=CONTAINER, segmentsPattern=segments, framing="lines")
        yield Line(what, rows.option("columns", "offset").load(root).count(), expected)
    cancelled = records(spark.read, root, SILVER_SCHEMA, segmentsPattern=f"{SILVER}-.*").where("cancelled").count()
    yield Line("cancelled", cancelled, both.cancelled)
    hours = newest(spark, root, DELAYS, DELAYS_SCHEMA, "carrier", "hour").collect()
    yield Line("delays by carrier and hour", {tuple(row[:2]): tuple(row[2:]) for row in hours}, both.delays)
    chains = newest(spark, root, CHAINS, CHAINS_SCHEMA, "tailnum", "day").where("legs > 1").collect()
    yield Line("late chains by aircraft", {(row.tailnum, str(row.day)): tuple(row[2:]) for row in chains}, both.chains)
    yield Line("entries of ledgers", ledgers.counts(spark, root), both.ledgers)
    compared = compare.compare(spark, root, yesterday, former).collect()
    yield Line("departures then by carrier", {row.carrier: row.departures_then for row in compared}, first.by_carrier)
    yield Line("departures by carrier", {row.carrier: row.departures for row in compared}, both.by_carrier)


def main(arguments: list[str] | None = None) -> None:
    parser = command(__doc__, "work")
    parser.add_argument("--to", required=True, help="where the container moves to")
    parser.add_argument("--aircraft", type=int, default=AIRCRAFT)
    given = parser.parse_args(arguments)
    wrong = 0
    for what, pipeline, expected in run(given.root, given.to, given.work, given.aircraft):
        equal = pipeline == expected
        wrong += not equal
        told = (f"{len(found)} numbers" if isinstance(found, dict) else str(found) for found in (pipeline, expected))
        print("{:32} {:>14} {:>14}  {}".format(what, *told, "equal" if equal else "DIFFERENT"))
    if wrong:
        sys.exit(f"{wrong} numbers are not the source's")


if __name__ == "__main__":
    main()
