"""``put --resume`` after kill -9 at random moments: the segment becomes the file, and the container stays sound.

A few rounds here; CHUNKSTORE_SOAK_PUT=1 (make soak-put) takes 1 GiB and twenty kills.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.proof

Start = Callable[..., "subprocess.Popen[bytes]"]
MIB = 1 << 20
SOAK = os.environ.get("CHUNKSTORE_SOAK_PUT") == "1"
SIZE_BYTES = 1024 * MIB if SOAK else 48 * MIB
KILLS = 20 if SOAK else 4


def make_file(path: Path, chance: random.Random) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(SIZE_BYTES // MIB):
            block = chance.randbytes(MIB)
            file.write(block)
            digest.update(block)
    return digest.hexdigest()


def run(start: Start, *arguments: str | Path) -> bytes:
    process = start(*arguments)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err.decode()
    return out


@pytest.mark.timeout(3600 if SOAK else 300)
def test_put_survives_kill_9(start: Start, root: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    file = tmp_path / "file"
    sha256 = make_file(file, chance)
    kills = 0
    longest_s = 8.0 if SOAK else 1.2
    while kills < KILLS:
        writer = start("put", root, "a", file, "--resume", "--seal", "--json")
        time.sleep(chance.uniform(0.1, longest_s))
        if writer.poll() is not None:
            assert writer.communicate() and writer.returncode == 0
            longest_s = max(0.3, longest_s * 0.6)  # it was faster than we: kill earlier in the next round
            run(start, "rm", root, "a")
            continue
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        if writer.returncode == 0:
            run(start, "rm", root, "a")  # it ended between our look and the kill
            continue
        assert writer.returncode == -signal.SIGKILL
        kills += 1
        if chance.random() < 0.3:
            subprocess.run(["rm", "-rf", str(tmp_path / "cache")], check=True)
    finished = json.loads(run(start, "put", root, "a", file, "--resume", "--seal", "--json"))
    assert finished["offset"] + finished["length"] == SIZE_BYTES
    assert json.loads(run(start, "check", root, "--quick", "--json"))["ok"] is True
    reader = start("cat", root, "a")
    assert reader.stdout is not None
    stored = hashlib.sha256()
    while block := reader.stdout.read(MIB):
        stored.update(block)
    assert reader.communicate(timeout=60)[1] == b""
    assert stored.hexdigest() == sha256
