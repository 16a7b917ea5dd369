"""moto: the semantics of S3 in Python, in memory; a process of its own, so that it takes no turns with the tests.

It answers conditions, multipart and listings as S3 does. It checks neither checksums nor credentials, so no test about
those may rest on it, nor any claim about durability or speed.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import urllib.request
from pathlib import Path

from tests.support.servers.base import ServerMissing, ServerProcess, free_port
from tests.support.servers.s3server import S3Server

__all__ = ["Moto"]

_ROOT = Path(__file__).resolve().parents[3]


class Moto(S3Server):
    """Started by ``Moto()``. Raises ``ServerMissing``."""

    def __init__(self) -> None:
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise ServerMissing("install the extra: pip install 'chunkstore-engine[dev]' (moto[server])")
        super().__init__(free_port())
        self._folder = tempfile.TemporaryDirectory(prefix="chunkstore-moto-")
        self._process = ServerProcess(self.command(), log=Path(self._folder.name) / "log", cwd=_ROOT)
        try:
            self._process.wait_ready(self._answers, deadline_s=60, what="moto")
        except BaseException:
            self.stop()
            raise

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def _answers(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/moto-api/", timeout=2) as answer:
            return bool(answer.status == 200)

    def stop(self) -> None:
        super().stop()
        self._process.stop()
        self._folder.cleanup()
