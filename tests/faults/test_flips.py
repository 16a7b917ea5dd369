"""A share of the bits that ``python -m tests.faults.flips`` flips in the metadata cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.flips import KINDS, run
from tests.faults.ground import FULL_RUN

pytestmark = pytest.mark.proof

FLIPS = 1_000 if FULL_RUN else 50


@pytest.mark.parametrize("kind", KINDS)
def test_bits_flip_in_the_cache(kind: str, folder: Path, record_property: Callable[[str, object], None]) -> None:
    counts, wrong = run(kind, range(FLIPS), 20_26, folder)
    assert wrong == []
    assert counts["flips"] == FLIPS
    if kind != "live":
        assert counts["the cache was given up"] > FLIPS // 2
    record_property("flips", FLIPS)
