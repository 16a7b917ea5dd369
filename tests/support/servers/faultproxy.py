"""A TCP proxy that misbehaves: lost replies, lost requests, resets, black holes, slow links. One instance per test.

It runs in threads of the test's process, so that a test can say exactly which request is hit, and child processes can be
pointed at its port. It understands just enough of HTTP/1.1 to know where a request begins (no pipelining): method, target
and headers are what rules look at. Anything else passes as bytes.

    with FaultProxy(server_port) as proxy:
        lost = proxy.lose_reply(lambda request: request.method == "PUT")     # carried out by the server, never answered
        ...
        assert lost.fired == 1

Leaves out: TLS, IPv6, reordering.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.closing import Closing

__all__ = ["FaultProxy", "Faults", "Request", "Rule"]

_HEAD = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.[01]\r\n")
_HEAD_BYTES_MAX = 1 << 16
_CONTINUE = b"HTTP/1.1 100"
_BLOCK_BYTES = 1 << 16
_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The weather for every byte of every connection.

    latency_s: delay of each block, each way. rate_bytes_s: how fast a connection is, each way (0: unlimited).
    cut_after_bytes: reset a connection once so many bytes went up on it. black_hole: accept, and forward nothing until
    healed. refuse: reset new connections at once.
    """

    latency_s: float = 0.0
    rate_bytes_s: float = 0.0
    cut_after_bytes: int | None = None
    black_hole: bool = False
    refuse: bool = False


@dataclass(frozen=True)
class Request:
    """The head of one request, as seen on the wire. ``number`` counts from 0 over the proxy's life."""

    number: int
    method: str
    target: str
    headers: dict[str, str]


@dataclass
class Rule:
    """What happens to requests that match, ``times`` times. ``fired`` counts; ``release`` lets held requests go on. ``answered``: the
    server has answered one of them, or will not."""

    when: Callable[[Request], bool]
    action: str
    times: int
    fired: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    hit: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        self.released.set()


