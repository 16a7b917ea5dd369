"""A share of the flipped bits; ``python -m tests.faults.rot`` flips ten thousand."""

from __future__ import annotations

import pytest

from tests.faults.rot import run


@pytest.mark.proof
def test_every_flipped_bit_is_found_by_every_read_that_touches_its_block() -> None:
    done = run(200, 1)
    assert done["flips"] == 200 and done["reads that touch"] > 2000 and done["reads beside"] > 1000
