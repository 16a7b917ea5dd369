"""A pipeline whose parts are killed at random moments: ``python -m tests.support.spark_kills --drivers N --executors N --owners N``.

One driver runs two queries: numbered rows from files into a container (the sink), and the container's segments into files of their own
(the source). Killed with -9, in turn: the owner that serves both; an executor or a Python worker; the driver, every
third time between our commit and Spark's. A last driver ends by itself. Then every row is counted where it was written, and where it was
read; then one sweep, behind which nothing may be left over. Exit code 1 where anything is wrong. ``--rgw``: on Ceph's S3 gateway.
``--application``: an application owns the container and appends small rows, which travel in records, to the same segments. It is the
owner that is killed, and comes back.
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
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import chunkstore
from chunkstore.assembly import describe_owner
from chunkstore.metadata.keys import SINKS_NAMESPACE
from chunkstore.metadata.sinks import STREAM, decode_sink
from chunkstore.names import ContainerNames
from chunkstore.processes import is_alive
from chunkstore.registry import open_storage
from chunkstore.storage import iter_listing
from tests.support.paths import SOURCES
from tests.support.report import RESULTS, Figure, Report
from tests.support.servers.rgw import Rgw
from tests.support.servers.s3server import CREDENTIALS
from tests.support.spark_appender import Appender, numbers_of, row_of
from tests.support.spark_owner import Server

ROWS_A_FILE = 200
FILES_AHEAD = 6
PROGRESS_S = 400.0
CLUSTER = "local-cluster[2,1,1024]"
EXECUTORS_A_LIFE = 10
"""A cluster takes three JVMs and three times as long to start: few drivers have one, and lose so many executors."""
NO_PYTHON = "Python worker failed to connect back"
WORKER = "pyspark.daemon pyspark.worker"

DRIVER = """
import json, os, sys, time
from pathlib import Path
from tests.support.spark import start_session
home, root, master = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
more = {"spark.executor.memory": "512m", "spark.task.maxFailures": "100", "spark.deploy.maxExecutorRetries": "-1"}
spark = start_session(home / "scratch", master=master, more=more)
spark.sparkContext.setLogLevel("WARN")
source = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(home / "in"))
rows = source.selectExpr("concat('part-', crc32(value) % 3) AS segment", "value").repartition(3)
writer = rows.writeStream.format("chunkstore").options(framing="lines", chunkBytes="2000", path=root)
sink = writer.queryName("sink").option("checkpointLocation", str(home / "checkpoint")).start()
print("started", flush=True)

def keep(frame, batch):
    found = sorted((row.segment, row.offset, bytes(row.value).decode()) for row in frame.collect())
    place, text = home / "read" / f"{batch}.json", json.dumps(found)
    if place.exists() and place.read_text() != text:
        (home / "read" / f"{batch}.differs").write_text(text)
    (home / "hidden").write_text(text)
    os.replace(home / "hidden", place)

def read():
    options = {"segmentsPattern": "part-.*", "framing": "lines", "startingOffsets": "earliest"}
    frame = spark.readStream.format("chunkstore").options(**options).load(root)
    stream = frame.writeStream.option("checkpointLocation", str(home / "reading")).queryName("reader")
    return stream.trigger(processingTime="1 second").foreachBatch(keep).start()

queries = [sink]
while not (home / "stop").exists():
    if len(queries) == 1 and (home / "there").exists():
        queries.append(read())
    for query in queries:
        if not query.isActive:
            query.awaitTermination()
            raise SystemExit(f"{query.name} has ended")
    time.sleep(0.1)
for query in queries:
    query.processAllAvailable()
    query.stop()
print("ended", flush=True)
"""


def processes_of(session: int) -> dict[int, str]:
    """The processes of a session of the system's (of a driver and of all that it started), and their words."""
    found: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError, IndexError):
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found[int(entry)] = Path("/proc", entry, "cmdline").read_text().replace("\0", " ")
    return found


def kill(pids: list[int]) -> int:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


class SparkGaveUp(Exception):
    """Spark waits ten seconds for a process of Python, and ends the query then. That is a busy machine, and nothing of ours."""