class _Link:
    """One client connection and its way to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.rule: Rule | None = None
        self.replied = True  # the next bytes from the client begin a request
        self.up_bytes = 0
        self.ended = 0

    def reset(self) -> None:
        for end in (self.client, self.server):
            _reset(end)


def _reset(end: socket.socket) -> None:
    # Lingering for zero seconds makes close() send RST; shutdown() first would say FIN politely.
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        end.close()


class FaultProxy(Closing):
    """Listens on ``port`` of 127.0.0.1 and passes connections on to ``target_port``. Closed by ``close`` or ``with``."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.requests: list[Request] = []
        self._faults = Faults()
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A client that has put everything into the kernel's buffers would not notice how slow the link is.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(256)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """End all connections and threads. Safe to repeat."""
        self._closed = True
        self.heal()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        # Before its number is given to another socket.
        self._accepting.join(60)
        self._listener.close()
        self.reset_connections()

    # What tests say

    def set(self, **changes: float | bool | None) -> None:
        """Change the weather (fields of ``Faults``) for everything from now on, open connections included."""
        self._faults = dataclasses.replace(self._faults, **changes)  # type: ignore[arg-type]

    def heal(self) -> None:
        """Fair weather: no faults, no rules; what was held goes on."""
        self._faults = Faults()
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.release()

    def reset_connections(self) -> None:
        """Reset every open connection, now."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            link.reset()

    def lose_reply(self, when: Callable[[Request], bool], *, times: int = 1) -> Rule:
        """The server carries the request out; its answer is swallowed and the connection reset."""
        return self._add(Rule(when, "lose_reply", times))

    def hold_reply(self, when: Callable[[Request], bool], *, times: int = 1) -> Rule:
        """The server carries the request out; its answer waits in the network until ``rule.release()``. ``hit`` says that it is there."""
        return self._add(Rule(when, "hold_reply", times))

    def lose_request(self, when: Callable[[Request], bool], *, times: int = 1) -> Rule:
        """The connection is reset before the server sees anything of the request."""
        return self._add(Rule(when, "lose_request", times))

    def hold(self, when: Callable[[Request], bool], *, times: int = 1) -> Rule:
        """The request waits in the network until ``rule.release()``, even if its client gives up meanwhile."""
        return self._add(Rule(when, "hold", times))

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    # Machinery

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._faults.refuse:
                _reset(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port), timeout=60)
            except OSError:
                _reset(client)
                continue
            for end in (client, server):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(client, server)
            with self._lock:
                self._links.add(link)
            for pump in (self._pump_up, self._pump_down):
                threading.Thread(target=self._run, args=(pump, link), name=f"proxy-{self.port}", daemon=True).start()

    def _run(self, pump: Callable[[_Link], None], link: _Link) -> None:
        try:
            pump(link)
        except OSError:
            link.reset()
        finally:
            with self._lock:
                link.ended += 1
                last = link.ended == 2
                if last:
                    self._links.discard(link)
            if last:
                if link.rule is not None:
                    link.rule.answered.set()
                for end in (link.client, link.server):
                    end.close()

    def _pump_up(self, link: _Link) -> None:
        while block := link.client.recv(_BLOCK_BYTES):
            if link.replied and _HEAD.match(block):
                link.replied = False
                while b"\r\n\r\n" not in block and len(block) < _HEAD_BYTES_MAX:
                    more = link.client.recv(_BLOCK_BYTES)
                    if not more:
                        break
                    block += more
                if not self._begin(link, block):
                    link.reset()
                    return
            limit = self._faults.cut_after_bytes
            if limit is not None and link.up_bytes + len(block) >= limit:
                link.server.sendall(block[: max(0, limit - link.up_bytes)])
                link.reset()
                return
            self._weather(len(block))
            link.up_bytes += len(block)
            link.server.sendall(block)
        with contextlib.suppress(OSError):
            link.server.shutdown(socket.SHUT_WR)

    def _begin(self, link: _Link, block: bytes) -> bool:
        """Note the request that begins here and find its rule. Returns False when it is to be lost."""
        request = self._parse(block)
        with self._lock:
            self.requests.append(request)
            link.rule = next((rule for rule in self._rules if rule.fired < rule.times and rule.when(request)), None)
            rule = link.rule
            if rule is None:
                return True
            rule.fired += 1
        if rule.action != "hold_reply":
            rule.hit.set()
        if rule.action == "hold":
            rule.released.wait()
        return rule.action != "lose_request"

    def _parse(self, block: bytes) -> Request:
        match = _HEAD.match(block)
        assert match is not None
        lines = block.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Request(len(self.requests), match[1].decode(), match[2].decode("latin-1"), headers)

    def _pump_down(self, link: _Link) -> None:
        while block := link.server.recv(_BLOCK_BYTES):
            # 100 Continue is not an answer: clients that wait for it would never send their bodies. Whoever takes it from the
            # network late finds the answer right behind it.
            if block.startswith(_CONTINUE):
                head, end, block = block.partition(b"\r\n\r\n")
                self._weather(len(head + end))
                link.client.sendall(head + end)
            if block:
                rule = link.rule
                if rule is not None:
                    rule.answered.set()
                if rule is not None and rule.action == "lose_reply":
                    link.reset()
                    return
                if rule is not None and rule.action == "hold_reply":
                    rule.hit.set()
                    rule.released.wait()
                link.replied = True
            self._weather(len(block))
            link.client.sendall(block)
        with contextlib.suppress(OSError):
            link.client.shutdown(socket.SHUT_WR)

    def _weather(self, size_bytes: int) -> None:
        while self._faults.black_hole and not self._closed:
            time.sleep(_POLL_S)
        faults = self._faults
        delay = faults.latency_s
        if faults.rate_bytes_s:
            delay += size_bytes / faults.rate_bytes_s
        if delay > 0:
            time.sleep(delay)
