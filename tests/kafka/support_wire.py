"""A client of ``KafkaServer``, packed by hand from FORMAT_WIRE.md: what a broker's plug-in sends."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import pack, unpack, unpack_from
from typing import NamedTuple, Self

from chunkstore.checksum import crc32c
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.kafka.model import RemoteLogSegmentMetadata, TopicIdPartition
from chunkstore.kafka.server import KafkaServer, listening
from chunkstore.kafka.wire import Operation, Status, encode_segment

WAIT_S = 60.0


def place(partition: TopicIdPartition) -> bytes:
    """A ``partition``."""
    topic = partition.topic.encode()
    return partition.topic_id + pack(">H", len(topic)) + topic + pack(">i", partition.partition)


def update_of(item: RemoteLogSegmentMetadata, state: int, custom: bytes | None = None) -> bytes:
    """An ``update``."""
    identity = item.remote_log_segment_id
    more = pack(">i", -1) if custom is None else pack(">i", len(custom)) + custom
    return place(identity.topic_id_partition) + identity.id + pack(">q", 9) + more + pack(">bi", state, 1)


class Serving(NamedTuple):
    """A server, and where it listens."""

    server: KafkaServer
    address: str


@contextmanager
def serving_at(
    store: ChunkedSegmentStorage, socket: str | None = None, listen: str | None = None, token: bytes | None = None
) -> Iterator[Serving]:
    """A server at this address."""
    with listening(socket, listen, token) as listener, KafkaServer(store, listener) as server:
        yield Serving(server, listener.address)


class Client:
    """One connection. Answers are a status and the results of all its frames."""

    def __init__(self, address: str, token: bytes | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket(socket.AF_UNIX if host == "unix" else socket.AF_INET)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(port if host == "unix" else (host, int(port)))
        self._file = self.socket.makefile("rb")
        greeting = self.receive()
        assert greeting[:5] == b"CSKP\1" and len(greeting) == 37
        self.send(bytes(32) if token is None else hmac.digest(token, greeting[5:], "sha256"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, body: bytes) -> None:
        self.socket.sendall(pack(">II", len(body), crc32c(body)) + body)

    def receive(self) -> bytes:
        """The body of a frame; empty where the server has closed the connection."""
        try:
            head = self._file.read(8)
        except ConnectionError:
            head = b""
        if not head:
            return b""
        size, crc = unpack(">II", head)
        body = self._file.read(size)
        assert crc32c(body) == crc
        return body

    def ask(
        self, operation: int, arguments: bytes = b"", *, wait_ms: int = 60_000, data: Sequence[bytes] = ()
    ) -> tuple[Status, list[bytes]]:
        for body in (pack(">BQIB", 1, 77, wait_ms, operation) + arguments, *data):
            self.send(body)
        status, found = Status.MORE, []
        while status == Status.MORE:
            body = self.receive()
            version, answered, status = unpack_from(">BQB", body)
            assert (version, answered) == (1, 77)
            found.append(body[10:])
        return Status(status), found

    def ok(self, operation: Operation, arguments: bytes = b"") -> bytes:
        """The result, whose pieces are put together."""
        status, found = self.ask(operation, arguments)
        assert status == Status.OK, found
        return b"".join(found)

    def copy(
        self, item: RemoteLogSegmentMetadata, log: bytes, indexes: Sequence[bytes | None], *, piece: int = 1 << 20
    ) -> tuple[Status, list[bytes]]:
        lengths = pack(">6q", len(log), *(-1 if index is None else len(index) for index in indexes))
        data = log + b"".join(index or b"" for index in indexes)
        pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
        return self.ask(Operation.COPY, encode_segment(item) + lengths, data=pieces)

    def fetch(self, item: RemoteLogSegmentMetadata, position: int, size: int) -> tuple[Status, list[bytes]]:
        return self.ask(Operation.FETCH, encode_segment(item) + pack(">qi", position, size))
