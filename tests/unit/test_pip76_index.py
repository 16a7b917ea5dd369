"""The index object: round trips, order, and everything that is refused."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.block_index import INDEX_BYTES_MAX, BlockRef
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo, encode_metadata
from chunkstore.codec.pulsar.pip76 import LedgerGroup, SegmentIndex, build_index, read_index
from chunkstore.errors import Damaged, InvalidArgument

Rows = list[tuple[int, int, int]]


def group(ledger: int, rows: Rows, *, metadata: bytes | None = None, count: int | None = None) -> bytes:
    told = encode_metadata(LedgerInfo(ledger=ledger)) if metadata is None else metadata
    head = pack(">qii", ledger, len(rows) if count is None else count, len(told))
    return head + told + b"".join(pack(">qiq", *row) for row in rows)


def index(*groups: bytes, data_length: int = 1000, length: int | None = None, header: int = 128) -> bytes:
    body = b"".join(groups)
    return pack(">Iiqq", 0x3D1FB0BC, 24 + len(body) if length is None else length, data_length, header) + body


GOOD = index(group(9, [(0, 7, 300), (10, -2, 800)]), group(4, [(3, 1, 0)]))


@pytest.mark.parametrize(
    ("data", "position", "text"),
    [
        (b"", 0, "0 are here"),
        (GOOD[:23], 23, "23 are here"),
        (b"\xde\x47\xde\x47" + GOOD[4:], 0, "0xDE47DE47"),
        (GOOD + b"\x00", 4, "declares"),
        (GOOD[:-1], 4, "declares"),
        (index(length=-1), 4, "-1 bytes"),
        (index(data_length=-1), 8, "length -1"),
        (index(header=129), 16, "length 129"),
        (index(b"123"), 24, "3 bytes are left"),
        (index(group(-1, [(0, 1, 0)], metadata=b"\x08\x01")), 24, "ledger id -1"),
        (index(group(4, [(0, 1, 0)], count=2)), 32, "2 blocks"),
        (index(group(4, [(0, 1, 0)], count=-1)), 32, "-1 blocks"),
        (index(group(4, [], count=0x7FFFFFFF)), 32, "do not fit"),
        (index(pack(">qii", 4, 0, -1)), 32, "-1 bytes of metadata"),
        (index(pack(">qii", 4, 0, 1 << 30)), 32, "do not fit"),
        (index(group(4, [(0, 1, 0)], metadata=b"\xff\xff")), 40, "protobuf"),
        (index(group(4, [(0, 1, 0)], metadata=b"")), 40, "ledgerId"),
        (index(group(4, [(0, 1, 0)], metadata=b"\x08\x05")), 40, "ledger 5"),
        (index(group(4, [(0, 1, 0)]), group(4, [(9, 1, 500)])), 62, "is listed twice"),
        (index(group(4, [(0, 1, 0), (0, 2, 500)])), 62, "ascend"),
        (index(group(4, [(5, 1, 0), (0, 2, 500)])), 62, "ascend"),
        (index(group(4, [(-1, 1, 0)])), 42, "ascend"),
        (index(group(4, [(0, 1, -1)])), 42, "ascend"),
        (index(group(4, [(0, 1, 0), (1, 2, 127)])), 62, "ascend"),
        (index(group(4, [(0, 1, 500), (1, 2, 0)])), 62, "ascend"),
        (index(group(4, [(0, 1, 873)])), 42, "inside"),
        (index(group(4, [(0, 1, 10)])), 0, "0 expected"),
        (index(group(4, [(0, 1, 0)]), group(5, [(0, 2, 100)])), 0, "overlaps"),
        (index(group(4, [(0, 1, 0)]), group(5, [(0, 2, 0)])), 0, "overlaps"),
        (index(), 8, "no block"),
        (index(group(4, [])), 8, "no block"),
    ],
)
def test_refused(data: bytes, position: int, text: str) -> None:
    with pytest.raises(Damaged, match=text) as caught:
        read_index(data, object="my-index")
    assert (caught.value.object, caught.value.position) == ("my-index", position)


def test_too_long_an_index_is_neither_read_nor_written() -> None:
    with pytest.raises(Damaged, match="at most"):
        read_index(bytes(INDEX_BYTES_MAX + 1))
    blocks = tuple(BlockRef(number, number, number * 128) for number in range(INDEX_BYTES_MAX // 20))
    metadata = encode_metadata(LedgerInfo(ledger=1))
    with pytest.raises(InvalidArgument, match="larger blocks"):
        build_index(SegmentIndex(1 << 40, (LedgerGroup(1, LedgerInfo(ledger=1), metadata, blocks),)))


@given(
    st.dictionaries(
        st.integers(0, (1 << 63) - 1), st.lists(st.integers(0, (1 << 63) - 1), min_size=1, unique=True), max_size=4
    )
)
def test_round_trip(shape: dict[int, list[int]]) -> None:
    offset = 0
    groups = []
    for ledger in sorted(shape):
        info = LedgerInfo(ledger=ledger, entries=1)
        blocks: list[BlockRef] = []
        for first in sorted(shape[ledger]):
            blocks.append(BlockRef(first, len(blocks) + 1, offset))
            offset += 200
        groups.append(LedgerGroup(ledger, info, encode_metadata(info), tuple(blocks)))
    made = SegmentIndex(offset, tuple(groups))
    assert read_index(build_index(made)) == made
