"""An application that owns the container of ``spark_kills`` and appends small rows to the very segments that a stream writes.

Its appends travel in records, and are spilled after some seconds. ``Appender`` is the harness's side: it starts the application again
where it is no more, and says in the end which rows have to be there.
``python -m tests.support.spark_appender HOME ROOT`` is the application itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import chunkstore
from tests.support.paths import SOURCES

PARTS = tuple(f"part-{number}" for number in range(3))
WRITER = "application"
_PAUSE_S = 0.03
_START_S = 120.0


class Appender:
    """Starts the application in ``home``, and again; a process is not killed here but by whoever kills owners."""

    def __init__(self, home: Path, root: str) -> None:
        self.home, self.root = home, root
        self.deposed = 0
        self._log = home / "application.log"
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        """Have it own the container, unless it does. Where it was not killed, but ended by itself, it was deposed, or the run fails."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return
            said = self._log.read_text(errors="replace")
            if code > 0 and not any(name in said for name in ("NotOwner", "OutcomeUnknown")):
                raise SystemExit(f"the application failed:\n{said[-20_000:]}")
            self.deposed += code > 0
        self._log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.support.spark_appender", str(self.home), self.root]
        (self.home / "owns").unlink(missing_ok=True)
        with open(self._log, "wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": SOURCES}
            )
        end_s = time.monotonic() + _START_S
        while not (self.home / "owns").exists() and self._process.poll() is None and time.monotonic() < end_s:
            time.sleep(0.02)

    def quiet(self) -> None:
        """Have it append nothing more; it goes on owning the container."""
        (self.home / "appended").touch()

    def stop(self) -> None:
        """Have it end by itself, and close the container."""
        (self.home / "leave").touch()
        while self._process is None or self._process.wait(_START_S):
            self.ensure()

    def reap(self, pid: int) -> None:
        """Where ``pid``, which was just killed, is the application's: a process that nobody waits for looks alive."""
        if self._process is not None and self._process.pid == pid:
            self._process.wait()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def promised(self) -> dict[str, int]:
        """The number of the last row of each segment whose append has returned."""
        found = dict.fromkeys(PARTS, 0)
        with suppress(FileNotFoundError):
            for line in (self.home / "acknowledged").read_text().splitlines():
                name, _, number = line.partition(" ")
                found[name] = int(number)
        return found


def row_of(name: str, number: int) -> str:
    return f"application.{name}.{number}"


def numbers_of(lines: Iterable[str]) -> list[int]:
    """Those of the application's rows, as they stand there."""
    return [int(line.rpartition(".")[2]) for line in lines if line.startswith("application.")]


def main(home: Path, root: str) -> None:
    settings = chunkstore.Settings(cache_dir=str(home / "application"), spill_s=3.0)
    with chunkstore.open(root, settings=settings) as store, open(home / "acknowledged", "ab", buffering=0) as told:
        last: dict[str, int] = {}
        for name in PARTS:
            with suppress(chunkstore.SegmentExists):
                store.create(name)
            last[name] = store.last_event_number(name, WRITER)
        (home / "owns").touch()
        while not (home / "appended").exists():
            for name in PARTS:
                number = last[name] + 1
                store.append(name, row_of(name, number).encode() + b"\n", writer_id=WRITER, event_number=number)
                told.write(f"{name} {number}\n".encode())
                last[name] = number
                time.sleep(_PAUSE_S)
        while not (home / "leave").exists():
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
