"""Readers of a range that is merged over and over, who compare every byte they get; also as a process: ``python -m``, see ``main``."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chunkstore
from chunkstore.config import KIB, RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from tests.support.data import pattern
from tests.support.merging import merge
from tests.support.scripts import ENVIRONMENT

__all__ = ["PARTS", "RANGE_BYTES", "Readers", "fill", "merge_again", "readers_elsewhere"]

NAME = "merged"
PARTS = 16
RANGE_BYTES = 256 * KIB
_READ_BYTES_MAX = 16 * KIB


def fill(store: ChunkedSegmentStorage) -> None:
    """The range, one chunk."""
    store.create(NAME, rolling=RollingPolicy(chunk_size_bytes_max=RANGE_BYTES))
    store.append(NAME, pattern(0, RANGE_BYTES))
    store.append(NAME, b"more")


def merge_again(store: ChunkedSegmentStorage) -> None:
    """Replace the range's chunk by small ones, have ``defrag`` merge these, and collect what is left behind, each time at once."""
    store.commit([merge(store, NAME, 0, 1, parts=PARTS)])
    store.collect()
    report = store.defrag(NAME)
    assert report.chunks_before - report.chunks_after == PARTS - 1
    store.collect()


class Readers:
    """Threads that read at random places, about every ``pause_s``, and note how long that took, by phases."""

    def __init__(self, read: Callable[[str, int, int], bytes], count: int, pause_s: float) -> None:
        self.wrong: Counter[str] = Counter()
        """Answers that are not what was written, and errors."""
        self.took_s: dict[str, list[float]] = defaultdict(list)
        self._phase = ""
        self._read = read
        self._pause_s = pause_s
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._ending.wait(chance.uniform(0, 2 * self._pause_s)):
            offset = chance.randrange(RANGE_BYTES)
            length = min(chance.randint(1, _READ_BYTES_MAX), RANGE_BYTES - offset)
            phase, began_s = self._phase, time.perf_counter()
            try:
                data = self._read(NAME, offset, length)
            except Exception as error:  # noqa: BLE001  (counted)
                self.wrong[f"{type(error).__name__}: {error}"] += 1
                continue
            self.took_s[phase].append(time.perf_counter() - began_s)
            if data != pattern(offset, length):
                self.wrong[f"wrong bytes in [{offset}, {offset + length})"] += 1

    def enter(self, phase: str) -> None:
        """What begins now is of this phase."""
        self._phase = phase

    def end(self) -> dict[str, Any]:
        """Stop all; what they saw, as plain data."""
        self._ending.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        return {"wrong": self.wrong, "took_s": self.took_s}


class Elsewhere:
    """``Readers`` at a replica in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def enter(self, phase: str) -> None:
        """As of ``Readers``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{phase}\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """As of ``Readers``."""
        said, _ = self._process.communicate(timeout=120)
        found: dict[str, Any] = json.loads(said)
        return found


@contextmanager
def readers_elsewhere(root: str, cache: Path, count: int, pause_s: float) -> Iterator[Elsewhere]:
    """Start them; they read once this is entered."""
    command = [sys.executable, "-m", "benchmarks.merged_readers", root, str(cache), str(count), str(pause_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reading\n"
            yield Elsewhere(process)
        finally:
            process.kill()


def main() -> None:
    """``ROOT CACHE COUNT PAUSE_S``: each line of stdin is a phase; at its end, print what the readers saw."""
    root, cache, count, pause_s = sys.argv[1:]
    with chunkstore.open_replica(root, settings=chunkstore.Settings(cache_dir=cache)) as replica:
        readers = Readers(replica.read, int(count), float(pause_s))
        print("reading", flush=True)
        for line in sys.stdin:
            readers.enter(line.strip())
        print(json.dumps(readers.end()))


if __name__ == "__main__":
    main()
