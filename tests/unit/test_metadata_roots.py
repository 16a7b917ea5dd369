"""Rows of roots, and names in them: golden bytes, hostile bytes, the documented table."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore.metadata
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.metadata.codec import encode_table, pack_row
from chunkstore.metadata.roots import decode_root, encode_root
from chunkstore.names import (
    BackupNames,
    ContainerNames,
    chunk_id,
    confined,
    foreign_object,
    parse_foreign,
    parse_routed,
)
from chunkstore.records import ACTIVE, CLOSED, KIND_FOREIGN, KIND_OBJECT, ChunkRecord, RootRecord, TableRecord

FORMAT = Path(chunkstore.metadata.__file__ or "").parent / "FORMAT.md"
ROOT = RootRecord(
    "s3://bucket/prefix", "", "default", bytes(range(16)), "adopted-1", 7, 1 << 40, ACTIVE, 1_700_000_000_000
)
OWN = RootRecord("", "old/", "", b"", "", 0, 0, CLOSED, 0)
GOLDEN = (
    "9b0100b273333a2f2f6275636b65742f707265666978a0a764656661756c74c410000102030405060708090a0b0c0d0e0fa961646f707465642d31"
    "07cf000001000000000001cf0000018bcfe56800"
)


def row(value: bytes) -> bytes:
    return encode_table(TableRecord(1, value))


def test_golden_bytes() -> None:
    assert encode_root(ROOT).hex() == GOLDEN
    assert decode_root(row(encode_root(ROOT)), 5) == ROOT
    assert decode_root(row(encode_root(OWN)), 0) == OWN
    newer = ROOT._replace(extra=(5, "new"))
    assert decode_root(row(encode_root(newer)), 5) == newer


def test_the_documented_fields_are_those_of_the_record() -> None:
    text = FORMAT.read_text(encoding="utf-8").split("<!-- table: root -->\n", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    assert [(int(cell[0]), cell[1]) for cell in cells] == list(enumerate(RootRecord._fields[:-1], 2))


FIELDS = (1, 0, *ROOT[:-1])


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xc1",
        pack_row(FIELDS[:-1]),
        pack_row((2, *FIELDS[1:])),
        pack_row((1, 1, *ROOT[:-1])),
        pack_row((True, *FIELDS[1:])),
        *(pack_row((*FIELDS[: 2 + at], wrong, *FIELDS[3 + at :])) for at, wrong in (
            (0, 5), (0, "x" * 2049), (0, ""), (1, "../"), (2, ""), (2, "a/b"), (3, b"short"), (4, "x" * 256), (5, -1), (6, 1 << 63),
            (7, 3), (8, True),
        )),
    ],
)  # fmt: skip
def test_hostile_rows_are_refused(bad: bytes) -> None:
    with pytest.raises(Damaged):
        decode_root(row(bad), 5)


def test_root_0_is_ours_and_no_other() -> None:
    with pytest.raises(Damaged):
        decode_root(row(encode_root(ROOT)), 0)
    with pytest.raises(Damaged):
        decode_root(row(encode_root(OWN)), 5)
    with pytest.raises(InvalidArgument):
        encode_root(ROOT._replace(uuid=b""))


@pytest.mark.parametrize("text", ["@1/a", "@0/a/b", "@10000000a/x@1/y", "@ffffffffffffffff/a"])
def test_names_in_roots(text: str) -> None:
    found = parse_foreign(text)
    assert found is not None and foreign_object(*found) == text


NO_NAMES = (
    "", "a", "@", "@1", "@1/", "@01/a", "@A/a", "@1/../a", "@1//a", "@1/a\0", "@1/a/", "@-1/a", "@1 /a", "@1+4/a",
    "@11111111111111111/a",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_NAMES)
def test_what_is_no_name_in_a_root(text: str) -> None:
    assert parse_foreign(text) is None


def test_where_a_foreign_chunk_is_read() -> None:
    names, identity = ContainerNames("default"), chunk_id(1, 1, 1, 1)
    record = ChunkRecord("@1f/a/b", 12, 5, 7, b"", b"", 1, 1, CLOSED, KIND_FOREIGN, 0)
    with pytest.raises(Damaged, match="no CRC32C"):
        names.object_of(identity, record._replace(crc32c=None))
    assert names.object_of(identity, record._replace(object="@0/a/b", crc32c=None)) == "@0+12/a/b"
    assert names.object_of(identity, confined(names, identity, record)) == "@1f+12/a/b"
    assert parse_routed("@1f+12/a/b") == (0x1F, 12, "a/b")
    assert names.object_of(identity, record._replace(object_offset=0)) == "@1f/a/b"
    assert BackupNames("default").object_of(identity, record) == names.chunk(identity)
    for bad in (
        record._replace(state=ACTIVE),
        record._replace(kind=KIND_OBJECT),
        record._replace(object="a/b"),
        record._replace(object="@1f+12/a"),
    ):
        with pytest.raises(Damaged):
            confined(names, identity, bad)
