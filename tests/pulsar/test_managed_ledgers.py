"""Managed ledgers: what is offloaded, trimmed and deleted when, and what is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chunkstore
from chunkstore import runtime
from chunkstore.codec.pulsar.offload_metadata import decode_offload_context
from chunkstore.codec.pulsar.pip17_index import read_ledger_index
from chunkstore.codec.pulsar.pip17_reader import LedgerObjectReader
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    Conflict,
    Damaged,
    InvalidArgument,
    StorageUnavailable,
    Unsupported,
)
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
    OffloadPolicies,
    OffloadWriter,
    Position,
    PulsarObjects,
    ReadHandle,
    offload_context,
    remove_ledger,
)
from chunkstore.pulsar import ledger_rows as rows_module
from chunkstore.pulsar.ledger_rows import Attempt, LedgerRow, LedgerRows
from chunkstore.pulsar.ledgers import LedgerSource, SourceLedger
from chunkstore.pulsar.policies import OffloadPolicies as Policies
from tests.pulsar.support_offload import MemoryBucket
from tests.support.pip76 import source_of

T = "persistent://public/default/orders"
MINUTE_MS = 60_000
MIB = 1 << 20
LIVENESS_S = 60.0


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[ChunkedSegmentStorage]:
    with chunkstore.open(f"memory://managed-{request.node.name}") as opened:
        yield opened


@pytest.fixture
def now_ms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, for the test to set."""
    now = [100 * MINUTE_MS]
    monkeypatch.setattr(runtime, "now_ms", lambda: now[0])
    return now


def ledgers_of(count: int, size_bytes: int = 10) -> dict[int, list[bytes]]:
    return {ledger: [b"%d" % ledger * size_bytes] * 3 for ledger in range(1, count + 1)}


def payloads_of(handle: ReadHandle) -> list[bytes]:
    with handle:
        return [entry.payload for entry in handle.iter_entries()]


class Recorder(LedgerOffloader):
    """Notes what it is asked to offload; ledgers in ``fails`` fail, and each one waits for ``go`` after ``hold``."""

    def __init__(self, fails: Sequence[int] = ()) -> None:
        self.fails = fails
        self.begun: list[int] = []
        self.hold()
        self.go.set()

    def hold(self) -> None:
        self.entered, self.go = runtime.event(), runtime.event()

    def do_offload(self, handle: ReadHandle, uuid: str, extra_metadata: Mapping[str, str]) -> None:
        assert extra_metadata == {"ManagedLedgerName": "public/default/persistent/orders"}
        self.begun.append(handle.ledger)
        self.entered.set()
        assert self.go.wait(LIVENESS_S)
        if handle.ledger in self.fails:
            raise StorageUnavailable(f"ledger {handle.ledger}")

    def do_delete(self, ledger: int | None, uuid: str) -> None:
        return


def managed(
    store: ChunkedSegmentStorage, source: LedgerSource, offloader: LedgerOffloader, **more: Any
) -> ManagedLedger:
    return ManagedLedger(store, T, source, ManagedLedgerConfig(offloader=offloader, offload_threads_max=1, **more))


# Offloading


def test_a_failed_ledger_does_not_stop_the_next(store: ChunkedSegmentStorage) -> None:
    recorder = Recorder(fails=(2, 3))
    ml = managed(store, MemorySource(ledgers_of(6) | {7: []}, {6: None}), recorder)
    with pytest.raises(StorageUnavailable, match="ledger 2"):
        ml.offload_prefix(Position(6, 0)).result(LIVENESS_S)
    assert recorder.begun == [1, 2, 3, 4, 5]
    recorder.fails = ()
    assert ml.offload_prefix(Position(3, 0)).result(LIVENESS_S) == Position(3, 0)
    assert ml.offload_prefix(Position(100, 0)).result(LIVENESS_S) == Position(6, 0)
    assert recorder.begun == [1, 2, 3, 4, 5, 2, 3]  # neither the open ledger nor the empty one


def test_several_threads_offload_all(store: ChunkedSegmentStorage) -> None:
    config = ManagedLedgerConfig(offloader=ContainerOffloader(store, T), offload_threads_max=3)
    source = MemorySource(ledgers_of(9))
    ml = ManagedLedger(store, T, source, config)
    assert ml.offload_prefix(Position(10, 0)).result(LIVENESS_S) == Position(10, 0)
    assert {item.ledger for item in LedgerReader(store).ledgers(T)} == set(range(1, 10))
    for ledger, payloads in source.entries.items():
        assert [entry.payload for entry in LedgerReader(store).read(T, ledger)] == payloads


