"""A replica ends in time, gives everything back, and leaves a forked child alone.

Before: an open that failed kept its cache and its threads; ``refresh`` and ``wait`` took as long as the storage did; ``close`` pulled the
state away from under who was catching up, and what that had made was never closed; a forked child waited for a lock for ever.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from chunkstore.errors import Closed, DeadlineExceeded, StorageUnavailable
from chunkstore.metadata.lmdb import environment
from chunkstore.storage import ChunkStorage
from chunkstore_journal import recovery
from chunkstore_journal.follower import Follower
from tests.regressions.test_replica_rebuilds import sleeper
from tests.support.data import refused
from tests.support.forwarding import Hooked
from tests.support.hooked import Remote, in_thread, wait_for
from tests.support.worlds import World


def environments() -> dict[str, int]:
    return {path: found.count for path, found in environment._environments.items()}


def test_an_open_that_fails_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.open() as owner:  # closed before threads are counted: its keeper begins one when it likes
        owner.create("s")
    before = environments(), threading.active_count()
    with monkeypatch.context() as patch:
        calls: list[int] = []
        catch_up = Follower.catch_up

        def fail(follower: Follower) -> Any:
            catch_up(follower)
            calls.append(1)
            raise StorageUnavailable("no answer")

        patch.setattr(Follower, "catch_up", fail)
        for _ in range(3):
            refused(StorageUnavailable, world.replica)
    assert len(calls) == 3
    assert environments() == before[0]
    wait_for(lambda: threading.active_count() <= before[1])
    assert world.replica().exists("s")


class Hanging:
    """Looks at claims wait until told to go on."""

    def __init__(self, world: World, kind: type[Hooked]) -> None:
        self.made: list[Hooked] = []
        self.reached, self.go, self.armed = threading.Event(), threading.Event(), False
        self.kind = kind
        self.replica = world.replica(wrap=self.wrap, op_deadline_s=600.0)
        self.ample = self.replica.settings
        self.armed = True

    def hurry(self) -> None:
        """From now on whoever waits gives up soon."""
        self.replica.settings = replace(self.ample, op_deadline_s=0.5)

    def go_on(self) -> None:
        """From now on nobody has to give up."""
        self.replica.settings = self.ample
        self.go.set()

    def wrap(self, inner: ChunkStorage) -> ChunkStorage:
        hooked = self.kind(inner)
        hooked.before = self.before
        self.made.append(hooked)
        return hooked

    def before(self, operation: str, names: tuple[str, ...]) -> None:
        if self.armed and operation == "exists":
            self.reached.set()
            assert self.go.wait(600)


def test_nobody_waits_longer_than_he_said_for_a_storage_that_hangs(world: World) -> None:
    store = world.open()
    store.create("s")
    hanging = Hanging(world, Remote)
    replica = hanging.replica
    store.append("s", b"123")
    began_s = time.monotonic()
    assert replica.wait("s", 0, 0.1).length == 0
    assert time.monotonic() - began_s < 60, "not by the deadline of an operation"
    hanging.hurry()
    for _ in range(2):  # one is at it, the other waits for that
        began_s = time.monotonic()
        refused(DeadlineExceeded, replica.refresh)
        assert time.monotonic() - began_s < 60
    replica.settings = hanging.ample
    assert replica.read("s", 0, 9) == b""
    hanging.go_on()
    replica.refresh()
    assert replica.read("s", 0, 9) == b"123"


@pytest.mark.parametrize("kind", [Hooked, Remote])
@pytest.mark.parametrize("patient", [False, True])
def test_closing_waits_for_who_catches_up(world: World, kind: type[Hooked], patient: bool) -> None:
    store = world.open()
    store.create("s")
    before = environments()
    hanging = Hanging(world, kind)
    replica = hanging.replica
    store.append("s", b"123")
    thread, found = in_thread(replica.refresh)
    assert hanging.reached.wait(60)
    if patient:
        threading.Timer(0.1, hanging.go.set).start()
    else:
        hanging.hurry()
    began_s = time.monotonic()
    replica.close()
    assert time.monotonic() - began_s < 60
    refused(Closed, replica.refresh, lambda: replica.read("s", 0, 9))
    hanging.go.set()
    thread.join(60)
    assert isinstance(found[0], (int, Closed, DeadlineExceeded))
    wait_for(lambda: environments() == before)
    wait_for(lambda: replica._released)


def test_closing_during_a_rebuild_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = sleeper(world)
    load = vars(recovery)["load_snapshot"]
    reached, go = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> Any:
        reached.set()
        assert go.wait(60)
        return load(*arguments, **named)

    monkeypatch.setattr(recovery, "load_snapshot", slow)
    thread, _ = in_thread(replica.refresh)
    assert reached.wait(60)
    closing, _ = in_thread(replica.close)
    time.sleep(0.05)
    go.set()
    for waiting in (thread, closing):
        waiting.join(60)
        assert not waiting.is_alive()
    assert not [path for path in environments() if "/replica-" in path and str(world.tmp_path) in path]
