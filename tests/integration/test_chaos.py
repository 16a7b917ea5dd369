"""A short run of the real chaos; ``make chaos`` runs it for half an hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.run import Options, run_chaos
from tests.support.paths import SOURCES

pytestmark = pytest.mark.timeout(1500)

KILLS = 6


@pytest.mark.proof
def test_nothing_acknowledged_is_lost(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    result = run_chaos(Options(seconds=10, kills=KILLS, rate=150, check_every_s=4, root=str(tmp_path)))
    print(result.notes)
    assert [violation for outcome in result.outcomes for violation in outcome.violations] == []
    total = {
        key: sum(outcome.figures[key] for outcome in result.outcomes)
        for key in ("kills", "take_overs", "events_acknowledged")
    }
    assert total["kills"] >= KILLS
    # How many of them there are in so many seconds is the machine's affair; that there were some, and work was done, is not.
    assert total["take_overs"] > 0
    assert total["events_acknowledged"] > 0
    assert all(outcome.figures["checks"] >= 1 for outcome in result.outcomes)
    for key, value in total.items():
        record_property(key, value)


@pytest.mark.proof
def test_an_owner_without_an_application_and_a_cron_job_among_them(tmp_path: Path) -> None:
    options = Options(
        seconds=10, kills=6, rate=150, check_every_s=4, mode="append", full_disk="no", cast="upkeep", root=str(tmp_path)
    )
    [outcome] = run_chaos(options).outcomes
    assert outcome.violations == []
    assert outcome.figures["take_overs"] > 0
    assert outcome.figures["events_acknowledged"] > 0


SLOW = """
import sys, time
if any(part.startswith("tests.chaos.") for part in sys.orig_argv):
    time.sleep(3)
"""


def test_a_phase_goes_on_until_somebody_has_worked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that take longer to start than the phase was to last, and are killed at it."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run_chaos(
        Options(seconds=2, kills=2, mode="append", full_disk="no", check_every_s=60, root=str(tmp_path / "run"))
    )
    [outcome] = result.outcomes
    assert outcome.violations == []
    assert outcome.figures["kills"] >= 2
    assert outcome.figures["events_acknowledged"] > 0


BROKEN = """
import importlib.abc, importlib.util, sys

class Breaker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "chunkstore_journal.append_stream":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def broken(module):
            load(module)

            def commit(stream, data):
                start = stream.head.end
                stream._appender.write_durable(start, data)
                return start + len(data)

            module.AppendStream._commit = commit

        spec.loader.exec_module = broken
        return spec

sys.meta_path.insert(0, Breaker())
"""


@pytest.mark.proof
def test_an_owner_that_does_not_look_is_caught(tmp_path: Path) -> None:
    """Commits that never look at the fence: the run must end with a violation and keep the evidence.

    It ends with the first one; how long that takes is the machine's affair.

    (Looking before the write only is found, too, within a minute or so: too long for a test that must not fail by chance.)
    """
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    figures = tmp_path / "chaos.json"
    options = f"--seconds 900 --kills 300 --mode append --full-disk no --check-every 6 --rate 400 --json {figures}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *options.split(), "--root", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCES}"},
        capture_output=True,
        text=True,
        timeout=1300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "VIOLATION" in done.stdout
    assert json.loads(figures.read_text())["phases"][0]["violations"]
    assert (tmp_path / "run" / "append" / "notes").is_dir()
