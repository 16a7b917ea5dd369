"""Two owners of one container: the newer one owns, whenever it comes, and whatever state the older one is in.

In the filesystem worlds these are processes: one is under load when the other opens, at a random moment; some older ones
are stopped before (and go on afterwards, as zombies), some are killed. In the memory worlds they are stores of one
process, whose way to the storage is blocked or cut. Half of the rounds share one metadata cache. Seeds are printed.
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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from chunkstore.assembly import open_store
from tests.faults import owners
from tests.faults.ground import FULL_RUN
from tests.faults.owners import SETTINGS, Verdict, prepare
from tests.support.hooked import wait_for
from tests.support.settings import tuned
from tests.support.worlds import Mode

ROUNDS = 300 if FULL_RUN else 5
ENOUGH = 10 * ROUNDS
"""Acknowledged appends of all rounds together; fewer would prove little."""
REPOSITORY = Path(__file__).parents[2]
PATHS = os.pathsep.join(str(REPOSITORY / name) for name in (".", "bindings", "journal"))

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900 if FULL_RUN else 240)]


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("CHUNKSTORE_SEED", "0")) or random.randrange(1 << 30)
    print(f"CHUNKSTORE_SEED={chosen}")
    return chosen


class OwnerProcess:
    """A process that opens when it is told to."""

    def __init__(self, root: str, mode: Mode, notes: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, owners.__file__, root, mode, str(notes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATHS},
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
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        found = self._answers.get(timeout=120)
        assert found is not None, "the process has ended"
        return found

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Duel:
    """Rounds between two processes. ``root``: default a folder of files; ``busy_s``: how long an owner works at most."""

    def __init__(self, folder: Path, mode: Mode, seed: int, *, root: str | None = None, busy_s: float = 0.12) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.mode: Mode = mode
        folder.mkdir(parents=True, exist_ok=True)
        self.root = root if root is not None else f"file://{folder / 'root'}"
        self.busy_s = busy_s
        self.settings = tuned(journal_mode=mode, cache_dir=str(folder / "cache-first"), **SETTINGS)
        self.processes: list[OwnerProcess] = []
        with open_store(self.root, settings=self.settings) as store:
            prepare(store)

    def new_process(self) -> OwnerProcess:
        number = len(self.processes)
        process = OwnerProcess(self.root, self.mode, self.folder / f"notes-{number}")
        self.processes.append(process)
        return process

    def cache(self, number: int) -> str:
        shared = self.chance.random() < 0.5
        return str(self.folder / ("cache-shared" if shared else f"cache-{number % 2}"))

    def run(self, rounds: int) -> dict[str, int]:
        chance = self.chance
        owner, other = self.new_process(), self.new_process()
        kinds = {"live": 0, "zombie": 0, "killed": 0}
        owner.tell(cache=self.cache(0), tag="r0", resolve_s=0.0)
        epoch = owner.answer()["opened"]
        for number in range(1, rounds + 1):
            kind = chance.choices(("live", "zombie", "killed"), (6, 3, 1))[0]
            kinds[kind] += 1
            time.sleep(chance.uniform(0.0, self.busy_s))
            if kind == "zombie":
                owner.send(signal.SIGSTOP)
            elif kind == "killed":
                owner.kill()
            other.tell(cache=self.cache(number), tag=f"r{number}", resolve_s=chance.choice((0.0, 0.2)))
            answer = other.answer()
            assert "opened" in answer, answer
            assert answer["opened"] > epoch
            epoch = answer["opened"]
            if kind == "zombie":
                time.sleep(chance.uniform(0.0, 0.05))
                owner.send(signal.SIGCONT)
            if kind == "killed":
                owner = self.new_process()
            else:
                assert owner.answer() == {"fenced": True}
            owner, other = other, owner
        return kinds

    def told(self) -> Verdict:
        """What the owners noted so far."""
        lines: list[str] = []
        for path in self.folder.glob("notes-*"):
            # What follows the last newline is half a note of a process that was killed.
            lines += path.read_text().rpartition("\n")[0].splitlines()
        return Verdict(lines)

    def verify(self) -> Verdict:
        verdict = self.told()
        for cache in ("cache-first", "cache-nowhere"):
            settings = tuned(journal_mode=self.mode, cache_dir=str(self.folder / cache), **SETTINGS)
            with open_store(self.root, settings=settings) as store:
                verdict.check(store)
        return verdict

    def close(self) -> None:
        for process in self.processes:
            process.kill()


def test_processes(tmp_path: Path, mode: Mode, seed: int, record_property: Callable[[str, object], None]) -> None:
    duel = Duel(tmp_path, mode, seed)
    try:
        kinds = duel.run(ROUNDS)
        # How much was done in the rounds is the machine's affair: the last owner works until it is enough.
        wait_for(lambda: len(duel.told().acknowledged) > ENOUGH)
    finally:
        duel.close()
    verdict = duel.verify()
    assert len(verdict.acknowledged) > ENOUGH
    record_property("rounds", ROUNDS)
    print(f"{mode}: {kinds}, {len(verdict.acknowledged)} acknowledged, {len(verdict.unknown)} unknown")
