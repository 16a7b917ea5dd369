"""Batches and records of a genuine broker: each one as the broker's consumers got it, and those of another writer."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from chunkstore.codec.kafka.batches import iter_batches, validate
from chunkstore.codec.kafka.compression import CODECS
from chunkstore.codec.kafka.records import Record, control_record, iter_records, scan_transactions
from tests.kafka.support_batches import MemoryRecordsBuilder, arrow_of, control_of, source_of
from tests.kafka.support_logdir import (
    FIXTURES,
    LOG_DIR,
    Partition,
    batches_of,
    floor_of,
    partitions,
    row_of,
    segments_of,
)

PARTITIONS = partitions()
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "logdir-3.9.batches.json").read_text(encoding="utf-8"))
SAME_NAMES = (
    "position", "base_offset", "last_offset", "leader_epoch", "magic", "crc", "timestamp_type", "transactional", "control",
    "base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence",
)  # fmt: skip


@pytest.mark.parametrize("folder", sorted(EXPECTED), ids=lambda name: name[:24])
def test_every_batch_header(folder: str) -> None:
    sources = segments_of(LOG_DIR / folder)
    assert [source.name for source in sources] == sorted(EXPECTED[folder]["segments"])
    for source in sources:
        expected = EXPECTED[folder]["segments"][source.name]["batches"]
        found = [
            {name: getattr(batch, name) for name in SAME_NAMES}
            | {
                "size": batch.length + 12,
                "crc_ok": True,
                "codec": CODECS[batch.attributes & 7],
                "delete_horizon": bool(batch.attributes & 64),
                "records": batch.count,
            }
            for batch in iter_batches(source, floor_of(source))
        ]
        assert found == expected
        summary = validate(source, floor_of(source))
        assert (summary.batches, summary.records) == (len(expected), sum(one["records"] for one in expected))
        assert summary.end_position == source.length
        assert summary.tail is None
        assert summary.gaps == sum(one["last_offset"] + 1 != other["base_offset"] for one, other in pairwise(expected))


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda one: f"{one.topic[:20]}-{one.number}")
def test_every_record_and_whether_it_is_committed(partition: Partition) -> None:
    transactions = scan_transactions(batches_of(partition.sources))
    records: list[Record] = []
    committed: set[int] = set()
    for source in partition.sources:
        own = list(iter_records(source, *partition[:2], options=floor_of(source)))
        seen = list(iter_records(source, *partition[:2], isolation="read_committed", transactions=transactions))
        assert arrow_of(source, *partition[:2]) == own
        assert arrow_of(source, *partition[:2], isolation="read_committed", transactions=transactions) == seen
        records += own
        committed |= {record.offset for record in seen}
    assert [row_of(record, committed=record.offset in committed) for record in records] == partition.rows
    if partition.topic == "still-open":
        assert transactions.open == {1000: 60}
        assert transactions.last_stable_offset == 60
    else:
        assert transactions.last_stable_offset in (partition.high, None)


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_what_another_writer_makes_is_read(codec: int) -> None:
    builder = MemoryRecordsBuilder(
        magic=2, compression_type=codec, batch_size=1 << 20, transactional=True, producer_id=9, producer_epoch=1, base_sequence=0
    )  # fmt: skip
    for number in range(300):
        builder.append(1000 + number, b"k%d" % number, b"v" * number, [("name", b"x"), ("null", None)])
    builder.close()
    found = list(iter_records(source_of(bytes(builder.buffer())), "t", 3))
    headers = (("name", b"x"), ("null", None))
    assert found == [
        Record("t", 3, number, 1000 + number, "create", b"k%d" % number, b"v" * number, headers, found[0].leader_epoch, 9, True)
        for number in range(300)
    ]  # fmt: skip


def test_control_records() -> None:
    kinds = {batch.base_offset: control_record(batch) for batch in batches_of(segments_of(LOG_DIR / "transactions-0"))}
    found = [one for one in kinds.values() if one is not None]
    assert {one.type for one in found} == {"abort", "commit"}
    assert all(one.version == 0 and one.producer_epoch >= 0 and one.coordinator_epoch is not None for one in found)
    raft = [control_record(batch) for batch in batches_of(segments_of(LOG_DIR / "__cluster_metadata-0"))]
    assert {one.type for one in raft if one is not None} == {2}
    (made,) = (control_record(batch) for batch in iter_batches(source_of(control_of(7, 5, 1))))
    assert made == (7, 1_700_000_000_000, 0, "commit", 5, 3, 7)
