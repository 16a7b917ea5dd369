"""A share of the engine's own tests, unchanged, over a real Hadoop. (All of them run in the worlds of ``tests/engine``.)"""

from __future__ import annotations

import pytest

from tests.engine import test_basic, test_recovery
from tests.support.worlds import World

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

# Refused before a storage is asked.
_NOT_ASKED = test_basic.test_bad_attributes_are_refused_and_harm_nobody.__name__


TestBasic = type(
    "TestBasic",
    (),
    {
        name: staticmethod(function)
        for name, function in vars(test_basic).items()
        if name.startswith("test_") and name != _NOT_ASKED
    },
)


# All eight combinations run in the worlds of tests/engine.
@pytest.mark.parametrize(("cache", "end", "snapshots"), [("lost", "crashed", 1)])
def test_everything_is_there_again(world: World, cache: str, end: str, snapshots: int) -> None:
    test_recovery.test_everything_is_there_again(world, cache, end, snapshots)


def test_bytes_without_a_record_are_cut_off(world: World) -> None:
    test_recovery.test_bytes_without_a_record_are_cut_off(world)
