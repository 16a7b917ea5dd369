"""``make spark-cluster``: a standalone cluster of two machines, which have the built wheel and nothing of the driver's.

Each test that wants other machines makes them; one application at a time. What a machine lacks is taken from it by mounts of its own, which
takes root; where there are none to be had, these tests are skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import Tuning
from chunkstore.errors import ChunkstoreError, RootUnavailable, StorageUnavailable, Unsupported
from chunkstore.spark.errors import original_error
from tests.support.data import pattern
from tests.support.servers.hdfs import HdfsCluster, hdfs
from tests.support.servers.s3server import CREDENTIALS, S3Server
from tests.support.spark import need_spark, settings_of
from tests.support.spark_cluster import Machine, SparkCluster, can_mount
from tests.support.spark_connected import WHOLE, round_trip
from tests.support.wheels import build_wheel, new_environment, pip_install, site_of

__all__ = ["hdfs"]

# PySpark leaves sockets of applications that ended to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

MIB = chunkstore.MIB
HEALTHY = ("127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that every machine has: the installed wheel, roots, and marks of tasks."""
    need_spark()
    folder = tmp_path_factory.mktemp("stage")
    pip_install(new_environment(folder / "python"), build_wheel(folder))
    (folder / "marks").mkdir()
    return folder


@pytest.fixture(scope="module")
def cluster(stage: Path) -> Iterator[SparkCluster]:
    before = dict(os.environ)
    os.environ.pop("PYTHONPATH", None)  # planners are the driver's children, and shall have the wheel, too
    os.environ |= {"PYSPARK_PYTHON": str(stage / "python" / "bin" / "python"), "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ |= {"XDG_CACHE_HOME": str(stage / "driver-cache"), **CREDENTIALS}
    made = SparkCluster(stage / "cluster")
    with contextlib.chdir(stage):  # planners look for packages where the driver stands, too
        yield made
    made.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def application(cluster: SparkCluster, stage: Path) -> Iterator[Callable[..., Any]]:
    """Makes the session of this test, on these machines."""
    from pyspark.sql import SparkSession

    sessions: list[Any] = []

    def start(*machines: Machine, **more: str) -> Any:
        cluster.add(*(machines or map(Machine, HEALTHY)))
        builder = SparkSession.builder.master(cluster.url).appName("stage")
        chosen = settings_of(stage / "driver") | {"spark.executor.memory": "512m", "spark.executor.cores": "2"}
        for key, value in (chosen | more).items():
            builder = builder.config(key, value)
        sessions.append(builder.getOrCreate())
        sessions[-1].sparkContext.setLogLevel("OFF")
        return sessions[-1]

    yield start
    for session in sessions:
        session.stop()
    cluster.remove()


def owner_settings(stage: Path) -> chunkstore.Settings:
    return chunkstore.Settings(cache_dir=str(stage / "owner-cache"), lease_s=0, tuning=Tuning(lmdb_map_bytes=1 << 28))


def fill(url: str, stage: Path, length: int = 8 * MIB) -> bytes:
    """A container with a segment of chunks of 1 MiB; its bytes."""
    data = pattern(0, length)
    with chunkstore.open(url, settings=owner_settings(stage)) as store:
        store.create("orders", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=MIB))
        store.append("orders", data)
    return data


def frame_of(spark: Any, url: str, **options: object) -> Any:
    return spark.read.format("chunkstore").options(segments="orders", minPartitions=8, **options).load(url)


def check_whole(rows: list[Any], data: bytes) -> None:
    """Every row once, without a hole."""
    found = sorted((row.offset, bytes(row.value)) for row in rows)
    assert [offset for offset, _ in found] == list(range(0, len(data), MIB))
    assert hashlib.sha256(b"".join(value for _, value in found)).digest() == hashlib.sha256(data).digest()


def failure(action: Callable[[], object]) -> ChunkstoreError:
    with pytest.raises(Exception, match=r"\S") as caught:
        action()
    error = original_error(caught.value)
    assert error is not None, str(caught.value)[-3000:]
    return error


def test_two_machines_read_with_nothing_but_the_wheel(application: Any, stage: Path) -> None:
    spark = application()
    url = f"file://{stage}/plain"
    data = fill(url, stage)
    check_whole(frame_of(spark, url).collect(), data)

    marks = stage / "marks" / "where"
    marks.mkdir()

    def where(_rows: Iterator[Any]) -> Iterator[tuple[str, ...]]:
        import chunkstore as imported

        # No machine takes all of them: each task waits until there is one on the other, too.
        (marks / os.environ["SPARK_LOCAL_IP"]).touch()
        end_s = time.monotonic() + 300
        while len(list(marks.iterdir())) < len(HEALTHY) and time.monotonic() < end_s:
            time.sleep(0.05)
        yield imported.__file__, os.environ.get("SPARK_LOCAL_IP", ""), os.environ.get("HOME", "")

    told = set(spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect())
    assert {address for _, address, _ in told} == set(HEALTHY)
    assert all(Path(file).is_relative_to(stage / "python") for file, _, _ in told)
    assert all(Path(home).is_relative_to(stage / "cluster") for _, _, home in told)


def check_root(spark: Any, url: str, stage: Path) -> None:
    """Reads, writes and streams between the machines and this root."""
    data = fill(url, stage)
    check_whole(frame_of(spark, url).collect(), data)
    checkpoint = f"file://{stage}/checkpoint-{url.partition(':')[0]}"
    assert round_trip(spark, url, checkpoint) == WHOLE


