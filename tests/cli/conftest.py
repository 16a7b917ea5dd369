"""How the tests reach the command line: in this process where that is enough, as a real process where it matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from chunkstore.cli import main
from tests.support.paths import SOURCES


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: bytes

    @property
    def document(self) -> Any:
        """Stdout as one JSON document."""
        [line] = self.out.splitlines()
        return json.loads(line)

    @property
    def lines(self) -> list[Any]:
        """Stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """Stderr as the one JSON error."""
        [line] = self.err.splitlines()
        error = json.loads(line)
        assert list(error) == ["error", "message", "fields"]
        assert isinstance(error, dict)
        return error


class Call(Protocol):
    def __call__(self, *arguments: str | Path, code: int = 0) -> Result: ...


@pytest.fixture
def root(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, an owner that lives is watched for until it shows that it does, however late. Nobody waits for those that have
    released the container, or whose process is gone."""
    monkeypatch.setattr("chunkstore_journal.lease._LEASES_WATCHED", 1000.0)


@pytest.fixture
def call(capsysbinary: pytest.CaptureFixture[bytes]) -> Call:
    """Run one command in this process and require its exit code."""

    def run(*arguments: str | Path, code: int = 0) -> Result:
        capsysbinary.readouterr()
        got = main([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        result = Result(got, captured.out, captured.err)
        assert got == code, result
        return result

    return run


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start one command as a process of its own, with pipes for stdin, stdout and stderr."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str | Path, unbuffered: bool = False) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONWARNINGS": "error"}
        environment.pop("PYTHONUNBUFFERED", None)
        command = [sys.executable, *(["-u"] if unbuffered else []), "-m", "chunkstore", *map(str, arguments)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        with process:  # closes the pipes and waits
            pass
