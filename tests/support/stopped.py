"""A process that is stopped (SIGSTOP) at the place where it says so, and killed at the end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.paths import SOURCES


@contextmanager
def stopped_process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start ``command``, which prints a line when it has got where it is to be stopped."""
    environ = {**os.environ, "PYTHONPATH": SOURCES}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "it ended before it got there"
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait(120)
        process.stdout.close()
