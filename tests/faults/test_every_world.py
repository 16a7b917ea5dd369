"""The crash points and the two owners are for all four worlds, the storm and the races for two. No test is left out, and no world is."""

from __future__ import annotations

from collections import defaultdict
from typing import cast

import pytest

from tests.support.worlds import FULL_RUN, USUAL, VARIANTS

WORLDS = {"test_all_or_nothing": VARIANTS}
"""Every other test of these files: USUAL."""
FILES = ("test_crash_points.py", "test_storm.py", "test_races.py")


def variant_of(item: pytest.Function) -> tuple[str, str]:
    params = item.callspec.params
    return cast("tuple[str, str]", params["variant"] if "variant" in params else params["world"])


def test_nothing_is_left_out(request: pytest.FixtureRequest) -> None:
    found: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    owners: dict[str, set[str]] = defaultdict(set)
    for item in request.session.items:
        if not isinstance(item, pytest.Function):
            continue
        if item.path.parent.name == "faults":
            assert not [mark for mark in item.iter_markers() if mark.name in ("skip", "skipif", "xfail")], item.nodeid
        if item.path.parent.name != "simulation" and item.path.name in FILES and hasattr(item, "callspec"):
            found[item.path.name, item.originalname].add(variant_of(item))
        if item.path.name == "test_two_owners.py":
            owners[item.originalname].add(str(item.callspec.params["mode"]))
    for (name, function), variants in found.items():
        # Crash points also run on a simulated disk that can lose its power.
        whole = set(WORLDS.get(function, USUAL))
        halved = name == "test_races.py" and request.config.option.markexpr and not FULL_RUN
        met = variants - {("disk", "append"), ("disk", "slot")}
        assert met <= whole, function
        assert len(met) * (2 if halved else 1) == len(whole), function
    if owners:
        # Processes are the filesystem worlds, stores of one process the memory worlds.
        assert owners == {"test_processes": {"slot", "append"}, "test_stores_of_one_process": {"slot", "append"}}
