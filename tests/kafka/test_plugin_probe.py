"""The plug-in's metadata manager without a broker: bad partitions, and a server that does not answer. Needs Java and Maven."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import chunkstore
from chunkstore import errors, runtime
from chunkstore.kafka import RemoteLogMetadataManager
from chunkstore.kafka.model import TopicIdPartition
from tests.kafka.support_metadata import fresh_root
from tests.kafka.support_wire import serving_at
from tests.support.servers.base import ServerMissing, missing
from tests.support.servers.hdfs_jars import java_command
from tests.support.servers.kafka import OLD, jars, plugin
from tests.support.servers.maven import compiled

pytestmark = pytest.mark.proof

SOURCE = Path(__file__).with_name("PluginProbe.java")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("probe")
    try:
        kafka = f"{plugin(folder)}:{jars(OLD) / 'lib'}/*"
        return [java_command(), "-cp", f"{kafka}:{compiled([SOURCE], kafka, folder)}", "PluginProbe"]
    except ServerMissing as error:
        missing("kafka", error)


def test_a_refused_partition_stops_no_other(command: list[str], tmp_path: Path) -> None:
    with chunkstore.open(fresh_root()) as store:
        # Kept in the other mode.
        refused = TopicIdPartition((1).to_bytes(8, "big") + bytes(8), "t", 0)
        RemoteLogMetadataManager(store).on_partition_leadership_changes([refused])
        with serving_at(store, str(tmp_path / "s")) as server:
            done = probed([*command, "leaders", server.address])
    assert done.stdout.split() == ["false", "true", "true", "true"]
    assert done.stderr.count("WARNING") == 1 and "mode" in done.stderr


def test_events_that_hang_do_not_block_the_metadata_loader(command: list[str], tmp_path: Path) -> None:
    ended = runtime.event()

    def hang(_update: object) -> None:
        ended.wait(120)
        raise errors.Closed("the test has ended")

    with chunkstore.open(fresh_root()) as store, serving_at(store, str(tmp_path / "s")) as server:
        server.server._metadata.update_remote_log_segment_metadata = hang  # type: ignore[assignment, method-assign]
        try:
            assert probed([*command, "loader", server.address]).stdout == "ended\n"
        finally:
            ended.set()


def probed(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
