"""The LMDB store beside other processes: what they hold, kill, stop in the middle of, and inherit.

Child processes are started with spawn (or as scripts); fork is used only where forking is what is tested.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from chunkstore.config import MIB, Settings, Tuning
from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.lmdb import LmdbMetadataCache, environment_of
from chunkstore.metadata.port import MetadataStore
from tests.support.lmdb_caches import CONTAINER, made_current, token_directories
from tests.support.metadata_history import History
from tests.support.paths import SOURCES
from tests.support.scripts import ENVIRONMENT


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


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


@pytest.fixture
def cache(folder: str) -> Iterator[LmdbMetadataCache]:
    cache = LmdbMetadataCache(folder, CONTAINER, "here")
    yield cache
    cache.close()


# ---- other processes


def _serve(folder: str, map_bytes: int, pipe: Connection) -> None:
    """A process with the container's store open, doing what it is told."""
    settings = Settings(tuning=Tuning(lmdb_map_bytes=map_bytes))
    cache = LmdbMetadataCache(folder, CONTAINER, "here", settings=settings)
    store: MetadataStore | None = None
    calls: dict[str, Callable[..., Any]] = {
        "open": lambda: cache.open_current() is not None,
        "settle": lambda: store.view().close() if store else None,
        "head": lambda: store.head() if store else None,
        "get": lambda key: store.get(key) if store else None,
        "apply": lambda commits: store.apply(commits, verify=False) if store else None,
    }
    while True:
        name, *arguments = pipe.recv()
        if name == "end":
            if store is not None:
                store.close(clean=arguments[0])
            pipe.send(None)
            return
        if name == "open":
            store = cache.open_current()
            pipe.send(store is not None)
        else:
            try:
                pipe.send(calls[name](*arguments))
            except ChunkstoreError as error:
                pipe.send(error)


class Other:
    """A process started with spawn."""

    def __init__(self, folder: str, map_bytes: int = MIB) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(folder, map_bytes, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self, *message: object) -> Any:
        self._pipe.send(message)
        assert self._pipe.poll(60), "no answer"
        return self._pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)


@pytest.fixture
def other(folder: str) -> Iterator[Callable[..., Other]]:
    started: list[Other] = []

    def start(map_bytes: int = MIB) -> Other:
        started.append(Other(folder, map_bytes))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def test_what_another_process_holds_is_left_alone(cache: LmdbMetadataCache, other: Callable[..., Other]) -> None:
    store, history = made_current(cache)
    store.close(clean=True)
    owner = other()
    assert owner("open")
    assert owner("apply", [history.commit([(b"Sa", b"first")])]) is True
    assert owner("get", b"Sa") == b"first"
    assert cache.open_current() is None
    assert len(token_directories(cache)) == 1
    # A lone commit is applied when it is put behind the rows; looking at all of them writes it.
    assert owner("settle") is None
    seen = cache.seen()
    assert seen is not None
    assert seen.position == history.position
    owner.kill()
    assert cache.seen() == seen
    assert cache.open_current() is None
    assert token_directories(cache) == [], "what a killed process leaves is thrown away"
    assert cache.seen() == seen


def test_kill_in_the_middle_of_applies_leaves_the_end_that_was_seen(folder: str, tmp_path: Path) -> None:
    script = f"""
import sys
from chunkstore.metadata.lmdb import LmdbMetadataCache, environment_of
from tests.support.metadata_history import History
cache = LmdbMetadataCache({folder!r}, {CONTAINER!r}, "here")
store, history = cache.create(), History()
cache.make_current(store)
number = 0
while True:
    number += 1
    rows = [(b"S%d" % row, b"%d" % number) for row in range(20)]
    assert store.apply([history.commit(rows)], verify=False)
    if number % 50 == 0:
        print(number, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert process.stdout is not None
    applied = [int(process.stdout.readline()) for _ in range(6)]
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()

    cache = LmdbMetadataCache(folder, CONTAINER, "here")
    seen = cache.seen()
    assert seen is not None
    lsn = seen.position.lsn
    assert lsn >= applied[-1] - 1, "recorded after each transaction"
    expected = History()
    for number in range(1, lsn + 1):
        expected.commit([(b"S%d" % row, b"%d" % number) for row in range(20)])
    assert seen.position == expected.position
    assert cache.open_current() is None
    assert cache.seen() == seen


STOPPED = """
import time
from chunkstore.metadata.lmdb import LmdbMetadataCache, environment_of
store = LmdbMetadataCache({folder!r}, {container!r}, "here").open_current()
{within}
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "within",
    [
        # It holds LMDB's own lock, for which nobody can wait with a deadline.
        "with store._environment.handle.begin(write=True) as txn:",
        # LMDB's byte of the lock file: exclusive while an environment is being opened; it holds up everyone else who opens it.
        "import fcntl, os\nfcntl.lockf(os.open(os.path.join(store.path, 'lock.mdb'), os.O_RDWR), fcntl.LOCK_EX)\nif True:",
    ],
    ids=["writing", "opening"],
)
def test_beside_a_process_that_was_stopped(cache: LmdbMetadataCache, folder: str, within: str) -> None:
    store, _ = made_current(cache)
    left, head = environment_of(store).path, store.head()
    store.close(clean=True)
    script = STOPPED.format(folder=folder, container=CONTAINER, within=within)
    with stopped_process([sys.executable, "-c", script]):
        assert cache.open_current() is None
        assert cache.seen() == head
        fresh = cache.create()
        cache.make_current(fresh)
        assert fresh.apply([History().commit([(b"Sa", b"on")])], verify=True)
        fresh.close(clean=True)
        again = cache.open_current()
        assert again is not None
        assert again.get(b"Sa") == b"on"
        assert sorted(os.path.join(cache.path, name) for name in token_directories(cache)) == sorted(
            (left, environment_of(again).path)
        )
        again.close(clean=True)
    cache.discard(cache.create())
    assert len(token_directories(cache)) == 1, "what the stopped process held is swept"


# ---- fork
