"""What only real processes show: pipes that close, signals, another owner, standard input."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import chunkstore
from tests.cli.conftest import Call

Start = Callable[..., "subprocess.Popen[bytes]"]
DATA = b"0123456789abcdef" * 65536
OFTEN = chunkstore.Settings(lease_s=0.2)
"""Of an owner that shows that it lives more often than a command, which watches it for eleven seconds, has to see."""


@pytest.fixture
def filled(call: Call, root: str, tmp_path: Path) -> str:
    (tmp_path / "file").write_bytes(DATA)
    call("put", root, "a", tmp_path / "file")
    return root


def test_standard_input_and_a_pipe(start: Start, root: str) -> None:
    writer = start("put", root, "a", "-", "--json")
    out, err = writer.communicate(DATA, timeout=60)
    assert (writer.returncode, err) == (0, b"")
    assert json.loads(out) == {"segment": "a", "offset": 0, "length": len(DATA), "epoch": 1}
    reader = start("cat", root, "a", unbuffered=True)
    assert reader.communicate(timeout=60) == (DATA, b"")
    assert reader.returncode == 0


@pytest.mark.parametrize("unbuffered", [False, True])
def test_a_reader_that_leaves_is_no_error(start: Start, filled: str, *, unbuffered: bool) -> None:
    reader = start("cat", filled, "a", unbuffered=unbuffered)
    assert reader.stdout is not None
    assert reader.stderr is not None
    assert reader.stdout.read(10) == DATA[:10]
    reader.stdout.close()
    assert reader.stderr.read() == b""
    assert reader.wait(60) == 141


def test_follow_sees_appends_and_ends_with_the_seal(start: Start, root: str) -> None:
    with chunkstore.open(root) as store:
        store.create("a")
        store.append("a", b"first ")
        follower = start("cat", root, "a", "--follow")
        assert follower.stdout is not None
        assert follower.stdout.read(6) == b"first "
        store.append("a", b"second ")
        assert follower.stdout.read(7) == b"second "
        store.append("a", b"last")
        store.seal("a")
        assert follower.communicate(timeout=60) == (b"last", b"")
        assert follower.returncode == 0


def test_ctrl_c_exits_130_without_a_word(start: Start, filled: str) -> None:
    follower = start("cat", filled, "a", "--follow")
    assert follower.stdout is not None
    assert follower.stdout.read(len(DATA)) == DATA
    time.sleep(0.1)
    follower.send_signal(signal.SIGINT)
    assert follower.communicate(timeout=60) == (b"", b"")
    assert follower.returncode == 130


def test_a_live_owner_is_respected_unless_told_otherwise(start: Start, filled: str) -> None:
    with chunkstore.open(filled, settings=OFTEN) as owner:
        owner.create("mine")
        refused = start("seal", filled, "a", "--json")
        out, err = refused.communicate(timeout=60)
        assert (refused.returncode, out) == (1, b"")
        error = json.loads(err)
        assert error["error"] == "ContainerBusy"
        assert set(error["fields"]) == {"container", "host", "pid"}
        assert re.search(r"\(pid \d+ on .*\); .*--ask .*--take-over", error["message"])
        owner.append("mine", b"still the owner")

        told = start("seal", filled, "a", "--take-over", "--json")
        out, err = told.communicate(timeout=60)
        assert (told.returncode, err) == (0, b"")
        assert json.loads(out)["sealed"] is True
        with pytest.raises(chunkstore.NotOwner):
            owner.append("mine", b"fenced")
