"""Micro-batches beside an application that owns the container and appends all the time.

``python -m tests.support.spark_beside --batches N``: first and last some micro-batches are committed by the owner itself
(``foreach_batch``), between them N by asking it. Nobody may be deposed; every row is counted, the application's, too; and so are the
objects that stay behind merging and collecting. Exit code 1 where anything is wrong. ``--rgw``: on Ceph's S3 gateway.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import chunkstore
from chunkstore.assembly import describe_owner
from chunkstore.registry import open_storage
from chunkstore.spark import foreach_batch
from chunkstore.storage import iter_listing
from tests.support.report import RESULTS, Figure, Report
from tests.support.servers.rgw import Rgw
from tests.support.servers.s3server import CREDENTIALS
from tests.support.spark import start_session

ROWS = 30
OWN = 25
"""Micro-batches at the owner itself, twice."""
SEGMENTS = 4
"""Of each there may be one chunk more than before: the one that merging made of all that came since, however many micro-batches."""
ADDED = (
    "runs",
    "micro-batches beside the application",
    "rows of the application",
    "take-overs",
    "duplicates",
    "losses",
    "rows of the application out of place",
)
"""Counts, which runs that are saved add up; all else is of the last one."""


class Application:
    """Appends numbered rows until it is told to stop."""

    def __init__(self, store: chunkstore.ChunkedSegmentStorage) -> None:
        self.store, self.rows = store, 0
        self.wrong: list[BaseException] = []
        self.held = threading.Lock()
        self._stop = threading.Event()
        store.create("application")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.005):
                with self.held:
                    self.store.append("application", b"%d\n" % self.rows)
                    self.rows += 1
        except BaseException as error:  # noqa: BLE001  (it is raised in the main thread)
            self.wrong.append(error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Ground:
    def __init__(self, home: Path, store: chunkstore.ChunkedSegmentStorage, spark: Any) -> None:
        self.home, self.store, self.spark = home, store, spark
        self.brought: list[str] = []
        self.seconds: dict[str, list[float]] = {"own": [], "asked": []}

    def stream(self, kind: str, number: int, batches: int) -> None:
        """One query of so many micro-batches."""
        folder = self.home / f"in-{number}"
        folder.mkdir()
        for file in range(batches):
            rows = [f"{number}.{file}.{row}" for row in range(ROWS)]
            (folder / f"{file}.txt").write_text("".join(f"{row}\n" for row in rows))
            self.brought += rows
        source = self.spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder))
        rows_of = source.selectExpr("concat('part-', crc32(value) % 3) AS segment", "value")
        stream = rows_of.writeStream.option("checkpointLocation", str(self.home / f"checkpoint-{number}"))
        if kind == "own":
            stream = stream.foreachBatch(foreach_batch(self.store, framing="lines"))
        else:
            stream = stream.format("chunkstore").options(framing="lines", path=self.store.url)
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        found = [progress.durationMs["triggerExecution"] / 1000 for progress in query.recentProgress]
        self.seconds[kind] += found[3:]  # behind a start everything is slow
        print(f"{kind}: {len(found)} micro-batches, {statistics.median(found):.2f} s", file=sys.stderr, flush=True)

    def objects(self) -> Counter[str]:
        """What stays behind merging and collecting while nobody writes, by folder. Of snapshots that is one, since each count makes one.
        Left out are records of the journal: where each is an object they stay until the stream rolls, then all of them go (A11)."""
        self.store.spill()
        self.store.defrag(policy=chunkstore.DefragPolicy(fanout=2))
        self.store.snapshot()
        self.store.collect()
        self.store.collect()
        with closing(open_storage(self.store.url, self.store.settings)) as storage:
            folders = (info.name.split("/")[1] for info in iter_listing(storage, f"{self.store.container}/"))
            return Counter(folder for folder in folders if folder != "j")


def run(home: Path, root: str, batches: int) -> dict[str, float]:
    spark = start_session(home / "scratch", more={"spark.sql.streaming.numRecentProgressUpdates": "5000"})
    settings = chunkstore.Settings(cache_dir=str(home / "cache"), gc_grace_s=0, snapshots_kept=1)
    with chunkstore.open(root, settings=settings) as store:
        ground, application = Ground(home, store, spark), Application(store)
        ground.stream("own", 0, OWN)
        ground.stream("asked", 1, 10)
        with application.held:
            before = ground.objects()
        ground.stream("asked", 2, batches)
        with application.held:
            after = ground.objects()
        ground.stream("own", 3, OWN)
        application.stop()
        if application.wrong:
            raise application.wrong[0]
        text = b"".join(store.read(info.name, 0, 1 << 30) for info in store.segments(prefix="part-"))
        found, brought = Counter(text.decode().splitlines()), Counter(ground.brought)
        own = store.read("application", 0, 1 << 30).decode().splitlines()
        epoch = store.epoch
    spark.stop()
    print(f"objects by folder: {dict(before)}, {dict(after)}", file=sys.stderr)
    asked_s, own_s = (statistics.median(ground.seconds[kind]) for kind in ("asked", "own"))
    return {
        "micro-batches beside the application": batches,
        "rows of the application": application.rows,
        "take-overs": int(str(describe_owner(root)["claimed_epoch"])) - epoch,
        "duplicates": (found - brought).total(),
        "losses": (brought - found).total(),
        "rows of the application out of place": sum(row != str(number) for number, row in enumerate(own))
        + abs(len(own) - application.rows),
        "objects before": before.total(),
        "objects after": after.total(),
        "a micro-batch by asking": asked_s,
        "a micro-batch at the owner": own_s,
        "more than at the owner": asked_s - own_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--rgw", action="store_true", help="start Ceph's S3 gateway, and have the root there")
    parser.add_argument("--save", action="store_true", help="keep the counts in benchmarks/results")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-beside-", ignore_cleanup_errors=True) as folder:
        server: Any = None
        if chosen.rgw:
            os.environ.update(CREDENTIALS)
            server = Rgw()
        try:
            root = server.root(server.make_bucket(), "beside") if server else f"file://{folder}/root"
            found = run(Path(folder), root, chosen.batches)
        finally:
            if server is not None:
                server.stop()
    print(json.dumps(found))
    place = "RADOS gateway" if chosen.rgw else "disk"
    report, counted = Report("spark-beside"), dict[str, float]()
    with suppress(FileNotFoundError):
        before = json.loads((RESULTS / "spark-beside.json").read_text(encoding="utf-8"))["figures"]
        report.figures = [Figure(**item) for item in before if not item["name"].startswith(f"{place}: ")]
        counted = {item["name"]: item["value"] for item in before}
    most = {"take-overs": 0.0, "duplicates": 0.0, "losses": 0.0, "rows of the application out of place": 0.0}
    most |= {"more than at the owner": 3.0 if chosen.rgw else 0.5, "objects after": found["objects before"] + SEGMENTS}
    for name, value in {"runs": 1, **found}.items():
        total = value + counted.get(f"{place}: {name}", 0) if name in ADDED else value
        unit = "s" if "owner" in name or "asking" in name else ""
        report.add(f"{place}: {name}", total, unit, at_most=most.get(name))
    if chosen.save:
        report.save()
    if any(found[name] for name in ("take-overs", "duplicates", "losses", "rows of the application out of place")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
