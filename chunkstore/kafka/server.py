"""``KafkaServer``: lets the plug-in of Kafka's brokers use a container, over a Unix socket or TCP (FORMAT_WIRE.md).

Promises: at most 64 connections, each with a thread and few pieces of 8 MiB; a peer that stalls, or sends what is no frame, loses its
connection and nothing else. For one more the longest idle one is closed. A copy that is cut leaves nothing. An event is durable before it
is answered. Once another owner is seen, calls are answered with RETRY, and ``wait`` raises. Leaves out: encryption, and upkeep.
"""

from __future__ import annotations

import hmac
import logging
import os
import socket as sockets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from itertools import islice
from math import inf
from struct import pack
from typing import Any, Final, NamedTuple, Self

from chunkstore import errors, runtime
from chunkstore.codec.kafka.manifest import IndexType
from chunkstore.codec.sources import DataSource
from chunkstore.config import MIB
from chunkstore.deadline import Deadline, until
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.kafka import model, wire
from chunkstore.kafka.metadata import RemoteLogMetadataManager
from chunkstore.kafka.model import require
from chunkstore.kafka.storage import LogSegmentData, RemoteStorageManager
from chunkstore.kafka.wire import Operation, Status

__all__ = ["KafkaServer", "Listener", "listening"]

CONNECTIONS_MAX: Final = 64
_TOKEN_BYTES_MIN: Final = 16
_POLL_S: Final = 0.2
_CLOSE_S: Final = 30.0
_AUTHENTICATION_S: Final = 10.0
_LOG: Final = logging.getLogger("chunkstore.kafka")
_LISTED_MAX: Final = 200
"""Segments in one answer: each is a few hundred bytes, and at most 41 KB."""
_AWAY: Final = (
    errors.StorageUnavailable, errors.DeadlineExceeded, errors.Conflict, errors.StorageFull, errors.NotOwner, errors.OutcomeUnknown,
    errors.Closed,
)  # fmt: skip
_STATUSES: Final = (
    (model.RemoteResourceNotFoundException, Status.NOT_FOUND), (errors.InvalidArgument, Status.INVALID), (_AWAY, Status.RETRY),
    (Exception, Status.FAILED),
)  # fmt: skip


class Listener(NamedTuple):
    """Where a server listens, as "unix:PATH" or "HOST:PORT", and the secret that its clients must know."""

    socket: sockets.socket
    address: str
    token: bytes | None


