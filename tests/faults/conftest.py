"""How much the fault suites did: the sums of what the tests recorded."""

from __future__ import annotations

from collections import Counter

import pytest

_COUNTED = {
    "fault_cases": "faults injected, each in a run of its own",
    "flips": "bits flipped",
    "rounds": "fights of two owners",
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
