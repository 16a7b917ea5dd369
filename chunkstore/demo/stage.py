"""The steps of the demonstration, in order: write and kill, recover, resume, read back, compare. Each raises ``DemoFailed`` if its claim
does not hold. The kill is a SIGKILL of a real process at a moment that follows from a seed; the recovery has no metadata cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from shlex import quote
from typing import Any, ClassVar, Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import chunkstore
from chunkstore import runtime
from chunkstore.assembly import list_containers
from chunkstore.config import Settings
from chunkstore.demo.flights import FLIGHTS, TOPICS, Event, events, writers
from chunkstore.errors import ChunkstoreError, InvalidArgument, Unsupported
from chunkstore.pulsar import LedgerReader, plan
from chunkstore.registry import root_url

__all__ = ["DemoFailed", "run"]

_CONTAINER: Final = "demo"
_ROWS_LEAST: Final = 2_000
_WRITER: Final = "import sys; from chunkstore.demo.flights import main; main(*sys.argv[1:4], int(sys.argv[4]))"


class DemoFailed(ChunkstoreError):
    """Something the demonstration claims did not hold. ``step`` names it."""

    fields: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(self, step: str, message: str) -> None:
        super().__init__(f"{step}: {message}")
        self.step = step


def run(root: str | None, *, seed: int | None, as_json: bool, rows: int | None = None, spark: bool = True) -> None:
    """Run the demonstration under ``root`` (default: a new temporary directory, which stays for further play).

    ``rows``: only so many flights, 2,000 or more. ``spark``: let Spark count, too, where it can run.

    Raises ``DemoFailed`` if a promise does not hold, ``InvalidArgument`` for a root in memory or too few rows, ``Unsupported``
    where the flights are not installed, and what the store raises.
    """
    if root is not None and root.startswith("memory:"):
        raise InvalidArgument("a writer in another process cannot share memory://; use a file:// root", argument="ROOT")
    if rows is not None and not _ROWS_LEAST <= rows <= FLIGHTS:
        raise InvalidArgument(f"rows are {_ROWS_LEAST} to {FLIGHTS}, {rows} given", argument="--rows")
    console = Console(quiet=as_json, highlight=False)
    folder = tempfile.mkdtemp(prefix="chunkstore-demo-")
    seed = seed if seed is not None else int.from_bytes(runtime.token(4), "big")
    stage = _Stage(root_url(root or f"{folder}/store"), folder, seed, rows or FLIGHTS, console)
    report = stage.play(spark=spark)
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
        return
    for name, value in report.items():
        shown = "  ".join(f"{key} {count:,}" for key, count in value.items()) if isinstance(value, dict) else value
        console.print(f"  {name:<20} {shown:,}" if isinstance(shown, int) else f"  {name:<20} {shown}", soft_wrap=True)
    stage.print_next()


class _Killed(NamedTuple):
    """What the writer had reported when it died: its epoch, what was acknowledged, in all and by ledger, and in the snapshot."""

    epoch: int
    acknowledged: int
    last_entries: Mapping[tuple[str, int], int]
    in_snapshot: int
    write_s: float


class _Tally:
    """What is compared between source and store: counts by origin and carrier, by ledger, and one sha256 of all payloads in a row."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.ledgers: Counter[tuple[str, int]] = Counter()
        self.payload_bytes = 0
        self.digest = hashlib.sha256()

    def add(self, topic: str, ledger: int, payload: bytes) -> None:
        self.digest.update(payload)
        self.ledgers[topic, ledger] += 1
        self.payload_bytes += len(payload)
        event = json.loads(payload)
        self.counts[event["origin"], event["carrier"]] += 1

    def by(self, column: int) -> dict[str, int]:
        """Counts by origin (0) or by carrier (1), sorted."""
        found: Counter[str] = Counter()
        for key, count in self.counts.items():
            found[key[column]] += count
        return dict(sorted(found.items()))


