"""What the tests of the S3 binding share: storages and proxies in front of servers, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore_bindings.s3.options import S3Options, parse_root
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.support.allowance import allow
from tests.support.servers.answering import Answer, Answering
from tests.support.servers.faultproxy import FaultProxy, Request
from tests.support.servers.running import running
from tests.support.servers.s3server import S3Server

Connect = Callable[..., S3ChunkStorage]
Proxied = Callable[[S3Server], FaultProxy]
Answers = Callable[..., Answering]
At = Callable[..., S3ChunkStorage]
Serve = Callable[..., S3ChunkStorage]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    allow(items, Path(__file__).parent, 900)


def is_conditional(request: Request) -> bool:
    return "if-none-match" in request.headers


def begins_upload(request: Request) -> bool:
    return request.method == "POST" and "uploads" in request.target


def is_part(request: Request) -> bool:
    return request.method == "PUT" and "partNumber" in request.target


def is_completion(request: Request) -> bool:
    return request.method == "POST" and "uploadId" in request.target


@pytest.fixture(params=[pytest.param("moto", marks=pytest.mark.proof), "rgw"])
def server(request: pytest.FixtureRequest) -> S3Server:
    """The gateway; ``make proofs`` asks moto, too."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, S3Server)
    return found


@pytest.fixture
def look_alike(request: pytest.FixtureRequest, s3_environment: None) -> Iterator[S3Server]:
    """The look-alike that the test's parameter names."""
    yield from running("moto", "LookAlike", request.param, module="lookalike")


@pytest.fixture
def connect() -> Iterator[Connect]:
    """``connect(server, proxy=None, **options)``: a storage on a fresh bucket, or on ``bucket=``."""
    opened: list[S3ChunkStorage] = []

    def make(
        server: S3Server, proxy: FaultProxy | None = None, bucket: str | None = None, **options: Any
    ) -> S3ChunkStorage:
        chosen = bucket if bucket is not None else server.make_bucket()
        root = server.root(chosen, port=None if proxy is None else proxy.port, **options)
        opened.append(S3ChunkStorage(parse_root(root)))
        return opened[-1]

    yield make
    for storage in opened:
        storage.close()


@pytest.fixture
def answering(s3_environment: None) -> Iterator[Answers]:
    """``answering(answer, ...)``: an ``Answering`` server that says this (bytes, or what makes them of the request's line)."""
    made: list[Answering] = []

    def make(answer: Answer | Callable[[str], Answer], **more: Any) -> Answering:
        made.append(Answering(answer if callable(answer) else lambda _: answer, **more))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def at(s3_environment: None) -> Iterator[At]:
    """``at(server, scheme="http", **options)``: a storage that tries twice. Patient, because most servers answer at once; a test that
    waits for the end says how long."""
    made: list[S3ChunkStorage] = []

    def make(server: Answering | S3Server, **options: Any) -> S3ChunkStorage:
        scheme = options.pop("scheme", "http")
        url = f"{scheme}://127.0.0.1:{server.port}"
        chosen = {"tries_max": 2, "connect_timeout_s": 20, "read_timeout_s": 20, "deadline_s": 60, **options}
        made.append(S3ChunkStorage(S3Options(bucket="bucket", endpoint_url=url, **chosen)))
        return made[-1]

    yield make
    for storage in made:
        storage.close()


@pytest.fixture
def serve(at: At, answering: Answers) -> Serve:
    """``serve(answer, **options)``: a storage on a server that answers so."""
    return lambda answer, **options: at(answering(answer), **options)


@pytest.fixture
def proxied() -> Iterator[Proxied]:
    """``proxied(server)``: a fault proxy in front of it."""
    proxies: list[FaultProxy] = []

    def make(server: S3Server) -> FaultProxy:
        proxies.append(FaultProxy(server.port))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()
