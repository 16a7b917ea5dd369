"""An owner for tests whose sinks ask one: ``chunkstore serve``, a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["serving"]


@contextmanager
def serving(root: str, python: str = sys.executable) -> Iterator[None]:
    """An owner of the container at this root, while the block runs."""
    process = subprocess.Popen([python, "-m", "chunkstore", "serve", root], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
