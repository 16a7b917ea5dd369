"""Calls in a child made by fork: what tests of what a child inherits have in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def in_forked_child(call: Callable[[], str], wait_s: float = 20.0) -> str:
    """What ``call`` answers in a child made by fork; nothing if it takes longer than ``wait_s``."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            threading.Timer(wait_s, lambda: os._exit(1)).start()
            answer = call()
        except BaseException as error:  # noqa: BLE001
            answer = f"failed: {error!r}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer
