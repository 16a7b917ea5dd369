"""What the tests of stores on real servers share: writers that note what they are told, and the command line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, DeadlineExceeded, OutcomeUnknown, StorageUnavailable
from tests.support.paths import SOURCES
from tests.support.servers.base import wait_until


class Writer:
    """A thread that appends numbered marks to a segment of its own, and notes what it was told about each."""

    def __init__(self, store: ChunkedSegmentStorage, name: str) -> None:
        self.store = store
        self.name = name
        self.acknowledged: dict[bytes, int] = {}
        self.unknown: list[bytes] = []
        self.wrong: list[BaseException] = []
        self.stop = threading.Event()
        store.create(name)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self.stop.is_set():
            number += 1
            mark = f"{self.name}:{number}:{'x' * (number % 50)}\n".encode()
            try:
                self.acknowledged[mark] = self.store.append(self.name, mark)
            except OutcomeUnknown:
                self.unknown.append(mark)
                time.sleep(0.05)
            except (StorageUnavailable, DeadlineExceeded):
                time.sleep(0.05)
            except ChunkstoreError as error:
                self.wrong.append(error)
                return

    def verify(self, store: ChunkedSegmentStorage) -> None:
        """Everything acknowledged is there, where it was said to be; nothing is there twice or in part, or was said to have failed."""
        content = store.read(self.name, 0, store.info(self.name).length)
        for mark, offset in self.acknowledged.items():
            assert content[offset : offset + len(mark)] == mark
        marks = content.splitlines(keepends=True)
        numbers = [int(mark.split(b":")[1]) for mark in marks]
        assert numbers == sorted(set(numbers))
        assert set(marks) <= {*self.acknowledged, *self.unknown}


def until_all_have(writers: list[Writer], more: int, *, deadline_s: float = 120) -> None:
    """Until each of them was acknowledged so many more marks, or is wrong."""
    counts = [len(writer.acknowledged) for writer in writers]
    wait_until(
        lambda: all(
            len(writer.acknowledged) >= count + more or writer.wrong
            for writer, count in zip(writers, counts, strict=True)
        ),
        deadline_s=deadline_s,
        what="some appends of each writer",
    )


def finish(writers: list[Writer]) -> None:
    """End them all; none may have met an error that says something else than what a server's death does."""
    for writer in writers:
        writer.stop.set()
    for writer in writers:
        writer._thread.join(240)
        assert not writer._thread.is_alive()
        assert writer.wrong == []


def _run(*arguments: str, cache: Path, data: bytes = b"") -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "chunkstore", *arguments],
        input=data,
        capture_output=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCES, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(cache)},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def check_command_line(root: str, tmp_path: Path) -> None:
    """Verbs of every kind, each a process of its own; some on a machine that knows nothing."""

    def run(*arguments: str, cache: str = "here", data: bytes = b"") -> Any:
        output = _run(*arguments, cache=tmp_path / cache, data=data)
        return json.loads(output) if "--json" in arguments else output

    data = random.Random(1).randbytes(40 << 20)
    put = run("put", root, "big", "-", "--chunk-size", str(33 << 20), "--json", data=data)
    assert put["length"] == len(data)
    run("put", root, "small", "-", "--seal", data=b"hello\n")
    assert run("cat", root, "big") == data
    assert run("cat", root, "small", cache="elsewhere") == b"hello\n"
    assert b"small" in run("ls", root)
    assert run("stat", root, "small", "--json")["sealed"] is True
    assert run("check", root, "--deep", "--json", cache="nowhere")["ok"] is True
    assert run("containers", root, "--json")["container"] == "default"
    run("snapshot", root)
    run("rm", root, "small")
