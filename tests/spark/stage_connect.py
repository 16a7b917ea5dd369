"""``make spark-cluster``: a server of Spark Connect of its own (what ``sbin/start-connect-server.sh`` starts), and a client that has the
built wheel and no JVM."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.test_connect import check_told, make_store, run_client
from tests.support.servers.base import ServerProcess, free_port
from tests.support.spark import missing_of_connect, settings_of
from tests.support.spark_cluster import START_S, clean_environment, spark_home
from tests.support.spark_connected import WHOLE
from tests.support.wheels import build_wheel, new_environment, pip_install


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing_of_connect():
        pytest.skip(missing_of_connect())
    folder = tmp_path_factory.mktemp("connect")
    made = new_environment(folder / "python")
    pip_install(made, build_wheel(folder))
    return made


@pytest.fixture(scope="module")
def server(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server; its script stays in the foreground, so that it ends with the tests."""
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    environment = clean_environment(folder, "127.0.0.1") | {"PYSPARK_PYTHON": str(python), "SPARK_LOG_DIR": str(folder)}
    environment |= {"SPARK_DAEMON_MEMORY": "1g"}  # the server is a driver, too
    chosen = settings_of(folder) | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    conf = [word for item in chosen.items() for word in ("--conf", "=".join(item))]
    script = str(spark_home() / "sbin" / "start-connect-server.sh")
    words = [f"{key}={value}" for key, value in environment.items()]
    process = ServerProcess(
        ["env", "-i", *words, "SPARK_NO_DAEMONIZE=1", "bash", script, "--master", "local[2]", *conf],
        log=folder / "log",
        cwd=folder,
    )

    def answers() -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=20):
            return True

    process.wait_ready(answers, deadline_s=START_S, what="the server of Spark Connect")
    yield f"sc://127.0.0.1:{port}"
    process.stop()


@pytest.mark.timeout(600)
def test_a_server_of_its_own(server: str, python: Path, tmp_path: Path) -> None:
    checkpoint = f"file://{tmp_path}/checkpoint"
    told = run_client(server, make_store(tmp_path), tmp_path, python=str(python), sources="", checkpoint=checkpoint)
    check_told(told)
    assert told["jobs"] == [["done", 10]]
    assert told["round"] == WHOLE
