"""A server that answers as a test says, down to the byte: nonsense, lies, and bytes that come one at a time."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from tests.support.closing import Closing

__all__ = ["ABSENT", "Answer", "Answering", "drip", "http"]

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

Answer = bytes | Iterable[bytes] | None
"""What goes out in answer to a request, all at once or piece by piece; None: nothing, for ever."""


def http(status: str, body: bytes = b"", *headers: str, keep: bool = False) -> bytes:
    """A whole answer. ``keep``: the connection may be used again."""
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


ABSENT = http("404 Not Found", b"", "x-amz-request-id: tx0")
"""What S3 says of an object that is not there, where no words are allowed."""


def drip(head: bytes, byte: bytes = b"H", every_s: float = 0.05) -> Iterator[bytes]:
    """``head`` at once, and then a byte at a time without end."""
    yield head
    while True:
        yield byte
        time.sleep(every_s)


class Answering(Closing):
    """``answer`` is called with the first line of each request (``PUT /bucket/key HTTP/1.1``; ``whole``: with all that comes before
    the body), in a thread for each connection.

    ``requests`` are those lines, ``heads`` all that came before the bodies. ``tls``: an endpoint that speaks nothing else.
    """

    def __init__(
        self, answer: Callable[[str], Answer], tls: ssl.SSLContext | None = None, *, whole: bool = False
    ) -> None:
        self.requests: list[str] = []
        self.heads: list[str] = []
        self._answer = answer
        self._tls = tls
        self._whole = whole
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                wire, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client = wire if self._tls is None else self._tls.wrap_socket(wire, server_side=True)
            while self._take(client):
                pass
        wire.close()

    def _take(self, client: socket.socket) -> bool:
        """Take one request in and answer it; False when the connection has ended, or is to end."""
        head, body = b"", b""
        # A TLS greeting is as good as a request, to a server that knows neither.
        while b"\r\n\r\n" not in head and not head.startswith(b"\x16"):
            block = client.recv(1 << 16)
            if not block:
                return False
            head += block
        head, _, body = head.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        left = int(length[1]) - len(body) if length is not None else 0
        while left > 0:
            left -= len(client.recv(1 << 16)) or left
        line = head.partition(b"\r\n")[0].decode("latin-1")
        whole = head.decode("latin-1")
        self.heads.append(whole)
        self.requests.append(line)
        answer = self._answer(whole if self._whole else line)
        if answer is None:
            self._closed.wait()
            return False
        kept = isinstance(answer, bytes) and b"Connection: keep-alive" in answer
        for piece in (answer,) if isinstance(answer, bytes) else answer:
            client.sendall(piece)
            if self._closed.is_set():
                return False
        return kept

    def close(self) -> None:
        """No more connections; what is dripping stops."""
        self._closed.set()
        # Closing does not wake who waits in accept(). Should a signal make him call it again, he would find the next server's
        # listener under the same number, and answer for it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(60)
        self._listener.close()
