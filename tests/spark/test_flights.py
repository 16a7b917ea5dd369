"""The pipeline of flights: its guide's commands, in the guide's order, and every number beside the source's."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.flights import departures, run, source
from tests.support.paths import ROOT
from tests.support.servers.running import rgw, s3_environment

__all__ = ["rgw", "s3_environment"]

GUIDE = (ROOT / "docs" / "guide-flights.md").read_text(encoding="utf-8")
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
AIRCRAFT = 12


@pytest.fixture
def to(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the container moves to: a bucket, where a server for it can run, else a folder."""
    try:
        server = request.getfixturevalue("rgw")
    except pytest.skip.Exception:
        return (tmp_path / "to").as_uri()
    return str(server.root(server.make_bucket()))


def patiently(step: Callable[[list[str]], None]) -> Callable[[list[str]], None]:
    """Spark gives a planner's Python ten seconds to come up, whatever the machine. A step may be run again, so it is."""

    def run_it(options: list[str]) -> None:
        for _ in range(5):
            try:
                return step(options)
            except Exception as error:
                if "failed to connect back" not in str(error):
                    raise
        return step(options)

    return run_it


@pytest.mark.timeout(1200)
@pytest.mark.proof
def test_the_guide(spark: Any, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """``run`` exits where a number is not the source's. The commands that it prints are those of the guide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "STEPS", {name: patiently(step) for name, step in run.STEPS.items()})
    before = spark.conf.get(STATE_STORE)
    root = (tmp_path / "root").as_uri()
    try:
        run.main(["--root", root, "--to", to, "--work", "work", "--aircraft", str(AIRCRAFT)])
    finally:
        spark.conf.set(STATE_STORE, before)
    said = capfd.readouterr().out
    commands = [line for line in said.splitlines() if re.match(r"\$ python -m examples|application> ", line)]
    backups = (tmp_path / "work" / "backups").as_uri()
    commands[0] = commands[0].removesuffix(f" --aircraft {AIRCRAFT}")
    for ours, theirs in (
        (to, "s3://bucket/flights"),
        (root, "file:///srv/flights"),
        (backups, "file:///srv/backups"),
    ):
        commands = [line.replace(ours, theirs) for line in commands]
    commands = [re.sub(r"--starting .*", '--starting "$STARTING"', line) for line in commands]
    commands = [re.sub(r"--yesterday \S+", "--yesterday 2026-03-01T23:59:00+00:00", line) for line in commands]
    assert commands == re.findall(r"^(?:\$ python -m examples|application> ).*", GUIDE, re.MULTILINE)
    table = GUIDE.split("## What comes out")[1]
    names = [line[:30] for line in said.splitlines() if line.endswith("  equal")]
    assert names == [line[:30] for line in table.splitlines() if line.endswith("  equal")]
    assert "DIFFERENT" not in said


def test_the_guide_shows_what_the_examples_say() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples" / "flights").glob("*.py")))
    shown = re.findall(r"```py\n(.*?)```", GUIDE, re.DOTALL)
    assert len(shown) >= 4
    for block in shown:
        assert block in code, block


def test_departures_are_the_same_each_time_and_as_a_file(tmp_path: Path) -> None:
    days = list(departures.generated(2, aircraft=AIRCRAFT))
    assert days == list(departures.generated(3, aircraft=AIRCRAFT))[:2]
    assert days != list(departures.generated(2, aircraft=AIRCRAFT, seed=1))
    assert list(days[0][0]) == list(departures.COLUMNS)
    file = io.StringIO()
    departures.write_csv(days, file)
    (tmp_path / "days.csv").write_text(file.getvalue(), encoding="utf-8")
    assert list(departures.read_csv(tmp_path / "days.csv")) == days
    found = source.numbers(days)
    assert found.departures == sum(map(len, days)) == sum(found.ledgers.values()) == sum(found.by_carrier.values())
    assert found.cancelled > 0
    assert len(found.chains) > 1
