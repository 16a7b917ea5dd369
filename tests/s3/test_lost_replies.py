"""Every reply to a conditional request lost once, between S3 as production opens it and a server: the suite of ``tests/faults``.

Conditional are the requests that make FORMAT, claims, OPEN, SEAL, records and chunks. With ``CHUNKSTORE_FAULTS=full`` all
requests that change something lose their reply, in all kinds of work, on both servers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from tests.faults.ground import FULL_RUN
from tests.faults.lost_replies import WORKS, LossGround, LostReplies, Told, Work
from tests.support.servers.faultproxy import FaultProxy, Request
from tests.support.servers.s3server import S3Server

CHANGING = ("PUT", "POST", "DELETE")


class S3Ground(LossGround):
    """A fresh bucket; the proxy counts the requests that change something, and loses the reply to one of them."""

    def __init__(self, server: S3Server) -> None:
        self.proxy = FaultProxy(server.port)
        bucket = server.make_bucket()
        self.near = server.root(bucket, "lost", port=self.proxy.port)
        self.direct_root = server.root(bucket, "lost")
        self._lock = threading.Lock()
        self._seen: list[str] | None = None
        self._lose: int | None = None
        self._lost = False
        # One rule for all: it is asked about every request, and so sees them all.
        self.proxy.lose_reply(self._is_due, times=1 << 30)

    def _counts(self, request: Request) -> bool:
        return request.method in CHANGING if FULL_RUN else "if-none-match" in request.headers

    def _is_due(self, request: Request) -> bool:
        with self._lock:
            if self._seen is None or not self._counts(request):
                return False
            self._seen.append(f"{request.method} {request.target}")
            due = self._lose == len(self._seen) - 1
            self._lost = self._lost or due
            return due

    def storage(self) -> ChunkStorage:
        return open_storage(self.near, self.settings())

    def direct(self) -> ChunkStorage:
        return open_storage(self.direct_root, self.settings())

    def watch(self) -> None:
        with self._lock:
            self._seen, self._lose, self._lost = [], None, False

    def trace(self) -> list[str]:
        with self._lock:
            return list(self._seen or ())

    def lose(self, number: int) -> None:
        with self._lock:
            self._seen, self._lose, self._lost = [], number, False

    def heal(self) -> bool:
        with self._lock:
            self._seen = None
            return self._lost


class OverS3(LostReplies):
    @pytest.fixture
    def ground(self, server: S3Server) -> Iterator[LossGround]:
        ground = S3Ground(server)
        yield ground
        ground.proxy.close()

    def allowed(self, work: Work, request: str) -> tuple[Told, ...]:
        if "/tmp/" in request:
            # The probe of a new container believes what it is told, and gives up.
            return ("acknowledged", "did not happen")
        # The binding knows what to do about a reply that was lost.
        return ("acknowledged",)


def plain_test(
    self: LostReplies, ground: LossGround, kind: Work, record_property: Callable[[str, object], None]
) -> None:
    """The suite's test, for the works that the class names."""
    LostReplies.test_every_reply_is_lost_once(self, ground, kind, record_property)


def of(*names: str) -> tuple[Work, ...]:
    return WORKS if FULL_RUN else tuple(work for work in WORKS if work.name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    of("append", "commit", "snapshot", "roll", "open-beside"),
    ids=lambda kind: kind.name,
)
class TestMoto(OverS3):
    test_every_reply_is_lost_once = plain_test

    @pytest.fixture
    def server(self, moto: S3Server) -> S3Server:
        return moto


@pytest.mark.slow
@pytest.mark.parametrize("kind", of("append", "open-over-a-dead-claim"), ids=lambda kind: kind.name)
class TestGateway(OverS3):
    test_every_reply_is_lost_once = plain_test

    @pytest.fixture
    def server(self, rgw: S3Server) -> S3Server:
        return rgw
