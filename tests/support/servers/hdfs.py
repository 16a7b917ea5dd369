"""A real Hadoop 3.3.6 on loopback: one name node, one data node, WebHDFS. Started once for each test process.

    cluster = shared_cluster()            # or the fixture ``hdfs``
    cluster.root("orders")                # hdfs://127.0.0.1:PORT/orders
    cluster.kill(); cluster.restart()     # kill -9 of both, and back with the same data on the same ports

Permissions are on; whoever runs the tests is Hadoop's superuser. The lease of a dead writer is ended after 10 s instead of
20 minutes, and a small file is complete after 2 ms instead of 400. Nothing else about the data path is changed.
"""

from __future__ import annotations

import atexit
import getpass
import itertools
import json
import os
import shutil
import tempfile
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
import requests

from tests.support.scratch import memory_folder
from tests.support.servers.base import ServerMissing, ServerProcess, free_ports, missing, wait_until
from tests.support.servers.hdfs_jars import jars, java_command

__all__ = ["HdfsCluster", "hdfs", "hdfs_or_end", "shared_cluster"]

LOOPBACK = "127.0.0.1"
_START_S = 240.0
_OPENED = ("java.lang", "java.util", "java.io", "java.nio", "java.net", "sun.nio.ch")
_SERVERS = "org.apache.hadoop.hdfs.server."
_LOG4J = """log4j.rootLogger=INFO,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1}: %m%n
"""
_WEB_XML = '<web-app xmlns="http://java.sun.com/xml/ns/javaee" version="2.5"/>'


