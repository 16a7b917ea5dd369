"""Look-alikes that misbehave: moto behind a filter. Nothing to install beyond moto itself.

Two lie about preconditions, as gateways have done: they are what the probe is for.

* ``ignores``: the header of a PUT is parsed and dropped, so every create succeeds.
* ``races``: look first, write later, with a gap in between: single calls look right, concurrent ones do not. The gap ends
  when somebody else has looked too, so that a race of two is lost on the busiest machine. Names that the probe lets nobody
  race for have a short one.

The others are honest and difficult.

* ``throttles``: every second request gets 503 SlowDown and is not carried out.
* ``conflicts``: the first conditional PUT of a name gets 409 ConditionalRequestConflict.
* ``corrupts``: a bit of every body of a GET of a key with "corrupt" in it is turned on the way; with "once" in it, only of
  the first.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.support.servers.moto import Application, Moto, application, serve

__all__ = ["LookAlike"]

_GAP_S_MAX = 20.0
_GAP_S_ALONE = 0.3
_LIES = ("ignores", "races", "throttles", "conflicts", "corrupts")
_REFUSED = "<?xml version='1.0'?><Error><Code>{}</Code><Message>said the look-alike</Message></Error>"


class LookAlike(Moto):
    """Started by ``LookAlike("ignores")`` and so on."""

    def __init__(self, lie: str) -> None:
        if lie not in _LIES:
            raise ValueError(lie)
        self._lie = lie
        super().__init__()

    def command(self) -> list[str]:
        return [sys.executable, "-m", __name__, self._lie, str(self.port)]


class _Liar:
    """A WSGI filter."""

    def __init__(self, inner: Application, lie: str) -> None:
        self._inner = inner
        self._lie = lie
        self._lock = threading.Lock()
        self._count = 0
        self._seen: set[str] = set()
        self._looks: Counter[str] = Counter()
        self._looked = threading.Condition()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        conditional = environ["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in environ
        path = str(environ["PATH_INFO"])
        if self._lie == "throttles" and self._turn():
            return _refuse(start_response, "503 Slow Down", "SlowDown")
        if self._lie == "conflicts" and conditional and self._first(path):
            return _refuse(start_response, "409 Conflict", "ConditionalRequestConflict")
        if self._lie == "corrupts" and environ["REQUEST_METHOD"] == "GET" and "corrupt" in path:
            body = b"".join(self._inner(environ, start_response))
            if "once" not in path or self._first(path):
                body = body[:-1] + bytes([body[-1] ^ 4])
            return [body]
        if conditional and self._lie in ("ignores", "races") and not (self._lie == "races" and self._exists(environ)):
            del environ["HTTP_IF_NONE_MATCH"]
        return self._inner(environ, start_response)

    def _turn(self) -> bool:
        with self._lock:
            self._count += 1
            return self._count % 2 == 0

    def _first(self, path: str) -> bool:
        with self._lock:
            known = path in self._seen
            self._seen.add(path)
            return not known

    def _exists(self, environ: dict[str, Any]) -> bool:
        seen: list[str] = []
        look = {name: value for name, value in environ.items() if not name.startswith("HTTP_IF")}
        look |= {"REQUEST_METHOD": "HEAD", "CONTENT_LENGTH": "0"}
        for _ in self._inner(look, lambda status, headers, error=None: seen.append(status)):
            pass
        if seen[0].startswith("200"):
            return True
        path = str(environ["PATH_INFO"])
        with self._looked:
            self._looks[path] += 1
            self._looked.notify_all()
            gap_s = _GAP_S_MAX if path.endswith("-raced") else _GAP_S_ALONE
            self._looked.wait_for(lambda: self._looks[path] > 1, gap_s)
        return False


def _refuse(start_response: Any, status: str, code: str) -> Iterable[bytes]:
    body = _REFUSED.format(code).encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


if __name__ == "__main__":
    serve(_Liar(application(), sys.argv[1]), int(sys.argv[2]))
