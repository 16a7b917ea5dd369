"""What every server under test shares: ports, waiting with a deadline, process groups, a cache folder, and the REQUIRE rule.

The rule: ``CHUNKSTORE_REQUIRE=rgw,moto,hdfs,proxy`` names the servers without which a run is worthless. One that is named
and cannot be had is a failure; one that is not named is a skip whose reason says which guarantees were not tested.
Servers listen on 127.0.0.1 only, and their processes end with the process that started them, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = [
    "GUARANTEES",
    "ServerMissing",
    "ServerProcess",
    "cache_folder",
    "exclusive",
    "free_port",
    "free_ports",
    "missing",
    "required",
    "wait_until",
]

GUARANTEES = {
    "moto": "S3 (semantics, against moto)",
    "rgw": "S3 against a real server (Ceph RGW): durability, kill -9, concurrency of processes",
    "pulsar": "Pulsar against a real broker: what it offloads, and what it reads of ours",
    "kafka": "Kafka against real brokers: a tier of theirs in a container, what was put back, what was attached",
    "hdfs": "HDFS against a real name node and data node",
    "proxy": "networks that lose replies, reset, stall and crawl",
}


class ServerMissing(Exception):
    """This server cannot be had here; the message says why and what to do."""


def required() -> frozenset[str]:
    """The servers named in ``CHUNKSTORE_REQUIRE``. A name nobody knows is an error: it would require nothing."""
    names = frozenset(filter(None, os.environ.get("CHUNKSTORE_REQUIRE", "").replace(" ", "").split(",")))
    unknown = names - GUARANTEES.keys()
    if unknown:
        raise ValueError(f"CHUNKSTORE_REQUIRE names {sorted(unknown)}; known are {sorted(GUARANTEES)}")
    return names


def missing(server: str, why: object) -> NoReturn:
    """End the test: failed where ``server`` is required, else skipped with what is thereby not tested."""
    text = f"not tested: {GUARANTEES[server]}: {why}"
    if server in required():
        pytest.fail(f"{server} is required by CHUNKSTORE_REQUIRE; {text}", pytrace=False)
    pytest.skip(text)


_claims: list[int] = []


def _is_claimed(port: int) -> bool:
    """Whether another process of tests, or this one before, was given the port; if not, it is ours while this process lives."""
    # A name in Linux's abstract space: it ends with its process, and nothing is left behind.
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0chunkstore-tests-port-{port}")
    except OSError:
        claim.close()
        return True
    _claims.append(claim.detach())
    return False


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, all different, below the kernel's own range for clients. No other call of
    this function is given them, in whatever process: a server binds its port seconds later, and again when it is restarted."""
    # A client's socket may be given any port of the ephemeral range at any time, so servers stay below it.
    found: list[int] = []
    candidate = 20_000 + int.from_bytes(os.urandom(2), "big") % 10_000
    while len(found) < count:
        candidate = 20_000 + (candidate + 1 - 20_000) % 12_000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
        if not _is_claimed(candidate):
            found.append(candidate)
    return found


def free_port() -> int:
    """One free port; see ``free_ports``."""
    return free_ports(1)[0]


def wait_until(check: Callable[[], bool], *, deadline_s: float, what: str, every_s: float = 0.05) -> None:
    """Call ``check`` until it answers True. Raises ``TimeoutError`` naming ``what``; ``OSError`` from ``check`` means not yet."""
    ends = time.monotonic() + deadline_s
    last: OSError | None = None
    while True:
        try:
            if check():
                return
        except OSError as error:
            last = error
        if time.monotonic() >= ends:
            raise TimeoutError(f"{what} was not there after {deadline_s:g} s ({last})")
        time.sleep(every_s)


def cache_folder(name: str) -> Path:
    """A folder that outlives the run, for what was downloaded or built: ``CHUNKSTORE_TEST_CACHE`` or below ``~/.cache``."""
    base = os.environ.get("CHUNKSTORE_TEST_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "chunkstore-tests")
    folder = Path(base) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """One process at a time in here: test processes that run in parallel build a cache once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Run by the new process before it becomes the server: PR_SET_PDEATHSIG, SIGKILL. A preexec_fn may deadlock among threads.
_LAUNCHER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"


class ServerProcess:
    """One server process in a process group of its own, with its output in a file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.command = list(command)
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            # PDEATHSIG follows the thread that starts the process, so servers are started by main threads only.
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the whole group; harmless when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """kill -9, and wait for it."""
        self.signal(signal.SIGKILL)
        self.process.wait(120)

    def stop(self, grace_s: float = 10) -> None:
        """Ask it to end, kill it after ``grace_s``. Safe to repeat."""
        if self.is_running():
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        self.kill()

    def wait_ready(self, check: Callable[[], bool], *, deadline_s: float, what: str) -> None:
        """``wait_until``, which ends at once, with the end of the log, when the process does."""

        def ready() -> bool:
            if not self.is_running():
                raise ServerMissing(f"{what} ended with {self.process.returncode}: {self.log_tail()}")
            return check()

        try:
            wait_until(ready, deadline_s=deadline_s, what=what)
        except TimeoutError as error:
            raise ServerMissing(f"{error}; {self.log_tail()}") from error

    def log_tail(self, lines: int = 8) -> str:
        try:
            return " | ".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "no log"
