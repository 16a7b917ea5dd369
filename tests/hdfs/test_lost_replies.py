"""Every reply of HDFS lost once: RENAME, CREATE, DELETE, MKDIRS (protocol 2.3, #46).

Over the model: every third changing request of an append, and of the conditional ones (the renames that make FORMAT,
claims, OPEN, SEAL and records) of some others; with ``CHUNKSTORE_FAULTS=full`` every changing request of all. Over the real
servers: every conditional request of a commit; in a full run of whatever decides.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from chunkstore.config import Settings
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy
from tests.faults.ground import FULL_RUN
from tests.faults.lost_replies import WORKS, LossGround, LostReplies, Told, Work
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.hdfs_wire import HdfsWire, changes, op_of, target_of
from tests.support.servers.faultproxy import Request
from tests.support.servers.hdfs import hdfs_or_end

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

_numbers = itertools.count(1)
QUICK = RetryPolicy(tries_max=6, budget_s=120.0, pause_s_first=0.005, pause_s_max=0.05)
CONDITIONAL = ("/FORMAT", "/epoch/", "/j/")


class WireGround(LossGround):
    """Processes reach the servers through one pair of proxies; ``direct`` goes around them."""

    def __init__(self, wire: HdfsWire, port: int, path: str, *, conditional_only: bool) -> None:
        self._wire = wire
        self._port = port
        self._path = path
        self._conditional_only = conditional_only
        self._lock = threading.Lock()
        self._seen: list[str] = []
        self._watching = False
        self._due: int | None = None
        self._lost = False

    def settings(self) -> Settings:
        # The hint is written at opening and closing; one written in between would count as a request of the work.
        return replace(super().settings(), lease_s=3600.0)

    def storage(self) -> ChunkStorage:
        return RetryingChunkStorage(self._wire.storage(self._path, self.settings()), QUICK)

    def direct(self) -> ChunkStorage:
        return open_storage(f"hdfs://127.0.0.1:{self._port}{self._path}", self.settings())

    def _counts(self, request: Request) -> bool:
        if not changes(request):
            return False
        if not self._conditional_only:
            return True
        name = target_of(request)
        return op_of(request) == "RENAME" and any(part in name for part in CONDITIONAL) and "/j/VOIDED" not in name

    def _is_due(self, request: Request) -> bool:
        with self._lock:
            if not self._watching or not self._counts(request):
                return False
            self._seen.append(f"{op_of(request)} {target_of(request)}")
            if self._due != len(self._seen) - 1:
                return False
            self._lost = True
            return True

    def watch(self) -> None:
        self.lose(-1)

    def trace(self) -> list[str]:
        with self._lock:
            return list(self._seen)

    def lose(self, number: int) -> None:
        self._wire.heal()
        with self._lock:
            self._seen, self._watching, self._due, self._lost = [], True, number, False
        for proxy in (self._wire.namenode, self._wire.datanode):
            proxy.lose_reply(self._is_due)

    def heal(self) -> bool:
        with self._lock:
            self._watching = False
            lost = self._lost
        self._wire.heal()
        return lost


def plain_test(
    self: LostReplies, ground: LossGround, kind: Work, record_property: Callable[[str, object], None]
) -> None:
    """The suite's test, for the works that the class names."""
    LostReplies.test_every_reply_is_lost_once(self, ground, kind, record_property)


def of(*names: str) -> tuple[Work, ...]:
    return tuple(work for work in WORKS if work.name in names)


SHORT = of("append")
# What the real servers are asked below, and schedule 46 asks of the model, is not asked here once more.
OTHERS = of("roll")
DECIDING = tuple(work for work in WORKS if "open" in work.name or work.name == "roll")


class Acknowledged(LostReplies):
    """HDFS answers what became of every request, so nobody has to be told that it is unknown."""

    def allowed(self, work: Work, request: str) -> tuple[Told, ...]:
        return ("acknowledged",)


@pytest.mark.parametrize("kind", WORKS if FULL_RUN else [*SHORT, *OTHERS], ids=lambda kind: kind.name)
class TestModel(Acknowledged):
    stride = 1 if FULL_RUN else 5
    test_every_reply_is_lost_once = plain_test

    @pytest.fixture
    def ground(self, kind: Work) -> Iterator[LossGround]:
        conditional_only = kind not in SHORT and not FULL_RUN
        with FakeWebHdfs() as fake, HdfsWire(fake.port, fake.datanode_port) as wire:
            yield WireGround(wire, fake.port, "/lost", conditional_only=conditional_only)


REAL = of("commit")


@pytest.mark.parametrize("kind", [*of("append"), *DECIDING] if FULL_RUN else REAL, ids=lambda kind: kind.name)
class TestRealServers(Acknowledged):
    test_every_reply_is_lost_once = plain_test

    @pytest.fixture
    def ground(self) -> Iterator[LossGround]:
        cluster = hdfs_or_end()
        with HdfsWire(cluster.port, cluster.datanode_port) as wire:
            yield WireGround(wire, cluster.port, f"/lost-{next(_numbers)}", conditional_only=True)
