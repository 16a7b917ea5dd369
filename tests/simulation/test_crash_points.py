"""A share of the crash points of merges and spills below the port; ``python -m tests.simulator.crash_points`` runs all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chunkstore.errors import Damaged
from tests.simulator.crash_points import GROUNDS, OUTCOMES, VERBS, Ground, cases_of, run_case
from tests.simulator.mutants import MUTANTS, planted

pytestmark = pytest.mark.proof

SHARE = 4


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("ground", GROUNDS, ids="-".join)
def test_it_is_whole_or_not_there(ground: Ground, verb: str, record_property: Callable[[str, object], None]) -> None:
    cases = cases_of(ground, verb)
    assert {case.outcome for case in cases} == set(OUTCOMES[: 5 if ground.storage == "posix" else 4])
    chosen = cases[sum(map(ord, verb)) % 7 :: len(cases) // SHARE]
    assert sum(run_case(case) for case in chosen) >= len(chosen) - 1
    record_property("fault_cases", len(chosen))


def test_a_merge_that_is_not_durable_is_found_out() -> None:
    cases = [case for case in cases_of(Ground("posix", "slot"), "replace") if case.at < 0]
    with planted(MUTANTS["replace-unsynced"]), pytest.raises((AssertionError, Damaged)):
        for case in cases:
            run_case(case)
