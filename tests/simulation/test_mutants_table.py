"""In the saved table of planted bugs, what counts as noticed was noticed by an invariant or the history."""

from __future__ import annotations

import json
from pathlib import Path

from tests.simulator.hunt import killer_of
from tests.simulator.mutants import MUTANTS

TABLE = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "mutants.json"


def test_no_planted_bug_was_killed_by_stumbling() -> None:
    rows = {row["name"]: row for row in json.loads(TABLE.read_text(encoding="utf-8"))["mutants"]}
    assert set(rows) == set(MUTANTS), "every planted bug has been hunted, and its row is in the table"
    assert not [name for name, row in rows.items() if not row["killer"]], (
        "a bug that nothing noticed: make the simulator stronger"
    )
    for name, row in rows.items():
        assert killer_of(row["message"]) == row["killer"], f"{name} was not killed by what its message names"
        assert row["what"] == MUTANTS[name].what, f"{name} has changed since it was hunted"
        assert row["unclean"] == []


def test_what_merely_escapes_kills_nothing() -> None:
    assert killer_of("invariant 7: acknowledged and not in history") == "invariant 7"
    assert killer_of("history lost-ack: segment 's0': gone") == "history lost-ack"
    for message in (
        "client of o1 ended with KeyError('x')",
        "append of 's0' was answered Damaged('...')",
        "opening was answered InvalidArgument('...')",
        "nothing can go on: everything waits for something that nobody will do",
    ):
        assert killer_of(message) == ""