def test_a_root_on_disk(application: Any, stage: Path) -> None:
    check_root(application(), f"file://{stage}/disk", stage)


def test_a_root_on_s3(application: Any, stage: Path, rgw: S3Server) -> None:
    spark = application(*(Machine(address, environment=CREDENTIALS) for address in HEALTHY))
    check_root(spark, rgw.root(rgw.make_bucket(), "shop"), stage)


def test_a_root_on_hdfs(application: Any, stage: Path, hdfs: HdfsCluster) -> None:
    check_root(application(), hdfs.root(), stage)


@pytest.mark.parametrize("what", ["an executor", "a machine"])
def test_killed_in_the_middle(application: Any, cluster: SparkCluster, stage: Path, what: str) -> None:
    """Of a copy of a segment, row by row into another: every row is written once, whoever was killed after it had begun."""
    spark = application()
    url = f"file://{stage}/killed-{what[-1]}"
    data = fill(url, stage)
    marks = stage / "marks" / what[-1]
    marks.mkdir()

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        """Each task says which machine it is on, and goes on when the test says so."""
        for number, batch in enumerate(batches):
            (marks / f"{os.environ['SPARK_LOCAL_IP']}-{os.getpid()}-{number}").touch()
            while not (marks / "go").exists():
                time.sleep(0.05)
            yield batch

    frame = frame_of(spark, url)
    held = frame.mapInArrow(wait, frame.schema)
    victim = HEALTHY[0]

    def kill_when_all_have_begun() -> None:
        deadline = time.monotonic() + 300
        while len(list(marks.glob("127.*"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        if what == "a machine":
            cluster.kill(victim)
        else:
            assert cluster.kill_executor(victim) == 1
        (marks / "go").touch()

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_when_all_have_begun)
        copied = held.select("value").write.format("chunkstore").mode("append")
        copied.options(segments="copy").save(url)
        killing.result()
    check_whole(frame_of(spark, url).collect(), data)
    with chunkstore.open_replica(url, settings=owner_settings(stage)) as replica:
        assert hashlib.sha256(replica.read("copy", 0, len(data) + 1)).digest() == hashlib.sha256(data).digest()
    assert any(mark.name.startswith(f"{victim}-") for mark in marks.iterdir()), (
        "nothing ran on the machine that was killed"
    )


def need_mounts() -> None:
    if not can_mount():
        pytest.skip("machines of a cluster that lack something are not tested: mount namespaces take root")


def test_a_machine_that_has_another_container_there(application: Any, stage: Path) -> None:
    need_mounts()
    url = f"file://{stage}/right"
    fill(url, stage)
    fill(f"file://{stage}/wrong", stage)
    spark = application(Machine("127.0.0.4", {stage / "right": stage / "wrong"}))
    error = failure(frame_of(spark, url).collect)
    assert type(error) is RootUnavailable
    assert error.root == url
    assert "is not the planned one" in error.message


def test_a_machine_that_has_nothing_there(application: Any, stage: Path) -> None:
    need_mounts()
    url = f"file://{stage}/here"
    fill(url, stage)
    (stage / "empty").mkdir()
    spark = application(Machine("127.0.0.5", {stage / "here": stage / "empty"}))
    error = failure(frame_of(spark, url).collect)
    assert type(error) is RootUnavailable
    assert "does not exist on this machine" in error.message


# What a machine's Python does before anything else.
_WITHOUT_PYARROW = """
import sys
class _Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name=name)
sys.meta_path.insert(0, _Without())
"""
_ANOTHER = """
import sys
class _Version(tuple):
    major, minor, micro = property(lambda self: self[0]), property(lambda self: self[1]), property(lambda self: self[2])
sys.version_info = _Version((3, 99, *sys.version_info[2:]))
"""


@pytest.mark.parametrize(("lacks", "feature"), [("pyarrow", "pyarrow"), ("version", "python"), ("wheel", "chunkstore")])
def test_a_machine_with_another_python(application: Any, stage: Path, lacks: str, feature: str) -> None:
    need_mounts()
    other = new_environment(stage / f"python-{lacks}")
    if lacks != "wheel":
        [wheel] = stage.glob("*.whl")
        pip_install(other, wheel)
        text = _WITHOUT_PYARROW if lacks == "pyarrow" else _ANOTHER
        (site_of(other) / "lacks.py").write_text(text)
        (site_of(other) / "lacks.pth").write_text("import lacks\n")
    url = f"file://{stage}/python-of-{lacks}"
    fill(url, stage)
    spark = application(Machine("127.0.0.6", {stage / "python": stage / f"python-{lacks}"}))
    error = failure(frame_of(spark, url).collect)
    assert type(error) is Unsupported, error
    assert error.feature == feature
    assert "PYSPARK_PYTHON" in error.message


def test_a_machine_without_credentials(application: Any, stage: Path, rgw: S3Server) -> None:
    url = rgw.root(rgw.make_bucket(), "far")
    fill(url, stage)
    spark = application(Machine("127.0.0.7", environment={"AWS_EC2_METADATA_DISABLED": "true"}))
    error = failure(frame_of(spark, url).collect)
    assert isinstance(error, StorageUnavailable)
    assert "credentials" in error.message
