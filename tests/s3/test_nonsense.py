"""Something that answers and is not S3 (a portal that wants a login, a redirection, another protocol): an error of ours, and soon."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from chunkstore.errors import ChunkstoreError, StorageUnavailable
from chunkstore.storage import ChunkHandle, ConcatArgument
from chunkstore_bindings.s3.options import S3Options
from chunkstore_bindings.s3.storage import S3ChunkStorage

MIB = 1 << 20
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def http(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


PORTAL = http("200 OK", b"<html>please log in</html>", "Content-Type: text/html")
NONSENSE = {
    "portal": PORTAL,
    "empty": http("200 OK"),
    "no-content": b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    "not-xml": http("200 OK", b"\x00\xff<<<>>>", "Content-Type: application/xml"),
    "redirected": http("302 Found", b"", "Location: http://127.0.0.1:1/"),
    "redirected-by-code": http("301 Moved", b"<Error><Code>PermanentRedirect</Code></Error>"),
    "not-http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "never-more-than-continue": b"HTTP/1.1 100 Continue\r\n\r\n",
    "bad-chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc",
}


class Answering:
    """A server that says the same to everybody."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=(self._listener.accept()[0],), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head, body = b"", b""
            while b"\r\n\r\n" not in head:
                block = client.recv(1 << 16)
                if not block:
                    return
                head += block
            head, _, body = head.partition(b"\r\n\r\n")
            length = LENGTH.search(head)
            left = int(length[1]) - len(body) if length is not None else 0
            while left > 0:
                left -= len(client.recv(1 << 16)) or left
            client.sendall(self._reply)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def storage(request: pytest.FixtureRequest, s3_environment: None) -> Iterator[S3ChunkStorage]:
    server = Answering(NONSENSE[request.param])
    made = S3ChunkStorage(
        S3Options(
            bucket="bucket",
            endpoint_url=f"http://127.0.0.1:{server.port}",
            tries_max=2,
            read_timeout_s=1,
            deadline_s=5,
            part_size_bytes=5 * MIB,
            multipart_bytes_min=5 * MIB,
        )
    )
    yield made
    made.close()
    server.close()


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
        lambda: storage.observe_server("n"),
        lambda: storage.delete("n"),
    ):
        with contextlib.suppress(ChunkstoreError):
            ask()


@pytest.mark.parametrize("storage", ["portal"], indirect=True)
def test_the_error_says_what_it_may_be(storage: S3ChunkStorage) -> None:
    with pytest.raises(StorageUnavailable, match="is there a proxy in between"):
        storage.put("n", b"x")


def test_a_server_that_is_not_there_is_named(s3_environment: None) -> None:
    storage = S3ChunkStorage(S3Options(bucket="bucket", endpoint_url="http://127.0.0.1:1", tries_max=1))
    with pytest.raises(StorageUnavailable, match=re.escape("http://127.0.0.1:1")):
        storage.exists("n")
    storage.close()
