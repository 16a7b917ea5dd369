"""What the binding relies on, asked of a real Hadoop and of the model in the same words: both must answer the same."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests

from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.servers.base import wait_until
from tests.support.servers.hdfs import hdfs_or_end


class Cluster:
    """Raw WebHDFS below a folder of its own."""

    def __init__(self, port: int, folder: str) -> None:
        self._base = f"http://127.0.0.1:{port}/webhdfs/v1"
        self.folder = folder
        self._session = requests.Session()

    def ask(self, method: str, path: str, op: str, **params: str | int) -> requests.Response:
        query: dict[str, str | int] = {"op": op, "user.name": getpass.getuser(), "noredirect": "true", **params}
        if "destination" in query:
            query["destination"] = self.folder + str(query["destination"])
        url = self._base + quote(self.folder + path, safe="/")
        return self._session.request(method, url, params=query, timeout=120)

    def place(self, method: str, path: str, op: str, **params: str | int) -> str:
        answer = self.ask(method, path, op, **params)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["Location"])

    def send(self, method: str, path: str, op: str, data: bytes = b"", **params: Any) -> requests.Response:
        """Both steps; the answer that ended it."""
        answer = self.ask(method, path, op, **params)
        if answer.status_code != 200:
            return answer
        return requests.request(method, answer.json()["Location"], data=data, timeout=120)

    def create(self, path: str, data: bytes = b"data", **params: Any) -> requests.Response:
        return self.send("PUT", path, "CREATE", data=data, overwrite="false", **params)

    def read(self, path: str, **params: Any) -> requests.Response:
        return self.send("GET", path, "OPEN", **params)

    def status(self, path: str) -> dict[str, object]:
        return dict(self.ask("GET", path, "GETFILESTATUS").json()["FileStatus"])

    def names(self, path: str, **params: str | int) -> tuple[list[str], int]:
        listing = self.ask("GET", path, "LISTSTATUS_BATCH", **params).json()["DirectoryListing"]
        statuses = listing["partialListing"]["FileStatuses"]["FileStatus"]
        return [status["pathSuffix"] for status in statuses], listing["remainingEntries"]

    def begin(self, path: str, size: int) -> socket.socket:
        """Send the head of a CREATE of ``size`` bytes to the data node, and nothing of the body yet."""
        parts = urlsplit(self.place("PUT", path, "CREATE"))
        assert parts.port is not None
        wire = socket.create_connection((parts.hostname, parts.port), timeout=120)
        head = f"PUT {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
        wire.sendall(head.encode() + b"Content-Type: application/octet-stream\r\n\r\n")
        return wire


def said(answer: requests.Response) -> str:
    """The exception's name, or the status."""
    if answer.status_code < 300:
        return str(answer.status_code)
    return str(answer.json()["RemoteException"]["exception"])


def final(wire: socket.socket) -> bytes:
    """The answer behind the "100 Continue" that data nodes send unasked; the connection is closed then."""
    with wire:
        wire.settimeout(30)
        text = b""
        while block := wire.recv(1000):
            text += block
    return text.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")


