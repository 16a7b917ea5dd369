"""A stopped broker's directory, copied whole: put back byte for byte, or refused; and brokers that start on what was put back."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

import chunkstore
from chunkstore.cli.app import main
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.tier import Tiered, restore, tier
from tests.kafka.support_clients import Clients, Rows, genuine_broker
from tests.kafka.support_logdir import LOG_DIR
from tests.kafka.support_metadata import Store, fresh_root
from tests.kafka.support_tier import changed, copied_logs, files_below, locked
from tests.support.servers.kafka import NEW, OLD, KafkaBroker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")  # when kafka is imported
LEFT_OUT = {  # a broker rebuilds the indexes; two of these partitions have no records
    *(f"{name}-0/{0:020d}.index" for name in ("__cluster_metadata", "__consumer_offsets", "empty")),
    *(f"{name}-0/{0:020d}.timeindex" for name in ("__cluster_metadata", "__consumer_offsets", "empty")),
    *(f"{name}-0/leader-epoch-checkpoint" for name in ("__consumer_offsets", "empty")),
    "__transaction_state-0/00000000000000000104.snapshot",  # not at the end of a segment
}


def test_a_whole_directory_is_put_back_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, back = (tmp_path / "root").as_uri(), tmp_path / "back"
    assert main(["kafka", "tier", str(LOG_DIR), root, "--all", "--json"]) == 0
    assert main(["kafka", "restore", root, str(back), "--json"]) == 0
    assert '"missing": []' in capsys.readouterr().out
    expected = {name: data for name, data in files_below(LOG_DIR).items() if name not in LEFT_OUT}
    assert files_below(back) == expected
    with KafkaBucket(root) as container:
        assert list(container.verify()) == []
    assert main(["kafka", "restore", root, str(back)]) == 2
    assert main(["kafka", "tier", str(LOG_DIR), root, "--all", "--watch"]) == 2


def test_what_is_not_stopped_or_not_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    logs = copied_logs(tmp_path)
    with locked(logs), pytest.raises(InvalidArgument, match="a broker holds"):
        tier(str(logs), store, whole=True)
    mark = (logs / ".kafka_cleanshutdown").rename(tmp_path / "mark")
    with pytest.raises(InvalidArgument, match="did not stop cleanly"):
        tier(str(logs), store, whole=True)
    mark.rename(logs / ".kafka_cleanshutdown")
    for name, change in (
        ("codecs-0/leader-epoch-checkpoint", lambda data: b""),
        ("codecs-0/partition.metadata", lambda data: b"version: 0\n"),
        ("codecs-0/00000000000000000000.timeindex", lambda data: data[:5]),
    ):
        genuine = (logs / name).read_bytes()
        changed(logs / name, change)
        with pytest.raises(Damaged):
            tier(str(logs), store, whole=True)
        (logs / name).write_bytes(genuine)
        assert not list(store.segments("kafka/cluster/"))
    with monkeypatch.context() as patch, pytest.raises(InvalidArgument, match="ran during the copy"):
        patch.setattr("chunkstore.kafka.tier.clean_stop", Mock(return_value=b"of an earlier stop"))
        tier(str(logs), store, whole=True)
    changed(logs / "codecs-0" / "00000000000000000602.log", lambda data: data + b"torn")
    assert any("meta.properties" in line for line in restore(store, str(tmp_path / "part")).missing)
    [note] = tier(str(logs), store, whole=True).notes
    assert note.startswith("codecs-0/00000000000000000602.log: the last 4 bytes")


def test_stored_names_and_partitions_are_not_believed(tmp_path: Path, store: Store) -> None:
    tier(str(LOG_DIR), store, whole=True)
    store.create("kafka/cluster/../../escaped")
    restore(store, str(tmp_path / "a" / "b"))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    for line in (b"../up-0 qYZJDbTjSHma2lSUyvPuSQ 7\n", b"a-0 qYZJDbTjSHma2lSUyvPuSQ -7\n", bytes(300)):
        store.delete("kafka/cluster/partitions")
        store.append(store.create("kafka/cluster/partitions"), line)
        with pytest.raises(Damaged):
            restore(store, str(tmp_path / "c"))


@pytest.mark.proof
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_broker_serves_what_was_copied_while_it_wrote_and_the_whole(tmp_path: Path, version: str) -> None:
    broker, fresh = (genuine_broker(tmp_path / name, version) for name in ("broker", "fresh"))
    with chunkstore.open(fresh_root()) as store, chunkstore.open(fresh_root()) as whole:
        broker.start()
        try:
            with Clients(broker) as clients:
                clients.create_topics()
                clients.open_producers()
                passes: list[Tiered] = []
                with clients.writing() as written:

                    def watch(done: Tiered) -> bool:
                        passes.append(done)
                        written()
                        return sum(each.copied > 0 for each in passes) < 4

                    tier(str(broker.data), store, watch=watch)
                with pytest.raises(InvalidArgument, match="a broker holds"):
                    tier(str(broker.data), whole, whole=True)
                clients.commit(17)
                clients.write(end=False)
                everything, committed = clients.read(), clients.read("read_committed")
        finally:
            broker.stop()
        tier(str(broker.data), whole, whole=True)
        shutil.rmtree(broker.data)
        assert restore(whole, str(broker.data)).missing == ()
        broker.start()
        try:
            with Clients(broker) as again:
                assert again.read() == everything
                assert again.read("read_committed") == committed
                assert again.committed() == [17, 18, 17]
                again.open_producers()  # the transaction is aborted
                again.write()
                rows = again.read("read_committed")
                assert [len(rows[place]) - len(committed[place]) for place in rows] == [20, 20, 40]
        finally:
            broker.stop()
        serve_tiered(fresh, store, everything, committed)


def serve_tiered(broker: KafkaBroker, store: Store, *expected: Rows) -> None:
    """Of a fresh cluster: all that was copied is served, in both isolations."""
    ends: dict[tuple[str, int], int] = {}
    for each in ContainerSource(store, "").listing().segments:
        ends[each.topic, each.partition] = max(each.end_offset, ends.get((each.topic, each.partition), 0))
    assert ends.keys() == expected[0].keys()
    clients = Clients(broker)
    broker.start()
    clients.create_topics()
    broker.stop()
    restore(store, str(broker.data), keep_partition_metadata=True)
    broker.start()
    try:
        for isolation, rows in zip(("read_uncommitted", "read_committed"), expected, strict=True):
            served = clients.read(isolation)
            assert served == {place: [row for row in rows[place] if row[0] <= end] for place, end in ends.items()}
            assert all(served.values())
    finally:
        broker.stop()
