"""Campaigns add up in their file, and what ran other sources is told apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator import campaign
from tests.simulator.campaign import SOURCES, Tally, firing_rates, measure, save, sources_digest, totals

pytestmark = pytest.mark.proof


def test_campaigns_add_up_by_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "simulate.json"
    tally = measure(range(13, 15), claims=3, level="none")
    save(path, tally, first_seed=13)
    save(path, tally, first_seed=13)
    monkeypatch.setattr(campaign, "sources_digest", lambda: "changed")
    save(path, tally, first_seed=13)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert len(document["campaigns"]) == 3
    assert document["all"]["claims"] == totals(path)["claims"] == 3 * tally.claims
    assert document["sources"] == "changed"
    assert document["of_these_sources"]["claims"] == totals(path, "changed")["claims"] == tally.claims
    assert totals(path, sources_digest())["runs"] == 2 * tally.runs
    assert list(tmp_path.iterdir()) == [path]


def test_the_sources_are_what_a_run_imports() -> None:
    """In an interpreter of its own: everything of production that a run imports is under the digest."""
    program = (
        "import sys\n"
        "from tests.simulator.runs import run_seed\n"
        "run_seed(9, claims=3)\n"
        "for name in sys.modules: print(name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    covered = []
    for name in done.stdout.split():
        package, _, module = name.rpartition(".")
        if not name.startswith(("chunkstore", "chunkstore_")):
            continue
        whole = {root for root, pattern in SOURCES if pattern.startswith("**")}
        inside = any(name == root or name.startswith(root + ".") for root in whole)
        file = any((package, pattern) in SOURCES for pattern in (f"{module}.py", "*.py")) or package == ""
        assert inside or file, f"a run imports {name}, whose changes the digest does not see"
        covered.append(name)
    assert "chunkstore.operations.commit_queue" in covered
    assert "chunkstore_journal.takeover" in covered


def test_rates_are_of_the_runs_that_allow_a_fault() -> None:
    tally = Tally()
    tally.allowed.update({"crash": 4, "stall": 2})
    tally.fired.update({"crash": 1, "stall": 2})
    assert firing_rates(tally) == [("crash", 4, 1), ("stall", 2, 2)]
