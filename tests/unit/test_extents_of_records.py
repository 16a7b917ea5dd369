"""Rows that lead to bytes in records: what a record may say of them, what an OPEN has to, and bytes that look like a record."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.checksum import crc32c
from chunkstore.errors import Damaged
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.codec import decode_chunk, encode_row
from chunkstore.metadata.keys import chunk_key
from chunkstore.metadata.port import Op, RowChange
from chunkstore.records.names import NO_CHUNK, chunk_id
from chunkstore.records.segments import CLOSED, KIND_INLINE, ChunkRecord
from chunkstore_journal.extents import check_moved, extents_of, moved_extents
from chunkstore_journal.payloads import BLOB_AT, decode_ops, encode_open, encode_ops
from chunkstore_journal.record import HEADER_BYTES, Record, RecordHeader, decode_record, encode_record
from tests.golden.journal_samples import CONTAINER, HASH, OPEN, TOKEN

BLOB = b"first extentsecond"
EPOCH, INDEX, BEGIN = 3, 7, 4000
"""Of the record: it lies at this byte of the log, or is this slot."""
FIRST, SECOND, OLD = (chunk_id(1, EPOCH, number, 5) for number in (1, 2, 0))


def row(identity: bytes, start: int, stop: int, **changes: Any) -> RowChange:
    """An extent at these bytes of the blob, in the log."""
    crc = crc32c(BLOB[start:stop])
    at = BEGIN + HEADER_BYTES + BLOB_AT + start
    record = ChunkRecord(f"{EPOCH:x}", at, stop - start, crc, NO_CHUNK, NO_CHUNK, 1, EPOCH, CLOSED, KIND_INLINE, 9)
    return chunk_key(identity), encode_row(record._replace(**changes))


GOOD = (row(FIRST, 0, 12), row(SECOND, 12, 18))
OPS: tuple[Op, ...] = (
    (int(OpCode.APPEND), 1, 50, 12, ((50, FIRST),), 1),
    (int(OpCode.APPEND), 2, 0, 6, ((0, SECOND),), 1),
)


def record_of(rows: Any, *, blob: bytes = BLOB, ops: tuple[Op, ...] = OPS) -> Record:
    header = RecordHeader(RecordKind.OPS, 0, CONTAINER, EPOCH, INDEX, 42, 41, HASH, 0, TOKEN, 0, BEGIN)
    data, _ = encode_record(header, encode_ops(ops, rows, blob))
    return decode_record(data, 0, object="log.a", container=CONTAINER, at=BEGIN)


def check(record: Record, *, begin: int | None = BEGIN) -> list[bytes]:
    ops, rows = decode_ops(record.payload, object="log.a", position=BEGIN)
    return [key[1:] for key, _ in extents_of(record, ops, rows, begin=begin, object="log.a", position=BEGIN)]


def test_what_an_owner_writes_is_taken() -> None:
    before = row(OLD, 0, 12, object_offset=700, next=FIRST)
    assert check(record_of([GOOD[1], before, GOOD[0], (b"Sx", b"")])) == [FIRST, SECOND]
    moved = [row(identity, *span, object=f"{EPOCH:x}/{INDEX:x}", object_offset=HEADER_BYTES + BLOB_AT + span[0])
             for identity, span in ((FIRST, (0, 12)), (SECOND, (12, 18)))]  # fmt: skip
    assert check(record_of(moved), begin=None) == [FIRST, SECOND]


@pytest.mark.parametrize(
    "rows",
    [
        [GOOD[0]],
        [GOOD[0], row(SECOND, 12, 18, length=7)],
        [GOOD[0], row(SECOND, 12, 18, object_offset=BEGIN + HEADER_BYTES + BLOB_AT + 11)],
        [GOOD[0], row(SECOND, 0, 12)],
        [row(FIRST, 0, 12, object_offset=BEGIN + HEADER_BYTES + BLOB_AT - 1), GOOD[1]],
        [row(FIRST, 0, 12, object_offset=700), GOOD[1]],
        [row(FIRST, 0, 12, object="2"), GOOD[1]],
        [row(FIRST, 0, 12, object=f"{EPOCH:x}/{INDEX:x}"), GOOD[1]],
        [row(FIRST, 0, 12, crc32c=None), GOOD[1]],
        [row(FIRST, 0, 12, length=0), GOOD[1]],
        [*GOOD, row(OLD, 0, 12)],
        [*GOOD, row(OLD, 0, 12, object_offset=BEGIN - 11)],
        [*GOOD, row(OLD, 0, 12, object="4")],
        [*GOOD, row(OLD, 0, 12, object="no place")],
    ],
    ids=[
        "no-row", "longer-than-the-blob", "overlapping", "twice", "in-the-header", "of-an-earlier-record", "of-another-stream",
        "of-a-slot", "without-a-crc", "empty", "not-listed", "through-the-border", "of-a-later-stream", "nowhere",
    ],
)  # fmt: skip
def test_a_row_that_leads_elsewhere_is_damage(rows: list[RowChange]) -> None:
    with pytest.raises(Damaged) as caught:
        check(record_of(rows))
    assert (caught.value.object, caught.value.position) == ("log.a", BEGIN)


def test_extents_without_bytes_are_damage() -> None:
    with pytest.raises(Damaged, match="not into the 0 bytes"):
        check(record_of(GOOD, blob=b""))


def test_a_blob_that_is_longer_than_the_record_says_is_damage() -> None:
    payload = encode_ops(OPS, GOOD, BLOB)
    for length in (0, len(BLOB) - 1, len(BLOB) + 1, len(payload), (1 << 32) - 1):
        wrong = payload[: BLOB_AT - 4] + length.to_bytes(4, "big") + payload[BLOB_AT:]
        with pytest.raises(Damaged) as caught:
            decode_ops(wrong, object="log.a", position=BEGIN)
        assert (caught.value.object, caught.value.position) == ("log.a", BEGIN)


# ---- what an OPEN says of the record that it embeds


def opened(record: Record, rows: Any = ()) -> Any:
    embedded = encode_record(record.header, record.payload)[0]
    payload = OPEN._replace(previous_epoch=EPOCH, end_byte=BEGIN, embedded=embedded, rows=list(rows))
    moved, _ = moved_extents(payload, record, {}, object="log.a")
    return payload._replace(rows=[*rows, *moved])


def test_an_open_leads_to_its_own_bytes() -> None:
    record = record_of(GOOD)
    payload = opened(record)
    check_moved(payload, record, object="open")
    raw = encode_open(payload)
    for (key, value), data in zip(payload.rows, (BLOB[:12], BLOB[12:]), strict=True):
        found = decode_chunk(key, value)
        at = found.object_offset - HEADER_BYTES
        assert (found.object, raw[at : at + found.length]) == (f"{payload.epoch:x}/0", data)


@pytest.mark.parametrize("changed", [{"object_offset": 900}, {"object": "3"}, {"length": 11}, {"crc32c": 1}])
def test_an_open_that_says_something_else_of_them_is_damage(changed: dict[str, Any]) -> None:
    record = record_of(GOOD)
    rows = opened(record).rows
    key, value = rows[0]
    rows[0] = key, encode_row(decode_chunk(key, value)._replace(**changed))
    with pytest.raises(Damaged) as caught:
        check_moved(opened(record)._replace(rows=rows), record, object="open")
    assert (caught.value.object, caught.value.position) == ("open", 0)


def test_an_open_that_says_nothing_of_them_or_leads_behind_its_cut_is_damage() -> None:
    record = record_of(GOOD)
    for rows in ([], opened(record).rows[:1], [*opened(record).rows, row(OLD, 0, 12, object_offset=BEGIN)]):
        with pytest.raises(Damaged):
            check_moved(opened(record)._replace(rows=rows), record, object="open")
    check_moved(opened(record)._replace(rows=[(key, None) for key, _ in GOOD]), record, object="open")
