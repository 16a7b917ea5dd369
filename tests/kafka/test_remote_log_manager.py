"""A leader's work over a log directory and its tier: copy, read, expire, follow, stop; what fails, and who loses the leadership."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import runtime
from chunkstore.cli.app import main
from chunkstore.codec.kafka.names import parse_uuid
from chunkstore.codec.kafka.records import Isolation
from chunkstore.errors import StorageUnavailable
from chunkstore.kafka import RemoteLogManager, RemoteLogMetadataManager, RemoteStorageManager
from chunkstore.kafka.model import (
    LeaderFenced,
    OffsetOutOfRange,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    TopicIdPartition,
)
from chunkstore.kafka.sources import LogDirectory
from tests.kafka.support_batches import Made, batch_of
from tests.kafka.support_leader import batches, leading, write_log
from tests.kafka.support_logdir import row_of
from tests.kafka.support_metadata import PARTITION, fresh_root
from tests.kafka.support_tier import copied_logs, expected_rows

COPIED = [(0, 99, "FINISHED"), (100, 199, "FINISHED"), (200, 299, "FINISHED")]
EPOCHS = [(0, 0), (1, 150)]


def made_log(tmp_path: Path, *, first: int = 0, high: int = 350, epochs: Any = EPOCHS, start: int = 0) -> Path:
    """Three rolled segments of 100 records and an active one of 50; those from ``first`` on."""
    logs = {0: batches(0, 99), 100: batches(100, 149) + batches(150, 199, 1)}
    logs |= {200: batches(200, 299, 1), 300: batches(300, 349, 1)}
    return write_log(
        tmp_path / "logs", {at: data for at, data in logs.items() if at >= first}, epochs, high, max(first, start)
    )


def unavailable(times: int) -> Callable[[], None]:
    """Fails so often."""
    left = [times]

    def call() -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise StorageUnavailable("the bucket is away")

    return call


def test_what_consumers_got_is_read_from_the_tier_and_the_log(tmp_path: Path) -> None:
    log_dir = copied_logs(tmp_path)
    source = LogDirectory(str(log_dir))
    topics = ("codecs", "transactions")
    rolled = [each for topic in topics for each in source.listing(topic).segments if each.state == "ROLLED"]
    ids = {TopicIdPartition(parse_uuid(each.topic_id, object=""), each.topic, each.partition) for each in rolled}
    with chunkstore.open(fresh_root()) as store:
        metadata, storage = RemoteLogMetadataManager(store), RemoteStorageManager(store)
        with RemoteLogManager(str(log_dir), metadata, storage) as manager:
            manager.on_leadership_change(dict.fromkeys(ids, 6))
            assert manager.run_once() == {}
            for each in rolled:
                partition = next(one for one in ids if (one.topic, one.partition) == (each.topic, each.partition))
                if each.end_offset < manager.deletable_end(partition):
                    for path in (log_dir / str(partition)).glob(f"{each.start_offset:020d}.*"):
                        path.unlink()
            assert manager.metrics()["RemoteCopyRequests"] > 5
            for partition in ids:
                rows = expected_rows("logdir-3.9.records.jsonl")[partition.topic, partition.partition]
                committed = [each for each in rows if each["committed"]]
                asked: dict[Isolation, Any] = {"read_uncommitted": rows, "read_committed": committed}
                for isolation, wanted in asked.items():
                    at, found, remote = 0, [], False
                    while (fetched := manager.read(partition, at, 8000, isolation)).next_offset > at:
                        found += [row_of(each, committed=True) | {"committed": 0} for each in fetched.records]
                        remote, at = remote or fetched.remote, fetched.next_offset
                    assert remote
                    assert found == [each | {"committed": 0} for each in wanted]
            assert manager.metrics()["RemoteFetchBytes"] > 100_000


@pytest.mark.parametrize("mode", ["strict", "kafka-exact"])
def test_each_segment_is_copied_once_and_local_ones_are_deletable_up_to_there(tmp_path: Path, mode: str) -> None:
    with leading(made_log(tmp_path, high=299), mode=mode) as leader:
        manager = leader.manager
        assert (manager.copied_offset(PARTITION), manager.deletable_end(PARTITION)) == (-1, 0)
        assert manager.copy(PARTITION) == 2
        assert (leader.spans, manager.copied_offset(PARTITION)) == (COPIED[:2], 199)
        made_log(tmp_path)
        assert (manager.copy(PARTITION), manager.copy(PARTITION), leader.spans) == (1, 0, COPIED)
        assert manager.deletable_end(PARTITION) == 300
        found = manager.metrics()
        assert (found["RemoteCopyRequests"], found["RemoteCopyLagSegments"]) == (3, 0)
        assert found["RemoteCopyBytes"] == sum(map(len, (batches(0, 99), batches(100, 199), batches(200, 299))))


@pytest.mark.parametrize(("policy", "left"), [("finish", COPIED[:1]), ("cancel", [])])
def test_the_leadership_is_lost_in_a_copy(tmp_path: Path, policy: str, left: list[Any]) -> None:
    with leading(made_log(tmp_path), on_leadership_lost=policy) as leader:
        leader.storage.before["copy"] = lambda: leader.manager.on_leadership_change({}, [PARTITION])
        with suppress(RemoteStorageException):
            assert leader.manager.copy(PARTITION) == 1
        assert leader.spans == left
        assert len(list(leader.storage.stored_segments())) == len(left)
        with pytest.raises(RemoteResourceNotFoundException, match="leadership"):
            leader.manager.copy(PARTITION)


def test_a_follower_knows_where_the_log_starts_and_reads_the_tier(tmp_path: Path) -> None:
    with chunkstore.open(fresh_root()) as store, leading(made_log(tmp_path), store, retention_bytes=0) as leader:
        assert leader.manager.copy(PARTITION) == 3
        follows = write_log(tmp_path / "follower", {200: batches(200, 299, 1), 300: batches(300, 349, 1)}, EPOCHS, 350)
        with RemoteLogManager(str(follows), RemoteLogMetadataManager(store), leader.storage) as follower:
            follower.on_leadership_change({}, [PARTITION])
            assert (follower.follow(PARTITION), follower.copied_offset(PARTITION)) == (0, 299)
            fetched = follower.read(PARTITION, 150, 1000)
            assert (fetched.remote, fetched.records[0].offset) == (True, 150)
            assert leader.manager.expire(PARTITION) == 3
            assert follower.follow(PARTITION) == 300
            with pytest.raises(RemoteResourceNotFoundException, match="leadership"):
                follower.expire(PARTITION)


def test_custom_metadata_that_a_broker_would_refuse_end_the_copies(tmp_path: Path) -> None:
    with leading(made_log(tmp_path), custom_metadata_bytes_max=39) as leader:
        with pytest.raises(RemoteStorageException, match="40 bytes, 39 are allowed"):
            leader.manager.copy(PARTITION)
        assert (leader.spans, list(leader.storage.stored_segments())) == ([], [])
        assert leader.manager.copy(PARTITION) == 0
        assert leader.storage.calls["copy"] == 1
        assert any("39 are allowed" in each.reason for each in leader.manager.why(PARTITION))


@pytest.mark.parametrize("policy", ["finish", "cancel"])
def test_a_deposed_leaders_copy_never_counts_and_the_next_leader_deletes_it(tmp_path: Path, policy: str) -> None:
    with chunkstore.open(fresh_root()) as store, leading(made_log(tmp_path), store, on_leadership_lost=policy) as old:

        def depose() -> None:
            with leading(tmp_path / "logs", store) as new:
                assert new.manager.copy(PARTITION) == 3

        old.storage.before["copy"] = depose
        with pytest.raises(LeaderFenced):
            old.manager.copy(PARTITION)
        with leading(tmp_path / "logs", store) as new:
            assert new.spans == sorted([(0, 99, "STARTED"), *COPIED])
            assert new.manager.expire(PARTITION) == 1
            assert (new.spans, len(list(new.storage.stored_segments()))) == (COPIED, 3)


def test_the_log_start_is_recorded_before_deletions_and_failed_ones_are_tried_again(tmp_path: Path) -> None:
    with leading(made_log(tmp_path), retention_bytes=0) as leader:
        manager = leader.manager
        manager.copy(PARTITION)
        seen: list[int] = []

        def fail() -> None:
            seen.append(leader.metadata.log_start(PARTITION))
            raise StorageUnavailable("the bucket is away")

        leader.storage.before["delete"] = fail
        with pytest.raises(StorageUnavailable):
            manager.expire(PARTITION)
        assert seen == [300, 300, 300]
        assert sorted(each.start_offset for each in manager.failed_deletions(PARTITION)) == [0, 100, 200]
        found = manager.metrics()
        assert [found[f"RemoteDelete{name}"] for name in ("Requests", "Errors")] == [3, 3]
        manager.on_leadership_change({PARTITION: 1})
        lags: list[int] = []
        leader.storage.before["delete"] = lambda: lags.append(manager.metrics()["RemoteDeleteLagSegments"])
        assert manager.expire(PARTITION) == 3
        assert (lags, manager.metrics()["RemoteDeleteLagSegments"], leader.spans) == ([3, 2, 1], 0, [])
        with pytest.raises(OffsetOutOfRange) as out:
            manager.read(PARTITION, 299, 100)
        assert (out.value.start_offset, out.value.end_offset) == (300, 350)


def test_time_retention_keeps_what_is_young_and_a_copy_that_goes_on(tmp_path: Path) -> None:
    with leading(made_log(tmp_path), retention_ms=1) as leader:
        counts: list[int] = []
        leader.storage.before["copy"] = lambda: counts.append(leader.manager.expire(PARTITION))
        assert leader.manager.copy(PARTITION) == 3
        assert counts == [0, 1, 1]
        assert (leader.spans, leader.metadata.log_start(PARTITION)) == (COPIED[2:], 200)
    with leading(made_log(tmp_path), retention_ms=runtime.now_ms()) as leader:
        assert (leader.manager.copy(PARTITION), leader.manager.expire(PARTITION)) == (3, 0)


def test_an_unclean_election_leaves_the_other_lineage_unread(tmp_path: Path) -> None:
    with leading(made_log(tmp_path)) as leader:
        leader.manager.copy(PARTITION)
        log = {0: batches(0, 99), 100: batches(100, 169, 0) + batches(170, 249, 5), 250: batches(250, 259, 5)}
        write_log(tmp_path / "logs", log, [(0, 0), (5, 170)], 260)
        assert leader.manager.copied_offset(PARTITION) == 149
        assert leader.manager.deletable_end(PARTITION) == 150
        assert leader.manager.copy(PARTITION) == 1
        assert leader.manager.deletable_end(PARTITION) == 250
        for epochs in ([(0, 0), (5, 170)], [(5, 250)]):  # whole, and cut
            write_log(tmp_path / "logs", {250: log[250]}, epochs, 260)
            assert leader.manager.copy(PARTITION) == 0
            found = [each for at in range(0, 260, 10) for each in leader.manager.read(PARTITION, at, 1).records]
            assert [(each.offset, each.leader_epoch) for each in found] == [
                (at, 0 if at < 170 else 5) for at in range(260)
            ]
        assert "another lineage" in str(leader.manager.why(PARTITION))


def test_offsets_outside_of_the_log_are_refused_and_followers_get_local_ones(tmp_path: Path) -> None:
    with leading(made_log(tmp_path)) as leader:
        leader.manager.copy(PARTITION)
        made_log(tmp_path, first=200, high=340)
        read = leader.manager.read
        assert read(PARTITION, 199, 1).remote
        assert not read(PARTITION, 200, 1).remote
        assert read(PARTITION, 340, 100).records == ()
        assert [each.offset for each in read(PARTITION, 345, 100, for_follower=True).records] == [*range(345, 350)]
        for offset, follower in ((341, False), (199, True), (351, True)):
            with pytest.raises(OffsetOutOfRange):
                read(PARTITION, offset, 100, for_follower=follower)
        assert [each.offset for each in read(PARTITION, 5, 1).records] == [*range(5, 10)]
        made_log(tmp_path)
        leader.manager.delete_records(PARTITION, 50)
        with pytest.raises(OffsetOutOfRange):
            read(PARTITION, 49, 1)
        assert not read(PARTITION, 205, 1).remote
        made_log(tmp_path, first=300)
        assert read(PARTITION, 205, 1).remote  # deleted since it was listed
        leader.storage.delete_log_segment_data(next(iter(leader.storage.stored_segments())))
        with pytest.raises(RemoteResourceNotFoundException):
            read(PARTITION, 60, 1)
        assert leader.manager.metrics()["RemoteFetchErrors"] == 1


def test_stopped_partitions_are_left_alone_or_deleted_whole(tmp_path: Path) -> None:
    with leading(made_log(tmp_path)) as leader:
        leader.manager.copy(PARTITION)
        leader.manager.stop_partitions([PARTITION])
        assert (leader.spans, leader.storage.calls, leader.metadata.is_ready(PARTITION)) == (COPIED, {"copy": 3}, False)
        leader.manager.stop_partitions([PARTITION], delete=True)
        assert (leader.storage.calls["delete"], list(leader.storage.stored_segments())) == (3, [])
        with pytest.raises(RemoteResourceNotFoundException):
            leader.metadata.list_remote_log_segments(PARTITION)


@pytest.mark.parametrize("policy", ["finish", "cancel"])
def test_a_copy_of_a_partition_that_is_deleted_meanwhile_leaves_nothing(tmp_path: Path, policy: str) -> None:
    with leading(made_log(tmp_path), on_leadership_lost=policy) as leader:
        leader.storage.before["copy"] = lambda: leader.manager.stop_partitions([PARTITION], delete=True)
        with pytest.raises(RemoteStorageException):
            leader.manager.copy(PARTITION)
        assert list(leader.storage.stored_segments()) == []


def test_why_says_what_keeps_a_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*arguments: str) -> dict[str, str]:
        assert main(["kafka", "why", *arguments, "--json"]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert all(set(row) == {"segment", "state", "reason"} for row in found)
        return {f"{row['state']} {row['segment'].rpartition('/')[2][:20].lstrip('0')}": row["reason"] for row in found}

    root, log_dir = (tmp_path / "root").as_uri(), str(made_log(tmp_path, high=299))
    with chunkstore.open(root) as store, leading(tmp_path / "logs", store) as leader:
        leader.manager.copy(PARTITION)
        leader.storage.before["copy"] = unavailable(1)
        leader.storage.before["delete"] = unavailable(1)
        made_log(tmp_path, high=300)
        leader.manager.run_once()
        assert "bucket is away" in str(leader.manager.why(PARTITION))
        made_log(tmp_path, high=299)
    found = rows(log_dir, "orders-3", "--root", root)
    assert found["ROLLED "] == found["ROLLED 100"] == "copied: it may be deleted"
    assert found["ROLLED 200"] == "not copied: it ends at offset 299, the high watermark is 299"
    assert "rolled" in found["ACTIVE 300"]
    assert "within" in found["COPY_SEGMENT_FINISHED "]
    assert "tries again" in found["DELETE_SEGMENT_STARTED 200"]
    assert rows(root, "orders-3") == {name: each for name, each in found.items() if "SEGMENT" in name}
    made_log(tmp_path, high=350)
    assert rows(log_dir, "orders-3")["ROLLED "] == "not copied yet: the leader's next pass copies it"
    made_log(tmp_path, high=0)
    assert "high watermark is 0" in rows(log_dir, "orders-3")["ROLLED 100"]
    written = batch_of([Made()], 0, producer_id=1, producer_epoch=0, transactional=True) + batches(1, 9)
    write_log(tmp_path / "logs", {0: written, 10: batches(10, 19), 20: b""}, EPOCHS[:1], 20)
    assert "transaction that begins at offset 0 is open" in rows(log_dir, "orders-3")["ROLLED 10"]
    assert main(["kafka", "why", log_dir, "orders-4"]) != 0
    assert main(["kafka", "why", log_dir, "orders"]) != 0


def test_the_thread_goes_on_after_failures_and_ends_with_close(tmp_path: Path) -> None:
    with leading(made_log(tmp_path), interval_s=0.01, backoff_s=0.01) as leader:
        third, calls = runtime.event(), []

        def fail() -> None:
            calls.append(1)
            if len(calls) == 3:
                third.set()
            raise RuntimeError("a fault of the manager")

        leader.storage.before["copy"] = fail
        leader.manager.start()
        assert third.wait(60)
        leader.manager.close()
        assert leader.manager._thread is not None
        assert not leader.manager._thread.is_alive()
