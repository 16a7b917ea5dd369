"""FORMAT_FILES.md says what the code does: its tables are read and compared."""

from __future__ import annotations

from chunkstore.checksum import crc32c
from chunkstore.codec.kafka import encryption, manifest
from chunkstore.codec.kafka.indexes import (
    AbortedTransaction,
    OffsetIndex,
    ProducerEntry,
    TimeIndex,
    write_producer_snapshot,
    write_transaction_index,
)
from chunkstore.codec.kafka.remote_metadata import RECORDS, PartitionDeleteState, SegmentState
from chunkstore.config import MIB
from tests.support.format_tables import number, table
from tests.support.paths import ROOT

TEXT = (ROOT / "chunkstore" / "codec" / "kafka" / "FORMAT_FILES.md").read_text(encoding="utf-8")


def numbers(name: str, data: bytes) -> dict[str, int]:
    """The fields of ``data``, which a table describes to its end."""
    rows = [(int(row[0]), int(row[1]), row[2]) for row in table(name, TEXT)]
    assert [row[0] for row in rows] == [sum(before[1] for before in rows[:at]) for at in range(len(rows))]
    assert sum(row[1] for row in rows) == len(data)
    return {field: number(data, (offset, length)) for offset, length, field in rows}


def test_rows_of_indexes() -> None:
    assert numbers("offset index row", OffsetIndex.row.pack(3, 99)) == {"relative offset": 3, "position": 99}
    assert numbers("time index row", TimeIndex.row.pack(1 << 40, 3)) == {"timestamp": 1 << 40, "relative offset": 3}
    row = numbers("transaction index row", write_transaction_index([AbortedTransaction(1, 2, 3, 4)]))
    assert list(row.values()) == [0, 1, 2, 3, 4]


def test_snapshot() -> None:
    entry = ProducerEntry(1, 2, 3, 4, 5, 6, 7, 8)
    data = write_producer_snapshot([entry])
    head = numbers("snapshot head", data[:10])
    assert (head["version"], head["crc"] & 0xFFFFFFFF, head["count"]) == (1, crc32c(data[6:]), 1)
    row = numbers("snapshot row", data[10:])
    assert list(row.values()) == list(entry)
    assert [name.replace(" ", "_") for name in row] == [name.removesuffix("_ms") for name in entry._fields]


def test_records_and_states() -> None:
    assert [tuple(row) for row in table("records", TEXT)] == [
        (str(kind.value), kind.name, *fields) for kind, fields in RECORDS.items()
    ]
    for at, kind in ((1, SegmentState), (2, PartitionDeleteState)):
        assert [(int(row[0]), row[at]) for row in table("states", TEXT) if row[at]] == [
            (item.value, item.name) for item in kind
        ]


def test_bounds() -> None:
    bounds = (manifest.MANIFEST_BYTES_MAX, manifest._SIZES_BYTES_MAX, encryption.CHUNK_BYTES_MAX)
    assert [row[1] for row in table("bounds", TEXT)] == [f"{bound // MIB} MiB" for bound in bounds]
