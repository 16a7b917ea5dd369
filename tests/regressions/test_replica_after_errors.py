"""A replica whose refresh fails goes on showing what it knew, and refreshes once the storage answers again.

Before, any error in the middle of following, a lost connection for example, threw the replica's state away: reads raised
``Closed``, and so did every later refresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import StorageUnavailable
from tests.faults.ground import Ground, Wire
from tests.support.faulty import Outcome
from tests.support.worlds import VARIANT_IDS, VARIANTS


@pytest.fixture(params=VARIANTS, ids=VARIANT_IDS)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    kind, mode = request.param
    made = Ground(kind, mode, tmp_path)
    yield made
    made.close()


def following(ground: Ground) -> tuple[ChunkedSegmentStorage, Replica, Wire]:
    store = ground.open()
    store.create("log")
    store.append("log", b"old ")
    wire = ground.new_wire()
    replica = ground.world.replica(wrap=lambda raw: wire)
    store.append("log", b"new")
    store.create("other")
    return store, replica, wire


@pytest.mark.parametrize("outcome", [Outcome.ERROR_BEFORE, Outcome.OUTAGE])
def test_an_error_at_any_call_while_following_is_survived(ground: Ground, outcome: Outcome) -> None:
    store, replica, wire = following(ground)
    before, known, calls = b"old ", b"old new", 0
    for number in range(50):
        wire.inject(number, outcome)
        failed = False
        try:
            replica.refresh()
        except StorageUnavailable:
            failed = True
        fired = wire.fired
        wire.heal()
        assert replica.read("log", 0, 100) in ((before, known) if failed else (known,))
        # What a sync failed for counts with the next record only: repeated, that sync would prove nothing.
        store.append("log", b"-")
        known += b"-"
        replica.refresh()
        assert replica.read("log", 0, 100) == known
        assert replica.exists("other")
        if not fired:
            break
        calls += 1
        store.append("log", b"+")
        before, known = known, known + b"+"
    assert calls > 3
