"""Streams whose drivers are killed at random moments: ``python -m tests.support.spark_kills --kills N [--root URL]``.

A driver (of its own process group, as ``kill -9`` meets it) streams numbered rows into a container; it is killed N times, then ends by
itself. The owner beside it is killed, too, every third time. What is in the container is compared with what was brought: rows that are
there twice, rows that are missing; then one sweep, behind which nothing may be left over. Exit code 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import chunkstore
from chunkstore.assembly import describe_owner
from chunkstore.processes import is_alive
from tests.support.paths import SOURCES

ROWS_A_FILE = 500
FILES_A_KILL = 6

DRIVER = """
import sys
from pathlib import Path
from tests.support.spark import start_session
home, root = Path(sys.argv[1]), sys.argv[2]
spark = start_session(home / "scratch")
print("started", flush=True)
source = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(home / "in"))
sink = source.selectExpr("concat('part-', crc32(value) % 3) AS segment", "value").repartition(4)
writer = sink.writeStream.format("chunkstore").options(framing="lines", chunkBytes="2000", ownerIdleS="5", path=root)
query = writer.option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
query.awaitTermination()
print("ended", flush=True)
"""


def bring(home: Path, number: int) -> list[str]:
    """One more file; its rows."""
    rows = [f"{number}.{row}" for row in range(ROWS_A_FILE)]
    hidden = home / f"{number}.txt"
    hidden.write_text("".join(f"{row}\n" for row in rows))
    hidden.rename(home / "in" / f"{number}.txt")
    return rows


@contextmanager
def driver(home: Path, root: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": SOURCES, "XDG_CACHE_HOME": str(home / "scratch" / "cache")}
    command = [sys.executable, "-c", DRIVER, str(home), root]
    with (
        open(home / "driver.log", "ab") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True
        ) as process,
    ):
        assert process.stdout is not None
        if process.stdout.readline() != b"started\n":
            raise SystemExit(f"the driver does not start: see {home / 'driver.log'}")
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(home: Path, root: str, kills: int, chance: random.Random) -> dict[str, int]:
    """What was found: rows, duplicates, losses, orphans, micro-batches that were brought again."""
    (home / "in").mkdir()
    with chunkstore.open(root, settings=chunkstore.Settings(cache_dir=str(home / "first"))):
        pass
    brought: list[str] = []
    files = owners = 0
    for number in range(kills + 1):
        for _ in range(FILES_A_KILL):
            brought += bring(home, files)
            files += 1
        with driver(home, root) as process:
            if number == kills:
                assert process.stdout is not None
                if process.stdout.read() != b"ended\n":
                    raise SystemExit(
                        f"the last driver failed:\n{(home / 'driver.log').read_text(errors='replace')[-20_000:]}"
                    )
                break
            time.sleep(chance.uniform(2.0, 14.0))
            if number % 3 == 1:
                owner = int(str(describe_owner(root)["pid"]))
                if owner != os.getpid() and is_alive(owner):
                    os.kill(owner, signal.SIGKILL)
                    owners += 1
                time.sleep(chance.uniform(0.0, 3.0))
        print(f"killed {number + 1}", file=sys.stderr, flush=True)
    settings = chunkstore.Settings(cache_dir=str(home / "last"), gc_grace_s=0)
    with chunkstore.open(root, settings=settings, wait_s=0) as store:
        parts = [info.name for info in store.segments(prefix="part-")]
        found = Counter(line for part in parts for line in store.read(part, 0, 1 << 30).decode().splitlines())
        for session in store.sessions():
            print(f"open: {session}", file=sys.stderr)
        swept = store.sweep(delete=True, age_s_min=0)
        left = store.orphans(age_s_min=0)
    return {
        "kills": kills,
        "owners_killed": owners,
        "rows": len(brought),
        "duplicates": sum(count - 1 for count in found.values()),
        "losses": len(set(brought) - set(found)),
        "strangers": len(set(found) - set(brought)),
        "swept": swept.deleted,
        "orphans_left": left.orphans + left.waiting,
        "epochs": int(str(describe_owner(root)["opened_epoch"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", default="", help="a root's URL, empty; a directory of its own unless given")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-kills-") as folder:
        home = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(home / "scratch" / "cache")
        found = run(home, chosen.root or f"file://{home}/root", chosen.kills, random.Random(chosen.seed))
    print(json.dumps(found))
    if found["duplicates"] or found["losses"] or found["strangers"] or found["orphans_left"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