def test_one_offload_at_a_time_and_close_waits(store: ChunkedSegmentStorage) -> None:
    recorder = Recorder()
    recorder.hold()
    ml = managed(store, MemorySource(ledgers_of(2)), recorder)
    running = ml.offload_prefix(Position(3, 0))
    assert recorder.entered.wait(LIVENESS_S)
    with pytest.raises(Conflict):
        ml.offload_prefix(Position(3, 0))
    with pytest.raises(Conflict):
        ml.offload_triggered()
    closed = runtime.event()

    def close() -> None:
        ml.close()
        closed.set()

    task = runtime.spawn(close, "closing")
    assert not closed.is_set()
    recorder.go.set()
    task.join(LIVENESS_S)
    assert closed.is_set()
    assert running.done()
    assert running.result() == Position(3, 0)
    with pytest.raises(Closed):
        ml.offload_prefix(Position(3, 0))


def test_another_attempt_in_its_place(store: ChunkedSegmentStorage) -> None:
    """An attempt that is no longer recorded deletes its own objects, and nothing else."""
    bucket, source = MemoryBucket(), MemorySource(ledgers_of(1))

    class Overtaken(PulsarObjects):
        def do_offload(self, handle: ReadHandle, uuid: str, extra_metadata: Mapping[str, str]) -> None:
            super().do_offload(handle, uuid, extra_metadata)
            assert ManagedLedger(store, T, source, ManagedLedgerConfig(offloader=PulsarObjects(bucket))).offload_prefix(
                Position(2, 0)
            ).result(LIVENESS_S) == Position(2, 0)
            super().do_offload(handle, uuid, extra_metadata)  # written again after the other one has cleaned up

    with pytest.raises(Conflict):
        managed(store, source, Overtaken(bucket)).offload_prefix(Position(2, 0)).result(LIVENESS_S)
    attempt = LedgerRows(store, T).get(1).attempt
    assert attempt is not None
    assert sorted(bucket.objects) == [f"{uuid.UUID(bytes=attempt.uuid)}-ledger-1{end}" for end in ("", "-index")]
    assert payloads_of(managed(store, source, PulsarObjects(bucket)).open(1)) == source.entries[1]


# Triggers, retention, the deletion lag


@pytest.mark.parametrize(
    ("policies", "chosen"),
    [
        ({}, []),
        ({"offload_size_in_mb": 0}, [1, 2, 3, 4]),
        ({"offload_size_in_mb": 1}, [1, 2, 3]),  # 4 alone has 1 MiB, which is not more than that
        ({"offload_size_in_mb": 3}, [1]),
        ({"offload_time_in_minutes": 60}, [1, 2]),
        ({"offload_time_in_minutes": 70, "offload_size_in_mb": 3}, [1]),
        ({"offload_time_in_minutes": 60, "retention_time_in_minutes": 61}, [1, 2]),
    ],
)
def test_triggers(store: ChunkedSegmentStorage, now_ms: list[int], policies: dict[str, int], chosen: list[int]) -> None:
    recorder = Recorder()
    source = MemorySource(
        {ledger: [bytes(MIB)] for ledger in range(1, 6)},
        {1: 20 * MINUTE_MS, 2: 40 * MINUTE_MS, 3: 60 * MINUTE_MS, 4: 80 * MINUTE_MS, 5: None},
    )
    first = managed(store, source, recorder, **policies).offload_triggered().result(LIVENESS_S)
    assert recorder.begun == chosen
    assert first == Position(len(chosen) + 1, 0)


