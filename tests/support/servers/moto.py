"""moto: the semantics of S3 in Python, in memory; a process of its own, so that it takes no turns with the tests.

It answers conditions, multipart and listings as S3 does; its look whether a name exists and its write are two steps, so requests
that change something are handed to it one at a time here. It checks neither checksums nor credentials, so no test about
those may rest on it, nor any claim about durability or speed.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.servers.base import ServerMissing, ServerProcess, free_port
from tests.support.servers.s3server import S3Server

__all__ = ["Application", "Moto", "application", "serve"]

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Moto(S3Server):
    """Started by ``Moto()``. Raises ``ServerMissing``."""

    def __init__(self) -> None:
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise ServerMissing("install the extra: pip install 'chunkstore-engine[dev]' (moto[server])")
        super().__init__(free_port())
        self._folder = tempfile.TemporaryDirectory(prefix="chunkstore-moto-")
        self._process = ServerProcess(self.command(), log=Path(self._folder.name) / "log", cwd=ROOT)
        try:
            self._process.wait_ready(self._answers, deadline_s=180, what="moto")
        except BaseException:
            self.stop()
            raise

    def command(self) -> list[str]:
        return [sys.executable, "-m", __name__, str(self.port)]

    def _answers(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/moto-api/", timeout=20) as answer:
            return bool(answer.status == 200)

    def stop(self) -> None:
        super().stop()
        self._process.stop()
        self._folder.cleanup()


class _OneChangeAtATime:
    """A WSGI filter. Bodies are read before the turn comes, so that a slow client holds up nobody."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._inner(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._lock:
            return list(self._inner(environ, start_response))


def application() -> Application:
    """moto as a WSGI application."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    return _OneChangeAtATime(DomainDispatcherApplication(create_backend_app))


def serve(served: Application, port: int) -> None:
    """Serve until the process is killed."""
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", port, served, threaded=True)


if __name__ == "__main__":
    serve(application(), int(sys.argv[1]))
