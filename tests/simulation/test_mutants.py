"""Planted bugs fit the code, change it while they are applied, and leave nothing behind."""

from __future__ import annotations

import pytest

from tests.simulator.mutants import MUTANTS, Mutant, MutantError, Patch, planted


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_every_mutant_fits_the_code(mutant: Mutant) -> None:
    with planted(mutant):
        pass


def test_a_mutant_that_does_not_fit_says_so() -> None:
    gone = Mutant("gone", "x", ("s3-slot",), (Patch("chunkstore_journal.slots:put_decided", "no such line", "pass"),))
    with pytest.raises(MutantError, match="0 times"), planted(gone):
        pass
