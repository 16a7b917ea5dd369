"""Hostile and damaged PIP-17 pairs: ``Damaged`` with object and position, bounded memory, and no entry lost without a word."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from struct import pack

import pytest

from chunkstore.codec.pulsar.frames import PIP17, BlockHeader, DataSource, Entry, padding
from chunkstore.codec.pulsar.offload_metadata import encode_metadata
from chunkstore.codec.pulsar.pip17 import LedgerObjectReader, read_ledger_index
from chunkstore.codec.pulsar.pip76 import SegmentReader, read_index
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.errors import Damaged
from tests.support.pip17 import METADATA, Pair, encode_ledger
from tests.support.pip76 import encode, read_both, source_of

PAYLOADS = [b"payload %d" % number * (number % 5) for number in range(300)]
GOOD = encode_ledger(PAYLOADS, block_bytes_max=4096)
# A block of one short entry and 20 KiB of padding, and a last one.
PADDED = encode_ledger([b"short", bytes(30_000), b"last"], block_bytes_max=20_480)
SPANS = GOOD.index.spans()
RAW = GOOD.index.raw_metadata
ROWS = 32 + len(RAW)
SECOND = SPANS[1].start
V2 = encode([Entry(7, number, payload) for number, payload in enumerate(PAYLOADS)])


def read_all(pair: Pair, window_bytes: int = 4096) -> list[Entry]:
    return read_both(lambda: pair.reader(window_bytes))


def changed(data: bytes, at: int, new: bytes) -> bytes:
    assert 0 <= at <= len(data) - len(new)
    return data[:at] + new + data[at + len(new) :]


def first_end() -> int:
    """Where the padding of the first block begins."""
    return 128 + sum(12 + len(payload) for payload in PAYLOADS[: SPANS[1].first_entry])


@pytest.mark.parametrize(
    ("data", "position", "text"),
    [
        (changed(GOOD.data, 0, b"\x00"), 0, "no block begins"),
        (changed(GOOD.data, SECOND, b"\x00"), SECOND, "no block begins"),
        (changed(GOOD.data, 4, pack(">q", 127)), 4, "header length 127"),
        (changed(GOOD.data, SECOND + 12, pack(">q", 5000)), SECOND, "5000 bytes"),
        (changed(GOOD.data, SECOND + 20, pack(">q", 1)), SECOND, "from entry 1, the index"),
        (changed(GOOD.data, 128, b"\x80"), 128, "neither an entry nor padding"),
        (changed(GOOD.data, 128, b"\x7f"), 128, "does not fit"),
        (changed(GOOD.data, 132, pack(">q", 5)), 128, "dense ids from 0"),
        (changed(GOOD.data, 144, pack(">q", 0)), 148, "follows 0: ids are dense"),
        (changed(GOOD.data, 144, pack(">q", 2)), 148, "follows 0: ids are dense"),
        (changed(GOOD.data, first_end(), b"\xfe\xdc\xde\xae"), first_end(), "neither an entry nor padding"),
        (changed(GOOD.data, SECOND - 1, b"\x00"), first_end(), "neither an entry nor padding"),
        (GOOD.data[:-1], len(GOOD.data) - 1, "its index says"),
        (GOOD.data + b"\x00", len(GOOD.data), "its index says"),
        (b"", 0, "its index says"),
        (V2.data, 0, "a block of PIP-76"),
        (V2.data[: len(GOOD.data)].ljust(len(GOOD.data)), 0, "a block of PIP-76"),
    ],
)  # fmt: skip
def test_data_refused_with_position(data: bytes, position: int, text: str) -> None:
    with pytest.raises(Damaged, match=text) as caught:
        read_all(replace(GOOD, data=data))
    assert caught.value.object == "data"
    assert caught.value.position == position or "follows" in text


def last_row(index: bytes) -> int:
    return len(index) - 20


def with_metadata(raw: bytes) -> bytes:
    rows = GOOD.index_bytes[ROWS:]
    head = pack(">Iiqqii", 0xDE47DE47, 32 + len(raw) + len(rows), len(GOOD.data), 128, len(rows) // 20, len(raw))
    return head + raw + rows


@pytest.mark.parametrize(
    ("index", "position", "text"),
    [
        (b"", 0, "at least 32"),
        (GOOD.index_bytes[:31], 31, "at least 32"),
        (changed(GOOD.index_bytes, 0, b"\x00"), 0, "magic"),
        (V2.index_bytes, 0, "it is an index of PIP-76"),
        (GOOD.index_bytes[:-1], 4, "the index declares"),
        (GOOD.index_bytes + b"x", 4, "the index declares"),
        (changed(GOOD.index_bytes, 8, pack(">q", -1)), 8, "length -1"),
        (changed(GOOD.index_bytes, 16, pack(">q", 127)), 16, "header length 127"),
        (changed(GOOD.index_bytes, 24, pack(">i", 0)), 24, "no block"),
        (changed(GOOD.index_bytes, 24, pack(">i", -1)), 24, "do not fit"),
        (changed(GOOD.index_bytes, 24, pack(">i", 0x7FFFFFFF)), 24, "do not fit"),
        (changed(GOOD.index_bytes, 28, pack(">i", -1)), 24, "do not fit"),
        (changed(GOOD.index_bytes, 28, pack(">i", 0x7FFFFFFF)), 24, "do not fit"),
        (changed(GOOD.index_bytes, 24, pack(">i", len(SPANS) - 1)), len(GOOD.index_bytes) - 20, "follow the last block"),
        (changed(GOOD.index_bytes, 32, b"\x0b" * len(RAW)), 32, "not a protobuf"),
        (with_metadata(RAW[:2]), 32, "lacks"),
        (with_metadata(RAW + b"\x32\x00"), 32, "lacks firstEntryId"),
        (with_metadata(RAW + b"\x5a\x00" * 10_001), 32, "more than 10000 of customMetadata"),
        (with_metadata(RAW + b"\x0b" * 200_000), 32, "not a protobuf"),
        (with_metadata(RAW + b"\x5a\x03\x0a\x01\xff"), 32, "not a protobuf"),
        (changed(GOOD.index_bytes, ROWS, pack(">q", 1)), ROWS, "begins with entry 1"),
        (changed(GOOD.index_bytes, ROWS + 20, pack(">q", 0)), ROWS + 20, "ascend"),
        (changed(GOOD.index_bytes, ROWS + 32, pack(">q", 0)), ROWS + 20, "ascend"),
        (changed(GOOD.index_bytes, ROWS + 32, pack(">q", 1 << 62)), ROWS + 20, "inside the data object"),
        (changed(GOOD.index_bytes, ROWS + 12, pack(">q", 4)), 0, "0 expected"),
        (changed(GOOD.index_bytes, last_row(GOOD.index_bytes), pack(">q", 300)), last_row(GOOD.index_bytes), "last entry is 299"),
        (changed(GOOD.index_bytes, last_row(GOOD.index_bytes) + 12, pack(">q", len(GOOD.data))), last_row(GOOD.index_bytes), r"\(D1\)"),
        (bytes((8 << 20) + 1), 0, "at most"),
    ],
)  # fmt: skip
def test_index_refused_with_position(index: bytes, position: int, text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match=text) as caught:
            read_ledger_index(index, object="the-index")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (caught.value.object, caught.value.position) == ("the-index", position)


@pytest.mark.parametrize(
    ("last_entry", "text"), [(298, "dense ids from"), (300, "entries 300 to 300 are missing"), (None, "")]
)
def test_the_last_entry_is_the_ledgers(last_entry: int | None, text: str) -> None:
    """As many entries as the metadata says, where it says it: what was cut off in front of the index is missed, too."""
    pair = Pair(GOOD.data, with_metadata(encode_metadata(replace(GOOD.index.metadata, last_entry=last_entry))))
    if text:
        with pytest.raises(Damaged, match=text):
            read_all(pair)
    else:
        assert len(read_all(pair)) == 300
    open_ledger = replace(GOOD.index.metadata, last_entry=298, state=1)
    assert len(read_all(Pair(GOOD.data, with_metadata(encode_metadata(open_ledger))))) == 300


def test_the_end_of_a_block_is_not_told_by_a_sign() -> None:
    """An entry may not go on into the next block, whatever its length says; and the magic of a block is no end of one."""
    size = SPANS[1].first_entry
    at = 128 + sum(12 + len(payload) for payload in PAYLOADS[: size - 1])
    with pytest.raises(Damaged, match="does not fit"):
        read_all(replace(GOOD, data=changed(GOOD.data, at, pack(">i", SECOND - at))))
    with pytest.raises(Damaged, match="nor padding"):
        read_all(replace(GOOD, data=changed(GOOD.data, at, b"\xfb\xdb\xab\xcb")))


def test_claims_cost_no_memory() -> None:
    """An index and a block that speak of a terabyte, and an entry of a gigabyte, in an object of a mebibyte."""
    huge = 1 << 40
    raw = encode_metadata(replace(METADATA, length=huge))
    index = pack(">Iiqqii", 0xDE47DE47, 52 + len(raw), huge, 128, 1, len(raw)) + raw + pack(">qiq", 0, 1, 0)
    block = PIP17.pack(BlockHeader(huge, 0, -1)) + pack(">iq", 1 << 30, 0) + bytes(1 << 20)
    source = DataSource("data", huge, lambda at, length: block[at : at + length])
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match="entry_bytes_max"):
            list(iter_entries(LedgerObjectReader(source, read_ledger_index(index)), -1))
        cut = source._replace(read=lambda at, length: (block[:128] + padding(1 << 20))[at : at + length])
        with pytest.raises(Damaged, match="cut off"):
            list(iter_entries(LedgerObjectReader(cut, read_ledger_index(index)), -1))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_the_other_formats_index() -> None:
    for length in (len(GOOD.data), len(V2.data)):
        data = GOOD.data[:length].ljust(length)
        with pytest.raises(Damaged, match="a block of PIP-17"):
            list(iter_entries(SegmentReader(source_of(data), read_index(V2.index_bytes)), 7))
    with pytest.raises(Damaged, match="it is an index of PIP-17"):
        read_index(GOOD.index_bytes)
