"""Managed ledgers: what is offloaded, trimmed and deleted when, and what is refused."""

from __future__ import annotations

import re
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
from chunkstore.codec.pulsar.offload_metadata import OffloadContext, decode_metadata
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    Damaged,
    InvalidArgument,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.pulsar import (
    LedgerOffloader,
    ManagedLedger,
    ManagedLedgerConfig,
    MemorySource,
    Position,
    PulsarObjects,
    ReadHandle,
    offload_context,
)
from chunkstore.pulsar import ledger_rows as rows_module
from chunkstore.pulsar.ledger_rows import Attempt, LedgerRow, LedgerRows
from chunkstore.pulsar.ledgers import LedgerSource
from chunkstore.pulsar.policies import OffloadPolicies as Policies
from tests.pulsar.support_bucket import FakeBucket

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


def aged() -> MemorySource:
    """Five ledgers of 1 MiB, closed 80, 60, 40 and 20 minutes ago; the last one is open."""
    closed_ms: dict[int, int | None] = {ledger: 20 * ledger * MINUTE_MS for ledger in range(1, 5)}
    return MemorySource({ledger: [bytes(MIB)] for ledger in range(1, 6)}, {**closed_ms, 5: None})


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
    source = aged()
    first = managed(store, source, recorder, **policies).offload_triggered().result(LIVENESS_S)
    assert recorder.begun == chosen
    assert first == Position(len(chosen) + 1, 0)


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
    source = aged()
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
    bucket, source = FakeBucket(keeps_metadata=True), MemorySource(ledgers_of(2), {1: 0, 2: 0})
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
    context = decode_metadata(OffloadContext, offload_context(store, T, 1), object="context")
    assert (context.complete, context.bookkeeper_deleted, context.timestamp_ms) == (True, True, 100 * MINUTE_MS)
    ml.config.offload_deletion_lag_s = None
    assert ml.delete_due() == []


# Offloaders


def test_argument_orders_of_both_pips(store: ChunkedSegmentStorage) -> None:
    bucket = FakeBucket(keeps_metadata=True)
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


# Rows


def test_format_says_what_the_rows_hold(store: ChunkedSegmentStorage) -> None:
    text = (Path(rows_module.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")

    def named(heading: str) -> list[str]:
        section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
        return [
            line.split("|")[2].strip() for line in section.splitlines() if line.startswith("| ") and line[2].isdigit()
        ]

    assert named("Ledgers")[2:] == list(LedgerRow._fields[2:])
    assert re.findall("`([a-z_]+)`", text.split("## Policies\n")[1]) == list(vars(Policies()))
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
