"""FORMAT.md of the journal says what the code does: its tables are read and compared."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

import chunkstore_journal
from chunkstore.changes.sessions import SessionChunk
from chunkstore.config import LIMITS, MIB, RollingPolicy
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Position
from chunkstore.records.reports import DefragAction
from chunkstore.records.segments import PinRecord
from chunkstore_journal import asks, extents, objects, payloads, record, snapshot_reader, wire
from tests.golden.journal_samples import GOLDEN

TEXT = (Path(chunkstore_journal.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")


def _table(after: str) -> list[list[str]]:
    """The cells of the first table behind ``after``, without its heading."""
    lines = TEXT[TEXT.index(after) + len(after) :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]


def _places(layout: struct.Struct) -> list[tuple[int, int]]:
    """(offset, size) of each field of a packed layout."""
    assert layout.format[0] == ">"
    places, offset = [], 0
    for field in re.findall(r"\d*[a-zA-Z]", layout.format[1:]):
        size = struct.calcsize(">" + field)
        places.append((offset, size))
        offset += size
    assert offset == layout.size
    return places


@pytest.mark.parametrize(
    ("marker", "layout"),
    [
        ("<!-- table: record -->", record._HEADER),
        ("<!-- table: frame -->", wire._HEADER),
        ("<!-- table: line -->", extents._LINE),
        ("<!-- table: event -->", extents._EVENT),
    ],
)
def test_the_byte_tables_are_the_layouts_in_the_code(marker: str, layout: struct.Struct) -> None:
    assert [(int(row[0]), int(row[1])) for row in _table(marker)] == _places(layout)


def test_the_named_bytes_are_where_the_table_says() -> None:
    raw = GOLDEN["record/ops"]
    at = {row[2]: slice(int(row[0]), int(row[0]) + int(row[1])) for row in _table("<!-- table: record -->")}
    decoded = record.decode_slot(raw, object="x", container=None)
    header = decoded.header
    assert raw[at["magic"]] == record.MAGIC
    assert raw[at["type"]] == bytes([header.kind])
    assert int.from_bytes(raw[at["payload_len"]], "big") == len(decoded.payload)
    for name, value in (
        ("epoch", header.epoch), ("index", header.index), ("lsn", header.lsn), ("committed_lsn", header.committed_lsn),
        ("state_digest", header.digest), ("time_ms", header.time_ms),
    ):  # fmt: skip
        assert int.from_bytes(raw[at[name]], "big") == value
    assert (raw[at["container"]], raw[at["prev_hash"]], raw[at["token"]]) == (
        header.container,
        header.previous_hash,
        header.token,
    )


def test_record_types_and_object_kinds_are_all_listed() -> None:
    assert {int(row[0]): row[1] for row in _table("### 1.1")} == {int(kind): kind.name for kind in RecordKind}
    assert {int(row[0]): row[1] for row in _table("## 3. Small")} == {
        int(kind): kind.name for kind in objects.ObjectKind
    }
    assert {int(row[0]): row[1] for row in _table("## 4. Snap")} == {int(k): k.name for k in snapshot_reader.FrameKind}


def test_the_elements_of_open_are_listed_in_order() -> None:
    rows = _table("### 1.2")
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    assert [row[1] for row in rows] == ["version", *payloads.OpenPayload._fields]


def test_versions_and_limits_are_the_codes() -> None:
    versions = {row[0]: int(row[1]) for row in _table("## 6. Versions")}
    assert versions == {
        "record": record.FORMAT_VERSION,
        "payload": payloads.PAYLOAD_VERSION,
        "small object": objects.OBJECT_VERSION,
        "snapshot": snapshot_reader.SNAPSHOT_VERSION,
        "request, answer": asks.ASK_VERSION,
        "container layout": objects.CONTAINER_FORMAT_VERSION,
    }
    assert (record.HEADER_BYTES, record.OVERHEAD_BYTES) == (148, 164)
    assert (LIMITS.record_bytes_max, record.EMBEDDABLE_BYTES_MAX) == (16 * MIB, 15 * MIB)
    assert LIMITS.small_object_bytes_max == 64 * 1024
    assert LIMITS.snapshot_block_bytes_max == 4 * MIB
    assert asks.REQUEST_BYTES_MAX == 15 * MIB


def test_the_classes_of_requests_and_answers_are_all_listed() -> None:
    listed = {int(number): (name, fields) for number, name, fields in _table("A data class is")}
    assert listed == {number: (kind.__name__, _listed(kind)) for number, kind in asks.KINDS.items()}
    plain = SessionChunk, RollingPolicy, PinRecord, DefragAction, Position
    assert _table("Other classes have no number") == [[kind.__name__, _listed(kind)] for kind in plain]


def _listed(kind: type) -> str:
    return f"`{', '.join(asks._fields(kind))}`"
