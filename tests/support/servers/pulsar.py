"""A Pulsar broker with its tiered storage from Maven's artifacts: standalone, metadata in RocksDB, one bookie, no ZooKeeper.

Promises: what it acknowledged survives ``kill`` and ``start``; it listens on 127.0.0.1 only; nothing is outside the folder given.
Half a gigabyte is downloaded, once; 250 MB stay in the cache. A start takes 20 CPU seconds, and 450 MiB while it runs. Pulsar's
Java client is among the jars: ``java`` compiles and runs a class with it. Leaves out: more than one broker, TLS, authentication.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT
from tests.support.servers.base import ServerMissing, ServerProcess, free_ports, wait_until
from tests.support.servers.hdfs_jars import java_command
from tests.support.servers.maven import compiled, fetched
from tests.support.servers.s3server import CREDENTIALS

__all__ = ["DEADLINE_S", "PulsarBroker", "jars"]

DEADLINE_S = 300.0
"""A limit for everything that a broker does: its tests show that it ends, not how fast it is."""
BROKER, OFFLOADER = "4.0.7", "4.0.8"
_OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "io", "util", "util.zip", "nio")),
    *(f"java.base/{name}" for name in ("sun.net", "sun.nio.ch", "jdk.internal.misc", "jdk.internal.platform")),
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
"""
_INTERCEPT = "org.apache.pulsar.common.intercept.Append"
_CONFIGURATION: dict[str, object] = {
    "clusterName": "standalone",
    **dict.fromkeys(("bindAddress", "advertisedAddress"), "127.0.0.1"),
    **dict.fromkeys(("allowLoopback", "transactionCoordinatorEnabled"), "true"),
    **dict.fromkeys(("brokerDeleteInactiveTopicsEnabled", "webSocketServiceEnabled", "loadBalancerEnabled"), "false"),
    **{f"managedLedgerDefault{name}": 1 for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")},
    "managedLedgerMaxEntriesPerLedger": 25,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    # Else acknowledged ledgers go, and their objects with them.
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "retentionCheckIntervalInSeconds": 2,
    "diskUsageThreshold": 0.999,
    "diskUsageWarnThreshold": 0.998,
    "diskUsageLwmThreshold": 0.997,
    "dbStorage_writeCacheMaxSizeMb": 64,
    "dbStorage_readAheadCacheMaxSizeMb": 32,
    "managedLedgerCacheSizeMB": 16,
    # Small chunks of large messages.
    "maxMessageSize": 32768,
    "exposingBrokerEntryMetadataToClientEnabled": "true",
    "brokerEntryMetadataInterceptors": ",".join(
        f"{_INTERCEPT}{name}MetadataInterceptor" for name in ("BrokerTimestamp", "Index")
    ),
    # The driver aws-s3 asks Amazon for the bucket's location, whatever the endpoint is.
    "managedLedgerOffloadDriver": "S3",
    "managedLedgerOffloadRegion": CREDENTIALS["AWS_DEFAULT_REGION"],
    "managedLedgerOffloadMaxBlockSizeInBytes": 67108864,
    "managedLedgerOffloadReadBufferSizeInBytes": 1048576,
    "managedLedgerOffloadDeletionLagMs": 0,
}


def jars() -> Path:
    """The folder with ``lib``, and the offloader in ``files``. Raises ``ServerMissing``."""
    broker, offloader = (
        f"org.apache.pulsar:pulsar-broker:{BROKER}",
        f"org.apache.pulsar:tiered-storage-jcloud:{OFFLOADER}:nar",
    )
    return fetched(f"pulsar-{BROKER}", [broker], [offloader])


class PulsarBroker:
    """One broker that offloads to ``bucket`` of the S3 server at ``endpoint_url``. ``start`` raises ``ServerMissing``.

    ``url``: for clients. Ports and folders are the same at each start: a bookie is known by its port.
    """

    java_options: tuple[str, ...] = ("-XX:TieredStopAtLevel=1",)
    """As they are, a start takes half the processor time, and all code is slower."""

    def __init__(self, folder: Path, endpoint_url: str, bucket: str, **configuration: object) -> None:
        self._java = java_command()
        self._jars = jars()
        self.folder = folder
        port, web, self._bookie = free_ports(3)
        self.url = f"pulsar://127.0.0.1:{port}"
        self._admin = f"http://127.0.0.1:{web}/admin/v2/"
        self._process: ServerProcess | None = None
        self.log = folder / "broker.log"
        for name in ("metadata", "bookkeeper", "nar", "classes"):
            (folder / name).mkdir(parents=True)
        (folder / "log4j2.properties").write_text(_LOG4J)
        self._logging = f"-Dlog4j.configurationFile={folder / 'log4j2.properties'}"
        settings = _CONFIGURATION | {
            "brokerServicePort": port,
            "webServicePort": web,
            "offloadersDirectory": self._jars / "files",
            "narExtractionDirectory": folder / "nar",
            "managedLedgerOffloadServiceEndpoint": endpoint_url,
            "managedLedgerOffloadBucket": bucket,
        }
        settings |= configuration
        (folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def start(self) -> None:
        """Start it, or start it again, and wait until it serves."""
        command = [
            *(self._java, "-Xmx768m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", *self.java_options),
            self._logging,
            *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
            *("-cp", f"{self._jars / 'lib'}/*", "org.apache.pulsar.PulsarStandaloneStarter", "-a", "127.0.0.1"),
            *("--config", str(self.folder / "broker.conf"), "--metadata-dir", str(self.folder / "metadata")),
            *("--bookkeeper-dir", str(self.folder / "bookkeeper"), "--bookkeeper-port", str(self._bookie)),
            *("--no-functions-worker", "--no-stream-storage"),
        ]
        keys = {"ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID", "ACCESS_KEY_SECRET": "AWS_SECRET_ACCESS_KEY"}
        environment = {name: CREDENTIALS[ours] for name, ours in keys.items()}
        self._process = ServerProcess(command, log=self.log, env=environment, cwd=self.folder)
        self._process.wait_ready(self._is_ready, deadline_s=DEADLINE_S, what="the Pulsar broker")

    def _is_ready(self) -> bool:
        return (
            "public/default" in self.admin("GET", "namespaces/public") and self.admin("GET", "brokers/health") == "ok"
        )

    def stop(self) -> None:
        """Ask it to end. Safe to repeat."""
        if self._process is not None:
            self._process.stop(60)

    def kill(self) -> None:
        """kill -9, and wait for it."""
        assert self._process is not None
        self._process.kill()

    # Administration

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """A call of the admin API below ``/admin/v2/``; its answer, decoded. Raises ``OSError``, answers that are errors included."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._admin + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                raise OSError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from None
        return json.loads(text) if text[:1] in ("{", "[") else text

    def topic(self, method: str, topic: str, call: str, body: object = None) -> Any:
        """A call about a topic of ``public/default``, asked again while the broker cannot say yet."""
        found: list[Any] = []

        def asked() -> bool:
            found.append(self.admin(method, f"persistent/public/default/{topic}{call}", body))
            return True

        wait_until(asked, deadline_s=DEADLINE_S, what=f"{method} {call} of topic {topic}", every_s=0.5)
        return found[0]

    def ledgers(self, topic: str) -> list[dict[str, Any]]:
        """The topic's ledgers, ascending, as ``internal-info`` has them; the last one is open."""
        found: list[dict[str, Any]] = self.topic("GET", topic, "/internal-info")["ledgers"]
        return sorted(found, key=lambda ledger: int(ledger["ledgerId"]))

    def begin_offload(self, topic: str) -> None:
        """Offload every ledger before the last one."""
        last = self.ledgers(topic)[-1]["ledgerId"]
        self.topic("PUT", topic, "/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})

    def finish_offload(self, topic: str) -> str:
        """Wait until what was begun has ended: the empty string, or why it failed."""
        status: dict[str, Any] = {}

        def ended() -> bool:
            status.update(self.topic("GET", topic, "/offload"))
            return bool(status["status"] in ("SUCCESS", "ERROR"))

        wait_until(ended, deadline_s=DEADLINE_S, what=f"the end of the offload of topic {topic}", every_s=0.2)
        return "" if status["status"] == "SUCCESS" else str(status["lastError"])

    # Clients

    def java(self, name: str, *arguments: str) -> str:
        """Run ``tests/pulsar/java/NAME.java`` with these arguments and Pulsar's client; what it prints."""
        classes = self.folder / "classes"
        class_path = os.pathsep.join((str(classes), f"{self._jars / 'lib'}/*"))
        if not (classes / f"{name}.class").exists():
            compiled([ROOT / "tests" / "pulsar" / "java" / f"{name}.java"], f"{self._jars / 'lib'}/*", classes)
        options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", self._logging)
        return self._run(self._java, *options, "-cp", class_path, name, self.url, *arguments)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        return done.stdout


if __name__ == "__main__":
    # Before the tests, so that the download is seen and no test waits for it.
    try:
        java_command()
        jars()
    except ServerMissing as error:
        print(f"Pulsar cannot be tested here: {error}")
