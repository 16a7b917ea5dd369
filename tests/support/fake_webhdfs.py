"""WebHDFS as a model in this process: one name node, data nodes, exact faults. The truth stays with the real server.

What the servers know and do is ``hdfs_names``.

    with FakeWebHdfs() as fake:
        fake.lose_reply("RENAME")                     # carried out, never answered
        fake.refuse("CREATE", "DSQuotaExceededException", "...")
        ...
        assert fake.asked("RENAME") == 2
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.closing import Closing
from tests.support.hdfs_names import PREFIX, NameSpace, No, remote_exception


@dataclass
class Fault:
    """What happens to the next ``times`` requests of an operation at one kind of server."""

    op: str
    where: str
    action: str
    times: int
    answer: tuple[int, str, str] | None = None
    about: str = ""
    """Only requests about a path with this in it; of a rename, the new path."""
    body: bytes = b"<html>Bad gateway</html>"
    """What ``garble`` and ``say`` send."""
    seconds: float = 0.0
    """Waited before anything else is done."""
    fired: int = 0


@dataclass(frozen=True)
class Asked:
    """One request that arrived."""

    where: str
    method: str
    op: str
    path: str
    params: dict[str, str]


class FakeWebHdfs(NameSpace, Closing):
    """The servers. ``page``: as ``NameSpace`` has it; ``datanodes``: how many."""

    def __init__(self, *, page: int = 1000, datanodes: int = 1) -> None:
        super().__init__(lambda: time.time_ns() // 1_000_000, time.monotonic, page=page)
        self.log: list[Asked] = []
        self.faults: list[Fault] = []
        self._servers = [_serve(self, "namenode", "127.0.0.1")]
        # Each on an address of its own: the name node leaves data nodes out by address.
        self._servers += [_serve(self, "datanode", f"127.0.0.{index + 1}") for index in range(datanodes)]
        self.datanodes = [(str(server.server_name), int(server.server_port)) for server in self._servers[1:]]
        self.too_much = 0
        """So many bytes more than were asked for are sent with every OPEN."""
        self._holders: list[socket.socket] = []

    @property
    def port(self) -> int:
        return self._servers[0].server_port

    @property
    def datanode_port(self) -> int:
        """The first data node's."""
        return self._servers[1].server_port

    def root(self, path: str = "/root", query: str = "") -> str:
        return f"hdfs://127.0.0.1:{self.port}{path}{query}"

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for holder in self._holders:
            holder.close()

    # Faults and looking

    def lose_reply(self, op: str, *, where: str = "namenode", times: int = 1, about: str = "") -> Fault:
        """The operation is carried out; its answer never arrives."""
        return self._add(Fault(op, where, "lose_reply", times, about=about))

    def lose_request(self, op: str, *, where: str = "namenode", times: int = 1, about: str = "") -> Fault:
        """The connection breaks before anything is done."""
        return self._add(Fault(op, where, "lose_request", times, about=about))

    def cut_body(self, op: str, *, times: int = 1) -> Fault:
        """The connection breaks in the middle of the body: a data node then closes the file with what it got."""
        return self._add(Fault(op, "datanode", "cut_body", times))

    def refuse(
        self, op: str, kind: str, message: str = "", *, status: int = 403, where: str = "namenode", times: int = 1
    ) -> Fault:
        """Answer with this exception instead of doing anything."""
        return self._add(Fault(op, where, "refuse", times, (status, kind, message)))

    def shorten_reads(self, path: str, size: int, *, times: int) -> Fault:
        """A data node that does not know yet what was added last: only the file's first ``size`` bytes are there for it."""
        return self._add(Fault("OPEN", "datanode", "shorten", times, (size, "", ""), about=path))

    def say(self, op: str, body: bytes, *, status: int = 200, where: str = "namenode", times: int = 1) -> Fault:
        """Answer with exactly this, and do nothing."""
        return self._add(Fault(op, where, "say", times, (status, "", ""), body=body))

    def _add(self, fault: Fault) -> Fault:
        with self.lock:
            self.faults.append(fault)
        return fault

    def asked(self, op: str, where: str = "namenode") -> int:
        """How often an operation was asked for."""
        with self.lock:
            return sum(item.op == op and item.where == where for item in self.log)

    def stop_datanode(self, index: int = 0) -> None:
        """Refuse connections from now on, while the name node still names it."""
        server = self._servers[1 + index]
        server.shutdown()
        server.server_close()
        # Whoever asks the kernel for a port is not given this one, and nobody listens on it.
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((str(server.server_name), int(server.server_port)))
        self._holders.append(holder)

    def die_while_writing(self, path: str, *, closes_after_s: float | None) -> None:
        """As if a data node had died that appended to the file: nobody can read it until the lease ends."""
        with self.lock:
            file = self.files[path]
            file.open = True
            file.closes_at = None if closes_after_s is None else time.monotonic() + closes_after_s

    def fault_for(self, asked: Asked) -> Fault | None:
        """The fault that hits this request, counted."""
        path = asked.params.get("destination", asked.path)
        with self.lock:
            for fault in self.faults:
                meant = fault.op == asked.op and fault.where == asked.where and fault.about in path
                if meant and fault.fired < fault.times:
                    fault.fired += 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    fake: FakeWebHdfs
    where: str

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._handle()

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815  (the base class calls them so)

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        path, params = unquote(parts.path)[len(PREFIX) :] or "/", dict(parse_qsl(parts.query, keep_blank_values=True))
        op = params.get("op", "")
        asked = Asked(self.where, self.command, op, path, params)
        with self.fake.lock:
            self.fake.log.append(asked)
        fault = self.fake.fault_for(asked)
        if fault is not None:
            time.sleep(fault.seconds)
        if fault is not None and fault.action in ("refuse", "say") and fault.answer is not None:
            self._drain()
            status, kind, message = fault.answer
            self._answer(status, fault.body if not kind else remote_exception(No(status, kind, message)))
            return
        if fault is not None and fault.action == "lose_request":
            self.close_connection = True
            return
        try:
            if self.where == "datanode":
                status, body = self._datanode(op, path, params, fault)
            else:
                status, body = 200, self.fake.command(self.command, op, path, params)
        except No as no:
            self._drain()
            status, body = no.status, remote_exception(no)
        if fault is not None and fault.action != "shorten":
            # Carried out; the answer is lost.
            self.close_connection = True
            return
        self._answer(status, body)

    def _datanode(self, op: str, path: str, params: dict[str, str], fault: Fault | None) -> tuple[int, bytes]:
        if op == "OPEN":
            known_bytes = None
            if fault is not None and fault.action == "shorten" and fault.answer is not None:
                known_bytes = fault.answer[0]
            return 200, self.fake.read(path, params, known_bytes) + bytes(self.fake.too_much)
        file = self.fake.begin_create(path, params)
        # Unasked, as the real ones do.
        self.send_response_only(100)
        self.end_headers()
        self.wfile.flush()
        size = int(self.headers.get("Content-Length") or 0)
        # A client that dies: the file is closed with what has arrived, and nobody says anything.
        cut = fault is not None and fault.action == "cut_body"
        data = self._body(size // 2 if cut else size)
        self.fake.end_write(file, data)
        return 201, b""

    def _body(self, size: int) -> bytes:
        """So many bytes, or what arrived of them before the client broke off, politely or not."""
        parts: list[bytes] = []
        with contextlib.suppress(OSError):
            while size > 0 and (part := self.rfile.read1(size)):
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def _drain(self) -> None:
        if self.where == "datanode":
            self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.where == "datanode":
            # As the real ones do.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self) -> None:
        """Without the look-up of names that HTTPServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients of a fake may break off."""


def _serve(fake: FakeWebHdfs, where: str, host: str) -> _Server:
    handler = type("Handler", (_Handler,), {"fake": fake, "where": where})
    server = _Server((host, 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server
