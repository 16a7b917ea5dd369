"""A command that is killed with -9 again and again while it copies chunks, and then let go on to its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["kill_and_go_on"]


def kill_and_go_on(
    start: Callable[..., subprocess.Popen[bytes]], arguments: tuple[str, ...], target: Path, kills: int
) -> bool:
    """Kill it ``kills`` times at random moments of its copying, once at least; what it copies lies below ``target``. Where it was whole
    before a kill, the command says that it is done already. False: only the last one of all said so."""
    chance, killed, ended = random.Random(5), 0, True
    for _ in range(kills):
        enough = _copied(target) + chance.randrange(1, 60)
        process = start(*arguments)
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)  # who watches must not be the slower one
        while process.poll() is None and _copied(target) < enough:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=60)
        if process.returncode == 0 or b"already" in err:
            break
        assert process.returncode == -signal.SIGKILL, (out, err)
        killed += 1
    else:
        process = start(*arguments)
        _, err = process.communicate(timeout=120)
        ended = process.returncode == 0
        assert ended or b"already" in err, err
    assert killed
    return ended


def _copied(target: Path) -> int:
    return sum(1 for _ in target.glob("default/d/*/*"))
