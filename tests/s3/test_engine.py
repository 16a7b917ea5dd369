"""A share of the engine's own tests, unchanged, on S3, over Ceph's gateway. (All of them run in the worlds of ``tests/engine``.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.engine import test_asked_appends, test_basic, test_fencing, test_recovery
from tests.support.servers.s3server import S3Server
from tests.support.worlds import RemoteWorld, World

pytestmark = pytest.mark.timeout(900)

# Long, and about rows more than about the storage, or refused before it is asked.
_LONG = {
    test_basic.test_bad_attributes_are_refused_and_harm_nobody.__name__,
    test_fencing.test_take_overs_under_load_lose_and_double_nothing.__name__,
    test_fencing.test_whatever_the_deposed_owner_is_asked_first_it_says_so.__name__,
}


@pytest.fixture
def world(rgw: S3Server, tmp_path: Path) -> Iterator[World]:
    """A fresh world on the gateway."""
    made = RemoteWorld("s3", rgw.root(rgw.make_bucket(), "world"), tmp_path)
    try:
        yield made
    finally:
        made.close()


def suite(module: ModuleType) -> type:
    """A module's tests of worlds as a class, in the world of this file."""
    tests = {
        name: staticmethod(function)
        for name, function in vars(module).items()
        if name.startswith("test_") and name not in _LONG
    }
    return type(module.__name__, (), tests)


TestBasic = suite(test_basic)
TestFencing = suite(test_fencing)


# All eight combinations run in the worlds of tests/engine. Here each value is met once.
@pytest.mark.proof
@pytest.mark.parametrize(("cache", "end", "snapshots"), [("lost", "crashed", 0), ("kept", "closed", 1)])
def test_everything_is_there_again(world: World, cache: str, end: str, snapshots: int) -> None:
    test_recovery.test_everything_is_there_again(world, cache, end, snapshots)


@pytest.mark.proof
def test_appends_that_are_asked_for(world: World) -> None:
    test_asked_appends.test_an_append_happens_once_and_refusals_are_the_owners(world)
