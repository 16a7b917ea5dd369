"""The judges' own decoder: it reads what the journal's code writes, as that reads it, and takes nothing else for a record."""

from __future__ import annotations

import pytest

from chunkstore.journal import RecordKind
from chunkstore.metadata.codec import encode_chunk, encode_garbage, encode_table
from chunkstore.records import CLOSED, KIND_OBJECT, ChunkRecord, GarbageRecord, TableRecord
from chunkstore_journal.payloads import decode_open, decode_ops
from chunkstore_journal.record import decode_slot
from tests.golden.journal_samples import CONTAINER, RECORDS, encoded_record
from tests.judges import stored_records
from tests.judges.stored_records import Unreadable

NAMES = sorted(RECORDS)


def plain(value: object) -> object:
    return [plain(item) for item in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("name", NAMES)
def test_it_reads_what_the_journal_reads(name: str) -> None:
    data = encoded_record(name)
    known, found = decode_slot(data, object=name, container=CONTAINER), stored_records.decode_record(data, CONTAINER)
    header = known.header
    assert found[:8] == (
        header.kind, header.epoch, header.index, header.lsn, header.previous_hash, header.digest, header.token, header.time_ms,
    )  # fmt: skip
    assert (found.hash, found.size, stored_records.kind_of(data)) == (known.hash, len(data), header.kind)
    if header.kind == RecordKind.OPEN:
        said, read = decode_open(known.payload, object=name, position=0), stored_records.decode_open(found)
        assert read[:8] == said[:8]
        assert read.snapshot == (None if said.snapshot is None else (said.snapshot.name, said.snapshot.lsn))
        assert read.rows == plain(said.rows)
    elif header.kind != RecordKind.SEAL:
        ops, rows, _ = stored_records.decode_payload(found)
        assert [ops, rows] == plain(decode_ops(known.payload, object=name, position=0))


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_or_a_cut_is_no_record(name: str) -> None:
    data = encoded_record(name)
    for place in range(len(data)):
        spoilt = bytearray(data)
        spoilt[place] ^= 1 << place % 8
        for wrong in (bytes(spoilt), data[:place], data + data[: place + 1]):
            with pytest.raises(Unreadable):
                stored_records.decode_record(wrong, CONTAINER)


def test_rows_are_read_by_their_fields() -> None:
    chunk = ChunkRecord("", 0, 3, 99, b"p" * 28, b"n" * 28, 5, 1, CLOSED, KIND_OBJECT, 0)
    assert stored_records.decode_row(encode_chunk(chunk), stored_records.CHUNK_FIELDS) == list(chunk[:11])
    garbage = GarbageRecord(b"f" * 28, b"l" * 28, 2, 9, 4, 7, 0)
    assert stored_records.decode_row(encode_garbage(garbage), stored_records.GARBAGE_FIELDS) == list(garbage[:7])
    row = TableRecord(4, b"value")
    assert stored_records.decode_row(encode_table(row), stored_records.TABLE_FIELDS) == [4, b"value"]
    with pytest.raises(Unreadable):
        stored_records.decode_row(encode_table(row), stored_records.CHUNK_FIELDS)
