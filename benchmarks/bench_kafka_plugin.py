"""Copy and fetch calls of the plug-in for Kafka's brokers, against Kafka's own ``LocalTieredStorage``.

``python -m benchmarks.bench_kafka_plugin [--quick]``. Needs the extra ``dev``, Maven and a JDK. One JVM with the classes of Kafka 3.9.1
calls both managers in turn, as a broker does: whole segments are copied, 1 MiB of them is fetched. Ours goes through ``chunkstore kafka
serve`` to files and is durable when a call returns; ``LocalTieredStorage`` copies files, and syncs nothing, so its copies are also
timed with a sync of its files. Wall clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess

from benchmarks.harness import Report, median, scratch
from chunkstore.config import MIB
from tests.kafka.support_plugin import Serving
from tests.support.paths import ROOT
from tests.support.servers.hdfs_jars import java_command
from tests.support.servers.kafka import OLD, jars, plugin
from tests.support.servers.maven import compiled

__all__ = ["main"]


def main() -> None:
    """Run all and save ``results/kafka_plugin.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    report = Report("kafka_plugin-quick" if options.quick else "kafka_plugin")
    rounds = 3 if options.quick else 40
    classes = os.pathsep.join(f"{jars(OLD)}/{name}/*" for name in ("lib", "files"))
    with scratch(None) as folder:
        classes = os.pathsep.join((str(plugin(folder)), classes))
        main_class = compiled([ROOT / "benchmarks" / "KafkaCalls.java"], classes, folder / "main")
        serving = Serving((folder / "root").as_uri(), folder / "s.sock")
        serving.start()
        try:
            for size_bytes in (MIB, 16 * MIB):
                place = folder / str(size_bytes)
                place.mkdir()
                command = [java_command(), "-Xmx512m", "-cp", os.pathsep.join((str(main_class), classes)), "KafkaCalls"]
                command += [str(place), f"unix:{serving.socket}", str(size_bytes), str(rounds)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
                assert done.returncode == 0, done.stderr[-2000:]
                _add(report, done.stdout, size_bytes)
        finally:
            serving.stop()
    report.save()


def _add(report: Report, lines: str, size_bytes: int) -> None:
    """Median times of each call, without the first quarter, in which the JVM compiles; and how ours compares."""
    spent: dict[str, list[float]] = {}
    for line in lines.splitlines():
        call, _, nanoseconds = line.rpartition(" ")
        if call in ("ours copy", "ours fetch", "theirs copy", "theirs fetch", "synced copy"):
            spent.setdefault(call, []).append(int(nanoseconds) / 1e6)
    found = {name: median(times[len(times) // 4 :]) for name, times in spent.items()}
    for call, who in (("copy", "theirs"), ("copy", "synced"), ("fetch", "theirs")):
        ours, theirs = found[f"ours {call}"], found[f"{who} {call}"]
        peer = "LocalTieredStorage and a sync" if who == "synced" else "LocalTieredStorage"
        what = f"{call}, segments of {size_bytes // MIB} MiB"
        report.add(f"plug-in: {what}", ours, "ms")
        report.add(f"{peer}: {what}", theirs, "ms")
        report.add(f"plug-in against {peer}: {what}", theirs / ours, "x", at_least=0.9)


if __name__ == "__main__":
    main()
