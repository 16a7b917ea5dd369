"""What the fault suites stand on, and how much they did: the sums of what the tests recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore import runtime
from tests.faults.ground import fast_folder
from tests.faults.tiny import InlineRuntime

_COUNTED = {
    "fault_cases": "faults injected, each in a run of its own",
    "flips": "bits flipped",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each kind of case."""
    totals: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in getattr(report, "user_properties", ()):
            if name in _COUNTED and isinstance(value, int):
                totals[name] += value
    for name, total in totals.items():
        terminalreporter.line(f"{total} {_COUNTED[name]}")


@pytest.fixture(params=["slot", "append"])
def mode(request: pytest.FixtureRequest) -> Any:
    """The journal's mode."""
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory, if there is such a folder."""
    with fast_folder(tmp_path) as found:
        yield found


@pytest.fixture
def inline() -> Iterator[None]:
    """Pools start no threads."""
    runtime.install(InlineRuntime())
    yield
    runtime.install(None)
