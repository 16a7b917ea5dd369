"""Tiers of genuine brokers that lost their cluster, attached to a container and to a fresh log directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.cli.app import main
from chunkstore.codec.kafka.batches import ReadOptions, iter_batches
from chunkstore.codec.kafka.checkpoints import (
    LeaderEpoch,
    TopicOffset,
    read_leader_epochs,
    write_checkpoint,
    write_partition_metadata,
)
from chunkstore.codec.kafka.indexes import (
    OffsetIndex,
    read_producer_snapshot,
    read_transaction_index,
)
from chunkstore.codec.kafka.names import parse_uuid, uuid_text
from chunkstore.codec.sources import read_exactly
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.kafka import RemoteLogMetadataManager
from chunkstore.kafka.attach import attach
from chunkstore.kafka.bucket import KafkaBucket
from chunkstore.kafka.model import RemoteLogSegmentId, RemoteLogSegmentState, TopicIdPartition
from chunkstore.kafka.sources import LogDirectory
from chunkstore.kafka.storage import RemoteStorageManager
from chunkstore.kafka.tier import SEGMENT_FILES, Planned, described
from tests.kafka.support_batches import source_of
from tests.kafka.support_logdir import FIXTURES, LOG_DIR
from tests.kafka.support_metadata import Store, fresh_root
from tests.kafka.support_plugin import Row, consumed, produce, rig
from tests.kafka.support_tier import (
    METADATA_LOG,
    PEM,
    copied_tier,
    files_below,
    opened,
    records_of,
)
from tests.support.servers.kafka import NEW, OLD

TOPIC_ID = b"id, fresh cluster"[:16]
NEW_ID = uuid_text(TOPIC_ID)
GENUINE = FIXTURES / "aiven-bucket"
OPEN = {"plain": {0: 402, 2: 405}, "zstd": {2001: 406, 2002: 407}, "encrypted": {4001: 405, 4002: 407}}
"""First offsets of the transactions whose markers were in the active segment, by producer."""
ENDS = {"plain": 408, "zstd": 411, "encrypted": 410}
EACH = pytest.mark.parametrize("name", ["plain", "zstd", pytest.param("encrypted", marks=pytest.mark.proof)])
OPENED = ExitStack()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    OPENED.close()


def bucket_at(url: str) -> KafkaBucket:
    """A bucket that the end of the test closes."""
    return OPENED.enter_context(KafkaBucket(url))


def ids_of(tier: KafkaBucket) -> dict[str, str]:
    """A new id for the tier's topic."""
    return {each.topic_id: NEW_ID for each in tier.segments()}


Rows = dict[tuple[str, int], list[dict[str, Any]]]


def without_fates(found: Rows) -> Rows:
    return {place: [{**row, "committed": None} for row in rows] for place, rows in found.items()}


