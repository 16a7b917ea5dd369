"""How the demonstration shows what happened: a table, and what to try next. Leaves out: the steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from shlex import quote

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chunkstore.config import MIB
from chunkstore.demo.stage import DemoReport

__all__ = ["print_next", "print_report"]


def print_report(console: Console, report: DemoReport) -> None:
    """The table. What is compared has been compared before: a difference ends the demonstration."""
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    mib = report.payload_bytes / MIB
    cut = f"{report.tail_cut_bytes:,} bytes" if report.tail_cut_bytes else "none"
    rows = (
        ("events, equal to the source", f"{report.events:,}"),
        ("by origin, equal to the source", _counts(report.events_by_origin)),
        ("by carrier, equal to the source", _counts(report.events_by_carrier)),
        ("sha256, equal to the source's", report.sha256_store[:28] + "..."),
        ("ledgers", f"{report.ledgers}"),
        ("acknowledged before the kill", f"{report.acknowledged:,} ({report.killed_at_share:.1%})"),
        ("  only recoverable from the journal", f"{report.only_in_journal:,}"),
        ("  in a snapshot, too", f"{report.in_snapshot:,}"),
        ("  lost", f"{max(0, report.acknowledged - report.recovered):,}"),
        ("stored, acknowledgement not heard of", f"{max(0, report.recovered - report.acknowledged):,}"),
        ("journal records replayed", f"{report.replayed_records:,}"),
        ("incomplete last record cut off", cut),
        ("time to recover", f"{report.recovery_s * 1000:.0f} ms"),
        ("epoch killed, epoch that recovered", f"{report.epoch_killed}, {report.epoch_recovered}"),
        ("check --deep", "clean" if not report.check_findings else f"{report.check_findings} findings"),
        ("bytes of events", f"{report.payload_bytes:,}"),
        ("bytes stored", f"{report.stored_bytes:,} ({report.segments} segments, {report.chunks} chunks)"),
        ("written before the kill", _rate(report.acknowledged, report.events, mib, report.write_s)),
        ("written after it", _rate(report.events - report.recovered, report.events, mib, report.resume_s)),
        ("read back", _rate(report.events, report.events, mib, report.read_s)),
        ("Spark SQL's counts by origin and carrier", _spark(report)),
        ("seed of the kill's moment", f"{report.seed}"),
        ("time in all", f"{report.total_s:.1f} s"),
    )
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _spark(report: DemoReport) -> str:
    if report.spark == "equal":
        return f"equal to the source ({report.spark_s:.1f} s)"
    return report.spark.replace(": ", ":\n")


def _counts(counts: Mapping[str, int]) -> str:
    items = [f"{name} {count:,}" for name, count in counts.items()]
    return "\n".join("  ".join(items[at : at + 3]) for at in range(0, len(items), 3))


def _rate(events: int, of: int, mib: float, seconds: float) -> str:
    seconds = max(seconds, 1e-6)
    return f"{events / seconds:,.0f} events/s, {mib * events / of / seconds:,.0f} MiB/s ({seconds:.2f} s)"


def print_next(console: Console, report: DemoReport, segment: str, cache: str, folder: str) -> None:
    """Commands that go on from here, with what they need filled in."""
    common = f"--container {report.container} --cache-dir {cache}"
    beside = os.path.join(os.path.dirname(sys.executable), "chunkstore")
    command = os.path.relpath(beside) if os.path.exists(beside) else f"{sys.executable} -m chunkstore"
    root = quote(report.root)
    lines = (
        f"{command} ledger ls {root} {common}",
        f"{command} ledger read {root} --topic JFK --ledger 201301 --first 1 --last 3 {common}",
        f"{command} layout {root} {segment} {common}",
        f"{command} cat {root} {segment} {common} > {folder}/data",
        f"{command} cat {root} {segment}-index {common} > {folder}/index",
        f"{command} pulsar decode {folder}/data {folder}/index",
        f"{command} journal {root} --container {report.container}",
        f"{command} check {root} --deep {common}",
        f"{command} demo --seed {report.seed}",
        f"rm -r {folder}",
    )
    console.print("\nwhat to try next, ending with the broom:")
    for line in lines:
        console.print(Text("  " + line), soft_wrap=True)