def test_triggers_are_below_retention_and_the_narrowest_policy_counts(store: ChunkedSegmentStorage) -> None:
    for wrong in (
        {"offload_time_in_minutes": 60, "retention_time_in_minutes": 60},
        {"offload_size_in_mb": 8, "retention_size_in_mb": 4},
        {"offload_size_in_mb": -1},
        {"offload_deletion_lag_s": -1},
        {"offload_threads_max": 0},
    ):
        with pytest.raises(InvalidArgument):
            ManagedLedgerConfig(**wrong)  # type: ignore[arg-type]
    OffloadPolicies(offload_size_in_mb=5, offload_time_in_minutes=7, retention_size_in_mb=100).put(store)
    OffloadPolicies(offload_size_in_mb=6).put(store, T)
    assert OffloadPolicies.of(store, T) == OffloadPolicies(offload_size_in_mb=6)
    assert OffloadPolicies.of(store, "other") == OffloadPolicies()
    found = ManagedLedgerConfig(retention_size_in_mb=50).over(
        OffloadPolicies.of(store, T).over(OffloadPolicies.of(store))
    )
    assert (found.offload_size_in_mb, found.offload_time_in_minutes, found.retention_size_in_mb) == (6, 7, 50)
    with pytest.raises(InvalidArgument, match="offload_size_in_mb 6 is not below"):
        managed(store, MemorySource({}), Recorder(), retention_size_in_mb=6)
    store.table("offload-policies").put(T.encode(), msgpack.packb((1, 0, *["x"] * 7)))
    with pytest.raises(Damaged, match="offload-policies"):
        managed(store, MemorySource({}), Recorder())


@pytest.mark.parametrize(
    ("policies", "trimmed"),
    [
        ({}, []),
        ({"retention_time_in_minutes": 60}, [1, 2]),
        ({"retention_size_in_mb": 2}, [1, 2, 3]),  # the open one counts: 2 MiB are left
        ({"retention_size_in_mb": 4}, [1]),
        ({"retention_size_in_mb": 0}, [1, 2, 3, 4]),
    ],
)
def test_trimming(
    store: ChunkedSegmentStorage, now_ms: list[int], policies: dict[str, int], trimmed: list[int]
) -> None:
    source = MemorySource(
        {ledger: [bytes(MIB)] for ledger in range(1, 6)},
        {1: 20 * MINUTE_MS, 2: 40 * MINUTE_MS, 3: 60 * MINUTE_MS, 4: 80 * MINUTE_MS, 5: None},
    )
    ml = managed(store, source, Recorder(), **policies)
    assert ml.trim() == trimmed
    assert [item.ledger for item in ml.ledgers()] == sorted(source.entries) == sorted({1, 2, 3, 4, 5} - set(trimmed))
    assert not LedgerRows(store, T).all()


def test_trimming_never_takes_a_ledger_that_is_being_offloaded(store: ChunkedSegmentStorage, now_ms: list[int]) -> None:
    recorder = Recorder()
    source = MemorySource(ledgers_of(3), {1: 0, 2: 0, 3: 0})
    ml = managed(store, source, recorder, retention_size_in_mb=0)
    assert ml.offload_prefix(Position(2, 0)).result(LIVENESS_S) == Position(2, 0)
    recorder.hold()
    running = ml.offload_prefix(Position(4, 0))
    assert recorder.entered.wait(LIVENESS_S)
    assert ml.trim() == [1]
    assert sorted(source.entries) == [2, 3]
    recorder.go.set()
    assert running.result(LIVENESS_S) == Position(4, 0)
    assert ml.trim() == [2, 3]


def test_the_source_keeps_its_copy_for_the_deletion_lag(store: ChunkedSegmentStorage, now_ms: list[int]) -> None:
    bucket, source = MemoryBucket(), MemorySource(ledgers_of(2), {1: 0, 2: 0})
    ml = managed(store, source, PulsarObjects(bucket))
    assert ml.config.offload_deletion_lag_s == 4 * 3600
    ml.offload_prefix(Position(3, 0)).result(LIVENESS_S)
    now_ms[0] += 4 * 3600 * 1000 - 1
    assert ml.delete_due() == []
    now_ms[0] += 1
    index = next(key for key in bucket.objects if key.endswith("1-index"))
    kept = bucket.objects.pop(index)
    with pytest.raises(ChunkstoreError):
        ml.delete_due()
    assert sorted(source.entries) == [1]  # 2 has its objects
    bucket.objects[index] = kept
    assert ml.delete_due() == [1]
    assert not source.entries
    assert [item.ledger for item in ml.ledgers()] == [1, 2]
    assert payloads_of(ml.open(1)) == ledgers_of(1)[1]
    context = decode_offload_context(offload_context(store, T, 1), object="context")
    assert (context.complete, context.bookkeeper_deleted, context.timestamp_ms) == (True, True, 100 * MINUTE_MS)
    ml.config.offload_deletion_lag_s = None
    assert ml.delete_due() == []


