"""The steps of the demonstration, in order: write and kill, recover, resume, read back, compare. Each raises ``DemoFailed`` if its claim
does not hold."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from shlex import quote
from typing import IO, Any, ClassVar, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import chunkstore
from chunkstore import runtime
from chunkstore.assembly import list_containers
from chunkstore.config import MIB, Settings
from chunkstore.demo.flights import TOPICS, Event, Tally, events, writers
from chunkstore.demo.sql import count_by_spark, missing
from chunkstore.errors import ChunkstoreError
from chunkstore.pulsar import LedgerReader, plan

__all__ = ["DemoFailed", "Stage", "compare_counts", "print_next", "print_report"]

_CONTAINER = "demo"


class DemoFailed(ChunkstoreError):
    """Something the demonstration claims did not hold. ``step`` names it."""

    fields: ClassVar[tuple[str, ...]] = ("step",)

    def __init__(self, step: str, message: str) -> None:
        super().__init__(f"{step}: {message}")
        self.step = step


class _Killed(NamedTuple):
    """What the writer had reported when it died: its epoch, what was acknowledged, in all and by ledger, and in the snapshot."""

    epoch: int
    acknowledged: int
    last_entries: Mapping[tuple[str, int], int]
    in_snapshot: int
    write_s: float


def compare_counts(step: str, expected: Mapping[tuple[str, str], int], found: Mapping[tuple[str, str], int]) -> None:
    """Raise ``DemoFailed`` unless both have the same counts by origin and carrier."""
    for key in sorted({*expected, *found}):
        if expected.get(key, 0) != found.get(key, 0):
            text = f"{key[1]} from {key[0]}: {found.get(key, 0)} events, the source has {expected.get(key, 0)}"
            raise DemoFailed(step, text)


class Stage:
    """One run. ``play`` once; then ``longest_segment``."""

    def __init__(self, root: str, folder: str, seed: int, rows: int, console: Console) -> None:
        taken = set(list_containers(root))
        names = (_CONTAINER, *(f"{_CONTAINER}-{number}" for number in range(2, len(taken) + 3)))
        self.root = root
        self.container: str = next(name for name in names if name not in taken)
        self._settings = Settings(cache_dir=os.path.join(folder, "cache"))
        self._rows = rows
        self._console = console
        self._report: dict[str, Any] = {"root": root, "container": self.container, "seed": seed}

    def play(self, *, spark: bool) -> dict[str, Any]:
        """All steps. The report: counts of events, sizes in bytes, times in seconds. Raises ``DemoFailed``, and what the store raises."""
        began_s, report = runtime.monotonic_s(), self._report
        stream, killed = self._write_and_kill()
        shutil.rmtree(str(self._settings.cache_dir))
        self._say("its metadata cache was deleted; only the storage is left, as another machine would see it")
        recovered = self._resume(stream, killed)
        source = Tally()
        for event in sorted(stream, key=itemgetter(0, 1)):
            source.add(event.topic, event.ledger, event.payload)
        del stream
        with chunkstore.open_replica(self.root, container=self.container, settings=self._settings) as replica:
            found = self._read_back(replica, source)
            checked_s = runtime.monotonic_s()
            # Chunks of the killed writer that nothing refers to are no damage.
            findings = [finding for finding in replica.check("deep") if finding.severity == "damage"]
            check_s = runtime.monotonic_s() - checked_s
            infos = list(replica.segments())
        if findings:
            raise DemoFailed("check", findings[0].message)
        in_snapshot = killed.in_snapshot if recovered["recovery_source"] == "snapshot" else 0
        report |= {
            "events": self._rows,
            "events_by_origin": found.by(0),
            "events_by_carrier": found.by(1),
            "ledgers": len(found.ledgers),
            "sha256_source": source.sha256,
            "sha256_store": found.sha256,
            "killed_at_share": round(killed.acknowledged / self._rows, 4),
            "acknowledged": killed.acknowledged,
            "in_snapshot": in_snapshot,
            "only_in_journal": killed.acknowledged - in_snapshot,
            "epoch_killed": killed.epoch,
            **recovered,
            "check_findings": 0,
            "payload_bytes": found.payload_bytes,
            "stored_bytes": sum(info.length for info in infos),
            "segments": len(infos),
            "chunks": sum(info.chunk_count for info in infos),
            "write_s": round(killed.write_s, 3),
            "check_s": round(check_s, 3),
        }
        spark_s = runtime.monotonic_s()
        report["spark"] = self._count_by_spark(source) if spark else "not wanted"
        report["spark_s"] = round(runtime.monotonic_s() - spark_s, 2)
        report["total_s"] = round(runtime.monotonic_s() - began_s, 2)
        return report

    def _count_by_spark(self, source: Tally) -> str:
        """Let Spark SQL count the store's events: "equal", or why it cannot run here."""
        if (reason := missing()) is not None:
            return reason
        self._say("Spark counts them once more (its start takes some seconds)")
        compare_counts("spark", source.counts, count_by_spark(self.root, self.container, TOPICS))
        return "equal"

    def longest_segment(self) -> str:
        """The data segment with the most bytes."""
        with chunkstore.open_replica(self.root, container=self.container, settings=self._settings) as replica:
            names = {item.segment for topic in TOPICS for item in plan(replica, topic)}
            return max(names, key=lambda name: replica.info(name).length)

    def _say(self, text: str) -> None:
        self._console.print(Text.assemble(("* ", "bold green"), text), soft_wrap=True)

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
        code = "import sys; from chunkstore.demo.flights import main; main(*sys.argv[1:4], int(sys.argv[4]))"
        command = [
            sys.executable,
            "-c",
            code,
            self.root,
            self.container,
            str(self._settings.cache_dir),
            str(self._rows),
        ]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as writer:  # noqa: S603
            assert writer.stdout is not None
            assert writer.stdin is not None
            try:
                stream = events(self._rows)
                what = "real flights of 2013, one JSON event each: a topic per airport, a ledger per month"
                self._say(f"{len(stream):,} {what}")
                killed = self._follow(writer, writer.stdin, writer.stdout)
            finally:
                writer.kill()
        self._say(
            f"a writer offloaded them; kill -9 after {killed.acknowledged:,} acknowledged events "
            f"({killed.acknowledged / self._rows:.0%}; seed {self._report['seed']})"
        )
        return stream, killed

    def _follow(self, writer: subprocess.Popen[bytes], stdin: IO[bytes], reports: IO[bytes]) -> _Killed:
        chance = hashlib.blake2b(str(self._report["seed"]).encode(), digest_size=8).digest()
        share, delay = (int.from_bytes(part, "big") / 2**32 for part in (chance[:4], chance[4:]))
        kill_at = int(self._rows * (0.2 + 0.58 * share))
        first = reports.readline().split()
        if not first:
            raise DemoFailed("write", f"the writer ended before it began (exit code {writer.wait()})")
        stdin.write(b"go\n")
        stdin.flush()
        began_s = runtime.monotonic_s()
        acknowledged = in_snapshot = 0
        last_entries: dict[tuple[str, int], int] = {}
        killing = False
        with self._bar("offload") as show:
            for line in iter(reports.readline, b""):
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
        with chunkstore.open(self.root, container=self.container, settings=self._settings) as store:
            recovery_s = runtime.monotonic_s() - began_s
            writing = writers(store, self._rows)
            stored = {
                (topic, ledger): writing[topic].last_entry(ledger)
                for topic, ledger in {(event.topic, event.ledger) for event in stream}
            }
            for key, last in killed.last_entries.items():
                if stored[key] < last:
                    text = f"entry {last} of ledger {key} was acknowledged, the last one there is {stored[key]}"
                    raise DemoFailed("recover", text)
            rest = [event for event in stream if event.entry > stored[event.topic, event.ledger]]
            recovered = len(stream) - len(rest)
            report = store.report
            origin = "a snapshot and the journal after it" if report.source == "snapshot" else "the journal alone"
            self._say(
                f"recovered from {origin} in {recovery_s * 1000:.0f} ms: every acknowledged event is "
                f"stored; continuing with the {len(rest):,} others"
            )
            began_s = runtime.monotonic_s()
            with self._bar("resume", recovered) as show:
                for number, event in enumerate(rest):
                    writing[event.topic].append(event.ledger, event.entry, event.payload)
                    if number % 1000 == 0:
                        show(recovered + number)
                for writer in writing.values():
                    writer.close()
            return {
                "recovered": recovered,
                "recovery_source": report.source,
                "replayed_records": report.replayed_records,
                "tail_cut_bytes": report.tail_cut.bytes if report.tail_cut else 0,
                "epoch_recovered": report.epoch,
                "recovery_s": round(recovery_s, 4),
                "resume_s": round(runtime.monotonic_s() - began_s, 3),
            }

    def _read_back(self, replica: chunkstore.Replica, source: Tally) -> Tally:
        """Read every ledger and compare it with the source."""
        reader = LedgerReader(replica)
        found = Tally()
        read_s = 0.0
        with self._bar("read back") as show:
            for topic in reader.topics():
                for summary in reader.ledgers(topic):
                    began_s = runtime.monotonic_s()
                    entries = list(reader.read(topic, summary.ledger))
                    read_s += runtime.monotonic_s() - began_s
                    if [entry.entry for entry in entries] != list(range(source.ledgers[topic, summary.ledger])):
                        text = f"ledger {summary.ledger} of {topic} has not the entries of the source"
                        raise DemoFailed("read", text)
                    for entry in entries:
                        found.add(topic, summary.ledger, entry.payload)
                    show(found.ledgers.total())
        if found.ledgers.total() != self._rows:
            raise DemoFailed("read", f"{found.ledgers.total()} events, the source has {self._rows}")
        compare_counts("read", source.counts, found.counts)
        if found.sha256 != source.sha256:
            raise DemoFailed("read", "the sha256 of all events differs from the source's")
        self._report["read_s"] = round(read_s, 3)  # without comparing
        self._say("everything was read back and compared with the source: every count and the sha256 are equal")
        return found


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """The table. A difference would have ended the demonstration before."""
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    total, acknowledged, recovered = report["events"], report["acknowledged"], report["recovered"]

    def rate(events: int, seconds: float) -> str:
        a_second = events / max(seconds, 1e-6)
        mib = report["payload_bytes"] / MIB / total
        return f"{a_second:,.0f} events/s, {mib * a_second:,.0f} MiB/s ({seconds:.2f} s)"

    def counts(found: Mapping[str, int]) -> str:
        items = [f"{name} {count:,}" for name, count in found.items()]
        return "\n".join("  ".join(items[at : at + 3]) for at in range(0, len(items), 3))

    equal = f"equal to the source ({report['spark_s']:.1f} s)"
    spark = equal if report["spark"] == "equal" else report["spark"].replace(": ", ":\n")
    rows = (
        ("events, equal to the source", f"{total:,}"),
        ("by origin, equal to the source", counts(report["events_by_origin"])),
        ("by carrier, equal to the source", counts(report["events_by_carrier"])),
        ("sha256, equal to the source's", report["sha256_store"][:28] + "..."),
        ("ledgers", f"{report['ledgers']}"),
        ("acknowledged before the kill", f"{acknowledged:,} ({report['killed_at_share']:.1%})"),
        ("  only recoverable from the journal", f"{report['only_in_journal']:,}"),
        ("  in a snapshot, too", f"{report['in_snapshot']:,}"),
        ("  lost", "0"),
        ("stored, acknowledgement not heard of", f"{recovered - acknowledged:,}"),
        ("journal records replayed", f"{report['replayed_records']:,}"),
        (
            "incomplete last record cut off",
            f"{report['tail_cut_bytes']:,} bytes" if report["tail_cut_bytes"] else "none",
        ),
        ("time to recover", f"{report['recovery_s'] * 1000:.0f} ms"),
        ("epoch killed, epoch that recovered", f"{report['epoch_killed']}, {report['epoch_recovered']}"),
        ("check --deep", "clean"),
        ("bytes of events", f"{report['payload_bytes']:,}"),
        ("bytes stored", f"{report['stored_bytes']:,} ({report['segments']} segments, {report['chunks']} chunks)"),
        ("written before the kill", rate(acknowledged, report["write_s"])),
        ("written after it", rate(total - recovered, report["resume_s"])),
        ("read back", rate(total, report["read_s"])),
        ("Spark SQL's counts by origin and carrier", spark),
        ("seed of the kill's moment", f"{report['seed']}"),
        ("time in all", f"{report['total_s']:.1f} s"),
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_next(console: Console, report: Mapping[str, Any], segment: str, folder: str) -> None:
    """Commands that go on from here, with what they need filled in."""
    container = f"--container {report['container']}"
    common = f"{container} --cache-dir {folder}/cache"
    installed = os.path.join(os.path.dirname(sys.executable), "chunkstore")
    command = os.path.relpath(installed) if os.path.exists(installed) else f"{sys.executable} -m chunkstore"
    root = quote(report["root"])
    console.print("\nwhat to try next, ending with the broom:")
    for line in (
        f"{command} ledger ls {root} {common}",
        f"{command} ledger read {root} --topic JFK --ledger 201301 --first 1 --last 3 {common}",
        f"{command} layout {root} {segment} {common}",
        f"{command} cat {root} {segment} {common} > {folder}/data",
        f"{command} cat {root} {segment}-index {common} > {folder}/index",
        f"{command} pulsar decode {folder}/data {folder}/index",
        f"{command} journal {root} {container}",
        f"{command} check {root} --deep {common}",
        f"{command} demo --seed {report['seed']}",
        f"rm -r {folder}",
    ):
        console.print(Text("  " + line), soft_wrap=True)
