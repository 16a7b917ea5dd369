"""Whether a process lives: one whose parent does not ask how it ended does not."""

from __future__ import annotations

import os
import subprocess
import sys

from chunkstore.processes import is_alive


def test_processes() -> None:
    assert is_alive(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_alive(process.pid)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert sys.platform != "linux" or not is_alive(process.pid)
    assert not is_alive(process.pid)
    assert not is_alive(1 << 40)
