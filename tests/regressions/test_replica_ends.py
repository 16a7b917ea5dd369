"""A replica ends in time, gives everything back, and leaves a forked child alone.

Before: an open that failed kept its cache and its threads; ``refresh`` and ``wait`` took as long as the storage did; ``close`` pulled the
state away from under who was catching up, and what that had made was never closed; a forked child waited for a lock for ever.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from chunkstore.errors import DeadlineExceeded
from chunkstore.storage import ChunkStorage
from tests.support.data import refused
from tests.support.forwarding import Hooked
from tests.support.hooked import Remote
from tests.support.worlds import World


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