class KafkaServer:
    """Serves ``store`` inside of a ``with`` block, which leaves it open. The metadata are kept in mode kafka-exact.

    Args:
      store: the owner of the container; one server for it, and for all brokers of a cluster. Copies under way are deleted at the beginning.
      listener: what ``listening`` gave, and closes.
      stall_s: how long a peer may take to send or take one frame, in seconds.

    Raises at the beginning of the block what ``commit`` of the store raises.
    """

    def __init__(self, store: ChunkedSegmentStorage, listener: Listener, *, stall_s: float = 30.0) -> None:
        self._store, self._listener, self._stall_s = store, listener, stall_s
        self._storage = RemoteStorageManager(store)
        self._metadata = RemoteLogMetadataManager(store, "kafka-exact")
        # A restored container counts on from where it was: what it lists is another list.
        self._salt = int.from_bytes(runtime.token(8), "big") >> 1
        self._peers: set[_Peer] = set()
        self._closing, self._stopped = runtime.event(), runtime.event()
        self._deposed: errors.NotOwner | None = None

    def __enter__(self) -> Self:
        self._storage.delete_copies_under_way()
        self._listener.socket.settimeout(_POLL_S)
        self._task = runtime.spawn(self._accept, "chunkstore-kafka")
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        deadline = Deadline(_CLOSE_S)
        self._task.join(deadline.left_s())
        peers = list(self._peers)
        for peer in peers:
            peer.shut(sockets.SHUT_RD)  # what is under way is answered
        for peer in peers:
            if peer.task is not None:
                peer.task.join(deadline.left_s())
            peer.shut(sockets.SHUT_RDWR)

    def wait(self, limit_s: float) -> None:
        """Wait so many seconds. Raises ``NotOwner`` as soon as a call has met another owner: end the block, and close the store."""
        self._stopped.wait(limit_s)
        if self._deposed is not None:
            raise self._deposed.copy()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                accepted = self._listener.socket.accept()[0]
            except TimeoutError:
                continue
            except OSError:
                runtime.sleep_s(_POLL_S)  # no descriptor is free
                continue
            peer = _Peer(accepted, self._stall_s, self._closing)
            if len(self._peers) >= CONNECTIONS_MAX:
                self._make_room()
            if len(self._peers) < CONNECTIONS_MAX:
                self._peers.add(peer)
                peer.task = runtime.spawn_if_possible(partial(self._serve, peer), "chunkstore-kafka-peer")
            if peer.task is None:
                self._peers.discard(peer)
                peer.socket.close()

    def _make_room(self) -> None:
        idlest = min(list(self._peers), key=lambda peer: peer.idle_since_s, default=None)
        if idlest is not None and idlest.task is not None and idlest.idle_since_s < inf:
            _LOG.warning("there are %d connections: the longest idle one is closed", CONNECTIONS_MAX)
            idlest.shut(sockets.SHUT_RD)  # a request that has come meanwhile is answered
            idlest.task.join(_POLL_S)

    def _serve(self, peer: _Peer) -> None:
        try:
            nonce = runtime.token(32)
            peer.send(wire.GREETING + nonce)
            token = self._listener.token
            expected = bytes(32) if token is None else hmac.digest(token, nonce, "sha256")
            if not hmac.compare_digest(peer.receive(len(expected), limit_s=_AUTHENTICATION_S), expected):
                return peer.send(wire.answer_head(0, Status.DENIED) + wire.encode_text("the token is another one"))
            while True:
                peer.rest()
                self._answer(peer, wire.decode_request(peer.receive()))
        except (OSError, errors.Damaged):
            pass  # it is gone, stalls, or is no client
        finally:
            self._peers.discard(peer)
            peer.socket.close()

    def _answer(self, peer: _Peer, request: wire.Request) -> None:
        incoming = _Incoming(peer, request)
        held: bytes | None = None
        try:
            # A copy that is too late ends by itself, and is deleted in this time.
            more_s = _CLOSE_S if request.lengths else 0
            with until(runtime.monotonic_s() + request.wait_ms / 1000 + more_s):
                for result in self._results(request, incoming):
                    if held is not None:
                        peer.send(wire.answer_head(request.id, Status.MORE) + held)
                    held = result
            status = Status.OK
        except OSError:
            raise  # of the connection: those of the storage have other classes
        except Exception as error:  # noqa: BLE001  (a client is answered in any case)
            status, held = self._refusal(error)
        incoming.drain()
        peer.send(wire.answer_head(request.id, status) + (held or b""))

    def _refusal(self, error: Exception) -> tuple[Status, bytes]:
        if isinstance(error, errors.NotOwner):
            self._deposed = error
            self._stopped.set()
        text = str(error)
        if not isinstance(error, errors.ChunkstoreError):
            _LOG.error("a request failed", exc_info=error)
            text = f"a defect of the server, which has logged it: {type(error).__name__}"
        return next(status for kinds, status in _STATUSES if isinstance(error, kinds)), wire.encode_text(text)

    def _results(self, request: wire.Request, incoming: _Incoming) -> Iterable[bytes]:
        metadata, storage, arguments = self._metadata, self._storage, request.arguments()
        match (request.operation, *arguments):
            case (Operation.COPY, item):
                return [wire.encode_bytes(storage.copy_log_segment_data(item, LogSegmentData(*incoming.files())))]
            case (Operation.FETCH, item, position, count):
                return [self._fetched(item, position, count)]
            case (Operation.FETCH_INDEX, item, kind):
                stream = storage.fetch_index(item, dict(enumerate(IndexType)).get(kind, ""))
                return iter(lambda: stream.read(MIB), b"")
            case (Operation.DELETE, item):
                storage.delete_log_segment_data(item)
            case (Operation.ADD, item):
                metadata.add_remote_log_segment_metadata(item).result()
            case (Operation.UPDATE, update):
                metadata.update_remote_log_segment_metadata(update).result()
            case (Operation.PARTITION_DELETE, *fields):
                metadata.put_remote_partition_delete_metadata(model.RemotePartitionDeleteMetadata(*fields)).result()
            case (Operation.LOOKUP, *place):
                return [_found(metadata.remote_log_segment_metadata(*place))]
            case (Operation.NEXT_TXN, *place):
                return [_found(metadata.next_segment_with_txn_index(*place))]
            case (Operation.HIGHEST, partition, epoch):
                highest = metadata.highest_offset_for_epoch(partition, epoch)
                return [b"\0" if highest is None else pack(">bq", 1, highest)]
            case (Operation.LIST, partition, epoch, known):
                return self._listed(partition, None if epoch == -1 else epoch, known)
            case (Operation.SIZE, partition, epoch):
                return [pack(">q", metadata.remote_log_size(partition, epoch))]
            case (Operation.LEADERSHIP, leaders, followers):
                metadata.on_partition_leadership_changes(leaders, followers)
            case (Operation.STOP, partitions):
                metadata.on_stop_partitions(partitions)
            case (Operation.PING,):
                return [pack(">q", self._store.epoch)]
        return ()

    def _fetched(self, item: model.RemoteLogSegmentMetadata, position: int, count: int) -> bytes:
        require(0 <= count <= wire.DATA_BYTES_MAX, "count", f"0 to {wire.DATA_BYTES_MAX}")
        with self._storage.fetch_log_segment(item, position, position + max(0, count - 1)) as stream:
            return stream.read(count)

    def _listed(self, partition: model.TopicIdPartition, epoch: int | None, known: int) -> Iterator[bytes]:
        # Read first: rows that change since have a newer version, and are listed again.
        version = self._metadata.version(partition) ^ self._salt
        if version == known:
            yield pack(">qbi", version, 1, 0)
            return
        items = self._metadata.list_remote_log_segments(partition, epoch)
        while True:
            batch = [wire.encode_segment(item) for item in islice(items, _LISTED_MAX)]
            yield pack(">qbi", version, 0, len(batch)) + b"".join(batch)
            if len(batch) < _LISTED_MAX:
                return


