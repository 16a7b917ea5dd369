"""``python -m tests.chaos [--seconds N] [--kills N] [--mode slot|append] [--seed N] [--json PATH]``: one fight after the other.

Each fight has a container of its own, in either mode, every third one on a small disk that fills up (that needs root). The
run ends at the first violation with exit code 1, and keeps the folder.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError
from tests.chaos.harness import Fight
from tests.faults.disks import SmallDisk, small_disk
from tests.support.worlds import Mode

_ROUNDS = 15
_DISK_BYTES = 192 * MIB


def _disk(stack: ExitStack, folder: Path) -> SmallDisk | None:
    try:
        return stack.enter_context(small_disk("ext4", folder / "small", _DISK_BYTES))
    except pytest.skip.Exception as error:
        print(error)
        return None


def _fight(folder: Path, mode: Mode, seed: int, *, full_disk: bool, totals: Counter[str]) -> list[str]:
    with ExitStack() as stack:
        disk = _disk(stack, folder) if full_disk else None
        fight = Fight(folder, mode, seed, busy_s=0.5, disk=disk)
        wrong: list[str] = []
        try:
            fight.run(_ROUNDS)
        except AssertionError as error:
            wrong = [f"an owner answers {error}"]
        finally:
            fight.close()
        try:
            verdict, found = fight.verify()
            wrong += found
            totals.update(acknowledged=len(verdict.acknowledged), unknown=verdict.unknown)
        except ChunkstoreError as error:
            wrong.append(f"the container cannot be read: {error!r}")
        totals.update(fight.kinds)
        totals.update(fights=1)
        if wrong and disk is not None:
            shutil.copytree(disk.path, folder / "small-disk-kept")
    return wrong


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=0, help="go on until so many owners were killed")
    parser.add_argument("--mode", choices=("slot", "append"), help="default: both, in turn")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--root", type=Path, help="folder for everything (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="write figures to this file")
    options = parser.parse_args()
    root = options.root or Path(tempfile.mkdtemp(prefix="chunkstore-chaos-"))
    began_s, number, wrong = time.monotonic(), 0, list[str]()
    totals: Counter[str] = Counter()
    while not wrong and (time.monotonic() < began_s + options.seconds or totals["killed"] < options.kills):
        mode: Mode = options.mode or ("slot", "append")[number % 2]
        folder, seed = root / f"{number}-{mode}", options.seed + number
        print(f"fight {number} in {mode} (--seed {seed}); so far {dict(totals)}", flush=True)
        wrong = _fight(folder, mode, seed, full_disk=number % 3 == 2, totals=totals)
        if not wrong:
            shutil.rmtree(folder)
        number += 1
    for item in wrong[:20]:
        print(f"VIOLATION {item}")
    print(f"{dict(totals)} in {time.monotonic() - began_s:.0f} s; {f'kept: {folder}' if wrong else 'nothing was lost'}")
    if options.json:
        document = {"seed": options.seed, "totals": dict(totals), "violations": wrong}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
