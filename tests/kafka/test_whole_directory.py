"""A stopped broker's directory, copied whole: put back byte for byte, or refused; and brokers that start on what was put back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

import chunkstore
from chunkstore.cli.app import main
from chunkstore.codec.kafka.indexes import ProducerStates, read_producer_snapshot, rebuild_indexes
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.kafka import RemoteLogMetadataManager, RemoteStorageManager
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.tier import Tiered, restore, tier
from tests.kafka.support_clients import Clients, Rows, genuine_broker
from tests.kafka.support_logdir import LOG_DIR
from tests.kafka.support_marks import marks_of
from tests.kafka.support_metadata import Store, fresh_root
from tests.kafka.support_tier import Killed, changed, copied_logs, expected_rows, files_below, locked, records_of
from tests.support.servers.kafka import NEW, OLD, KafkaBroker

pytestmark = pytest.mark.filterwarnings(
    "ignore:(read|open)_text is deprecated:DeprecationWarning"
)  # when kafka is imported
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


def test_a_segment_that_grew_supersedes_its_copy_and_the_whole_stays_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, root = copied_logs(tmp_path), fresh_root()
    folder = logs / "idempotent-0"
    [_, second, *_] = sorted(folder.glob("*.log"))
    kept = second.name, f"{second.stem}.snapshot"
    for path in folder.iterdir():  # as it was while the second segment was the active one
        if path.suffix != ".metadata" and path.name >= second.name[:20] and path.name not in kept:
            path.unlink()
    marks = list(marks_of(second.read_bytes()))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    os.truncate(second, marks[4].position)
    before = {name: data for name, data in files_below(logs).items() if name not in LEFT_OUT}
    with chunkstore.open(root) as store:
        tier(str(logs), store, whole=True)
        shutil.copytree(LOG_DIR / folder.name, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
        assert tier(str(logs), store).copied == 2  # the same segment, now rolled, and the next one
        [item, *_] = RemoteStorageManager(store).stored_segments("idempotent")
        partition = item.remote_log_segment_id.topic_id_partition
        found = RemoteLogMetadataManager(store).remote_log_segment_metadata(partition, 0, 175)
        assert found is not None
        assert (found.start_offset, found.end_offset) == (175, 356)
        with KafkaBucket(root) as container:
            spans = sorted(each[3:5] for each in container.segments("idempotent"))
            rows = records_of(container, "idempotent")["idempotent", 0]
        assert spans == [(0, 174), (175, 221), (175, 356), (357, 429)]
        expected = expected_rows("logdir-3.9.records.jsonl")["idempotent", 0]
        assert rows == [row for row in expected if row["offset"] < 430]
        restore(store, str(tmp_path / "first"))
        assert files_below(tmp_path / "first") == before

        (logs / "bootstrap.checkpoint").unlink()
        with monkeypatch.context() as patch, pytest.raises(Killed):  # after all files are stored
            patch.setattr("chunkstore.kafka.whole.Seal", Mock(side_effect=Killed))
            tier(str(logs), store, whole=True)
        restore(store, str(tmp_path / "again"))
        assert files_below(tmp_path / "again") == before
        tier(str(logs), store, whole=True)
        restore(store, str(tmp_path / "last"))
        names = files_below(LOG_DIR).keys() - LEFT_OUT - {"bootstrap.checkpoint"}
        assert files_below(tmp_path / "last") == {name: (LOG_DIR / name).read_bytes() for name in names}


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


@pytest.mark.proof
def test_rebuilt_indexes_get_the_verdict_of_genuine_ones(tmp_path: Path) -> None:
    broker, logs = genuine_broker(tmp_path / "broker", OLD), copied_logs(tmp_path)
    suffixes = (".index", ".timeindex", ".txnindex", ".snapshot")
    files = sorted(str(path) for path in logs.glob("*/*") if path.suffix in suffixes)

    def verdicts() -> list[str]:
        found: list[str] = []
        for option in ("--index-sanity-check", "--verify-index-only"):
            printed = broker.java("kafka.tools.DumpLogSegments", option, "--files", ",".join(files), errors=True)
            if option == "--index-sanity-check":
                printed = printed.replace(" is empty.", " passed sanity check.")
            contents = ("[main] INFO", "Dumping ", "offset: ", "timestamp: ", "producerId: ", "version: ")
            lines = {line for line in printed.splitlines() if not line.startswith(contents)}
            found += sorted(line for line in lines if not line.endswith(" is empty."))
        return found

    genuine = verdicts()
    for folder in {path.parent for path in logs.glob("*/*.log")}:
        producers = ProducerStates()
        for log in sorted(folder.glob("*.log")):
            marks = list(marks_of(log.read_bytes()))
            made = rebuild_indexes(marks, int(log.stem), producers, interval_bytes=1024)
            producers = ProducerStates(read_producer_snapshot(made.snapshot))
            after = log.with_name(f"{marks[-1].last_offset + 1 if marks else 0:020d}.snapshot")
            parts = made.offsets, made.timestamps, made.transactions, made.snapshot
            for path, data in zip([*map(log.with_suffix, suffixes[:3]), after], parts, strict=True):
                if path.exists():
                    path.write_bytes(data)
    assert verdicts() == genuine
    assert len(genuine) > 60
    index = logs / "codecs-0" / "00000000000000000000.index"
    changed(index, lambda data: data[:3] + bytes([data[3] ^ 1]) + data[4:])
    assert any("Mismatches in" in line for line in verdicts())