class _Stage:
    """One run. ``play`` once."""

    def __init__(self, root: str, folder: str, seed: int, rows: int, console: Console) -> None:
        taken = set(list_containers(root))
        names = (_CONTAINER, *(f"{_CONTAINER}-{number}" for number in range(2, len(taken) + 3)))
        self._root = root
        self._container = next(name for name in names if name not in taken)
        self._settings = Settings(cache_dir=os.path.join(folder, "cache"))
        self._folder = folder
        self._seed = seed
        self._rows = rows
        self._console = console

    def play(self, *, spark: bool) -> dict[str, Any]:
        """All steps. The report: counts of events, sizes in bytes, times in seconds. Raises ``DemoFailed``, and what the store raises."""
        began_s = runtime.monotonic_s()
        stream, killed = self._write_and_kill()
        shutil.rmtree(str(self._settings.cache_dir))
        self._say("its metadata cache was deleted; only the storage is left, as another machine would see it")
        recovered = self._resume(stream, killed)
        source = _Tally()
        for event in sorted(stream, key=lambda event: (event.topic, event.ledger)):
            source.add(event.topic, event.ledger, event.payload)
        with self._replica() as replica:
            found = self._read_back(replica, source)
            # Chunks of the killed writer that nothing refers to are no damage.
            findings = [finding for finding in replica.check("deep") if finding.severity == "damage"]
        if findings:
            raise DemoFailed("check", findings[0].message)
        in_snapshot = killed.in_snapshot if recovered["recovery_source"] == "snapshot" else 0
        return {
            "root": self._root,
            "container": self._container,
            "seed": self._seed,
            "events": self._rows,
            "events_by_origin": found.by(0),
            "events_by_carrier": found.by(1),
            "ledgers": len(found.ledgers),
            "sha256_source": source.digest.hexdigest(),
            "sha256_store": found.digest.hexdigest(),
            "acknowledged": killed.acknowledged,
            "in_snapshot": in_snapshot,
            "only_in_journal": killed.acknowledged - in_snapshot,
            "epoch_killed": killed.epoch,
            **recovered,
            "check_findings": 0,
            "payload_bytes": found.payload_bytes,
            "write_s": round(killed.write_s, 3),
            "spark": self._count_by_spark(source) if spark else "not wanted",
            "total_s": round(runtime.monotonic_s() - began_s, 2),
        }

    def _replica(self) -> chunkstore.Replica:
        return chunkstore.open_replica(self._root, container=self._container, settings=self._settings)

    def _say(self, text: str) -> None:
        self._console.print(f"* {text}", soft_wrap=True)

    @contextmanager
    def _bar(self, title: str, done: int = 0) -> Iterator[Callable[[int], None]]:
        """A bar on a terminal, and what sets it."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        silent = self._console.quiet or not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=silent) as progress:
            task = progress.add_task(title, total=self._rows, completed=done)
            yield lambda completed: progress.update(task, completed=completed)

    def _write_and_kill(self) -> tuple[list[Event], _Killed]:
        """Start a writer, load the source meanwhile, kill the writer in the middle."""
        arguments = (self._root, self._container, str(self._settings.cache_dir), str(self._rows))
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", _WRITER, *arguments], stdin=pipe, stdout=pipe) as writer:
            try:
                stream = events(self._rows)
                what = "real flights of 2013, one JSON event each: a topic per airport, a ledger per month"
                self._say(f"{len(stream):,} {what}")
                killed = self._follow(writer)
            finally:
                writer.kill()
        self._say(
            f"a writer offloaded them; kill -9 after {killed.acknowledged:,} acknowledged events "
            f"({killed.acknowledged / self._rows:.0%}; seed {self._seed}), of which {killed.in_snapshot:,} are in a "
            "snapshot and the others only recoverable from the journal"
        )
        return stream, killed

    def _follow(self, writer: subprocess.Popen[bytes]) -> _Killed:
        assert writer.stdin is not None
        assert writer.stdout is not None
        chance = hashlib.blake2b(str(self._seed).encode(), digest_size=8).digest()
        share, delay = (int.from_bytes(part, "big") / 2**32 for part in (chance[:4], chance[4:]))
        kill_at = int(self._rows * (0.2 + 0.58 * share))
        first = writer.stdout.readline().split()
        if not first:
            raise DemoFailed("write", f"the writer ended before it began (exit code {writer.wait()})")
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
        began_s = runtime.monotonic_s()
        acknowledged = in_snapshot = 0
        last_entries: dict[tuple[str, int], int] = {}
        killing = False
        with self._bar("offload") as show:
            for line in iter(writer.stdout.readline, b""):
                if not line.endswith(b"\n"):
                    break  # cut short: it does not count
                words = line.decode().split()
                if words[0] == "snapshot":
                    in_snapshot = int(words[1])
                    continue
                acknowledged = int(words[1])
                last_entries[words[2], int(words[3])] = int(words[4])
                show(acknowledged)
                if acknowledged >= kill_at and not killing:
                    killing = True
                    runtime.sleep_s(delay * 0.004)
                    writer.send_signal(signal.SIGKILL)
        write_s = runtime.monotonic_s() - began_s
        if writer.wait() != -signal.SIGKILL:
            raise DemoFailed("kill", f"the writer ended unexpectedly (exit code {writer.returncode})")
        return _Killed(int(first[1]), acknowledged, last_entries, in_snapshot, write_s)

    def _resume(self, stream: list[Event], killed: _Killed) -> dict[str, Any]:
        """Open as another machine would, compare what is there with what was acknowledged, write the rest."""
        began_s = runtime.monotonic_s()
        with chunkstore.open(self._root, container=self._container, settings=self._settings) as store:
            recovery_s = runtime.monotonic_s() - began_s
            writing = writers(store, self._rows)
            keys = {(event.topic, event.ledger) for event in stream}
            stored = {(topic, ledger): writing[topic].last_entry(ledger) for topic, ledger in keys}
            for key, last in killed.last_entries.items():
                if stored[key] < last:
                    text = f"entry {last} of ledger {key} was acknowledged, the last one there is {stored[key]}"
                    raise DemoFailed("recover", text)
            rest = [event for event in stream if event.entry > stored[event.topic, event.ledger]]
            recovered, report = len(stream) - len(rest), store.report
            origin = "a snapshot and the journal after it" if report.source == "snapshot" else "the journal alone"
            self._say(
                f"recovered from {origin} in {recovery_s * 1000:.0f} ms: every acknowledged event is stored; "
                f"continuing with the {len(rest):,} others"
            )
            with self._bar("resume", recovered) as show:
                for number, event in enumerate(rest, recovered):
                    writing[event.topic].append(event.ledger, event.entry, event.payload)
                    if number % 1000 == 0:
                        show(number)
                for writer in writing.values():
                    writer.close()
            return {
                "recovered": recovered,
                "recovery_source": report.source,
                "replayed_records": report.replayed_records,
                "epoch_recovered": report.epoch,
                "recovery_s": round(recovery_s, 4),
            }

    def _read_back(self, replica: chunkstore.Replica, source: _Tally) -> _Tally:
        """Read every ledger and compare it with the source."""
        reader, found = LedgerReader(replica), _Tally()
        with self._bar("read back") as show:
            for topic in reader.topics():
                for summary in reader.ledgers(topic):
                    for number, entry in enumerate(reader.read(topic, summary.ledger)):
                        if entry.entry != number:
                            raise DemoFailed("read", f"ledger {summary.ledger} of {topic} has no entry {number}")
                        found.add(topic, summary.ledger, entry.payload)
                    show(found.ledgers.total())
        if found.ledgers != source.ledgers or found.digest.digest() != source.digest.digest():
            raise DemoFailed("read", "what was read differs from the source")
        self._say(
            "everything was read back and compared with the source: every count and the sha256 are equal; check is clean"
        )
        return found

    def _count_by_spark(self, source: _Tally) -> str:
        """Let Spark SQL count the store's events: "equal", or why it cannot run here."""
        from chunkstore.spark.job_runner import session_on

        self._say("Spark counts them once more (its start takes some seconds)")
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        try:
            with session_on("local[2]") as spark:
                counts = _spark_counts(spark, self._root, self._container)
        except Unsupported as error:
            return error.message
        if counts != source.counts:
            raise DemoFailed("spark", "its counts by origin and carrier differ from the source's")
        return "equal"

    def print_next(self) -> None:
        """Commands that go on from here, with what they need filled in."""
        with self._replica() as replica:
            names = {item.segment for topic in TOPICS for item in plan(replica, topic)}
            segment = max(names, key=lambda name: replica.info(name).length)
        common = f"--container {self._container} --cache-dir {self._folder}/cache"
        command, root = f"{sys.executable} -m chunkstore", quote(self._root)
        self._console.print("\nwhat to try next, ending with the broom:")
        for line in (
            f"{command} ledger read {root} --topic JFK --ledger 201301 --first 1 --last 3 {common}",
            f"{command} layout {root} {segment} {common}",
            f"{command} journal {root} --container {self._container}",
            f"{command} check {root} --deep {common}",
            f"rm -r {self._folder}",
        ):
            self._console.print(f"  {line}", soft_wrap=True, markup=False)


def _spark_counts(spark: Any, root: str, container: str) -> dict[tuple[str, str], int]:
    """Departures by (origin, carrier), as Spark SQL counts them. Raises what Spark raises."""
    counts: dict[tuple[str, str], int] = {}
    for topic in TOPICS:
        options = {"path": root, "container": container, "topic": topic, "columns": "topic,payload"}
        spark.read.format("chunkstore").options(**options).load().createOrReplaceTempView("departures")
        rows = spark.sql(
            "SELECT topic, get_json_object(CAST(payload AS STRING), '$.carrier') AS carrier, count(*) AS flights "
            "FROM departures GROUP BY topic, carrier"
        ).collect()
        counts.update({(row["topic"], row["carrier"]): row["flights"] for row in rows})
    return counts
