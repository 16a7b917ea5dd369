"""Spark's standalone cluster from pyspark's own wheel: a master, and workers that know nothing of whoever runs the tests.

A worker is a ``Machine``: an address of its own (Spark takes 127.0.0.2 and 127.0.0.3 for two machines), a file system of its own as far
as ``mounts`` says (a mount namespace, which takes root), an environment of nothing but what it needs. Processes end with the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.servers.base import ServerProcess, free_ports
from tests.support.spark import QUICK_TO_START

__all__ = ["Machine", "SparkCluster", "can_mount", "clean_environment", "spark_home"]

START_S = 240.0
_KEPT = ("PATH", "JAVA_HOME", "LANG", "LC_ALL")
_CLASS = "org.apache.spark.deploy."
# Mounts are made in a namespace of the worker's: nobody else sees them, and they end with it.
_MOUNTED = 'while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 71; shift 2; done; shift; exec "$@"'


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def clean_environment(folder: Path, address: str) -> dict[str, str]:
    """All that a process of Spark gets: how to find Java, an address, and folders of its own."""
    for name in ("home", "tmp", "local"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": address,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_TO_START,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@cache
def can_mount() -> bool:
    """Whether a process may have a file system of its own here."""
    made = (
        subprocess.run(["unshare", "--mount", "mount", "--bind", "/tmp", "/tmp"], check=False, capture_output=True)
        if shutil.which("unshare")
        else None
    )
    return made is not None and made.returncode == 0


@dataclass(frozen=True)
class Machine:
    """What one worker has: ``mounts`` puts folders (values) in the place of others (keys), there alone."""

    address: str
    mounts: Mapping[Path, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class SparkCluster:
    """A master and no worker yet; ``add`` makes some."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self._web = free_ports(2)
        self._workers: dict[str, ServerProcess] = {}
        self._hidden = folder / "nothing"
        self._hidden.mkdir(parents=True)
        arguments = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._web))
        self._master = self._launch("master", "127.0.0.1", {}, {}, "master.Master", *arguments)
        self._master.wait_ready(lambda: self._state()["status"] == "ALIVE", deadline_s=START_S, what="Spark's master")

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def _launch(
        self,
        name: str,
        address: str,
        mounts: Mapping[Path, Path],
        extra: Mapping[str, str],
        kind: str,
        *arguments: str,
    ) -> ServerProcess:
        folder = self.folder / name
        environment = {**clean_environment(folder, address), **extra}
        command = [str(spark_home() / "bin" / "spark-class"), _CLASS + kind, *arguments]
        if mounts:
            pairs = [str(part) for place, source in mounts.items() for part in (source, place)]
            command = ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh", *pairs, "--", *command]
        words = [f"{key}={value}" for key, value in environment.items()]
        return ServerProcess(["env", "-i", *words, *command], log=folder / "log", cwd=folder)

    def add(self, *machines: Machine) -> None:
        """Start a worker of two cores on each and wait until the master knows them. The project's sources are hidden from them
        where mounts can be made."""
        for machine in machines:
            mounts = dict(machine.mounts)
            if can_mount():
                mounts |= {ROOT / name: self._hidden for name in ("chunkstore", "bindings", "journal", "tests")}
            [web] = free_ports(1)
            arguments = ("--host", machine.address, "--webui-port", str(web), "--cores", "2", "--memory", "2g")
            work = self.folder / machine.address / "work"
            worker = self._launch(
                machine.address,
                machine.address,
                mounts,
                machine.environment,
                "worker.Worker",
                *arguments,
                "--work-dir",
                str(work),
                self.url,
            )
            self._workers[machine.address] = worker
        for machine in machines:
            self._workers[machine.address].wait_ready(
                lambda address=machine.address: address in self.alive(),  # type: ignore[misc]
                deadline_s=START_S,
                what=f"Spark's worker on {machine.address}",
            )

    def _state(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=20) as answer:
            return json.load(answer)

    def alive(self) -> Sequence[str]:
        """The addresses of the workers that the master takes for alive."""
        return [worker["host"] for worker in self._state()["workers"] if worker["state"] == "ALIVE"]

    def kill(self, address: str) -> None:
        """kill -9 of everything on this machine: worker, executors, their Python."""
        worker = self._workers.pop(address)
        for pid in self._descendants(worker.pid):
            _kill(pid)
        worker.kill()

    def kill_executor(self, address: str) -> int:
        """kill -9 of the executors on this machine, not of the worker; how many there were."""
        found = [
            pid
            for pid in self._descendants(self._workers[address].pid)
            if "CoarseGrainedExecutorBackend" in _words(pid)
        ]
        for pid in found:
            _kill(pid)
        return len(found)

    @staticmethod
    def _descendants(pid: int) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = Path("/proc", entry, "stat").read_text()
                except OSError:
                    continue
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
        found, asked = [], [pid]
        while asked:
            asked = [child for parent in asked for child in children.get(parent, ())]
            found += asked
        return found

    def remove(self, *addresses: str) -> None:
        for address in addresses or tuple(self._workers):
            self.kill(address)

    def stop(self) -> None:
        """End everything. Safe to repeat."""
        self.remove()
        self._master.kill()


def _words(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
