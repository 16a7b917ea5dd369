"""FORMAT.md says what the code does: the tables of PIP-17 are read and compared."""

from __future__ import annotations

import re

from chunkstore.codec.pulsar.block_index import BlockRef
from chunkstore.codec.pulsar.frames import LEDGER_UNKNOWN, PIP17, BlockHeader
from chunkstore.codec.pulsar.offload_metadata import REPEATED_MAX, TOPIC_KEY, LedgerMetadata, encode_metadata
from chunkstore.codec.pulsar.pip17 import BLOCK_BYTES_MAX, LedgerIndex, build_ledger_index, read_ledger_index
from tests.support.format_tables import TEXT, fields, number


def test_block_header() -> None:
    layout = fields("block header")
    [magic] = re.findall(r"As 1.1, with the magic (0x\w+) and without a ledger: bytes 28 to 127 are reserved", TEXT)
    data = PIP17.pack(BlockHeader(0x0102030405, 0x11121314151617, 7))
    assert len(data) == layout["all"][1] == 128
    assert int.from_bytes(data[:4], "big") == PIP17.magic == int(magic, 16)
    assert number(data, layout["header length"]) == 128
    assert number(data, layout["block length"]) == 0x0102030405
    assert number(data, layout["first entry"]) == 0x11121314151617
    assert data[28:] == bytes(100)
    found = PIP17.parse(data[:28] + b"\xff" * 100, object="o", position=0)
    assert found == BlockHeader(0x0102030405, 0x11121314151617, LEDGER_UNKNOWN)


def test_index() -> None:
    metadata = LedgerMetadata(write_quorum=1, ensemble_size=1, length=5)
    raw = encode_metadata(metadata)
    index = LedgerIndex(
        0x4142434445, metadata, raw, (BlockRef(0, 1, 0), BlockRef(0x0A0B0C0D0E, 0x21222324, 0x31323334))
    )
    data = build_ledger_index(index)
    head, block = fields("index head"), fields("index block")
    [magic, *counts] = re.findall(
        r"with the magic (0x\w+). At (\d+) the number of blocks, at (\d+) the metadata length", TEXT
    )[0]
    assert int.from_bytes(data[:4], "big") == PIP17.index_magic == int(magic, 16)
    assert number(data, head["index length"]) == len(data)
    assert number(data, head["data length"]) == 0x4142434445
    assert number(data, head["header length"]) == 128
    assert [number(data, (int(at), 4)) for at in counts] == [2, len(raw)]
    rest = data[int(counts[1]) + 4 :]
    assert rest.startswith(raw)
    second = rest[len(raw) + block["all"][1] :]
    assert len(second) == block["all"][1]
    assert number(second, block["first entry"]) == 0x0A0B0C0D0E
    assert number(second, block["part"]) == 0x21222324
    assert number(second, block["offset"]) == 0x31323334
    assert read_ledger_index(data) == index


def test_limits_and_names() -> None:
    [repeated] = re.findall(r"at most ([\d,]+)\s+of each repeated field", TEXT)
    assert int(repeated.replace(",", "")) == REPEATED_MAX
    [block] = re.findall(r"block size, (\d+) MiB by default", TEXT)
    assert int(block) << 20 == BLOCK_BYTES_MAX
    assert f"`{TOPIC_KEY}`" in TEXT
