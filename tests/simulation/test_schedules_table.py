"""The protocol's table of schedules and the tests say the same: each schedule is a test of its number and name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\d+) \| ([a-z0-9-]+) \| ", re.MULTILINE)
TEST = re.compile(r"^def (test_(\d\d)_[a-z0-9_]+)", re.MULTILINE)


def test_every_schedule_has_a_test_of_its_name_and_every_test_a_schedule() -> None:
    protocol = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8").partition("| # | name | schedule")[2]
    tests: dict[int, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_schedules_*.py")):
        for name, number in TEST.findall(path.read_text(encoding="utf-8")):
            tests.setdefault(int(number), []).append(name)
    schedules = {int(number): name for number, name in ROW.findall(protocol.partition("\n\n")[0])}
    assert sorted(schedules) == sorted(tests)
    assert len(schedules) > 50
    for number, name in schedules.items():
        wanted = f"test_{number:02}_{name.replace('-', '_')}"
        assert wanted in tests[number]
        assert all(test.startswith(wanted) for test in tests[number]), f"{tests[number]}: not all of them of {wanted}"