def fresh_cluster(folder: Path, name: str, epoch: int) -> Path:
    """The log directory of a stopped broker that has created a topic; the partition's folder in it."""
    partition = folder / f"tiered-{name}-0"
    partition.mkdir(parents=True)
    for suffix in ("log", "index", "timeindex"):
        (partition / f"{0:020d}.{suffix}").write_bytes(b"")
    (partition / "partition.metadata").write_bytes(write_partition_metadata(TOPIC_ID))
    (partition / "leader-epoch-checkpoint").write_bytes(write_checkpoint([LeaderEpoch(epoch, 0)]))
    starts = [TopicOffset("other", 0, 7), TopicOffset(f"tiered-{name}", 0, 0)]
    (folder / "log-start-offset-checkpoint").write_bytes(write_checkpoint(starts))
    (folder / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":1}')
    return partition


@EACH
def test_brokers_find_each_segment_of_a_tier_under_the_new_id(name: str, root: str, store: Store) -> None:
    place = TopicIdPartition(TOPIC_ID, f"tiered-{name}", 0)
    with opened(GENUINE / name, metadata_log=METADATA_LOG) as tier:
        done = attach(tier, store, topic_ids=ids_of(tier))
        container = bucket_at(root)
        assert without_fates(records_of(container)) == without_fates(records_of(tier))
        assert list(container.verify()) == []
        manager, storage = RemoteLogMetadataManager(store, "kafka-exact"), RemoteStorageManager(store)
        pieces = tier.source.finished(tier.segments())
        assert (done.copied, done.present, done.bytes) == (len(pieces), 0, sum(each.bytes for each in pieces))
        for each in pieces:
            [found] = {manager.remote_log_segment_metadata(place, *epoch) for epoch in each.epochs}
            assert found is not None
            assert (found.start_offset, found.end_offset) == (each.start_offset, each.end_offset)
            assert found.segment_leader_epochs == dict(each.epochs)
            assert found.state == RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            assert found.remote_log_segment_id.id == parse_uuid(each.uuid, object="uuid")
            assert len(found.custom_metadata or b"") <= 128  # brokers take no more
            kinds = ("offset", "timestamp", "producerSnapshot")
            for kind in kinds if each.end_offset != ENDS[name] else kinds[:2]:
                assert storage.fetch_index(found, kind).read() == tier.source.index(each, kind)
            held = read_leader_epochs(storage.fetch_index(found, "leaderEpoch").read())
            assert held[-1] == read_leader_epochs(tier.source.index(each, "leaderEpoch") or b"")[-1]
        last = container.segments()[-1]
        assert read_producer_snapshot(container.source.index(last, "producerSnapshot") or b"") == []


@EACH
def test_transactions_without_an_end_are_named_and_aborted(name: str, root: str, store: Store) -> None:
    with opened(GENUINE / name) as tier:
        done = attach(tier, store, topic_ids=ids_of(tier))
        container = bucket_at(root)
        texts = [f"producer {producer} at offset {first} has no end" for producer, first in OPEN[name].items()]
        assert all(any(text in note for note in done.notes) for text in texts)
        last = max(container.segments(), key=lambda each: each.end_offset)
        rows = read_transaction_index(container.source.index(last, "transaction") or b"")
        # Each is found by a fetch of any offset of it: a broker passes rows until the last stable offset is at the fetch's end.
        added = rows[-len(texts) :]
        assert {row.producer_id: row.first_offset for row in added} == OPEN[name]
        assert [row.last_stable_offset for row in added[:-1]] == [row.first_offset for row in added[1:]]
        assert min(row.last_offset for row in added) > last.end_offset
        shown = {each.offset for each in container.read(isolation="read_committed")}
        assert shown >= {each.offset for each in tier.read(isolation="read_committed")}
        assert not shown & set(OPEN[name].values())


def attach_until_killed(monkeypatch: pytest.MonkeyPatch, tier: KafkaBucket, store: Store, count: int) -> None:
    """An attaching that dies when the bytes of ``count`` segments are there, and the last one's event is not."""
    genuine, copied = RemoteStorageManager.copy_log_segment_data, list[object]()

    def copy(self: RemoteStorageManager, *arguments: Any) -> object:
        copied.append(arguments[0])
        result = genuine(self, *arguments)
        if len(copied) == count:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RemoteStorageManager, "copy_log_segment_data", copy)
        attach(tier, store, topic_ids=ids_of(tier))


def test_a_killed_run_goes_on(monkeypatch: pytest.MonkeyPatch, root: str, store: Store) -> None:
    with opened(GENUINE / "plain") as tier:
        attach_until_killed(monkeypatch, tier, store, 3)
        assert attach(tier, store, topic_ids=ids_of(tier))[:3:2] == (3, 2)
        assert attach(tier, store, topic_ids=ids_of(tier))[:3] == (0, 0, 5)
        assert without_fates(records_of(bucket_at(root))) == without_fates(records_of(tier))
        other = opened(GENUINE / "plain", metadata_log=METADATA_LOG)
        with pytest.raises(Conflict, match="attach to another container"):
            attach(other, store, topic_ids=ids_of(tier))


