"""Planted bugs fit the code, change it while they are applied, and leave nothing behind."""

from __future__ import annotations

import pytest

from chunkstore_journal import claim, slots
from chunkstore_journal.append_stream import AppendStream
from tests.simulator.mutants import MUTANTS, Mutant, MutantError, Patch, planted


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_every_mutant_fits_the_code(mutant: Mutant) -> None:
    with planted(mutant):
        pass


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= 40
    assert all(name == mutant.name and mutant.what and mutant.kinds for name, mutant in MUTANTS.items())


def test_a_mutant_is_there_while_it_is_planted_and_gone_afterwards() -> None:
    before = AppendStream._refusal.__code__
    with planted(MUTANTS["nocheck"]):
        assert AppendStream._refusal.__code__.co_code != before.co_code
    assert AppendStream._refusal.__code__ is before


def test_code_that_was_imported_by_name_is_reached_too() -> None:
    put_decided = vars(claim)["put_decided"]
    before = put_decided.__code__
    with planted(MUTANTS["lostwins"]):
        assert put_decided.__code__ is not before
        assert slots.put_decided is put_decided


def test_a_mutant_that_does_not_fit_says_so() -> None:
    gone = Mutant("gone", "x", ("s3-slot",), (Patch("chunkstore_journal.slots:put_decided", "no such line", "pass"),))
    with pytest.raises(MutantError, match="0 times"), planted(gone):
        pass
