"""Short fights of real processes; ``make chaos`` runs them for half an hour."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from chunkstore.config import MIB
from tests.chaos.harness import Fight
from tests.faults.disks import small_disk
from tests.support.paths import SOURCES
from tests.support.worlds import Mode

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1500)]

ROUNDS = 6


@pytest.mark.parametrize(("mode", "full_disk"), [("slot", False), ("append", False), ("append", True)])
def test_nothing_acknowledged_is_lost(mode: Mode, full_disk: bool, tmp_path: Path) -> None:
    seed = int(os.environ.get("CHUNKSTORE_SEED", "0")) or random.randrange(1 << 30)
    print(f"CHUNKSTORE_SEED={seed}")
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk("ext4", tmp_path / "small", 192 * MIB)) if full_disk else None
        fight = Fight(tmp_path, mode, seed, disk=disk)
        try:
            fight.run(ROUNDS)
        finally:
            fight.close()
        verdict, wrong = fight.verify()
    assert wrong == []
    assert len(verdict.acknowledged) > ROUNDS
    print(f"{fight.kinds}, {len(verdict.acknowledged)} acknowledged, {verdict.unknown} unknown")


BROKEN = """
import importlib.abc, importlib.util, sys

class Breaker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "chunkstore_journal.append_stream":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def broken(module):
            load(module)

            def commit(stream, data):
                start = stream.head.end
                stream._appender.write_durable(start, data)
                return start + len(data)

            module.AppendStream._commit = commit

        spec.loader.exec_module = broken
        return spec

sys.meta_path.insert(0, Breaker())
"""


def test_an_owner_that_does_not_look_is_caught(tmp_path: Path) -> None:
    """Commits that never look at the fence: the run ends with a violation and keeps the evidence."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    figures = tmp_path / "chaos.json"
    options = f"--seconds 900 --mode append --json {figures} --root {tmp_path / 'run'}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *options.split()],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCES}"},
        capture_output=True,
        text=True,
        timeout=1300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "VIOLATION" in done.stdout
    assert json.loads(figures.read_text())["violations"]
    assert list((tmp_path / "run").glob("*-append/notes-*"))
