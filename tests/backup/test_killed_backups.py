"""A run that dies: no backup that counts is harmed, and the next run goes on with what is there (``tests/faults``: at every step)."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import backup, runtime
from tests.cli.conftest import start
from tests.faults.ground import FULL_RUN
from tests.support.backups import drop_old

pytestmark = pytest.mark.proof

__all__ = ["start"]


def entries(folder: Path) -> set[Path]:
    """What lies there; some of it may go while one looks."""
    return {Path(where, name) for where, folders, files in os.walk(folder) for name in (*folders, *files)}


@pytest.mark.timeout(600)
def test_kill_9_at_random_moments(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, copying between two folders; sha256 of what the backup holds at the end is that of the container."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the killed ones leave their exports there
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    root, target = (tmp_path / "root").as_uri(), (tmp_path / "target").as_uri()
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)

    def digests(store: Any) -> dict[str, str]:
        return {
            info.name: hashlib.sha256(store.read(info.name, 0, info.length)).hexdigest() for info in store.segments()
        }

    for number in range(6 if FULL_RUN else 3):
        with chunkstore.open(root, settings=settings) as store:
            store.create(f"s{number}", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=4096))
            for _ in range(8):
                store.append(f"s{number}", chance.randbytes(300_000))
            if number > 1:
                store.delete(f"s{number - 2}")
            expected = digests(store)
        for _ in range(2):
            before = entries(tmp_path / "target")
            process = start("backup", root, target, "--no-pin", "--json", "--cache-dir", tmp_path / "other")
            # Behind its first change of the target, or it would mostly be killed while it starts.
            while process.poll() is None and entries(tmp_path / "target") == before:
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            process.wait()
            if (tmp_path / "target" / "default" / "BACKUP").exists():
                assert backup.verify_copies(target).findings == ()
        process = start("backup", root, target, "--no-pin", "--json")
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
        with monkeypatch.context() as patch:
            later_ms = runtime.now_ms() + 2 * 86_400_000
            patch.setattr(runtime, "now_ms", lambda ms=later_ms: ms)  # marks of killed runs count for a day
            drop_old(target, keep=2)
        assert backup.verify_copies(target).findings == ()
        with chunkstore.open_replica(target, settings=settings) as replica:
            assert digests(replica) == expected and replica.check("deep") == []
