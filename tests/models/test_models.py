"""The models in small scopes, exhaustively: the protocol as it is violates nothing, and each rule that is broken shows.

``make models`` explores larger scopes.
"""

from __future__ import annotations

import pytest

from tests.models.append import HARMLESS, AppendModel
from tests.models.explorer import explore
from tests.models.scopes import REFUTED, SMALL, Scope


@pytest.mark.parametrize("scope", SMALL, ids=lambda scope: scope.name)
def test_the_protocol_holds(scope: Scope) -> None:
    found = explore(scope.model())
    assert found.violation is None, " > ".join(found.trace)
    assert found.states > 50


@pytest.mark.proof
@pytest.mark.parametrize("scope", REFUTED, ids=lambda scope: f"{scope.name}-{'-'.join(scope.mutants)}")
def test_every_mutant_is_refuted(scope: Scope) -> None:
    found = explore(scope.model())
    assert found.violation is not None, (
        f"{found.states} states and no violation: the model is too weak for {scope.mutants}"
    )
    # The trace is a schedule that a person can follow: each of its steps is one the model has.
    state, model = scope.model().initial(), scope.model()
    reached = {state}
    for name in found.trace:
        reached = {following for state in reached for step, following in model.steps(state) if step == name}
    assert any(model.violation(state) == found.violation for state in reached)


@pytest.mark.parametrize("mutant", HARMLESS)
def test_a_rule_that_is_not_needed_by_itself(mutant: str) -> None:
    assert explore(AppendModel(processes=2, mutants=frozenset((mutant,)))).violation is None


def test_a_sync_that_lies_to_a_replica_shows_a_record_that_a_power_cut_takes() -> None:
    """A known limit. The owner's sync fails, and before it has claimed its next epoch a replica syncs the same file, is told
    that all is well, sees no claim and applies the record; then the power fails. Kernels report a failed write-back once for
    each open file, so a replica that opened the file before the failure hears of it; one that opens it later may not.
    Nothing acknowledged is lost. The replica finds that its hash is not on history, and rebuilds.
    """
    found = explore(AppendModel(processes=2, readers_hear=False))
    assert found.violation == "a replica applied what is not history"
    assert "sync fails" in found.trace
    assert found.trace[-1] == "power cut"
    assert explore(AppendModel(processes=2, readers_hear=False, power=0)).violation is None
