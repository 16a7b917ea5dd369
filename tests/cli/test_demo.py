"""The demonstration runs as the README says, and its numbers hold."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.demo import flights
from chunkstore.pulsar import LedgerReader
from tests.cli.conftest import Call

Start = Callable[..., "subprocess.Popen[bytes]"]


def play(start: Start, *arguments: str) -> dict[str, Any]:
    demo = start("demo", *arguments, "--no-spark", "--json")
    out, err = demo.communicate(timeout=200)
    assert (demo.returncode, err) == (0, b"")
    report = json.loads(out)
    assert isinstance(report, dict)
    return report


def check(report: dict[str, Any], rows: int) -> None:
    assert report["events"] == rows == sum(report["events_by_origin"].values())
    assert rows == sum(report["events_by_carrier"].values())
    assert report["sha256_source"] == report["sha256_store"]
    assert 0.2 * rows <= report["acknowledged"] <= 0.82 * rows
    assert report["acknowledged"] <= report["recovered"] < rows
    assert report["in_snapshot"] + report["only_in_journal"] == report["acknowledged"]
    assert report["recovery_source"] == "snapshot"
    assert report["in_snapshot"] >= 0.1 * rows
    assert report["only_in_journal"] > 0
    assert report["replayed_records"] > 0
    assert report["epoch_recovered"] > report["epoch_killed"]
    assert report["check_findings"] == 0


@pytest.mark.proof
def test_a_small_demonstration_twice_in_one_root(
    start: Start, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for container in ("demo", "demo-2"):
        report = play(start, root, "--seed", "7", "--rows", "4000")
        assert (report["root"], report["container"], report["seed"]) == (root, container, 7)
        check(report, 4000)
        source = flights.events(4000)
        with chunkstore.open_replica(root, container=container) as replica:
            reader = LedgerReader(replica)
            for topic in flights.TOPICS:
                got = [entry.payload for item in reader.ledgers(topic) for entry in reader.read(topic, item.ledger)]
                assert got == [event.payload for event in source if event.topic == topic]


def test_what_people_see(start: Start, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    demo = start("demo", root, "--rows", "2000", "--seed", "3", "--no-spark")
    out, err = demo.communicate(timeout=100)
    text = out.decode()
    assert (demo.returncode, err) == (0, b"")
    for words in (
        "2,000 real flights",
        "kill -9",
        "seed 3",
        "only recoverable from the journal",
        "clean",
        "what to try next",
    ):
        assert words in text


def test_misuse(call: Call) -> None:
    assert call("demo", "memory://x", "--json", code=2).error["error"] == "InvalidArgument"
    assert call("demo", "--rows", "10", "--json", code=2).error["error"] == "InvalidArgument"
