"""What happens to a verb whose output cannot be written: a disk that is full, a stdout that is closed, a reader that left."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.faults.ground import FULL_RUN
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


VERBS = [("cat", "a"), ("cat", "a", "--length", "3"), ("ls",), ("stat", "a"), ("journal",), ("check",), ("layout", "a")]
# Bytes and a table both ways; the others, by default, one way or the other: what writes their lines is the same.
CHOSEN = [
    pytest.param(verb, unbuffered, id=f"{' '.join(verb)}-{'unbuffered' if unbuffered else 'buffered'}")
    for number, verb in enumerate(VERBS)
    for unbuffered in (False, True)
    if FULL_RUN or number < 3 or unbuffered == bool(number % 2)
]


@pytest.mark.parametrize(("verb", "unbuffered"), CHOSEN)
def test_a_full_disk_is_one_line(filled: str, verb: tuple[str, ...], *, unbuffered: bool) -> None:
    name, *rest = verb
    assert run(name, filled, *rest, unbuffered=unbuffered) == (1, f"chunkstore: {MESSAGE}\n".encode())
    code, err = run(name, filled, *rest, "--json", unbuffered=unbuffered)
    assert code == 1
    assert json.loads(err) == {"error": "OutputFailed", "message": MESSAGE, "fields": {"errno": 28}}


@pytest.mark.parametrize("arguments", [("--help",), ("cat", "--help"), ("--version",)], ids=" ".join)
def test_a_full_disk_under_help(arguments: tuple[str, ...]) -> None:
    assert run(*arguments) == (1, f"chunkstore: {MESSAGE}\n".encode())


def test_what_a_verb_changed_is_not_undone(call: Call, filled: str) -> None:
    assert run("seal", filled, "a")[0] == 1
    assert call("stat", filled, "a", "--json").document["sealed"] is True


def test_a_closed_standard_output_is_one_line(filled: str) -> None:
    for verb in (("cat", filled, "a"), ("ls", filled), ("owner", filled, "--json"), ("containers", filled)):
        code, err = run(*verb, to=">&-")
        assert (code, err.count(b"\n")) == (1, 1), err
        assert b"cannot write to standard output: it is closed" in err


def test_a_closed_standard_input_is_one_line(filled: str) -> None:
    """As under cron, and of daemons."""
    for verb in (("put", filled, "b", "-"), ("offload", filled, "--topic", "t", "--ledger", "1", "-")):
        code, err = run(*verb, to="<&- >/dev/null")
        assert (code, err.count(b"\n")) == (2, 1), err
        assert b"standard input is closed" in err


def test_a_full_standard_error_leaves_the_exit_code() -> None:
    assert run("nonsense", to="2>/dev/full")[0] == 2
    assert run("ls", "file:///nowhere", to="2>/dev/full")[0] == 1
    assert run("ls", "file:///nowhere", "--json", to="2>&-")[0] == 1


def test_the_progress_bar_is_gone_before_the_line_is_written(filled: str) -> None:
    master, slave = pty.openpty()
    try:
        with open("/dev/full", "wb") as full:
            command = [sys.executable, "-m", "chunkstore", "cat", filled, "a"]
            code = subprocess.run(command, stdout=full, stderr=slave, timeout=60, check=False).returncode
        os.close(slave)
        shown = b""
        try:
            while piece := os.read(master, 65536):
                shown += piece
        except OSError:
            pass  # everything was read, and nobody writes any more
    finally:
        os.close(master)
    assert code == 1
    assert shown.splitlines()[-1].endswith(f"chunkstore: {MESSAGE}".encode())
    assert b"Traceback" not in shown