class _Peer:
    """A connection: whole frames, each within ``stall_s``. ``idle_since_s``: infinite unless it rests between two requests."""

    def __init__(self, socket: sockets.socket, stall_s: float, closing: runtime.Event) -> None:
        self.socket, self._stall_s, self._closing = socket, stall_s, closing
        self.task: runtime.Task | None = None
        self.idle_since_s = inf
        with suppress(OSError):
            socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
            socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)

    def rest(self) -> None:
        """Wait until the next frame begins, or the connection ends. Raises ``OSError``."""
        self.socket.settimeout(None)
        self.idle_since_s = runtime.monotonic_s()
        self.socket.recv(1, sockets.MSG_PEEK)
        self.idle_since_s = inf

    def receive(self, most: int = wire.BODY_BYTES_MAX, *, limit_s: float = inf) -> bytes:
        """The body of a frame, within ``stall_s`` and ``limit_s``. Raises ``OSError``."""
        deadline = Deadline(min(self._stall_s, limit_s))
        head = self._read(wire.FRAME.size, deadline)
        try:
            return wire.checked_body(head, self._read(wire.checked_length(head, most), deadline))
        except errors.Damaged as error:
            raise ConnectionError from error

    def _read(self, count: int, deadline: Deadline) -> bytes:
        data, at = bytearray(count), 0
        while at < count:
            if self._closing.is_set() or not deadline.left_s():
                raise TimeoutError
            self.socket.settimeout(max(0.001, deadline.left_s()))
            taken = self.socket.recv_into(memoryview(data)[at:])
            if not taken:
                raise ConnectionResetError
            at += taken
        return bytes(data)

    def send(self, body: bytes) -> None:
        """A frame. Raises ``OSError``."""
        self.socket.settimeout(self._stall_s)
        self.socket.sendall(wire.frame(body))

    def shut(self, how: int) -> None:
        with suppress(OSError):
            self.socket.shutdown(how)


