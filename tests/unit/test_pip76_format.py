"""FORMAT.md says what the code does: its tables are read and compared, and golden bytes have not changed."""

from __future__ import annotations

import json
import re

import pytest

from chunkstore.codec.pulsar import offload_metadata as metadata
from chunkstore.codec.pulsar.block_index import BlockRef
from chunkstore.codec.pulsar.frames import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    PADDING_PATTERN,
    PIP76,
    BlockHeader,
    frame_header,
)
from chunkstore.codec.pulsar.pip76 import LedgerGroup, SegmentEncoder, SegmentIndex, build_index, read_index
from tests.support.format_tables import TEXT, fields, messages, number, table
from tests.support.paths import ROOT

GOLDEN: dict[str, str] = json.loads((ROOT / "tests" / "golden" / "pip76.json").read_text(encoding="utf-8"))


def test_block_header() -> None:
    layout = fields("block header")
    data = PIP76.pack(BlockHeader(length=0x0102030405, first_entry=0x11121314151617, ledger=0x21222324252627))
    assert len(data) == layout["all"][1] == BLOCK_HEADER_BYTES
    assert number(data, layout["magic"]) == PIP76.magic == int(table("block header")[0][3], 16)
    assert number(data, layout["header length"]) == 128
    assert number(data, layout["block length"]) == 0x0102030405
    assert number(data, layout["first entry"]) == 0x11121314151617
    assert number(data, layout["ledger"]) == 0x21222324252627
    assert number(data, layout["reserved"]) == 0
    assert PIP76.parse(data[:36] + b"\xff" * 92, object="o", position=0).ledger == 0x21222324252627


def test_entry_header() -> None:
    layout = fields("entry header")
    data = frame_header(0x0102030405060708, 0x11223344)
    assert len(data) == layout["all"][1] == ENTRY_HEADER_BYTES
    assert number(data, layout["length"]) == 0x11223344
    assert number(data, layout["entry"]) == 0x0102030405060708


def test_padding_pattern() -> None:
    assert PADDING_PATTERN.hex(" ").upper() in TEXT


def sample_index() -> SegmentIndex:
    info = metadata.LedgerInfo(ledger=0x0102030405, entries=9)
    blocks = (BlockRef(3, 1, 0), BlockRef(0x0A0B0C0D0E, 0x21222324, 0x31323334))
    group = LedgerGroup(info.ledger, info, metadata.encode_metadata(info), blocks)
    return SegmentIndex(0x4142434445, (group,))


def test_index() -> None:
    index = sample_index()
    data = build_index(index)
    head, ledger, block = fields("index head"), fields("index ledger"), fields("index block")
    assert number(data, head["magic"]) == PIP76.index_magic == int(table("index head")[0][3], 16)
    assert number(data, head["index length"]) == len(data)
    assert number(data, head["data length"]) == 0x4142434445
    assert number(data, head["header length"]) == 128
    group = data[head["all"][1] :]
    assert number(group, ledger["ledger"]) == 0x0102030405
    assert number(group, ledger["blocks"]) == 2
    assert number(group, ledger["metadata length"]) == len(index.ledgers[0].metadata)
    rest = group[ledger["all"][1] :]
    assert rest.startswith(index.ledgers[0].metadata)
    second = rest[len(index.ledgers[0].metadata) + block["all"][1] :]
    assert len(second) == block["all"][1]
    assert number(second, block["first entry"]) == 0x0A0B0C0D0E
    assert number(second, block["part"]) == 0x21222324
    assert number(second, block["offset"]) == 0x31323334
    assert read_index(data) == index


def test_messages() -> None:
    assert list(messages(TEXT).items()) == list(metadata.MESSAGES.items())


@pytest.mark.parametrize(
    ("limit", "text"), [(metadata.METADATA_BYTES_MAX, "at most 1 MiB"), (8 << 20, "At most 8 MiB")]
)
def test_limits(limit: int, text: str) -> None:
    assert limit == int(re.findall(r"\d+", text)[0]) << 20
    assert text in TEXT


def golden_segment() -> tuple[bytes, bytes]:
    """Two ledgers, a gap, an empty entry, a block that is cut, and a ledger that is gone back to."""
    data: list[bytes] = []
    encoder = SegmentEncoder(lambda block: data.extend(map(bytes, block.buffers)))
    encoder.begin_ledger(7)
    encoder.describe(metadata.LedgerInfo(ledger=7, entries=20, size=1000, timestamp_ms=1_700_000_000_000))
    encoder.append(0, b"zero")
    encoder.append(1, b"")
    encoder.append(5, b"five")
    encoder.cut()
    encoder.append(6, b"six")
    encoder.begin_ledger(3)
    encoder.append(128, b"at 128")
    encoder.begin_ledger(7)
    encoder.append(7, b"seven")
    index = encoder.finish()
    return b"".join(data), index


def golden_metadata() -> bytes:
    driver = metadata.DriverMetadata(name="aws-s3", properties=(("bucket", "b"), ("region", "")))
    segment = metadata.OffloadSegment(
        uid_msb=-1, uid_lsb=2, complete=True, assigned_ms=4, offloaded_ms=5, end_entry=6, driver=driver
    )
    context = metadata.OffloadContext(
        uid_msb=1,
        uid_lsb=-2,
        complete=False,
        bookkeeper_deleted=True,
        timestamp_ms=5,
        driver=driver,
        segments=(segment,),
    )
    return metadata.encode_metadata(
        metadata.LedgerInfo(ledger=1, entries=2, size=3, timestamp_ms=4, offload=context, properties=(("k", "ü"),))
    )


def test_golden_bytes() -> None:
    data, index = golden_segment()
    assert SegmentEncoder(lambda _: None).finish().hex() == GOLDEN["empty index"]
    assert data.hex() == GOLDEN["data"]
    assert index.hex() == GOLDEN["index"]
    assert golden_metadata().hex() == GOLDEN["ledger info"]
