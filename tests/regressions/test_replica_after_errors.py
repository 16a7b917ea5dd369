"""A replica whose refresh fails goes on showing what it knew, and refreshes once the storage answers again.

Before, any error in the middle of following, a lost connection for example, threw the replica's state away: reads raised
``Closed``, and so did every later refresh.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Damaged, StorageUnavailable
from chunkstore.replica import Replica
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


@pytest.mark.parametrize("ground", [("memory", "slot"), ("filesystem", "slot")], ids="-".join, indirect=True)
def test_a_replica_that_lost_its_state_says_why_until_it_has_another(ground: Ground) -> None:
    """Damage in what it follows: its state is thrown away, because it may be at fault, and there is nothing to show. (In an
    APPEND file a broken record at the end is one that is being written.)"""
    _, replica, _ = following(ground)
    name = max(item for item in ground.world.objects("default/j/") if item.endswith((".s", ".a")))
    good = ground.world.content(name)
    bad = bytearray(good)
    bad[-20 if name.endswith(".s") else len(good) // 2] ^= 1
    ground.world.overwrite(name, bytes(bad))
    with pytest.raises(Damaged):
        replica.refresh()
    try:
        assert replica.read("log", 0, 10) == b"old "
    except Damaged as error:
        assert error.object == name
    ground.world.overwrite(name, good)
    replica.refresh()
    assert replica.read("log", 0, 10) == b"old new"
