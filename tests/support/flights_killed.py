"""The guide of flights, with everything in it killed: ``python -m tests.support.flights_killed --kills N``.

Each step is a process of its own, is killed with -9 N times at random moments of its life (with Spark, its workers and planners), and then
runs to its end; so is the application, in the middle of a day. In the end every number is compared with the source's. ``--wheel``: all
of it from the built wheel, beside a copy of ``examples``. Exit code 1 where a number differs, or a step that was not killed fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT, SOURCES
from tests.support.servers.rgw import Rgw
from tests.support.servers.s3server import CREDENTIALS
from tests.support.spark_kills import NO_PYTHON, kill, processes_of
from tests.support.wheels import build_wheel, new_environment, pip_install

AIRCRAFT = 12
APPLICATION = "application"
NUMBERS = """
import sys
from examples.flights import run
from examples.flights.departures import generated
root, yesterday, former = sys.argv[1:]
wrong = 0
for line in run.numbers(run.session(), root, yesterday, list(generated(2, aircraft=%d)), former):
    wrong += line.pipeline != line.source
    print(line.what, "equal" if line.pipeline == line.source else f"DIFFERENT: {line}", flush=True)
sys.exit(wrong)
"""


class Pipeline:
    """Commands of the guide, in ``home``."""

    def __init__(self, home: Path, python: Path, sources: str, chance: random.Random, kills: int) -> None:
        self.home, self.python, self.chance, self.kills = home, python, chance, kills
        self.former = ""
        self.counts: Counter[str] = Counter()
        self._took_s = dict.fromkeys(("", APPLICATION), 30.0)
        self._environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._environment |= {"PYTHONPATH": sources} if sources else {}

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.python), *words], cwd=self.home, env=self._environment, start_new_session=True, text=True, **more
        )

    def whole(self, *words: str) -> float:
        """Run it to its end; how long it took. Spark gives a planner's Python ten seconds to come up, and a step may be run again."""
        for _ in range(5):
            begun = time.monotonic()
            done = self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said, _ = done.communicate()
            kill(list(processes_of(done.pid)))
            if not done.returncode:
                break
            self.counts["given up"] += 1
            if NO_PYTHON not in said:
                break
        print(said if done.returncode or words[0] == "-c" else "", end="", flush=True)
        if done.returncode:
            raise SystemExit(f"{words} ended with {done.returncode}")
        return time.monotonic() - begun

    def step(self, name: str, *options: str) -> None:
        words = ("-m", f"examples.flights.{name}", *options)
        for _ in range(self.kills):
            process = self.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.chance.uniform(0.2, 1.0) * self._took_s.get(name, self._took_s[""]))
            self.counts[f"{name} killed"] += process.poll() is None
            kill(list(processes_of(process.pid)))
            process.wait()
        self._took_s[name] = self._took_s[""] = self.whole(*words)
        print(f"{name}: {self._took_s['']:.0f} s, {dict(self.counts)}", flush=True)

    def application(self, root: str) -> subprocess.Popen[str]:
        words = (
            "-m",
            "examples.flights.application",
            "--root",
            root,
            "--aircraft",
            str(AIRCRAFT),
            "--former",
            self.former,
        )
        return self.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, root: str, *commands: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """The application, which has done these commands, and the answer to the last; killed some times while it does the last."""
        for attempt in range(self.kills + 1):
            process, answer = self.application(root), {}
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            for command in commands:
                begun = time.monotonic()
                print(command, file=process.stdin, flush=True)
                if attempt < self.kills and command == commands[-1]:
                    time.sleep(self.chance.uniform(0, 1) * min(self._took_s[APPLICATION], 2.0))
                    kill([process.pid])
                    process.communicate()
                    self.counts["application killed"] += 1
                else:
                    answer = json.loads(process.stdout.readline())
                    print(command, answer, flush=True)
                    self._took_s[APPLICATION] = time.monotonic() - begun
            if "error" in answer:
                raise SystemExit(str(answer))
        return process, answer


def end(application: subprocess.Popen[str]) -> None:
    application.communicate()
    if application.returncode:
        raise SystemExit(f"the application ended with {application.returncode}")


def run(pipeline: Pipeline, root: str, to: str) -> None:
    """The guide, in its order."""
    home = pipeline.home
    before, behind = str(home / "before"), str(home / "behind")
    application, _ = pipeline.tell(root, "day")
    pipeline.step("silver", "--root", root, "--work", before)
    kill([application.pid])  # an owner that is started by a sink does the rest
    application.communicate()
    pipeline.step("gold", "--root", root, "--work", before)
    pipeline.kills, kills = 0, pipeline.kills
    application, moved = pipeline.tell(root, f"move {to}")
    end(application)
    pipeline.kills, pipeline.former = kills, root
    yesterday = datetime.now(UTC).isoformat(timespec="milliseconds")
    time.sleep(0.002)
    application, _ = pipeline.tell(to, "day", "day")  # the first is there: it is not appended again
    pipeline.step(
        "silver", "--root", to, "--former", root, "--work", behind, "--starting", json.dumps(moved["starting"])
    )
    pipeline.step("gold", "--root", to, "--former", root, "--work", behind)
    end(application)
    application, settled = pipeline.tell(to, "settle")
    print(settled)
    pipeline.step("ledgers", "--root", to, "--first", "20260301", "--last", "20260302")
    pipeline.step("nightly", "--root", to, "--backups", (home / "backups").as_uri())
    pipeline.whole("-c", NUMBERS % AIRCRAFT, to, yesterday, root)
    end(application)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=2, help="of each step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wheel", action="store_true", help="from the built wheel, not from the checkout")
    parser.add_argument(
        "--rgw", action="store_true", help="the container moves to Ceph's S3 gateway; else to another folder"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flights-killed-", ignore_cleanup_errors=True) as folder:
        home, python, server = Path(folder), Path(sys.executable), Rgw() if chosen.rgw else None
        try:
            os.environ.update(CREDENTIALS)
            if chosen.wheel:
                python = new_environment(home / "python")
                pip_install(python, build_wheel(home))
                shutil.copytree(ROOT / "examples", home / "examples")
                os.environ.pop("PYTHONPATH", None)
            to = server.root(server.make_bucket(), "flights") if server else (home / "to").as_uri()
            chance = random.Random(chosen.seed)
            pipeline = Pipeline(home, python, "" if chosen.wheel else SOURCES, chance, chosen.kills)
            run(pipeline, (home / "root").as_uri(), to)
        finally:
            if server is not None:
                server.stop()
    print(json.dumps(pipeline.counts))


if __name__ == "__main__":
    main()
