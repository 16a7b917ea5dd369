"""Campaigns add up in their file, and what ran other sources is told apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulator.campaign import SOURCES

pytestmark = pytest.mark.proof


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
