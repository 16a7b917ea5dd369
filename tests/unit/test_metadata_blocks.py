"""Rows of block borders: golden bytes, the format's table, and what readers make of rows that no writer makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google_crc32c import value
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.errors import Damaged
from chunkstore.journal import OpCode
from chunkstore.metadata import reserved as rows
from chunkstore.metadata.codec import encode_row
from chunkstore.metadata.keys import block_key
from chunkstore.metadata.memory import memory_store
from chunkstore.metadata.port import GENESIS, Commit, MetadataStore
from chunkstore.metadata.reserved import add_borders, find_borders, last_row_key
from chunkstore.records import blocks
from chunkstore.records.blocks import Borders, ChunkSum
from chunkstore.records.segments import CLOSED, KIND_OBJECT, ChunkRecord, TableRecord

ROOT = Path(__file__).resolve().parents[2]
CHUNK = bytes(range(28))
GOLDEN = "0100000000000100000000000000010000" + "deadbeef" + "00000001"


def record(data: bytes, length: int | None = None) -> ChunkRecord:
    size = len(data) if length is None else length
    return ChunkRecord("", 0, size, value(data), b"", b"", 1, 1, CLOSED, KIND_OBJECT, 0)


def stored(found: dict[bytes, TableRecord]) -> MetadataStore:
    store = memory_store()
    changes = [(key, encode_row(TableRecord(1, row.value))) for key, row in found.items()]
    commit = Commit(
        GENESIS._replace(lsn=1, hash=b"1" * 16), GENESIS.hash, 0, [(int(OpCode.TABLE_PUT), "!blocks", b"")], changes
    )
    assert store.apply([commit], verify=False)
    return store


def find(found: dict[bytes, TableRecord], chunk: ChunkRecord, low: int, high: int) -> Borders | None:
    with stored(found).view() as view:
        return find_borders(view, CHUNK, chunk, low, high)


def test_golden_bytes() -> None:
    found = add_borders(CHUNK, b"", [(65_536, 0xDEADBEEF), (131_072, 1)])
    assert found == {block_key(CHUNK, 4 << 20): TableRecord(0, bytes.fromhex(GOLDEN))}
    assert (
        block_key(CHUNK, 4 << 20)
        == b"T\x07!blocks" + CHUNK + (4 << 20).to_bytes(8, "big")
        == last_row_key(CHUNK, 131_073)
    )
    more = add_borders(CHUNK, bytes.fromhex(GOLDEN), [(196_608, 2)])
    assert [row.value.hex() for row in more.values()] == [GOLDEN + "00000002"]
    # Behind 512 blocks of 64 KiB they are twice as long.
    [(key, row)] = add_borders(CHUNK, b"x" * 17, [(32 << 20, 3)]).items()
    assert key == block_key(CHUNK, (32 << 20) + (8 << 20))
    assert row.value.hex() == "01" + "0000000002000000" + "0000000000020000" + "00000003"


def test_format_table_says_what_the_code_does() -> None:
    text = (ROOT / "chunkstore" / "metadata" / "FORMAT.md").read_text(encoding="utf-8")
    table = text.split("<!-- table: blocks -->\n", 1)[1].split("\n\n", 1)[0]
    cells = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]]
    assert [(int(row[0]), int(row[1]), row[2]) for row in cells] == [
        (0, 1, "version"),
        (1, 8, "start"),
        (9, 8, "step"),
        (rows._BLOCKS.size, rows._CRC.size, "crc"),
    ]


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_any_pieces_make_the_rows_of_the_whole(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 4)
        content = data.draw(st.binary(min_size=1, max_size=64)) * data.draw(st.integers(1, 80))
        found: dict[bytes, TableRecord] = {}
        total, row = ChunkSum(), b""
        while (length := total.length) < len(content):
            piece = content[length : length + data.draw(st.sampled_from((1, 2, 3, 4, 5, 31, 32, 1000, 10_000)))]
            total = ChunkSum(length, total.crc32c)
            total.add(piece)
            added = add_borders(CHUNK, row, total.passed)
            found.update(added)
            row = next(reversed(added.values())).value if added else row
        assert total.crc32c == value(content)
        whole = ChunkSum()
        whole.add(content)
        assert found == add_borders(CHUNK, b"", whole.passed)
        low = data.draw(st.integers(0, length - 1))
        high = data.draw(st.integers(low + 1, length))
        borders = find(found, record(content), low, high)
        assert borders is not None
        assert borders.at[0] <= low < borders.at[1] and borders.at[-2] < high <= borders.at[-1]
        assert [*borders.crcs] == [value(content[:at]) for at in borders.at]
        everything = [0, *blocks.borders_inside(length), length]
        assert [*borders.at] == everything[everything.index(borders.at[0]) : everything.index(borders.at[-1]) + 1]
        around = borders.between(low, high)
        assert (around.at, around.crcs) == (borders.at, borders.crcs)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\1",
        b"\2" + bytes.fromhex(GOLDEN)[1:],
        bytes.fromhex(GOLDEN)[:17],
        bytes.fromhex(GOLDEN) + b"x",
        b"\1" + bytes(8) + (5).to_bytes(8, "big") + bytes(4),
        b"\1" + (5).to_bytes(8, "big") + bytes(8) + bytes(4),
        b"\1" + b"\xff" * 16 + bytes(4),
        b"\1" + (900).to_bytes(8, "big") + (200).to_bytes(8, "big") + bytes(8),
    ],
)
def test_a_row_that_cannot_be_is_damage(raw: bytes) -> None:
    with pytest.raises(Damaged):
        find({block_key(CHUNK, 1 << 40): TableRecord(0, raw)}, record(bytes(1000)), 10, 1000)
