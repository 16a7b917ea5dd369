"""kill -9 of a process in each phase of an upload in parts and of a compose on the server, and what another process finds then:
everything that was acknowledged, nothing half, and nothing that lands late.

The server is Ceph's gateway; the network holds the request, or its answer, at which the process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.s3.options import parse_root
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.s3.conftest import Proxied, begins_upload, is_completion, is_part
from tests.s3.victims import MIB, append_twice, compose, run, settings
from tests.support.data import problems
from tests.support.servers.faultproxy import FaultProxy, Request, Rule
from tests.support.servers.s3server import S3Server

PARTS: dict[str, Any] = {"part_size_bytes": 5 * MIB, "multipart_bytes_min": 5 * MIB, "concurrency": 1}
pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
NAMES = ["n/00", "n/01"]


def is_second_part(request: Request) -> bool:
    return is_part(request) and "partNumber=2" in request.target


PHASES: dict[str, Callable[[FaultProxy], Rule]] = {
    "before-it-begins": lambda proxy: proxy.hold(begins_upload),
    "begun": lambda proxy: proxy.hold_reply(begins_upload),
    "between-parts": lambda proxy: proxy.hold(is_second_part),
    "before-completion": lambda proxy: proxy.hold(is_completion),
    "completed": lambda proxy: proxy.hold_reply(is_completion),
}


def kill_at(rule: Rule, work: object, *arguments: object) -> None:
    """Let a process do the work, and kill -9 it where the rule holds."""
    process = run(work, *arguments)
    try:
        assert rule.hit.wait(120), f"never got there ({process.exitcode})"
    finally:
        process.kill()
        process.join(120)


@pytest.fixture(scope="module")
def container(rgw: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A bucket with a segment, and the folder for the caches. What all the kills left behind is checked at the end."""
    bucket, folder = rgw.make_bucket(), str(tmp_path_factory.mktemp("caches"))
    with chunkstore.open(rgw.root(bucket), settings=settings(folder)) as store:
        store.create("s")
    yield bucket, folder
    with chunkstore.open(rgw.root(bucket), settings=settings(folder)) as store:
        assert problems(store.check("deep")) == []


@pytest.mark.parametrize("phase", PHASES)
def test_kill_9_in_an_upload_in_parts(
    rgw: S3Server, proxied: Proxied, container: tuple[str, str], tmp_path: Path, phase: str
) -> None:
    bucket, folder = container
    proxy = proxied(rgw)
    with chunkstore.open_replica(rgw.root(bucket), settings=settings(str(tmp_path))) as replica:
        before = replica.read("s", 0, 20 * MIB)
    rule = PHASES[phase](proxy)
    kill_at(rule, append_twice, rgw.root(bucket, port=proxy.port, **PARTS), folder, phase)
    expected = before + f"{phase}: acknowledged.".encode()
    with chunkstore.open(rgw.root(bucket), settings=settings(str(tmp_path))) as heir:
        assert heir.read("s", 0, 20 * MIB) == expected
        # What was on its way lands now.
        rule.release()
        proxy.wait_until_idle()
        heir.append("s", b"more")
        assert heir.read("s", 0, 20 * MIB) == expected + b"more"
        assert problems(heir.check()) == []
    left = len(rgw.client.list_multipart_uploads(Bucket=bucket).get("Uploads", []))
    assert left <= 1
    storage = S3ChunkStorage(parse_root(rgw.root(bucket)))
    assert storage.sweep_uploads(-1) == left
    storage.close()


@pytest.fixture(scope="module")
def sources(rgw: S3Server) -> tuple[str, list[bytes]]:
    """A bucket with two objects that are just large enough to be copied, and what is in them."""
    bucket, contents = rgw.make_bucket(), [name.encode() * (5 * MIB // 4) for name in NAMES]
    for name, content in zip(NAMES, contents, strict=True):
        rgw.client.put_object(Bucket=bucket, Key=name, Body=content)
    return bucket, contents


@pytest.mark.parametrize("phase", PHASES)
def test_kill_9_while_a_chunk_is_composed_on_the_server(
    rgw: S3Server, proxied: Proxied, sources: tuple[str, list[bytes]], phase: str
) -> None:
    bucket, contents = sources
    proxy = proxied(rgw)
    rule = PHASES[phase](proxy)
    kill_at(rule, compose, rgw.root(bucket, port=proxy.port), phase, NAMES, 5 * MIB)
    storage = S3ChunkStorage(parse_root(rgw.root(bucket)))

    def found(name: str) -> bytes:
        return storage.read(ChunkHandle(name, False), 0, 20 * MIB) if storage.exists(name) else b""

    assert found(phase) == (b"".join(contents) if phase == "completed" else b"")
    rule.release()
    proxy.wait_until_idle()
    # What lands late is all of it or nothing; what nobody will complete is swept.
    assert found(phase) in (b"", b"".join(contents))
    assert [found(name) for name in NAMES] == contents
    storage.sweep_uploads(-1)
    assert "Uploads" not in rgw.client.list_multipart_uploads(Bucket=bucket)
    storage.close()
