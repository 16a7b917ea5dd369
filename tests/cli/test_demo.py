"""The demonstration runs as the README says, and its numbers hold."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Call

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.mark.slow
def test_demo(start: Start, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    demo = start("demo", root, "--seed", "7", "--json")
    out, err = demo.communicate(timeout=200)
    assert (demo.returncode, err) == (0, b"")
    report = json.loads(out)
    assert report["root"] == root
    assert report["seed"] == 7
    assert report["file_bytes"] / 4 <= report["acknowledged_bytes"] <= report["recovered_bytes"] < report["file_bytes"]
    assert report["recovery_source"] in ("journal", "snapshot")
    assert report["replayed_records"] > 0
    assert report["epoch_recovered"] > report["epoch_killed"]
    shutil.rmtree(tmp_path / "store")


def test_demo_refuses_a_root_that_dies_with_the_process(call: Call) -> None:
    assert call("demo", "memory://x", "--json", code=2).error["error"] == "InvalidArgument"
