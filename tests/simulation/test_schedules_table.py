"""docs/schedules.md, the protocol's own table and the tests say the same: every schedule is there, or is said to be missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType

from tests.simulation.scene import ALL
from tests.simulation.test_schedules_bite import BITES

ROOT = Path(__file__).resolve().parents[2]
_TEST = re.compile(r"test_(\d\d)_([a-z0-9_]+)")
_MISSING = ("missing until", "withdrawn")


@cache
def schedules() -> dict[int, dict[str, list[FunctionType]]]:
    """By number and file: the tests of schedules."""
    found: dict[int, dict[str, list[FunctionType]]] = {}
    for path in sorted(Path(__file__).parent.glob("test_schedules_*.py")):
        module = import_module(f"tests.simulation.{path.stem}")
        for name, value in vars(module).items():
            match = _TEST.match(name)
            if match and isinstance(value, FunctionType):
                found.setdefault(int(match[1]), {}).setdefault(path.name, []).append(value)
    return found


def worlds_of(test: FunctionType) -> Iterator[str]:
    """The worlds a test runs in, by its marks."""
    for mark in getattr(test, "pytestmark", ()):
        names = mark.args[0] if mark.name == "parametrize" else ""
        if names in ("scene", "kind"):
            yield from mark.args[1]
        elif "kind" in names:
            yield from (values[0] for values in mark.args[1])


def table(text: str, first: str) -> dict[int, list[str]]:
    """The rows of a table whose header begins so, by number."""
    rows = {}
    for line in text[text.index(first) :].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            break
        if cells[0].isdecimal():
            rows[int(cells[0])] = cells[1:]
    return rows


def listed() -> dict[int, list[str]]:
    return table((ROOT / "docs" / "schedules.md").read_text(encoding="utf-8"), "| # | name | where")


def test_the_protocol_and_the_list_name_the_same_schedules() -> None:
    protocol = table((ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"), "| # | name | schedule")
    assert sorted(protocol) == [*range(1, 26), *range(29, 44), *range(45, 50), *range(51, 60)]
    assert {number: row[0] for number, row in listed().items()} == {number: row[0] for number, row in protocol.items()}


def test_every_schedule_has_a_test_of_its_name_or_is_said_to_be_missing() -> None:
    for number, (name, where, *_) in listed().items():
        files = schedules().get(number, {})
        if where.startswith(_MISSING):
            assert not files, f"{number} {name} is said to be {where}, and is in {[*files]}"
            continue
        assert [f"`{file}`" for file in files] == [where], f"{number} {name}: the list says {where}"
        wanted = f"test_{number:02}_{name.replace('-', '_')}"
        names = [test.__name__ for file in files.values() for test in file]
        assert any(test == wanted for test in names), f"no {wanted} among {names}"
        assert all(test.startswith(wanted) for test in names), f"{names}: not all of them of {wanted}"


def test_every_test_is_in_the_list() -> None:
    assert set(schedules()) <= set(listed())


def test_the_worlds_are_those_of_the_schedules() -> None:
    for number, (name, where, worlds, *_) in listed().items():
        if where.startswith(_MISSING):
            assert worlds == ""
            continue
        found = {world for file in schedules()[number].values() for test in file for world in worlds_of(test)}
        said = set(worlds.split(", "))
        if found:
            assert said == found, f"{number} {name}"
            assert worlds == ", ".join(world for world in ALL if world in found)
        else:
            assert said == {"webhdfs"}, f"{number} {name}"


def test_the_planted_bugs_are_those_that_were_tried() -> None:
    bites: dict[int, list[str]] = {}
    for mutant, _, schedule, _ in BITES:
        known = bites.setdefault(int(schedule.__name__[5:7]), [])
        if mutant not in known:
            known.append(mutant)
    said = {number: row[3].split(", ") for number, row in listed().items() if row[3]}
    assert said == bites
