"""What happens to a verb whose output cannot be written: a disk that is full, a stdout that is closed, a reader that left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.support.paths import SOURCES

DATA = b"0123456789abcdef" * 65536
MESSAGE = "cannot write to standard output: No space left on device"


@pytest.fixture
def filled(call: Call, root: str, tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(DATA)
    call("put", root, "a", tmp_path / "file")
    return root


def run(*arguments: str, to: str = ">/dev/full", unbuffered: bool = False) -> tuple[int, bytes]:
    """Run one command by a shell that redirects it; the exit code and stderr."""
    environment = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONWARNINGS": "error"}
    environment.pop("PYTHONUNBUFFERED", None)
    if unbuffered:
        environment["PYTHONUNBUFFERED"] = "1"
    command = ["sh", "-c", f'exec "$@" {to}', "sh", sys.executable, "-m", "chunkstore", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, env=environment, timeout=60, check=False)
    return done.returncode, done.stderr


# Bytes one way, a table the other: what writes the lines of the other verbs is the same.
CHOSEN = [(("cat", "a"), False), (("ls",), True)]


@pytest.mark.parametrize(("verb", "unbuffered"), CHOSEN)
def test_a_full_disk_is_one_line(filled: str, verb: tuple[str, ...], *, unbuffered: bool) -> None:
    name, *rest = verb
    assert run(name, filled, *rest, unbuffered=unbuffered) == (1, f"chunkstore: {MESSAGE}\n".encode())
    code, err = run(name, filled, *rest, "--json", unbuffered=unbuffered)
    assert code == 1
    assert json.loads(err) == {"error": "OutputFailed", "message": MESSAGE, "fields": {"errno": 28}}


def test_a_closed_standard_output_is_one_line(filled: str) -> None:
    for verb in (("cat", filled, "a"), ("ls", filled), ("owner", filled, "--json"), ("containers", filled)):
        code, err = run(*verb, to=">&-")
        assert (code, err.count(b"\n")) == (1, 1), err
        assert b"cannot write to standard output: it is closed" in err