class Driver:
    """A driver and what it started: executors, Python workers, planners."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def _pids(self, word: str) -> list[int]:
        return [pid for pid, words in processes_of(self.process.pid).items() if word in words]

    def kill_executor(self) -> int:
        return kill(self._pids("CoarseGrainedExecutorBackend")[:1])

    def kill_worker(self) -> int:
        """A process of Python that an executor runs tasks in; the newest, for the oldest begets the others."""
        return kill(self._pids(WORKER)[-1:])

    def kill(self, *, alone: bool) -> None:
        """``alone``: executors find out by themselves, and write on until then."""
        found = processes_of(self.process.pid)
        kill([pid for pid, words in found.items() if not alone or not is_task(words)])
        self.process.wait()

    def end(self) -> None:
        kill(list(processes_of(self.process.pid)))

    def failed(self) -> BaseException:
        if NO_PYTHON in self.log.read_text(errors="replace"):
            return SparkGaveUp()
        return SystemExit(f"the driver failed:\n{self.log.read_text(errors='replace')[-30_000:]}")


def is_task(words: str) -> bool:
    return "CoarseGrainedExecutorBackend" in words or WORKER in words


class Ground:
    """Files that are brought, a container, and a replica that watches it."""

    def __init__(self, home: Path, root: str, chance: random.Random, *, application: bool = False) -> None:
        self.home, self.root, self.chance = home, root, chance
        self.brought: list[str] = []
        self.files = self.batches = 0
        self.counts: Counter[str] = Counter()
        for name in ("in", "read", "scratch"):
            (home / name).mkdir()
        with chunkstore.open(root, settings=chunkstore.Settings(cache_dir=str(home / "first"))):
            pass
        self.owner: Appender | Server = Appender(home, root) if application else Server(root)
        self.application = application
        self.replica = chunkstore.open_replica(root, settings=chunkstore.Settings(cache_dir=str(home / "watching")))

    def committed(self) -> int:
        """The last micro-batch that is committed in the container, -1 if none is."""
        self.replica.refresh()
        rows = self.replica.table(SINKS_NAMESPACE).scan(STREAM)
        return max((decode_sink(row.key, row.value).number for row in rows), default=-1)

    def look(self) -> int:
        """``committed``; bring more files, so that there is a next one."""
        number = self.committed()
        while self.files <= number + FILES_AHEAD:
            rows_of_file = [f"{self.files}.{row}" for row in range(ROWS_A_FILE)]
            hidden = self.home / f"{self.files}.txt"
            hidden.write_text("".join(f"{row}\n" for row in rows_of_file))
            hidden.rename(self.home / "in" / hidden.name)
            self.brought += rows_of_file
            self.files += 1
        if number >= 0:
            (self.home / "there").touch()
        return number

    def is_between(self) -> bool:
        """Whether a micro-batch is committed here, and not by Spark."""
        number = self.look()
        return number >= 0 and not (self.home / "checkpoint" / "commits" / str(number)).exists()

    @contextmanager
    def driver(self, *, with_executors: bool = False) -> Iterator[Driver]:
        environment = {**os.environ, "PYTHONPATH": SOURCES, "XDG_CACHE_HOME": str(self.home / "scratch" / "cache")}
        command = [sys.executable, "-c", DRIVER, str(self.home), self.root, CLUSTER if with_executors else "local[2,4]"]
        log = self.home / "driver.log"
        with (
            open(log, "wb") as output,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=output, env=environment, start_new_session=True
            ) as process,
        ):
            made = Driver(process, log)
            try:
                assert process.stdout is not None
                if process.stdout.readline() != b"started\n":
                    raise made.failed()
                yield made
            except BaseException:
                made.end()
                raise

    def go_on(self, driver: Driver, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.look()
            if driver.process.poll() is not None:
                raise driver.failed()
            time.sleep(0.02)

    def until_more(self, driver: Driver, count: int) -> float:
        """Until so many more micro-batches are committed; how many seconds that took."""
        begun, wanted = time.monotonic(), self.look() + count
        while self.look() < wanted:
            self.go_on(driver, 0.05)
            if time.monotonic() > begun + PROGRESS_S:
                raise SystemExit(f"nothing was committed for {PROGRESS_S:g} s: {driver.failed()!r}")
        return time.monotonic() - begun

    def live(self, victims: list[str], *, between: bool, alone: bool) -> list[int]:
        """The life of one driver; what it leaves behind."""
        self.owner.ensure()
        with self.driver(with_executors="executors" in victims) as driver:
            for victim in victims:
                self.owner.ensure()
                self.until_more(driver, 1)
                self.go_on(driver, self.chance.uniform(0.0, 2.0))
                killed = self._kill(driver, victim)
                self.counts[victim] += killed
                self.owner.ensure()
                took_s = self.until_more(driver, 1)
                print(f"  {victim}: {killed}, went on after {took_s:.1f} s", file=sys.stderr, flush=True)
            if between:
                self.until_more(driver, 1)
                end_s = time.monotonic() + 60
                while not self.is_between() and time.monotonic() < end_s and driver.process.poll() is None:
                    pass
            else:
                self.go_on(driver, self.chance.uniform(0.0, 6.0))
            if driver.process.poll() is not None:
                raise driver.failed()
            driver.kill(alone=alone)
        self.counts["drivers"] += 1
        self.counts["between"] += self.is_between()
        return [driver.process.pid]

    def _kill(self, driver: Driver, victim: str) -> int:
        if victim == "executors":
            return driver.kill_executor()
        if victim == "workers":
            return driver.kill_worker()
        owner = int(str(describe_owner(self.root)["pid"]))
        killed = kill([owner]) if owner != os.getpid() and is_alive(owner) else 0
        self.owner.reap(owner if killed else 0)
        return killed

    def last(self) -> None:
        """A driver that ends by itself."""
        (self.home / "stop").unlink(missing_ok=True)
        self.owner.ensure()
        self.look()
        with self.driver() as driver:
            self.owner.ensure()
            self.until_more(driver, 1)
            self.owner.quiet()
            (self.home / "stop").touch()
            assert driver.process.stdout is not None
            if driver.process.stdout.read() != b"ended\n":
                raise driver.failed()
        self.owner.stop()
        self.batches = self.committed() + 1

    def judge(self) -> dict[str, int]:
        """What is there twice, what is missing, what is left over."""
        self.replica.close()
        promised = self.owner.promised()
        beside = Counter[str]()
        settings = chunkstore.Settings(cache_dir=str(self.home / "last"), gc_grace_s=0)
        with chunkstore.open(self.root, settings=settings, wait_s=0) as store:
            found, places = Counter[str](), Counter[tuple[str, int, str]]()
            for info in store.segments(prefix="part-"):
                at = 0
                lines = store.read(info.name, 0, 1 << 30).decode().splitlines(keepends=True)
                there = numbers_of(line.strip() for line in lines)
                last = max(promised.get(info.name, 0), *there, 0)
                beside["segments where its rows are out of order"] += there != list(range(1, last + 1))
                self.brought += [row_of(info.name, number) for number in range(1, last + 1)]
                beside["rows of the application"] += last
                beside["appends that lie in records at the end"] += sum(
                    chunk.kind == "inline" for chunk in store.layout(info.name)
                )
                for line in lines:
                    found[line[:-1]] += 1
                    places[info.name, at, line[:-1]] += 1
                    at += len(line)
            sessions = store.sessions()
            swept = store.sweep(delete=True, age_s_min=0)
            left = store.orphans(age_s_min=0)
        with closing(open_storage(self.root, settings)) as storage:
            asks = sum(1 for _ in iter_listing(storage, ContainerNames("default").ask_prefix())) - 1  # the bell
        read = Counter(
            tuple(row) for file in (self.home / "read").glob("*.json") for row in json.loads(file.read_text())
        )
        for item in sessions:
            print(f"left: {item}", file=sys.stderr)
        return {
            "rows": len(self.brought),
            **({**beside, "times that it was deposed": self.owner.deposed} if self.application else {}),
            "duplicates": (found - Counter(self.brought)).total(),
            "losses": (Counter(self.brought) - found).total(),
            "read twice": (read - places).total(),
            "not read": (places - read).total(),
            "replays that differed": len(list((self.home / "read").glob("*.differs"))),
            "orphans swept": swept.deleted,
            "orphans left": left.orphans + left.waiting - asks,
            "requests and answers of the last day": asks,
            "sessions open": len(sessions),
        }


def run(home: Path, root: str, chosen: argparse.Namespace) -> dict[str, int]:
    ground = Ground(home, root, random.Random(chosen.seed), application=chosen.application)
    try:
        return live_and_judge(ground, chosen)
    finally:
        ground.owner.end()


def live_and_judge(ground: Ground, chosen: argparse.Namespace) -> dict[str, int]:
    begun, chance = time.monotonic(), ground.chance
    gone: list[int] = []
    lives = max(chosen.drivers, 1)
    for number in range(chosen.drivers):
        owners = (number + 1) * chosen.owners // lives - number * chosen.owners // lives
        executors = max(0, min(EXECUTORS_A_LIFE, chosen.executors - EXECUTORS_A_LIFE * number))
        victims = ["owners"] * owners + [("executors", "workers")[which % 2] for which in range(executors)]
        chance.shuffle(victims)
        while True:
            try:
                gone += ground.live(victims, between=number % 3 == 1, alone=number % 2 == 1)
                break
            except SparkGaveUp:
                ground.counts["given up"] += 1
        print(f"{time.monotonic() - begun:.0f} s: {dict(ground.counts)}", file=sys.stderr, flush=True)
    while True:
        try:
            ground.last()
            break
        except SparkGaveUp:
            ground.counts["given up"] += 1
    for session in gone:
        end_s = time.monotonic() + 60
        while processes_of(session) and time.monotonic() < end_s:
            time.sleep(0.1)
        kill(list(processes_of(session)))
    epochs = int(str(describe_owner(ground.root)["opened_epoch"]))
    killed = {f"{name} killed": ground.counts[name] for name in ("drivers", "executors", "workers", "owners")}
    killed["drivers that Spark ended, for Python took ten seconds to start"] = ground.counts["given up"]
    between = {"drivers killed between our commit and Spark's": ground.counts["between"]}
    batches = {"micro-batches": ground.batches}
    seconds = {"epochs": epochs, "seconds": round(time.monotonic() - begun)}
    return {**killed, **between, **batches, **ground.judge(), **seconds}


NOTHING = (
    "duplicates",
    "losses",
    "read twice",
    "not read",
    "replays that differed",
    "segments where its rows are out of order",
    "orphans left",
)


def save(place: str, found: dict[str, int]) -> None:
    """Add to what runs before have counted, each of which was judged by itself."""
    report, before = Report("spark-kills"), dict[str, float]()
    with suppress(FileNotFoundError):
        figures = json.loads((RESULTS / "spark-kills.json").read_text(encoding="utf-8"))["figures"]
        before = {item["name"]: item["value"] for item in figures}
        report.figures = [Figure(**item) for item in figures if not item["name"].startswith(f"{place}: ")]
    for name, value in {"runs": 1, **found}.items():
        total = value + before.get(f"{place}: {name}", 0)
        report.add(f"{place}: {name}", total, "s" if name == "seconds" else "", at_most=0 if name in NOTHING else None)
    report.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drivers", type=int, default=3)
    parser.add_argument("--executors", type=int, default=2, help="or Python workers, in turn")
    parser.add_argument("--owners", type=int, default=2)
    parser.add_argument(
        "--application", action="store_true", help="an application owns the container, and appends beside"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--root", default="", help="a root's URL, empty; a directory of its own unless given")
    parser.add_argument("--rgw", action="store_true", help="start Ceph's S3 gateway, and have the root there")
    parser.add_argument("--save", action="store_true", help="keep the counts in benchmarks/results")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-kills-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(home / "scratch" / "cache")
        server: Any = None
        if chosen.rgw:
            os.environ.update(CREDENTIALS)
            server = Rgw()
        try:
            root = server.root(server.make_bucket(), "kills") if server else chosen.root or f"file://{home}/root"
            found = run(home, root, chosen)
        finally:
            if server is not None:
                server.stop()
    print(json.dumps(found), flush=True)
    if chosen.save:
        place = "RADOS gateway" if chosen.rgw else "disk"
        save(f"{place}, beside an application" if chosen.application else place, found)
    if any(found.get(name, 0) for name in NOTHING):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
