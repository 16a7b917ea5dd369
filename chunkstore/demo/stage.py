"""The steps of the demonstration, in order: write and kill, recover, resume, read back, compare.

Promises: each step checks what it claims and raises ``DemoFailed`` otherwise. Leaves out: how results are shown (``report``).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import IO, ClassVar, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

import chunkstore
from chunkstore import runtime
from chunkstore.assembly import list_containers
from chunkstore.config import Settings
from chunkstore.demo.flights import TOPICS, Event, Tally, events
from chunkstore.demo.scribe import writers
from chunkstore.demo.sql import count_by_spark, missing
from chunkstore.errors import ChunkstoreError
from chunkstore.journal import TakeOverReport
from chunkstore.pulsar import LedgerReader, plan

__all__ = ["DemoFailed", "DemoReport", "Stage", "compare_counts"]

CONTAINER = "demo"


class DemoFailed(ChunkstoreError):
    """Something the demonstration claims did not hold. ``step`` names it."""

    fields: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(self, step: str, message: str) -> None:
        super().__init__(f"{step}: {message}")
        self.step = step


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """What happened: counts of events, sizes in bytes, times in seconds."""

    root: str
    container: str
    seed: int
    events: int
    events_by_origin: Mapping[str, int]
    events_by_carrier: Mapping[str, int]
    ledgers: int
    sha256_source: str
    sha256_store: str
    killed_at_share: float
    acknowledged: int
    recovered: int
    in_snapshot: int
    only_in_journal: int
    recovery_source: str
    replayed_records: int
    tail_cut_bytes: int
    epoch_killed: int
    epoch_recovered: int
    check_findings: int
    payload_bytes: int
    stored_bytes: int
    segments: int
    chunks: int
    write_s: float
    recovery_s: float
    resume_s: float
    read_s: float
    check_s: float
    spark: str
    """"equal", or why Spark did not count, too."""
    spark_s: float
    total_s: float


class _Killed(NamedTuple):
    """What the writer had reported when it died: its epoch, what was acknowledged, in all and by ledger, and in the snapshot."""

    epoch: int
    acknowledged: int
    last_entries: Mapping[tuple[str, int], int]
    in_snapshot: int
    write_s: float


class _Recovered(NamedTuple):
    report: TakeOverReport
    events: int
    recovery_s: float
    resume_s: float


def compare_counts(step: str, expected: Mapping[tuple[str, str], int], found: Mapping[tuple[str, str], int]) -> None:
    """``DemoFailed`` unless the counts by origin and carrier are the same."""
    for key in sorted({*expected, *found}):
        if expected.get(key, 0) != found.get(key, 0):
            raise DemoFailed(
                step, f"{key[1]} from {key[0]}: {found.get(key, 0)} events, the source has {expected.get(key, 0)}"
            )


class Stage:
    """One run. ``play`` once; then ``longest_segment``."""

    def __init__(self, root: str, folder: str, seed: int, rows: int, console: Console, *, spark: bool = True) -> None:
        self.root = root
        self.container: str = _free_container(root)
        self.cache: str = os.path.join(folder, "cache")
        self._seed = seed
        self._rows = rows
        self._console = console
        self._spark = spark
        self._chance = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()

    def play(self) -> DemoReport:
        """All steps. Raises ``DemoFailed``, and what the store raises."""
        began_s = runtime.monotonic_s()
        share, delay_s = self._moment()
        stream, killed = self._write_and_kill(int(self._rows * share), delay_s)
        shutil.rmtree(self.cache)
        self._say("its metadata cache was deleted; only the storage is left, as another machine would see it")
        recovered = self._resume(stream, killed)
        source = Tally()
        for event in sorted(stream, key=itemgetter(0, 1)):
            source.add(event.topic, event.ledger, event.payload)
        del stream
        with chunkstore.open_replica(self.root, container=self.container, settings=self._settings()) as replica:
            store, read_s = self._read_back(replica, source)
            checked_s = runtime.monotonic_s()
            # Chunks that the killed writer left behind, and that nothing refers to, are no damage.
            findings = [finding for finding in replica.check("deep") if finding.severity == "damage"]
            check_s = runtime.monotonic_s() - checked_s
            infos = list(replica.segments())
        if findings:
            raise DemoFailed("check", findings[0].message)
        spark, spark_s = self._count_by_spark(source)
        in_snapshot = killed.in_snapshot if recovered.report.source == "snapshot" else 0
        return DemoReport(
            root=self.root,
            container=self.container,
            seed=self._seed,
            events=store.total,
            events_by_origin=store.by(0),
            events_by_carrier=store.by(1),
            ledgers=len(store.ledgers),
            sha256_source=source.sha256,
            sha256_store=store.sha256,
            killed_at_share=round(killed.acknowledged / self._rows, 4),
            acknowledged=killed.acknowledged,
            recovered=recovered.events,
            in_snapshot=in_snapshot,
            only_in_journal=killed.acknowledged - in_snapshot,
            recovery_source=recovered.report.source,
            replayed_records=recovered.report.replayed_records,
            tail_cut_bytes=recovered.report.tail_cut.bytes if recovered.report.tail_cut else 0,
            epoch_killed=killed.epoch,
            epoch_recovered=recovered.report.epoch,
            check_findings=len(findings),
            payload_bytes=store.payload_bytes,
            stored_bytes=sum(info.length for info in infos),
            segments=len(infos),
            chunks=sum(info.chunk_count for info in infos),
            write_s=round(killed.write_s, 3),
            recovery_s=round(recovered.recovery_s, 4),
            resume_s=round(recovered.resume_s, 3),
            read_s=round(read_s, 3),
            check_s=round(check_s, 3),
            spark=spark,
            spark_s=round(spark_s, 2),
            total_s=round(runtime.monotonic_s() - began_s, 2),
        )

    def _count_by_spark(self, source: Tally) -> tuple[str, float]:
        """Let Spark SQL count the store's events, if it can run here; what came of it, and how long it took."""
        reason = missing() if self._spark else "not wanted"
        if reason is not None:
            return reason, 0.0
        self._say("Spark counts them once more (its start takes some seconds)")
        began_s = runtime.monotonic_s()
        compare_counts("spark", source.counts, count_by_spark(self.root, self.container, TOPICS))
        return "equal", runtime.monotonic_s() - began_s

    def longest_segment(self) -> str:
        """The data segment with the most bytes."""
        with chunkstore.open_replica(self.root, container=self.container, settings=self._settings()) as replica:
            return max(
                {item.segment for topic in TOPICS for item in plan(replica, topic)},
                key=lambda name: replica.info(name).length,
            )

    def _settings(self) -> Settings:
        return Settings(cache_dir=self.cache)

    def _say(self, text: str) -> None:
        self._console.print(Text.assemble(("* ", "bold green"), text), soft_wrap=True)

    def _moment(self) -> tuple[float, float]:
        """When to kill, from the seed: after which share of the stream is acknowledged, and how long after that."""
        share = int.from_bytes(self._chance[:4], "big") / 2**32
        delay = int.from_bytes(self._chance[4:8], "big") / 2**32
        return 0.2 + 0.58 * share, delay * 0.004

    @contextmanager
    def _bar(self, title: str, done: int) -> Iterator[tuple[Progress, TaskID]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        silent = self._console.quiet or not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=silent) as progress:
            yield progress, progress.add_task(title, total=self._rows, completed=done)

    def _write_and_kill(self, kill_at: int, delay_s: float) -> tuple[list[Event], _Killed]:
        """Start a writer, load the source meanwhile, kill the writer in the middle."""
        code = "import sys; from chunkstore.demo.scribe import main; main(*sys.argv[1:4], int(sys.argv[4]))"
        command = [sys.executable, "-c", code, self.root, self.container, self.cache, str(self._rows)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as writer:  # noqa: S603
            assert writer.stdout is not None
            assert writer.stdin is not None
            try:
                stream = events(self._rows)
                self._say(
                    f"{len(stream):,} real flights of 2013, one JSON event each: a topic per airport, a ledger per month"
                )
                killed = self._follow(writer, writer.stdin, writer.stdout, kill_at, delay_s)
            finally:
                writer.kill()
        self._say(
            f"a writer offloaded them; kill -9 after {killed.acknowledged:,} acknowledged events "
            f"({killed.acknowledged / self._rows:.0%}; seed {self._seed})"
        )
        return stream, killed

    def _follow(
        self, writer: subprocess.Popen[bytes], stdin: IO[bytes], reports: IO[bytes], kill_at: int, delay_s: float
    ) -> _Killed:
        first = reports.readline().split()
        if not first:
            raise DemoFailed("write", f"the writer ended before it began (exit code {writer.wait()})")
        stdin.write(b"go\n")
        stdin.flush()
        began_s = runtime.monotonic_s()
        acknowledged = in_snapshot = 0
        last_entries: dict[tuple[str, int], int] = {}
        with self._bar("offload", 0) as (progress, task):
            killing = False
            lines = iter(reports.readline, b"")
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # cut short: it does not count
                words = line.decode().split()
                if words[0] == "snapshot":
                    in_snapshot = int(words[1])
                    continue
                acknowledged = int(words[1])
                last_entries[words[2], int(words[3])] = int(words[4])
                progress.update(task, completed=acknowledged)
                if acknowledged >= kill_at and not killing:
                    killing = True
                    runtime.sleep_s(delay_s)
                    writer.send_signal(signal.SIGKILL)
        write_s = runtime.monotonic_s() - began_s
        if writer.wait() != -signal.SIGKILL:
            raise DemoFailed("kill", f"the writer ended unexpectedly (exit code {writer.returncode})")
        return _Killed(int(first[1]), acknowledged, last_entries, in_snapshot, write_s)

    def _resume(self, stream: list[Event], killed: _Killed) -> _Recovered:
        """Open as another machine would, compare what is there with what was acknowledged, write the rest."""
        began_s = runtime.monotonic_s()
        with chunkstore.open(self.root, container=self.container, settings=self._settings()) as store:
            recovery_s = runtime.monotonic_s() - began_s
            report = store.report
            writing = writers(store, self._rows)
            stored = {(event.topic, event.ledger): -1 for event in stream}
            for topic, ledger in stored:
                stored[topic, ledger] = writing[topic].last_entry(ledger)
            for key, last in killed.last_entries.items():
                if stored[key] < last:
                    raise DemoFailed(
                        "recover", f"entry {last} of ledger {key} was acknowledged, the last one there is {stored[key]}"
                    )
            rest = [event for event in stream if event.entry > stored[event.topic, event.ledger]]
            recovered = len(stream) - len(rest)
            self._say(
                f"recovered from {_origin(report.source)} in {recovery_s * 1000:.0f} ms: every acknowledged event is "
                f"stored; continuing with the {len(rest):,} others"
            )
            began_s = runtime.monotonic_s()
            with self._bar("resume", recovered) as (progress, task):
                for number, event in enumerate(rest):
                    writing[event.topic].append(event.ledger, event.entry, event.payload)
                    if number % 1000 == 0:
                        progress.update(task, completed=recovered + number)
                for writer in writing.values():
                    writer.close()
            return _Recovered(report, recovered, recovery_s, runtime.monotonic_s() - began_s)

    def _read_back(self, replica: chunkstore.Replica, source: Tally) -> tuple[Tally, float]:
        """Read every ledger, compare it with the source; what was read, and how long reading took without comparing."""
        reader = LedgerReader(replica)
        found = Tally()
        read_s = 0.0
        with self._bar("read back", 0) as (progress, task):
            for topic in reader.topics():
                for summary in reader.ledgers(topic):
                    began_s = runtime.monotonic_s()
                    entries = list(reader.read(topic, summary.ledger))
                    read_s += runtime.monotonic_s() - began_s
                    if [entry.entry for entry in entries] != list(range(source.ledgers[topic, summary.ledger])):
                        raise DemoFailed(
                            "read", f"ledger {summary.ledger} of {topic} has not the entries of the source"
                        )
                    for entry in entries:
                        found.add(topic, summary.ledger, entry.payload)
                    progress.update(task, completed=found.total)
        if found.total != self._rows:
            raise DemoFailed("read", f"{found.total} events, the source has {self._rows}")
        compare_counts("read", source.counts, found.counts)
        if found.sha256 != source.sha256:
            raise DemoFailed("read", "the sha256 of all events differs from the source's")
        self._say("everything was read back and compared with the source: every count and the sha256 are equal")
        return found, read_s


def _origin(source: str) -> str:
    return f"a {source} and the journal after it" if source == "snapshot" else "the journal alone"


def _free_container(root: str) -> str:
    """A name that is not taken under ``root``, so that the demonstration can be run there again."""
    taken = Counter(list_containers(root))
    name, number = CONTAINER, 1
    while name in taken:
        number += 1
        name = f"{CONTAINER}-{number}"
    return name
