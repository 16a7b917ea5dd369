"""A share of the engine's own tests, unchanged, over a real Hadoop. (All of them run in the four worlds of ``tests/engine``.)

With ``CHUNKSTORE_FAULTS=full`` the share is larger.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.engine import (
    test_asking,
    test_basic,
    test_concat,
    test_recovery,
    test_replica,
    test_rollover,
    test_tables,
    test_truncate,
    test_upkeep,
)
from tests.faults.ground import FULL_RUN
from tests.support.worlds import World

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


# Refused before a storage is asked.
_NOT_ASKED = {test_basic.test_bad_attributes_are_refused_and_harm_nobody.__name__}


def suite(module: ModuleType, *names: str) -> type:
    """Functions of a module (default: all that ask the storage, in a full run: all) as a class of tests, in the world of this folder."""
    given = [name for name in vars(module) if name.startswith("test_")]
    chosen = [name for name in given if FULL_RUN or (name in names if names else name not in _NOT_ASKED)]
    tests = {name: staticmethod(getattr(module, name)) for name in chosen}
    return type(module.__name__, (), tests)


TestAsking = suite(
    test_asking,
    test_asking.test_a_commit_of_a_sessions_chunks_happens_once_and_is_seen.__name__,
    test_asking.test_what_a_dead_owner_left_the_next_one_carries_out.__name__,
    test_asking.test_hostile_boxes_harm_nobody.__name__,
)
TestBasic = suite(test_basic)
# Long, and about readers more than about the storage.
_LONG = {
    test_replica.test_during_heavy_writes_it_sees_prefixes_only.__name__,
    test_replica.test_several_replicas_with_caches_of_their_own.__name__,
    test_replica.test_over_take_overs_snapshots_and_collections.__name__,
    test_replica.test_a_read_says_what_is_wrong_in_an_older_state.__name__,
}
TestReplica = suite(test_replica, *(name for name in vars(test_replica) if name not in _LONG))
TestRecovery = suite(test_recovery, test_recovery.test_bytes_without_a_record_are_cut_off.__name__)


# All eight combinations run in the worlds of tests/engine.
@pytest.mark.parametrize(("cache", "end", "snapshots"), [("lost", "crashed", 1)])
def test_everything_is_there_again(world: World, cache: str, end: str, snapshots: int) -> None:
    test_recovery.test_everything_is_there_again(world, cache, end, snapshots)


if FULL_RUN:
    TestConcat = suite(test_concat)
    TestRollover = suite(test_rollover)
    TestTables = suite(test_tables)
    TestTruncate = suite(test_truncate)
    TestUpkeep = suite(test_upkeep)
