"""Something that answers and is not S3 (a portal that wants a login, a redirection, another protocol): an error of ours, and soon."""

from __future__ import annotations

import contextlib
import re

import pytest

from chunkstore.errors import ChunkstoreError, StorageUnavailable
from chunkstore.storage import ChunkHandle, ConcatArgument
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.storage import S3ChunkStorage
from tests.s3.conftest import Serve
from tests.support.servers.answering import http

MIB = 1 << 20


PORTAL = http("200 OK", b"<html>please log in</html>", "Content-Type: text/html")
NOT_FOUND_HERE = http("404 Not Found", b"<html><center>404 Not Found<hr>nginx</center></html>", "Server: nginx")
NONSENSE = {
    "portal": PORTAL,
    "empty": http("200 OK"),
    "no-content": b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    "not-xml": http("200 OK", b"\x00\xff<<<>>>", "Content-Type: application/xml"),
    "not-found-here": NOT_FOUND_HERE,
    "not-found-in-xml": http("404 Not Found", b"<html><body>nothing here</body></html>"),
    "not-found-in-silence": http("404 Not Found"),
    "redirected": http("302 Found", b"", "Location: http://127.0.0.1:1/"),
    "redirected-by-code": http("301 Moved", b"<Error><Code>PermanentRedirect</Code></Error>"),
    "not-http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "never-more-than-continue": b"HTTP/1.1 100 Continue\r\n\r\n",
    "bad-chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
}


@pytest.fixture
def storage(request: pytest.FixtureRequest, serve: Serve) -> S3ChunkStorage:
    return serve(NONSENSE[request.param], part_size_bytes=5 * MIB, multipart_bytes_min=5 * MIB)


@pytest.mark.proof
@pytest.mark.parametrize("storage", NONSENSE, indirect=True)
def test_nothing_is_taken_for_done_and_no_foreign_error_comes_through(storage: S3ChunkStorage) -> None:
    for call in (
        lambda: storage.put("n", b"x"),
        lambda: storage.create("n", b"x"),
        lambda: storage.create("n", bytes(6 * MIB)),
        lambda: storage.create_if_absent("n", b"x"),
        lambda: storage.concat([ConcatArgument("n", 6 * MIB), ConcatArgument("m", 6 * MIB)]),
    ):
        with pytest.raises(ChunkstoreError):
            call()
    for ask in (
        lambda: storage.read(ChunkHandle("n", False), 0, 10),
        lambda: storage.stat("n"),
        lambda: storage.list("n"),
        storage.sweep_uploads,
        storage.check_root,
        lambda: storage.delete("n"),
    ):
        with contextlib.suppress(ChunkstoreError):
            ask()


@pytest.mark.parametrize("storage", ["portal"], indirect=True)
def test_the_error_says_what_it_may_be(storage: S3ChunkStorage) -> None:
    with pytest.raises(StorageUnavailable, match="whether a proxy is in between"):
        storage.put("n", b"x")


def test_a_server_that_is_not_there_is_named(s3_environment: None) -> None:
    storage = S3ChunkStorage(S3Options(bucket="bucket", endpoint_url="http://127.0.0.1:1", tries_max=1))
    with pytest.raises(StorageUnavailable, match=re.escape("http://127.0.0.1:1")):
        storage.exists("n")
    storage.close()