# Offloaders


def test_argument_orders_of_both_pips(store: ChunkedSegmentStorage) -> None:
    bucket = MemoryBucket()
    offloader = PulsarObjects(bucket)
    source = MemorySource(ledgers_of(1))
    name = uuid.UUID("0f9c3a52-6f0e-4b7e-9d61-f5b0a6f3ac01")
    driver = offloader.driver_metadata

    def offload() -> None:
        with source.open(1) as handle:
            offloader.offload(handle, name, {"ManagedLedgerName": "a/b/persistent/c"}).result(LIVENESS_S)
        assert len(bucket.objects) == 2

    offload()
    for given_uuid in (name, str(name), name.bytes):
        assert payloads_of(offloader.read_offloaded(1, given_uuid, driver).result(LIVENESS_S)) == source.entries[1]
    offloader.delete_offloaded(1, name).result(LIVENESS_S)
    assert not bucket.objects
    offload()
    offloader.delete_offloaded(name, driver, ledger_id=1).result(LIVENESS_S)
    assert not bucket.objects
    with pytest.raises(InvalidArgument, match="ledger_id"):
        offloader.delete_offloaded(name).result(LIVENESS_S)
    with pytest.raises(InvalidArgument, match="UUID"):
        offloader.read_offloaded(1, "no uuid")
    with pytest.raises(Unsupported, match="elsewhere"):
        offloader.read_offloaded(1, name, {"bucket": "elsewhere"})
    with pytest.raises(Unsupported):
        managed(store, source, LedgerOffloader()).offload_prefix(Position(2, 0)).result(LIVENESS_S)
    with pytest.raises(Unsupported, match="no offloader"):
        ManagedLedger(store, T, source).offload_prefix(Position(2, 0))


def test_objects_are_those_that_a_broker_serves(store: ChunkedSegmentStorage) -> None:
    bucket = MemoryBucket()
    entries = [b"x" * 3000, b"", b"y" * 20_000, *[b"z" * 1000] * 30]
    ml = managed(store, MemorySource({7: entries}), PulsarObjects(bucket, cluster="east"), block_bytes_max=8192)
    ml.offload_prefix(Position(8, 0)).result(LIVENESS_S)
    data, index = sorted(bucket.objects)
    assert (data, index) == (f"{data[:36]}-ledger-7", f"{data[:36]}-ledger-7-index")
    for key, role in ((data, "data"), (index, "index")):
        assert bucket.head(key).metadata == {
            "s3managedledgeroffloaderformatversion": "1",
            "s3managedledgeroffloadersoftwareversion": "chunkstore",
            "s3managedledgeroffloadersoftwaregitsha": "none",
            "pulsarclustername": "east",
            "managedledgername": "public/default/persistent/orders",
            "role": role,
        }
    reader = LedgerObjectReader(source_of(bucket.objects[data][0]), read_ledger_index(bucket.objects[index][0]))
    metadata = reader.index.metadata
    assert dict(metadata.custom) == {
        "component": b"managed-ledger",
        "application": b"pulsar",
        "pulsar/managed-ledger": b"public/default/persistent/orders",
    }
    assert (metadata.last_entry, metadata.length) == (32, sum(map(len, entries)))
    assert bucket.parts[:2] == [8192, 20_000 + 128 + 12]  # a longer block for the entry that fits no other
    assert set(bucket.parts[2:-1]) == {8192}  # an upload's part is a block
    assert payloads_of(ml.open(7)) == entries
    bucket.objects[data][1].clear()
    with pytest.raises(Damaged, match="formatversion"):
        ml.open(7)
    for wrong in (MemoryBucket(keeps_metadata=False), "file:///nowhere"):
        with pytest.raises(Unsupported, match="metadata"):
            PulsarObjects(wrong)


