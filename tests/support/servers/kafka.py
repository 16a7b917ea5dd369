"""Kafka brokers from Maven's artifacts: one node with a controller (KRaft), and more brokers that join it.

Promises: each listens on 127.0.0.1 only; nothing is outside the folder given; what was acknowledged survives ``kill`` and ``start``.
50 MB are downloaded, once for each version. A start takes 8 CPU seconds, and 350 MiB while it runs. Leaves out: TLS, authentication.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from zipfile import ZipFile

from tests.support.paths import ROOT
from tests.support.servers.base import ServerMissing, ServerProcess, free_ports
from tests.support.servers.hdfs_jars import java_command
from tests.support.servers.maven import compiled, fetched

__all__ = ["DEADLINE_S", "NEW", "OLD", "KafkaBroker", "jars", "plugin"]

DEADLINE_S = 300.0
"""A limit for everything that a broker does: its tests show that it ends, not how fast it is."""
OLD, NEW = "3.9.1", "4.4.0"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_SETTINGS: dict[str, object] = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "log.dirs": "data",  # relative: no path gets into a file
    **dict.fromkeys(("offsets.topic.replication.factor", "offsets.topic.num.partitions"), 1),
    **{f"transaction.state.log.{name}": 1 for name in ("replication.factor", "min.isr", "num.partitions")},
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
    # Local segments are deleted when they are looked at: the usual 5 minutes are long for a test.
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 500,
    "log.segment.delete.delay.ms": 100,
    "log.index.interval.bytes": 1024,
    "log.index.size.max.bytes": 65536,
}


def jars(version: str) -> Path:
    """The folder of a version's jars: ``lib``, ``files``. Raises ``ServerMissing``."""
    # Without a binding of slf4j a broker writes no line.
    artifacts = [f"org.apache.kafka:kafka_2.13:{version}", "org.slf4j:slf4j-simple:1.7.36"]
    files = [f"org.apache.kafka:kafka-storage:{version}:jar:test"] if version == OLD else []
    return fetched(f"kafka-{version}", artifacts, files)


def plugin(folder: Path) -> Path:
    """The plug-in's jar, made in ``folder`` of the checkout's sources and the jars of ``OLD``. Raises ``ServerMissing``."""
    sources = sorted((ROOT / "bindings" / "kafka_plugin").rglob("*.java"))
    classes = compiled(sources, f"{jars(OLD)}/lib/*", folder / "classes")
    with ZipFile(folder / "plugin.jar", "w") as jar:
        for path in classes.rglob("*.class"):
            jar.write(path, path.relative_to(classes))
    return folder / "plugin.jar"


class KafkaBroker:
    """A broker, with a controller where it does not join ``joined``. ``start`` raises ``ServerMissing``.

    ``address``: for clients, the same at each start. ``data``: its log directory. ``configuration``: of the broker, "_" for ".".
    """

    def __init__(
        self, folder: Path, version: str = NEW, *, joined: KafkaBroker | None = None, **configuration: object
    ) -> None:
        self.version, self.folder, self._java = version, folder, java_command()
        self.class_path = os.pathsep.join(f"{jars(version)}/{name}/*" for name in ("lib", "files"))
        self.node: int = 1 if joined is None else joined.node + 1
        port, own = free_ports(2)
        self._controller: int = own if joined is None else joined._controller
        self.address = f"127.0.0.1:{port}"
        self.data, self.log = folder / "data", folder / "broker.log"
        self._process: ServerProcess | None = None
        listeners = f"PLAINTEXT://{self.address}"
        settings = _SETTINGS | {
            "process.roles": "broker" if joined else "broker,controller",
            "node.id": self.node,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller}",
            "advertised.listeners": listeners,
            "listeners": listeners if joined else f"{listeners},CONTROLLER://127.0.0.1:{own}",
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.configure(settings | {name.replace("_", "."): value for name, value in configuration.items()})
        options = ["-t", _CLUSTER, "-c", "server.properties", *([] if joined else ["--standalone"])]
        self.java("kafka.tools.StorageTool", "format", *options)

    def configure(self, settings: dict[str, object]) -> None:
        """Put further settings into its file, for the next start; of a repeated one the last counts."""
        with open(self.folder / "server.properties", "a") as file:
            file.writelines(f"{name}={value}\n" for name, value in settings.items())

    def start(self) -> None:
        """Start it, or start it again, and wait until it serves."""
        before = self.log.stat().st_size if self.log.exists() else 0
        command = [
            *(self._java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self.class_path),
            *("kafka.Kafka", "server.properties"),
        ]
        self._process = ServerProcess(command, log=self.log, cwd=self.folder)

        def serves() -> bool:
            return "Kafka Server started" in self.log.read_text(errors="replace")[before:]

        self._process.wait_ready(serves, deadline_s=DEADLINE_S, what=f"Kafka {self.version}")

    def stop(self) -> None:
        """Ask it to end. Safe to repeat."""
        if self._process is not None:
            self._process.stop(60)

    def kill(self) -> None:
        """kill -9, and wait for it."""
        assert self._process is not None
        self._process.kill()

    def java(self, main: str, *arguments: str, class_path: str = "", text: str = "", errors: bool = False) -> str:
        """Run a class of Kafka's, or of ``class_path``, in the broker's folder, with ``text`` as input; what it prints, ``errors`` too."""
        classes = os.pathsep.join(filter(None, (class_path, self.class_path)))
        command = [self._java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classes, main]
        done = subprocess.run(
            [*command, *arguments], cwd=self.folder, input=text, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        return done.stdout + (done.stderr if errors else "")


if __name__ == "__main__":
    # Before the tests, so that the download is seen and no test waits for it.
    try:
        java_command()
        for each in (OLD, NEW):
            jars(each)
    except ServerMissing as error:
        print(f"Kafka cannot be tested here: {error}")
