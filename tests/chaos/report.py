"""What a chaos run shows: one line of progress on a terminal, a table at the end, a JSON file.

Promises: progress only on a terminal; the table and the file say what was asked for and what happened, violations included.
"""

from __future__ import annotations

import json
import os
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.chaos.phase import Outcome

__all__ = ["Progress", "print_outcomes", "write_json"]

_ROWS = (
    ("kills", "SIGKILL"),
    ("stops", "SIGSTOP, woken later"),
    ("disk_fills", "disk filled"),
    ("caches_lost", "caches lost"),
    ("take_overs", "take-overs"),
    ("take_over_s_max", "slowest take-over, seconds"),
    ("tails_cut", "torn tails cut"),
    ("events_acknowledged", "events acknowledged"),
    ("unknown", "calls with an unknown outcome"),
    ("failed", "calls that failed"),
    ("replica_slices_compared", "replica reads compared"),
    ("checks", "verdicts"),
)


def _table(phases: list[tuple[str, float, dict[str, Any]]]) -> Table:
    table = Table(title="chunkstore chaos")
    table.add_column("")
    for name, _, _ in phases:
        table.add_column(name, justify="right")
    table.add_row("seconds", *(f"{seconds:,.0f}" for _, seconds, _ in phases))
    for key, title in _ROWS:
        table.add_row(title, *(f"{figures.get(key, 0):,}" for _, _, figures in phases))
    rates = [figures.get("events_acknowledged", 0) / seconds if seconds else 0.0 for _, seconds, figures in phases]
    table.add_row("events a second", *(f"{rate:,.0f}" for rate in rates))
    return table


class Progress:
    """Keeps a table up to date while phases run; prints nothing unless on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[tuple[str, float, dict[str, Any]]] = []
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, name: str) -> None:
        """The next phase."""
        self._rows.append((name, 0.0, {}))

    def show(self, figures: dict[str, Any]) -> None:
        """Its figures so far."""
        name, _, _ = self._rows[-1]
        self._rows[-1] = name, float(figures["seconds"]), figures
        if self._live is not None:
            self._live.update(_table(self._rows))


def print_outcomes(console: Console, outcomes: list[Outcome], notes: list[str]) -> None:
    """The final table, the notes, and every violation."""
    console.print(_table([(outcome.name, outcome.seconds, outcome.figures) for outcome in outcomes]))
    for note in notes:
        console.print(f"note: {note}", markup=False)
    for outcome in outcomes:
        for violation in outcome.violations:
            console.print(f"VIOLATION in {outcome.name}: {violation}", markup=False, highlight=False)


def write_json(path: str, asked: dict[str, Any], outcomes: list[Outcome], notes: list[str]) -> None:
    """The same as a file."""
    totals: dict[str, float] = {}
    for outcome in outcomes:
        for key, value in outcome.figures.items():
            if isinstance(value, (int, float)):
                totals[key] = max(totals.get(key, 0), value) if key.endswith("_max") else totals.get(key, 0) + value
    document = {
        "asked": asked,
        "notes": notes,
        "totals": {key: round(value, 3) for key, value in sorted(totals.items())},
        "phases": [
            {
                "name": outcome.name,
                "seconds": round(outcome.seconds, 1),
                **outcome.figures,
                "violations": outcome.violations,
            }
            for outcome in outcomes
        ],
    }
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
