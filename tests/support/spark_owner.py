"""An owner for tests whose sinks ask one: ``chunkstore serve``, a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Server", "serving"]


class Server:
    """Starts ``chunkstore serve`` for a root, and again; a process is not killed here but by whoever kills owners."""

    deposed = 0

    def __init__(self, root: str, python: str = sys.executable) -> None:
        self._command = [python, "-m", "chunkstore", "serve", root]
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        """Have it own the container, unless it does, or comes to."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def reap(self, pid: int) -> None:
        """Where ``pid``, which was just killed, is this one's: a process that nobody waits for looks alive."""
        if self._process is not None and self._process.pid == pid:
            self._process.wait()

    def quiet(self) -> None:
        """Nothing of its own is appended."""

    def stop(self) -> None:
        """Have it close the container and end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def promised(self) -> dict[str, int]:
        return {}


@contextmanager
def serving(root: str, python: str = sys.executable) -> Iterator[None]:
    """An owner of the container at this root, while the block runs."""
    server = Server(root, python)
    server.ensure()
    try:
        yield
    finally:
        server.stop()