@pytest.fixture(params=["real", "model"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "real":
        server = hdfs_or_end()
        yield Cluster(server.port, server.root().rpartition(str(server.port))[2])
        return
    with FakeWebHdfs() as fake:
        yield Cluster(fake.port, "/semantics")


def test_create_is_exclusive(cluster: Cluster) -> None:
    assert said(cluster.create("/a/b/c")) == "201"
    assert said(cluster.create("/a/b/c")) == "FileAlreadyExistsException"
    assert said(cluster.create("/a/b")) == "FileAlreadyExistsException"
    assert said(cluster.create("/a/b/c/d")) == "ParentNotDirectoryException"
    assert cluster.read("/a/b/c").content == b"data"


def test_a_client_that_dies_leaves_a_shorter_file_that_looks_complete(cluster: Cluster) -> None:
    wire = cluster.begin("/torn", 1_000_000)
    wire.sendall(b"x" * 300_000)
    wire.close()

    def is_closed() -> bool:
        blocks = cluster.ask("GET", "/torn", "GET_BLOCK_LOCATIONS").json().get("LocatedBlocks")
        return blocks is not None and not blocks["isUnderConstruction"]

    wait_until(is_closed, deadline_s=240, what="the end of the file")
    length = cluster.status("/torn")["length"]
    assert isinstance(length, int)
    assert length < 1_000_000
    assert len(cluster.read("/torn").content) == length


def test_a_file_being_created_has_its_name_and_no_length(cluster: Cluster) -> None:
    wire = cluster.begin("/a", 10)
    wait_until(
        lambda: cluster.ask("GET", "/a", "GETFILESTATUS").status_code == 200, deadline_s=240, what="the file's name"
    )
    assert cluster.status("/a")["length"] == 0
    assert said(cluster.create("/a")) == "AlreadyBeingCreatedException"
    wire.sendall(b"0123456789")
    assert final(wire).startswith(b"HTTP/1.1 201")
    assert cluster.status("/a")["length"] == 10


def test_rename_without_replacing(cluster: Cluster) -> None:
    def rename(source: str, target: str, option: str = "NONE") -> str:
        return said(cluster.ask("PUT", source, "RENAME", destination=target, renameoptions=option))

    cluster.create("/a", b"a")
    number = cluster.status("/a")["fileId"]
    cluster.create("/b", b"b")
    assert rename("/a", "/b") == "FileAlreadyExistsException"
    assert rename("/none", "/c") == "FileNotFoundException"
    assert rename("/none", "/b") == "FileNotFoundException"
    assert rename("/a", "/new/c") == "FileNotFoundException"
    assert rename("/a", "/b/c") == "ParentNotDirectoryException"
    cluster.ask("PUT", "/folder", "MKDIRS")
    assert rename("/a", "/folder") == "IOException"
    assert rename("/a", "/folder", "OVERWRITE") == "IOException"
    assert rename("/a", "/c") == "200"
    assert cluster.status("/c")["fileId"] == number
    assert rename("/c", "/b", "OVERWRITE") == "200"
    assert cluster.status("/b")["fileId"] == number
    assert cluster.read("/b").content == b"a"
    cluster.create("/a", b"again")
    assert cluster.status("/a")["fileId"] != number


def test_reading_at_the_end_is_an_error(cluster: Cluster) -> None:
    cluster.create("/a", b"0123")
    assert cluster.read("/a", offset=1, length=2).content == b"12"
    assert cluster.read("/a", offset=1, length=(1 << 63) - 2).content == b"123"
    assert said(cluster.read("/a", offset=4)) == "IOException"
    assert said(cluster.read("/a", offset=9)) == "IOException"
    cluster.create("/empty", b"")
    assert cluster.read("/empty", offset=0, length=5).content == b""
    assert said(cluster.read("/empty", offset=5)) == "EOFException"
    assert said(cluster.read("/none")) == "FileNotFoundException"
    cluster.ask("PUT", "/folder", "MKDIRS")
    assert said(cluster.read("/folder")) == "FileNotFoundException"


def test_looking_below_a_file(cluster: Cluster) -> None:
    cluster.create("/a")
    for op in ("GETFILESTATUS", "LISTSTATUS_BATCH"):
        answer = cluster.ask("GET", "/a/b", op)
        # The superuser is told the truth, others that they may not pass.
        assert said(answer) == "FileNotFoundException" or "(is not a directory)" in answer.text
    assert said(cluster.ask("GET", "/none", "GETFILESTATUS")) == "FileNotFoundException"


def test_delete(cluster: Cluster) -> None:
    cluster.create("/f/a")
    assert cluster.ask("DELETE", "/f/none", "DELETE").json() == {"boolean": False}
    assert said(cluster.ask("DELETE", "/f", "DELETE")) == "PathIsNotEmptyDirectoryException"
    assert cluster.ask("DELETE", "/f/a", "DELETE").json() == {"boolean": True}
    assert cluster.ask("DELETE", "/f", "DELETE").json() == {"boolean": True}


def test_create_without_its_folder(cluster: Cluster) -> None:
    assert cluster.create("/none/a", createparent="false").status_code >= 400
    assert said(cluster.ask("GET", "/none", "GETFILESTATUS")) == "FileNotFoundException"
    cluster.ask("PUT", "/made", "MKDIRS")
    assert said(cluster.create("/made/a", createparent="false")) == "201"