@pytest.mark.parametrize("kind", ["container", "bucket"])
def test_a_ledger_that_ends_early_is_not_offloaded(store: ChunkedSegmentStorage, kind: str) -> None:
    class Short(MemorySource):
        def ledgers(self) -> list[SourceLedger]:
            return [SourceLedger(1, 4, 40, 1)]

    bucket = MemoryBucket()
    offloader = PulsarObjects(bucket) if kind == "bucket" else ContainerOffloader(store, T)
    ml = managed(store, Short({1: [b"0123456789"] * 3}), offloader)
    with pytest.raises(ChunkstoreError, match="entr"):
        ml.offload_prefix(Position(2, 0)).result(LIVENESS_S)
    assert not bucket.objects
    assert not bucket.unfinished
    assert not list(store.segments())
    assert not LedgerRows(store, T).get(1).complete


def test_a_container_takes_a_ledger_once_and_of_one_topic(store: ChunkedSegmentStorage) -> None:
    offloader = ContainerOffloader(store, T)
    source = MemorySource(ledgers_of(1))
    with OffloadWriter(store, T) as writer:
        writer.append(1, 0, b"streamed")
    with pytest.raises(Conflict, match="ledger 1"):
        managed(store, source, offloader).offload_prefix(Position(2, 0)).result(LIVENESS_S)
    whole = managed(store, MemorySource({1: [b"streamed"], 2: [b"more"]}), offloader)
    assert whole.offload_prefix(Position(9, 0)).result(LIVENESS_S) == Position(3, 0)
    assert [item.entries for item in LedgerReader(store).ledgers(T)] == [1, 1]
    with pytest.raises(InvalidArgument, match="orders"):
        offloader.offload(source.open(1), bytes(16), {"ManagedLedgerName": "a/b/persistent/c"}).result(LIVENESS_S)
    assert [entry.payload for entry in LedgerReader(store).read(T, 1)] == [b"streamed"]


# Sources


def test_a_directory_of_ledgers(tmp_path: Path) -> None:
    def framed(payloads: Sequence[bytes]) -> bytes:
        return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)

    entries = [b"a", b"", b"c" * 5000]
    (tmp_path / "12.entries").write_bytes(framed(entries))
    (tmp_path / "3.entries").write_bytes(framed(entries * 200))
    (tmp_path / "x.entries").write_bytes(b"not a ledger")
    source = DirectorySource(tmp_path)
    assert [item[:3] for item in source.ledgers()] == [(3, 600, 200 * 5001), (12, 3, 5001)]
    with source.open(3) as handle:
        assert [(entry.entry, entry.payload) for entry in handle.read(299, 301)] == [
            (299, entries[2]),
            (300, b"a"),
            (301, b""),
        ]
        batches = list(handle.read_batches(1, 599))
        assert [row["payload"] for batch in batches for row in batch.to_pylist()] == (entries * 200)[1:]
        with pytest.raises(InvalidArgument):
            handle.read(0, 600)
    with pytest.raises(Closed):
        handle.read(0, 1)
    source.delete(3)
    source.delete(3)
    assert [item.ledger for item in source.ledgers()] == [12]
    (tmp_path / "12.entries").write_bytes(framed(entries)[:-1])
    with source.open(12) as handle, pytest.raises(Damaged, match="entry 2") as caught:
        list(handle.iter_entries())
    assert caught.value.position == 9
    with pytest.raises(InvalidArgument):
        source.open(3)
    with pytest.raises(StorageUnavailable):
        DirectorySource(tmp_path / "missing").ledgers()


def test_a_container_s_ledgers_go_on_to_a_bucket(store: ChunkedSegmentStorage) -> None:
    """Two ledgers share an offload segment: it goes once both were offloaded and given up."""
    entries = {ledger: [b"%d" % ledger * 10] * 5 for ledger in (1, 2, 3)}
    with OffloadWriter(store, T) as writer:
        for ledger in (1, 2):
            for number, payload in enumerate(entries[ledger]):
                writer.append(ledger, number, payload)
        writer.complete()
        writer.append(3, 0, b"of the newest")
    ml = managed(store, ContainerSource(store, T), PulsarObjects(MemoryBucket()))
    assert [(item.ledger, item.closed_ms is None) for item in ml.ledgers()] == [(1, False), (2, False), (3, True)]
    ml.config.offload_deletion_lag_s = 0
    assert ml.offload_prefix(Position(2, 0)).result(LIVENESS_S) == Position(2, 0)
    assert ml.delete_due() == [1]
    assert [item.ledger for item in LedgerReader(store).ledgers(T)] == [2, 3]
    assert len(list(store.segments())) == 4
    assert ml.offload_prefix(Position(9, 0)).result(LIVENESS_S) == Position(3, 0)
    assert ml.delete_due() == [2]
    assert len(list(store.segments())) == 2
    assert [payloads_of(ml.open(ledger)) for ledger in (1, 2)] == [entries[1], entries[2]]