def test_what_a_newer_lineage_replaced_is_cut_off(monkeypatch: pytest.MonkeyPatch, root: str, store: Store) -> None:
    source, topic = LogDirectory(str(LOG_DIR)), "transactions"
    whole = source.listing(topic, 0).segments[1]  # transactions of it are aborted in both halves
    old = TopicIdPartition(parse_uuid(whole.topic_id, object="id"), topic, 0)
    with source.log(whole) as log, chunkstore.open(before := fresh_root()) as first:
        batches = list(iter_batches(log, ReadOptions(floor=whole.start_offset)))
        border = batches[len(batches) // 2]
        files = {name: source.index(whole, name) for name in SEGMENT_FILES}
        tail = source_of(bytes(read_exactly(log, border.position, log.length - border.position)))
        newer = whole._replace(start_offset=border.base_offset)
        for number, (each, data, epoch) in enumerate(((whole, log, 0), (newer, tail, 3))):
            epochs = {epoch: each.start_offset}
            planned = Planned(each, epochs, write_checkpoint([LeaderEpoch(*pair) for pair in epochs.items()]))
            own = files if number == 0 else {**dict.fromkeys(files), "offset": b"", "transaction": files["transaction"]}
            identity = RemoteLogSegmentId(old, bytes([number]) * 16)
            RemoteStorageManager(first).copy_log_segment_data(*described(identity, planned, data, own))
            if number == 0:  # a killed run leaves the whole segment
                attach_until_killed(monkeypatch, bucket_at(before), store, 1)
        with KafkaBucket(before) as tier:
            attach(tier, store, topic_ids=ids_of(tier))
            container = bucket_at(root)
            parts = container.segments()
            spans = [(whole.start_offset, border.base_offset - 1), (border.base_offset, whole.end_offset)]
            assert [(each.start_offset, each.end_offset) for each in parts] == spans
            assert [each.bytes for each in parts] == [border.position, log.length - border.position]
            rows = OffsetIndex(container.source.index(parts[0], "offset") or b"", whole.start_offset)
            assert 0 < len(rows) < len(OffsetIndex(files["offset"] or b"", whole.start_offset))
            assert rows[len(rows) - 1] < (border.base_offset, border.position)
            aborted = read_transaction_index(container.source.index(parts[0], "transaction") or b"")
            assert 0 < max(row.last_offset for row in aborted) < border.base_offset
            assert [each[:3] for each in container.read()] == [each[:3] for each in tier.read()]
    source.close()


@EACH
def test_folders_of_a_fresh_cluster_get_what_a_broker_needs(tmp_path: Path, name: str, root: str, store: Store) -> None:
    folder = fresh_cluster(tmp_path, name, 2)
    with opened(GENUINE / name) as tier:
        for _ in range(2):  # again, for it may have been killed
            done = attach(tier, store, log_dir=str(tmp_path))
            assert done.folders == 1
            epochs = {epoch: start for each in reversed(tier.segments()) for epoch, start in each.epochs}
            assert files_below(folder) == {
                f"{ENDS[name] + 1:020d}.log": b"",
                "leader-epoch-checkpoint": write_checkpoint([LeaderEpoch(*each) for each in sorted(epochs.items())]),
                "partition.metadata": write_partition_metadata(TOPIC_ID),
            }
        assert {each.topic_id for each in bucket_at(root).segments()} == {NEW_ID}
        assert {path.name for path in tmp_path.iterdir()} == {
            folder.name,
            "log-start-offset-checkpoint",
            ".kafka_cleanshutdown",
        }


@pytest.mark.parametrize("why", ["records", "epoch", "absent", "running"])
def test_a_folder_that_may_not_be_replaced_is_refused(tmp_path: Path, why: str, root: str, store: Store) -> None:
    folder = fresh_cluster(tmp_path, "plain", 0 if why == "epoch" else 2)
    if why == "records":
        (folder / f"{0:020d}.log").write_bytes(b"x")
    elif why == "absent":
        folder.rename(tmp_path / "another-0")
    elif why == "running":
        (tmp_path / ".kafka_cleanshutdown").unlink()
    before = files_below(tmp_path)
    messages = {"records": "without a record", "epoch": "stop the broker 1 times", "absent": "no id in the fresh"}
    messages["running"] = "did not stop cleanly"
    with opened(GENUINE / "plain") as tier, pytest.raises(InvalidArgument, match=messages[why]):
        attach(tier, store, log_dir=str(tmp_path))
    assert files_below(tmp_path) == before
    assert bucket_at(root).segments() == []


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key.pem").write_bytes(PEM)
    bucket, root = copied_tier(tmp_path, "encrypted"), (tmp_path / "root").as_uri()
    for path in bucket.rglob("*.*"):
        if not path.name.startswith(f"{331:020d}"):
            path.unlink()  # each takes the private key
    old = "XlL8Cx9nStOHTsSSG6-dZQ"
    verb = ["kafka", "attach", bucket.as_uri(), root, "--key", str(tmp_path / "key.pem"), "--json"]
    assert main([*verb, "--topic-id", f"{old}={NEW_ID}"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["copied"], done["present"], done["folders"]) == (1, 0, 0)
    for wrong in ([], ["--topic-id", old], ["--topic-id", f"{old}=short"]):
        assert main([*verb, *wrong]) != 0


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("version", "name"), [(OLD, "plain"), (NEW, "encrypted")])
def test_a_fresh_broker_serves_what_was_attached(tmp_path: Path, version: str, name: str) -> None:
    topic, root = f"tiered-{name}", (tmp_path / "root").as_uri()
    with rig(tmp_path, root, version) as made, opened(GENUINE / name, metadata_log=METADATA_LOG) as tier:
        [broker] = made.brokers
        made.add_topic(topic)
        made.admin.close()  # it would try to connect again
        broker.stop()
        made.serving.stop()
        with chunkstore.open(root) as store, pytest.raises(InvalidArgument, match="stop the broker 1 times"):
            attach(tier, store, log_dir=str(broker.data))
        made.serving.start()
        broker.start()
        broker.stop()
        made.serving.stop()
        with chunkstore.open(root) as store:
            assert attach(tier, store, log_dir=str(broker.data)).folders == 1
        with KafkaBucket(root) as container:
            committed = [Row(each.offset, each.key, each.value) for each in container.read(isolation="read_committed")]
        made.serving.start()
        broker.start()
        written = produce(made, topic, 3)
        assert written[0].offset == ENDS[name] + 1
        assert consumed(made, topic) == [Row(each.offset, each.key, each.value) for each in tier.read()] + written
        assert consumed(made, topic, isolation_level="read_committed") == committed + written
        assert not {row.offset for row in committed} & set(OPEN[name].values())
        made.check_container()