class HdfsCluster:
    """Name node and data node, with their data under ``folder``. Ends with the process that started it."""

    def __init__(self, folder: Path, **configuration: object) -> None:
        self.folder = folder
        self._java = java_command()
        self._jars = jars()
        self.port, self.rpc_port, data, self.datanode_port, ipc = free_ports(5)
        self._numbers = itertools.count(1)
        self._processes: dict[str, ServerProcess] = {}
        self.configuration: dict[str, object] = {
            "dfs.replication": 1,
            "dfs.namenode.http-address": f"{LOOPBACK}:{self.port}",
            "dfs.namenode.rpc-bind-host": LOOPBACK,
            "dfs.datanode.address": f"{LOOPBACK}:{data}",
            "dfs.datanode.http.address": f"{LOOPBACK}:{self.datanode_port}",
            "dfs.datanode.ipc.address": f"{LOOPBACK}:{ipc}",
            "dfs.datanode.hostname": LOOPBACK,
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.fs-limits.min-block-size": 4096,
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.lease-hard-limit-sec": 10,
            "dfs.namenode.lease-recheck-interval-ms": 500,
            "dfs.heartbeat.interval": 1,
            # Without it every small file waits 400 ms for a report that takes 2.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 2,
            # The pauses double, so five of them are over before a busy machine has reported.
            "dfs.client.block.write.locateFollowingBlock.retries": 12,
            "dfs.datanode.du.reserved": 0,
            **configuration,
        }
        self._core = {"fs.defaultFS": f"hdfs://{LOOPBACK}:{self.rpc_port}", "hadoop.tmp.dir": str(folder / "data")}

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def root(self, name: str = "") -> str:
        """The root of a folder of its own; a new one each time where no name is given."""
        return f"hdfs://{LOOPBACK}:{self.port}/{name or f'root-{next(self._numbers)}'}"

    # Life

    def start(self) -> None:
        """Format if this is new, start both, and wait until writes are possible. Raises ``ServerMissing``."""
        self._write_configuration()
        if not (self.folder / "data" / "dfs" / "name" / "current").is_dir():
            formatting = self._launch("format", "namenode.NameNode", "-format", "-force", "-nonInteractive")
            wait_until(lambda: not formatting.is_running(), deadline_s=_START_S, what="formatting the name node")
            if formatting.process.returncode != 0:
                raise ServerMissing(f"formatting the name node failed: {formatting.log_tail()}")
        try:
            self.restart()
        except TimeoutError as error:
            raise ServerMissing(str(error)) from error
        self.create("/readable", b"always")

    def _start(self, kind: str) -> None:
        self._processes[kind] = self._launch(kind, "namenode.NameNode" if kind == "namenode" else "datanode.DataNode")

    def _launch(self, kind: str, main: str, *arguments: str) -> ServerProcess:
        opens = [word for name in _OPENED for word in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")]
        class_path = [self.folder / "conf", self.folder / "web", *sorted(self._jars.glob("*.jar"))]
        command = [
            self._java,
            "-Xmx256m",
            "-Xshare:auto",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            # Hadoop's own class files, pinned by their checksums: checking each again is a part of every start.
            "-XX:+UnlockDiagnosticVMOptions",
            "-XX:-BytecodeVerificationRemote",
            *opens,
            "-cp",
            os.pathsep.join(map(str, class_path)),
            _SERVERS + main,
            *arguments,
        ]
        return ServerProcess(command, log=self.folder / f"{kind}.log")

    def _write_configuration(self) -> None:
        folder = self.folder / "conf"
        folder.mkdir(parents=True, exist_ok=True)
        for file, values in (("core-site.xml", self._core), ("hdfs-site.xml", self.configuration)):
            properties = "".join(
                f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n"
                for name, value in values.items()
            )
            (folder / file).write_text(f"<configuration>\n{properties}</configuration>\n")
        (folder / "log4j.properties").write_text(_LOG4J)
        for part in ("hdfs", "datanode", "static"):
            web = self.folder / "web" / "webapps" / part / "WEB-INF"
            web.mkdir(parents=True, exist_ok=True)
            (web / "web.xml").write_text(_WEB_XML)

    def _is_ready(self) -> bool:
        question = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with urllib.request.urlopen(self.url + question, timeout=20) as answer:
            states = json.load(answer)["beans"]
        return any(state.get("NumLiveDataNodes", 0) >= 1 and state.get("FSState") == "Operational" for state in states)

    def kill(self, *kinds: str) -> None:
        """kill -9 of ``namenode``, ``datanode``, or both."""
        for kind in kinds or ("namenode", "datanode"):
            self._processes[kind].kill()

    def restart(self, *kinds: str, takes_files: bool = True) -> None:
        """Start both, or what was killed, with the present ``configuration``; wait until a file can be written again."""
        self._write_configuration()
        for kind in kinds or ("namenode", "datanode"):
            self._start(kind)
        for process in self._processes.values():
            process.wait_ready(self._is_ready, deadline_s=_START_S, what="HDFS")
        # A data node that has just registered counts as alive before it has told of its disks.
        wait_until(
            self._takes_a_file if takes_files else self._datanode_answers,
            deadline_s=_START_S,
            what="a data node that takes a file",
            every_s=0.2,
        )

    def _takes_a_file(self) -> bool:
        try:
            self.create(f"/probe-{next(self._numbers)}", b"probe")
        except (requests.RequestException, AssertionError):
            return False
        return True

    def _datanode_answers(self) -> bool:
        """Whether it has registered anew: the name node asks it for the probe file's bytes."""
        return self.ask("GET", "/readable", "OPEN").status_code == 200

    def stop(self) -> None:
        """End both. Safe to repeat."""
        for process in self._processes.values():
            process.kill()

    # WebHDFS without the binding

    def ask(self, method: str, path: str, op: str, *, data: bytes | None = None, **params: object) -> requests.Response:
        """One operation, data nodes included; the answer, whatever it is. Asks as the superuser."""
        path = "/webhdfs/v1" + quote(path, safe="/")
        first: dict[str, Any] = {"op": op, "user.name": getpass.getuser(), **params}
        answer = requests.request(method, self.url + path, params=first, allow_redirects=False, timeout=120)
        if answer.status_code == 307:
            answer = requests.request(method, answer.headers["Location"], data=data, timeout=120)
        return answer

    def create(self, path: str, data: bytes) -> None:
        answer = self.ask("PUT", path, "CREATE", data=data, overwrite="true")
        assert answer.status_code == 201, answer.text

    def read(self, path: str) -> bytes:
        answer = self.ask("GET", path, "OPEN")
        assert answer.status_code == 200, answer.text
        return answer.content

    def set_quota(self, path: str, *, names: int | None = None, size_bytes: int | None = None) -> None:
        """Limit a folder (which is made)."""
        self.ask("PUT", path, "MKDIRS")
        # -1 lifts a limit.
        names, size_bytes = -1 if names is None else names, -1 if size_bytes is None else size_bytes
        answer = self.ask("PUT", path, "SETQUOTA", namespacequota=names, storagespacequota=size_bytes)
        assert answer.status_code == 200, answer.text


def start_cluster(**configuration: object) -> HdfsCluster:
    """A cluster in a temporary folder, gone with the process. Raises ``ServerMissing``."""
    folder = Path(tempfile.mkdtemp(prefix="chunkstore-hdfs-", dir=memory_folder()))
    cluster: HdfsCluster | None = None

    def clean() -> None:
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(clean)
    cluster = HdfsCluster(folder, **configuration)
    cluster.start()
    return cluster


@cache
def _started() -> HdfsCluster | ServerMissing:
    try:
        return start_cluster()
    except ServerMissing as error:
        return error


def shared_cluster() -> HdfsCluster:
    """The cluster of this process. Raises ``ServerMissing``."""
    found = _started()
    if isinstance(found, ServerMissing):
        raise found
    return found


def hdfs_or_end() -> HdfsCluster:
    """The cluster of this process; without one the test is skipped, or fails where HDFS is required."""
    try:
        return shared_cluster()
    except ServerMissing as error:
        missing("hdfs", error)


@pytest.fixture
def hdfs() -> HdfsCluster:
    """The cluster of this process."""
    return hdfs_or_end()