def test_a_segment_goes_with_the_last_of_its_ledgers(store: ChunkedSegmentStorage) -> None:
    with OffloadWriter(store, T) as writer:
        for ledger in (1, 2):
            writer.append(ledger, 0, b"payload")
    assert remove_ledger(store, T, 1, dry_run=True) == []
    assert [item.ledger for item in LedgerReader(store).ledgers(T)] == [1, 2]
    assert remove_ledger(store, T, 1) == []
    with pytest.raises(LedgerNotFound):
        list(LedgerReader(store).read(T, 1))
    planned = remove_ledger(store, T, 2, dry_run=True)
    assert planned == remove_ledger(store, T, 2)
    assert [size for _, size in planned] == [sum(info.length for info in store.segments()) or planned[0][1]]
    assert not list(store.segments())
    assert not LedgerRows(store, T).all()
    with pytest.raises(LedgerNotFound):
        remove_ledger(store, T, 2)


def test_a_deleted_ledger_of_an_open_segment_stays_deleted(store: ChunkedSegmentStorage) -> None:
    writer = OffloadWriter(store, T)
    for ledger in (1, 2):
        writer.append(ledger, 0, b"payload")
    writer.flush()
    assert remove_ledger(store, T, 1) == []
    with pytest.raises(LedgerNotFound):
        remove_ledger(store, T, 3)
    writer.close()
    assert [item.ledger for item in LedgerReader(store).ledgers(T)] == [2]
    assert len(remove_ledger(store, T, 2)) == 1
    assert not LedgerRows(store, T).all()


# Rows


def test_format_says_what_the_rows_hold(store: ChunkedSegmentStorage) -> None:
    text = (Path(rows_module.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")

    def named(heading: str) -> list[str]:
        section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
        return [
            line.split("|")[2].strip() for line in section.splitlines() if line.startswith("| ") and line[2].isdigit()
        ]

    assert named("Ledgers")[2:] == list(LedgerRow._fields[2:])
    assert named("Policies")[2:] == list(vars(Policies()))
    attempt = Attempt(bytes(range(16)), "S3", (("bucket", "b"),))
    row = LedgerRow(T, 5, True, True, False, 6, 7, 8, 9, attempt, (attempt._replace(driver="x"),))
    LedgerRows(store, T).update(5, lambda _row: row)
    assert LedgerRows(store, T).get(5) == row
    [stored] = store.table("offload-ledgers").scan()
    flat = (bytes(range(16)), "S3", (("bucket", "b"),))
    fields = (1, 0, True, True, False, 6, 7, 8, 9, flat, ((flat[0], "x", flat[2]),))
    assert (stored.key, stored.value) == (T.encode() + b"\0" + (5).to_bytes(8, "big"), msgpack.packb(fields))
    assert LedgerRows(store, T).update(5, lambda row: LedgerRow(T, row.ledger)) == LedgerRow(T, 5)
    assert not list(store.table("offload-ledgers").scan())


ROW: list[object] = [1, 0, False, False, False, 0, 0, 0, 0, None, []]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        *((0, 2), (2, True), (2, 1), (5, -1), (6, True), (7, 1 << 63), (9, []), (10, None), (10, [None])),
        *((9, [bytes(15), "d", []]), (9, [bytes(16), 1, []])),
        *((9, [bytes(16), "d", [["a"]]]), (9, [bytes(16), "d", [["a", 1]]])),
    ],
)
def test_wrong_rows_are_damage(at: int, value: object) -> None:
    with pytest.raises(Damaged, match="offload-ledgers"):
        rows_module._decode(b"t\0" + bytes(8), msgpack.packb([*ROW[:at], value, *ROW[at + 1 :]]))


@given(
    st.binary(max_size=40),
    st.binary(max_size=80)
    | st.lists(st.integers(-(1 << 63), (1 << 64) - 1) | st.none() | st.binary()).map(msgpack.packb),
)
def test_hostile_rows_are_damage(key: bytes, value: bytes) -> None:
    with suppress(Damaged):
        rows_module._decode(key, value)
