"""One check for many: whose check it may be, and that nobody waits for somebody else's trouble."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from chunkstore.operations.fence import SharedCheck


class Asked:
    """A check that waits where it is told to, and counts when its calls began and ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began: list[float] = []
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.held = True
        self.errors: list[Exception] = []

    def __call__(self) -> None:
        with self.lock:
            self.began.append(time.monotonic())
            error = self.errors.pop(0) if self.errors else None
            held = self.held
        self.entered.release()
        if held:
            assert self.go_on.acquire(timeout=600)
        if error is not None:
            raise error


def test_no_answer_is_older_than_the_question() -> None:
    """Who is told that all is well was asked about by a check that began after he came."""
    asked = Asked()
    asked.held = False
    began: list[float] = []

    def check() -> None:
        asked()
        started = asked.began[-1]
        time.sleep(0.001)
        began.append(started)

    shared = SharedCheck(check, 600.0)
    numbers = itertools.count()

    def ask() -> None:
        while next(numbers) < 400:
            came = time.monotonic()
            shared()
            # The newest check that has ended is the one that answered, or a later one.
            assert max(began) >= came

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(ask) for _ in range(8)]:
            future.result(60)
    assert len(began) < 400, "nothing was shared"
