"""Every reply lost once, on S3: a proxy in front of Ceph's gateway swallows the answer to one changing HTTP request.

Every other conditional request of the kinds of work that make FORMAT, claims, OPEN, SEAL, records and chunks: what the binding does
about each is the same, whatever the work; what the engine does about all of them, ``test_lost_replies`` shows. With
``CHUNKSTORE_FAULTS=full`` every PUT, POST and DELETE of every kind of work, the probe's too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from chunkstore.config import Settings
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from tests.faults.ground import FULL_RUN
from tests.faults.lost_replies import WORKS, LossGround, LostReplies, Told, Work
from tests.support.servers.faultproxy import FaultProxy, Request, Rule
from tests.support.servers.s3server import S3Server

pytestmark = pytest.mark.proof

_SHARE = {"append", "first-open", "open-over-a-dead-claim"}
CHOSEN = [work for work in WORKS if FULL_RUN or work.name in _SHARE]


def is_changing(request: Request) -> bool:
    if FULL_RUN:
        return request.method in ("PUT", "POST", "DELETE")
    return "if-none-match" in request.headers and "/tmp/" not in request.target


class S3Ground(LossGround):
    """One bucket; processes reach it through the proxy, the witness goes past it."""

    def __init__(self, server: S3Server) -> None:
        self.proxy = FaultProxy(server.port)
        bucket = server.make_bucket()
        self._root = server.root(bucket, port=self.proxy.port)
        self._direct = server.root(bucket)
        self._watched_from = 0
        self._rule: Rule | None = None

    def storage(self) -> ChunkStorage:
        return open_storage(self._root, Settings(io_workers=4))

    def direct(self) -> ChunkStorage:
        return open_storage(self._direct, Settings(io_workers=4))

    def watch(self) -> None:
        self._watched_from = len(self.proxy.requests)

    def _changing(self) -> list[Request]:
        return [request for request in self.proxy.requests[self._watched_from :] if is_changing(request)]

    def trace(self) -> list[str]:
        return [f"{request.method} {request.target}" for request in self._changing()]

    def lose(self, number: int) -> None:
        self.watch()
        # The request under question has been noted already.
        self._rule = self.proxy.lose_reply(lambda request: is_changing(request) and len(self._changing()) == number + 1)

    def heal(self) -> bool:
        fired = self._rule is not None and self._rule.fired == 1
        self._rule = None
        self.proxy.heal()
        return fired


class TestS3(LostReplies):
    stride = 1 if FULL_RUN else 3

    @pytest.fixture
    def ground(self, rgw: S3Server) -> Iterator[LossGround]:
        ground = S3Ground(rgw)
        yield ground
        ground.proxy.close()

    def allowed(self, work: Work, request: str) -> tuple[Told, ...]:
        # Frozen bytes are sent again until the server has decided: nobody is ever left in doubt by one lost answer.
        return ("acknowledged",)

    @pytest.mark.parametrize("kind", CHOSEN, ids=lambda kind: kind.name)
    def test_every_reply_is_lost_once(
        self, ground: LossGround, kind: Work, record_property: Callable[[str, object], None]
    ) -> None:
        super().test_every_reply_is_lost_once(ground, kind, record_property)
