"""The harness: processes that fight for one container. One works when the next one opens, at a random moment; some of the former
owners are stopped before that, and go on afterwards as zombies, and some are killed; now and then the disk is full.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from chunkstore.assembly import open_store
from chunkstore.config import KIB
from chunkstore.following import open_replica
from tests.chaos import owner as owners
from tests.chaos.owner import draw_settings, prepare, settings_of
from tests.chaos.verdict import Verdict
from tests.faults.disks import SmallDisk
from tests.support.data import problems
from tests.support.paths import SOURCES
from tests.support.worlds import Mode

_FULL: float = 0.3
"""The share of rounds in which the disk is full, if it can be."""
_FREE_BYTES = 200 * KIB


class OwnerProcess:
    """A process that opens when it is told to."""

    def __init__(self, root: str, mode: Mode, notes: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, owners.__file__, root, mode, str(notes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((os.environ.get("PYTHONPATH", ""), SOURCES))},
        )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        assert "ready" in self.answer()

    def _listen(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def tell(self, **command: object) -> None:
        """Let it open."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it says next."""
        found = self._answers.get(timeout=120)
        assert found is not None, "the process has ended"
        return found

    def send(self, number: int) -> None:
        """A signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """``SIGKILL``, also while it is stopped."""
        self._process.kill()
        self._process.wait(60)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Fight:
    """Rounds at one container. ``root``: default a folder of files, on ``disk`` if there is one; ``busy_s``: how long an owner works at
    most before the next one opens."""

    def __init__(
        self,
        folder: Path,
        mode: Mode,
        seed: int,
        *,
        root: str | None = None,
        busy_s: float = 0.12,
        disk: SmallDisk | None = None,
    ) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.mode: Mode = mode
        folder.mkdir(parents=True, exist_ok=True)
        self.root = root if root is not None else f"file://{(folder if disk is None else disk.path) / 'root'}"
        self.busy_s = busy_s
        self.disk = disk
        self.kinds = {"live": 0, "zombie": 0, "killed": 0, "full disk": 0}
        self.processes: list[OwnerProcess] = []
        with open_store(self.root, settings=settings_of(mode, str(folder / "cache-first"))) as store:
            prepare(store)
            self._epoch = store.epoch
        self._owner = self._new_process()
        self._next = self._new_process()
        self._round = 0
        self._open(self._owner)

    def _new_process(self) -> OwnerProcess:
        process = OwnerProcess(self.root, self.mode, self.folder / f"notes-{len(self.processes)}")
        self.processes.append(process)
        return process

    def _open(self, process: OwnerProcess) -> None:
        """Let it claim, until it serves: a full disk may refuse it at first."""
        for _ in range(10):
            shared = self.chance.random() < 0.5
            cache = self.folder / ("cache-shared" if shared else f"cache-{self._round % 2}")
            process.tell(cache=str(cache), tag=f"r{self._round}", settings=draw_settings(self.chance))
            answer = process.answer()
            if "opened" in answer:
                break
            assert self.disk is not None, answer
            self._free()
        assert answer["opened"] > self._epoch
        self._epoch = answer["opened"]

    def _free(self) -> None:
        if self.disk is not None and self.disk.path.joinpath("filler").exists():
            self.disk.free()

    def run(self, rounds: int) -> None:
        """So many take-overs. Raises ``AssertionError`` where a process answers what it must not."""
        chance = self.chance
        for _ in range(rounds):
            self._round += 1
            kind = chance.choices(("live", "zombie", "killed"), (4, 3, 3))[0]
            self.kinds[kind] += 1
            time.sleep(chance.uniform(0.0, self.busy_s))
            if self.disk is not None and chance.random() < _FULL:
                self.kinds["full disk"] += 1
                self.disk.fill(_FREE_BYTES)
                time.sleep(chance.uniform(0.0, 0.5))
            former = self._owner
            if kind == "zombie":
                former.send(signal.SIGSTOP)
            elif kind == "killed":
                former.kill()
            self._open(self._next)
            self._free()
            if kind == "zombie":
                time.sleep(chance.uniform(0.0, 0.05))
                former.send(signal.SIGCONT)
            if kind == "killed":
                former = self._new_process()
            else:
                assert former.answer() == {"fenced": True}
            self._owner, self._next = self._next, former

    def told(self) -> Verdict:
        """What the owners noted so far."""
        lines: list[str] = []
        for path in self.folder.glob("notes-*"):
            # What follows the last newline is half a note of a process that was killed.
            lines += path.read_text().rpartition("\n")[0].splitlines()
        return Verdict(lines)

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            process.kill()
        self._free()

    def verify(self) -> tuple[Verdict, list[str]]:
        """After ``close``: what was told, and what is wrong, with a cache, without one, and in a replica."""
        verdict = self.told()
        wrong: list[str] = []
        for cache in ("cache-first", "cache-nowhere"):
            with open_store(self.root, settings=settings_of(self.mode, str(self.folder / cache))) as store:
                wrong += verdict.problems(store)
                wrong += map(str, problems(store.check("deep")))
        with open_replica(self.root, settings=settings_of(self.mode, str(self.folder / "cache-replica"))) as replica:
            wrong += verdict.problems(replica)
        return verdict, wrong