class _Incoming:
    """The files that come after the request COPY, read once and in their order."""

    def __init__(self, peer: _Peer, request: wire.Request) -> None:
        self._peer, self._deadline = peer, Deadline(request.wait_ms / 1000)
        self._lengths = request.lengths
        self._left_bytes = sum(length for length in request.lengths if length > 0)
        self._rest = b""

    def files(self) -> list[Any]:
        return [None if length < 0 else DataSource("a client's file", length, self._read) for length in self._lengths]

    def drain(self) -> None:
        while self._left_bytes:
            self._frame()

    def _read(self, _position: int, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            if not self._deadline.left_s():
                self._deadline.fail("the copy of a segment")
            data = self._rest or self._frame()
            parts.append(data[:count])
            self._rest = data[count:]
            count -= len(parts[-1])
        return b"".join(parts)

    def _frame(self) -> bytes:
        data = self._peer.receive(min(self._left_bytes, wire.DATA_BYTES_MAX))
        self._left_bytes -= len(data)
        return data


@contextmanager
def listening(socket: str | None, listen: str | None, token: bytes | None = None) -> Iterator[Listener]:
    """A listener for a ``KafkaServer`` until the block ends.

    Args:
      socket: path of a Unix socket, made with mode 0600 and removed at the end. One that no process listens at is replaced.
      listen: "HOST:PORT" instead; port 0: any. Without ``token`` only a loopback address.
      token: a secret of at least 16 bytes.

    Raises ``InvalidArgument``, also for an address that is taken.
    """
    require((socket is None) != (listen is None), "listen", "given, or socket, and not both")
    require(token is None or len(token) >= _TOKEN_BYTES_MIN, "token", f"at least {_TOKEN_BYTES_MIN} bytes")
    try:
        if listen is None:
            listener, address = _unix(socket or ""), f"unix:{socket}"
        else:
            family, place = _resolved(listen)
            loopback = ip_address(place[0]).is_loopback
            require(
                loopback or token is not None,
                "token",
                f"given: anyone may connect to {listen}, which is no loopback address",
            )
            listener = sockets.create_server(place, family=family, backlog=CONNECTIONS_MAX)
            host, port = listener.getsockname()[:2]
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    except OSError as error:
        text = f"cannot listen at {listen or socket}: {error}; choose another address"
        raise errors.InvalidArgument(text, argument="listen") from error
    try:
        yield Listener(listener, address, token)
    finally:
        with suppress(OSError):
            os.unlink(socket or "")
        listener.close()


def _resolved(listen: str) -> tuple[int, Any]:
    host, _, port = listen.rpartition(":")
    try:
        require(bool(host) and 0 <= int(port) < 1 << 16, "listen", "HOST:PORT")
        found = sockets.getaddrinfo(host.strip("[]"), int(port), type=sockets.SOCK_STREAM)
    except (OSError, ValueError) as error:
        text = f"no address {listen}, which must be HOST:PORT: {error}"
        raise errors.InvalidArgument(text, argument="listen") from error
    return found[0][0], found[0][4]


def _unix(path: str) -> sockets.socket:
    made = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
            with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe, suppress(ConnectionRefusedError):
                probe.settimeout(_CLOSE_S)
                probe.connect(path)
                raise FileExistsError("another process listens there")
            os.unlink(path)
        made.bind(path)
        os.chmod(path, 0o600)  # no one connects before it listens
        made.listen(CONNECTIONS_MAX)
    except OSError:
        made.close()
        raise
    return made


def _found(item: model.RemoteLogSegmentMetadata | None) -> bytes:
    return b"\0" if item is None else b"\1" + wire.encode_segment(item)
