"""The fault proxy itself: a test that trusts it must know that its faults happen, and only where they were asked for."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.servers.base import free_ports, wait_until
from tests.support.servers.faultproxy import FaultProxy

pytestmark = pytest.mark.proof


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, len(body)))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        return


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, int]] = []

    def handle_error(self, request: object, client_address: object) -> None:
        return  # connections end in every way here


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(server: _Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.server_port) as proxy:
        yield proxy


def put(proxy: FaultProxy, path: str, size: int = 10, timeout: float = 120) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout)
    try:
        connection.request("PUT", path, b"x" * size)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_everything_passes_in_fair_weather(proxy: FaultProxy, server: _Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=120)
    for number in range(3):
        connection.request("PUT", f"/{number}", b"x" * 300_000)
        assert connection.getresponse().read() == b"ok"
    connection.close()
    assert server.seen == [(f"/{number}", 300_000) for number in range(3)]
    assert [(item.number, item.method, item.target) for item in proxy.requests] == [
        (number, "PUT", f"/{number}") for number in range(3)
    ]
    assert proxy.requests[0].headers["content-length"] == "300000"


def test_a_lost_reply_was_carried_out(proxy: FaultProxy, server: _Server) -> None:
    rule = proxy.lose_reply(lambda request: request.target == "/b")
    assert put(proxy, "/a") == 200
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        put(proxy, "/b")
    assert put(proxy, "/b") == 200
    assert rule.fired == 1
    assert [path for path, _ in server.seen] == ["/a", "/b", "/b"]


def test_a_lost_request_was_not_carried_out(proxy: FaultProxy, server: _Server) -> None:
    proxy.lose_request(lambda request: True)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        put(proxy, "/a")
    assert server.seen == []
    assert put(proxy, "/a") == 200


def test_a_held_request_lands_after_its_client_gave_up(proxy: FaultProxy, server: _Server) -> None:
    rule = proxy.hold(lambda request: True)
    with pytest.raises(TimeoutError):
        put(proxy, "/late", timeout=0.2)
    assert server.seen == []
    rule.release()
    wait_until(lambda: server.seen == [("/late", 10)], deadline_s=120, what="the late request")


def test_cut_refuse_and_reset(proxy: FaultProxy, server: _Server) -> None:
    proxy.set(cut_after_bytes=100_000)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        put(proxy, "/cut", 1_000_000)
    proxy.heal()
    proxy.set(refuse=True)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        put(proxy, "/refused")
    proxy.heal()
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=120)
    connection.request("PUT", "/a", b"")
    connection.getresponse().read()
    proxy.reset_connections()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        connection.request("PUT", "/b", b"")
        connection.getresponse()
    connection.close()
    assert server.seen == [("/a", 0)]


def test_black_hole_and_slow_link(proxy: FaultProxy, server: _Server) -> None:
    proxy.set(black_hole=True)
    with pytest.raises(TimeoutError):
        put(proxy, "/hole", timeout=0.3)
    proxy.heal()
    proxy.set(latency_s=0.05)
    started = time.monotonic()
    assert put(proxy, "/slow") == 200
    assert time.monotonic() - started >= 0.1
    proxy.heal()
    proxy.set(rate_bytes_s=1_000_000)
    started = time.monotonic()
    assert put(proxy, "/crawl", 300_000) == 200
    assert time.monotonic() - started >= 0.3


def test_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
