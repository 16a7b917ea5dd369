"""What every test run says at its end: which guarantees it did not test, and why."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons of skipped tests, each once; the run's closing line comes behind it."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    terminalreporter.section("not tested in this run, and why")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"- {reason} ({count} {'test' if count == 1 else 'tests'})")
    if not reasons:
        terminalreporter.line("none: nothing was skipped")
