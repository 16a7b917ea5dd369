"""Managed ledgers together with streaming, permits, metrics and a real bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import chunkstore
from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, Damaged, InvalidArgument, StorageUnavailable, Unsupported
from chunkstore.metrics import exposition
from chunkstore.pulsar import (
    ContainerOffloader,
    ContainerSource,
    DirectorySource,
    LedgerNotFound,
    LedgerOffloader,
    LedgerReader,
    ManagedLedger,
    ManagedLedgerConfig,
    MemorySource,
    OffloadMetrics,
    OffloadPolicies,
    OffloadReadHandle,
    OffloadWriter,
    Position,
    PulsarBucket,
    PulsarObjects,
    ReadHandle,
    StreamingPolicy,
)
from chunkstore.pulsar.contexts import iter_contexts
from chunkstore.pulsar.ledger_rows import LedgerRows
from chunkstore.pulsar.offload_metrics import METRICS
from chunkstore.pulsar.permits import BROKER_PERMITS
from tests.bucket.conftest import S3Made, s3
from tests.pulsar.support_offload import MemoryBucket, Script

__all__ = ["s3"]

T = "persistent://public/default/orders"
LIVENESS_S = 60.0


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[ChunkedSegmentStorage]:
    with chunkstore.open(f"memory://joined-{request.node.name}") as opened:
        yield opened


def ledgers_of(count: int) -> dict[int, list[bytes]]:
    return {ledger: [b"%d" % ledger * 10] * 3 for ledger in range(1, count + 1)}


def payloads_of(handle: ReadHandle) -> list[bytes]:
    with handle:
        return [entry.payload for entry in handle.iter_entries()]


def streaming(store: ChunkedSegmentStorage, source: MemorySource, offloader: LedgerOffloader) -> ManagedLedger:
    config = ManagedLedgerConfig(offloader=offloader, offload_deletion_lag_s=0, streaming_offload_enabled=1)
    return ManagedLedger(store, T, source, config)


# Permits and metrics


def test_permits_of_the_process_change_while_an_offload_runs(store: ChunkedSegmentStorage) -> None:
    limited = runtime.event()

    class Waits(LedgerOffloader):
        def do_offload(self, handle: ReadHandle, uuid: str, extra_metadata: Mapping[str, str]) -> None:
            assert isinstance(handle, OffloadReadHandle)
            handle.read(0, 0)
            waiting = handle.read_async(1, 1)
            assert not waiting.done()
            limited.set()
            waiting.result(LIVENESS_S)

        def do_delete(self, ledger: int | None, uuid: str) -> None:
            return

    config = ManagedLedgerConfig(offloader=Waits(), managed_ledger_offload_broker_flow_permits=1)
    try:
        source = MemorySource({1: [bytes(1000)] * 2})
        running = ManagedLedger(store, T, source, config).offload_prefix(Position(2, 0))
        assert limited.wait(LIVENESS_S)
        ManagedLedgerConfig()
        assert BROKER_PERMITS.permits_bytes_per_s == 1  # a config that leaves it out changes nothing
        with pytest.raises(InvalidArgument):
            config.managed_ledger_offload_broker_flow_permits = -1
        assert not running.done()
    finally:
        config.managed_ledger_offload_broker_flow_permits = 0
    assert running.result(LIVENESS_S) == Position(2, 0)


def test_every_metric_of_ledger_based_offload_is_counted(store: ChunkedSegmentStorage) -> None:
    bucket, metrics = MemoryBucket(), OffloadMetrics()
    config = ManagedLedgerConfig(offloader=PulsarObjects(bucket), metrics=metrics, retention_size_in_mb=0)
    ml = ManagedLedger(store, T, MemorySource(ledgers_of(1)), config)

    def counted() -> set[str]:
        page = exposition([metrics.collector()]).decode().splitlines()
        sample = 'namespace="public/default",'
        return {line.split("{")[0].removeprefix("brk_ledgeroffloader_") for line in page if sample in line}

    reads = {"read_ledger_latency", "ledger_offload_time", "ledger_reading_max_bytes"}
    reads |= {"read_ledger_latency_count", "read_ledger_latency_sum"}
    bucket.script = Script(0)
    with pytest.raises(StorageUnavailable):
        ml.offload_prefix(Position(2, 0)).result(LIVENESS_S)
    assert counted() - reads == {"offload_error", "write_storage_error"}
    bucket.script = Script()
    ml.offload_prefix(Position(2, 0)).result(LIVENESS_S)
    assert payloads_of(ml.open(1)) == ledgers_of(1)[1]
    kept = dict(bucket.objects)
    bucket.objects.clear()
    with pytest.raises(ChunkstoreError):
        ml.open(1)
    bucket.objects = kept
    assert ml.trim() == [1]
    names = {name for name in counted() if not name.endswith(("_count", "_sum"))}
    assert names == METRICS.keys() - {"ledger_offload_limited"}
    page = exposition([metrics.collector()]).decode()
    assert f'read_bytes{{namespace="public/default",topic="{T}"}} 30.0' in page
    assert f'delete_offload_ops{{namespace="public/default",status="succeed",topic="{T}"}}' in page


def test_an_error_of_reading_is_none_of_the_storage(store: ChunkedSegmentStorage, tmp_path: Path) -> None:
    (tmp_path / "1.entries").write_bytes(b"\0\0\0\5abc")
    metrics = OffloadMetrics()
    config = ManagedLedgerConfig(offloader=PulsarObjects(MemoryBucket()), metrics=metrics)
    ml = ManagedLedger(store, T, DirectorySource(tmp_path), config)
    with pytest.raises(Damaged):
        ml.offload_prefix(Position(2, 0)).result(LIVENESS_S)
    page = exposition([metrics.collector()]).decode()
    assert f'offload_error{{namespace="public/default",topic="{T}"}} 1.0' in page
    assert "write_storage_error{" not in page


# Streaming and switching


def test_policies_say_how_streaming_cuts_segments(store: ChunkedSegmentStorage) -> None:
    assert OffloadPolicies().streaming_policy() == StreamingPolicy()
    given = OffloadPolicies(max_size_per_offload_segment_mbytes=3, max_offload_segment_rollover_time_minutes=7)
    assert given.streaming_policy()[:2] == (3, 7)
    given.put(store, T)
    with pytest.raises(Unsupported, match="streaming is off"):
        ManagedLedger(store, T, MemorySource({})).streaming()
    OffloadPolicies(streaming_offload_enabled=1, max_size_per_offload_segment_mbytes=1).put(store)
    source = MemorySource({1: [bytes(MIB)] * 4})
    offloader = ManagedLedger(store, T, source).streaming()
    offloader.feed(1)
    offloader.close()
    assert [item.end for item in iter_contexts(store, T)] == [(1, 2), None]  # the topic's 3 MiB, not the broker's 1


def test_streaming_begins_when_the_ledger_based_offload_has_ended(store: ChunkedSegmentStorage) -> None:
    entered, go = runtime.event(), runtime.event()

    class Held(ContainerOffloader):
        def do_offload(self, handle: ReadHandle, uuid: str, extra_metadata: Mapping[str, str]) -> None:
            entered.set()
            assert go.wait(LIVENESS_S)
            super().do_offload(handle, uuid, extra_metadata)

    source = MemorySource(ledgers_of(4), {3: None, 4: None})
    ml = streaming(store, source, Held(store, T))
    running = ml.offload_prefix(Position(2, 0))
    assert entered.wait(LIVENESS_S)
    with pytest.raises(Conflict, match="wait for its end"):
        ml.streaming()
    go.set()
    running.result(LIVENESS_S)
    offloader = ml.streaming()
    for ledger in (1, 2, 3):
        offloader.feed(ledger)
    source.closed_ms[3] = 0
    with pytest.raises(Conflict, match=r"ledger 2.*StreamingOffloader\.finish"):
        ml.offload_prefix(Position(4, 0)).result(LIVENESS_S)
    with pytest.raises(InvalidArgument, match="open"):
        offloader.finish(4)
    # Back: to the end of the current ledger, and ledger-based offload goes on with the next one.
    result = offloader.finish(3)
    assert result is not None
    assert result[1:] == (2, 0, 3, 2)
    source.closed_ms[4] = 0
    assert ml.offload_prefix(Position(5, 0)).result(LIVENESS_S) == Position(5, 0)
    assert [item.begin is None for item in iter_contexts(store, T)] == [True, False, True]
    assert [(item.ledger, item.entries) for item in LedgerReader(store).ledgers(T)] == [(n, 3) for n in (1, 2, 3, 4)]


def test_a_ledger_in_a_bucket_is_not_streamed_and_a_streamed_one_goes_to_no_bucket(
    store: ChunkedSegmentStorage,
) -> None:
    bucket, source = MemoryBucket(), MemorySource(ledgers_of(3), {3: None})
    ml = streaming(store, source, PulsarObjects(bucket))
    ml.offload_prefix(Position(2, 0)).result(LIVENESS_S)
    offloader = ml.streaming()
    for ledger in (1, 2, 3):
        offloader.feed(ledger)
    offloader.offload_now()
    assert [item.ledger for item in LedgerReader(store).ledgers(T)] == [2, 3]
    assert ml.offload_prefix(Position(3, 0)).result(LIVENESS_S) == Position(3, 0)
    assert len(bucket.objects) == 2
    source.closed_ms[3], source.entries[3] = 0, [*source.entries[3], b"not streamed"]
    with pytest.raises(Conflict, match="ledger 3"):
        ml.offload_prefix(Position(4, 0)).result(LIVENESS_S)
    # Streaming is off again: ledgers that were streamed are offloaded once more, for a broker without PIP-76.
    ml.config.streaming_offload_enabled = 0
    assert ml.offload_prefix(Position(4, 0)).result(LIVENESS_S) == Position(4, 0)
    assert len(bucket.objects) == 6
    assert ml.delete_due() == [1, 2, 3]
    assert not list(store.segments())
    assert [payloads_of(ml.open(ledger)) for ledger in (2, 3)] == [
        ledgers_of(2)[2],
        [*ledgers_of(3)[3], b"not streamed"],
    ]


def test_a_ledger_that_was_streamed_whole_leaves_the_source(store: ChunkedSegmentStorage) -> None:
    source = MemorySource(ledgers_of(3), {1: 0, 2: 0, 3: None})
    ml = streaming(store, source, ContainerOffloader(store, T))
    assert ml.delete_due() == []
    offloader = ml.streaming()
    offloader.feed(1)
    offloader.feed(2, 1)
    offloader.offload_now()
    offloader.feed(2)
    assert ml.delete_due() == [1]  # the last entry of 2 is in a segment that is not complete
    offloader.close()
    ml.streaming().finish(2)  # of a segment that was resumed, how many entries it has is not recorded
    ml.config.offload_deletion_lag_s = 3600
    assert ml.delete_due() == []
    ml.config.offload_deletion_lag_s = 0
    assert ml.delete_due() == [2]
    assert ml.delete_due() == []
    assert sorted(source.entries) == [3]
    assert [item[:3] for item in ml.ledgers()] == [(1, 3, 30), (2, 3, 30), (3, 3, 30)]
    assert [payloads_of(ml.open(ledger)) for ledger in (1, 2)] == [ledgers_of(2)[1], ledgers_of(2)[2]]
    assert ml.offload_prefix(Position(3, 0)).result(LIVENESS_S) == Position(3, 0)
    # Their only copy is in the container now, also for one that takes the container for a source.
    own = ManagedLedgerConfig(offloader=PulsarObjects(MemoryBucket()), offload_deletion_lag_s=0)
    assert ManagedLedger(store, T, ContainerSource(store, T), own).delete_due() == []
    assert [payloads_of(ml.open(ledger)) for ledger in (1, 2)] == [ledgers_of(2)[1], ledgers_of(2)[2]]
    # Trimmed: a segment goes with the last of its ledgers.
    ml.config.retention_size_in_mb = 0
    assert ml.trim() == [1, 2]
    assert not list(store.segments())
    assert not LedgerRows(store, T).all()
    with pytest.raises(LedgerNotFound):
        LedgerReader(store).ledgers(T)


def test_what_a_container_holds_once_is_never_given_up_as_streamed(store: ChunkedSegmentStorage) -> None:
    with OffloadWriter(store, T) as writer:
        for ledger in (1, 2):
            writer.append(ledger, 0, b"payload")
    config = ManagedLedgerConfig(
        offloader=ContainerOffloader(store, T), offload_deletion_lag_s=0, streaming_offload_enabled=1
    )
    assert ManagedLedger(store, T, ContainerSource(store, T), config).delete_due() == []
    assert [item.ledger for item in LedgerReader(store).ledgers(T)] == [1, 2]


def test_a_ledger_with_gaps_was_not_streamed_whole(store: ChunkedSegmentStorage) -> None:
    source = MemorySource(ledgers_of(1))
    with OffloadWriter(store, T) as writer:
        writer.append(1, 0, b"first")
        writer.append(1, 2, b"last")
    assert streaming(store, source, ContainerOffloader(store, T)).delete_due() == []
    assert 1 in source.entries


# A real bucket


@pytest.mark.parametrize("s3", ["rgw"], indirect=True)
def test_objects_in_s3_are_read_back_and_deleted(s3: S3Made, store: ChunkedSegmentStorage) -> None:
    entries = [b"%06d" % number * 1024 for number in range(1024)]  # 6 MiB
    config = ManagedLedgerConfig(
        offloader=PulsarObjects(s3.bucket), offload_deletion_lag_s=0, retention_size_in_mb=0, block_bytes_max=5 * MIB
    )
    source = MemorySource({7: entries})
    ml = ManagedLedger(store, T, source, config)
    assert ml.offload_prefix(Position(8, 0)).result(LIVENESS_S) == Position(8, 0)
    assert ml.delete_due() == [7]
    assert not source.entries
    assert payloads_of(ml.open(7)) == entries
    [row] = PulsarBucket(s3.bucket).ledgers(details=True)
    assert (row.topic, row.ledger, row.format, row.entries) == (T, 7, "v1", len(entries))
    assert payloads_of(PulsarBucket(s3.bucket).open(7)) == entries
    assert ml.trim() == [7]
    assert not list(s3.bucket.list())
    assert not s3.leftovers()
