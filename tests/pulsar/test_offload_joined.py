"""Managed ledgers together with streaming, permits, metrics and a real bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

import chunkstore
from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, InvalidArgument, StorageUnavailable, Unsupported
from chunkstore.metrics import exposition
from chunkstore.pulsar import (
    ContainerOffloader,
    LedgerOffloader,
    LedgerReader,
    ManagedLedger,
    ManagedLedgerConfig,
    MemorySource,
    OffloadMetrics,
    OffloadPolicies,
    Position,
    PulsarBucket,
    PulsarObjects,
    ReadHandle,
    StreamingPolicy,
)
from chunkstore.pulsar.contexts import iter_contexts
from chunkstore.pulsar.offload_metrics import METRICS
from tests.bucket.conftest import S3Made, s3
from tests.pulsar.support_bucket import FakeBucket, Script

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


def test_every_metric_of_ledger_based_offload_is_counted(store: ChunkedSegmentStorage) -> None:
    bucket, metrics = FakeBucket(keeps_metadata=True), OffloadMetrics()
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
