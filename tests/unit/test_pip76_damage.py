"""Hostile and damaged data objects: typed errors with positions; bounded memory; never a wrong entry where it can be known."""

from __future__ import annotations

import tracemalloc
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.frames import DataSource, Entry
from chunkstore.codec.pulsar.pip76 import SegmentReader, read_index
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.errors import Damaged, StorageUnavailable
from tests.support.pip76 import Encoded, encode, read_both, source_of

ENTRIES = [Entry(7, number, b"payload %d" % number * (number % 5)) for number in range(300)]
ENTRIES += [Entry(8, number * 2, b"other %d" % number) for number in range(100)]
GOOD = encode(ENTRIES, block_bytes_max=4096)
PADDED = encode(ENTRIES[:20], block_bytes_min=4096)


def read_all(encoded: Encoded, data: bytes | None = None, window_bytes: int = 4096) -> list[Entry]:
    source = source_of(encoded.data if data is None else data)
    return read_both(lambda: SegmentReader(source, encoded.index, window_bytes=window_bytes))


def changed(at: int, new: bytes, data: bytes = GOOD.data) -> bytes:
    copy = bytearray(data)
    copy[at : at + len(new)] = new
    assert len(copy) == len(data)
    return bytes(copy)


SECOND = GOOD.index.spans()[1].start
FIRST_END = GOOD.index.spans()[0].end


@pytest.mark.parametrize(
    ("data", "position", "text"),
    [
        (changed(0, b"\x00"), 0, "no block begins"),
        (changed(SECOND, b"\x00"), SECOND, "no block begins"),
        (changed(SECOND + 12, pack(">q", 5000)), SECOND, "5000 bytes"),
        (changed(SECOND + 20, pack(">q", 1)), SECOND, "from entry 1 "),
        (changed(SECOND + 28, pack(">q", 9)), SECOND, "of ledger 9"),
        (changed(128, b"\x80"), 128, "neither an entry nor padding"),
        (changed(128, b"\x7f"), 128, "does not fit"),
        (changed(132, pack(">q", 5)), 128, "entries 5 to"),
        (changed(132, pack(">q", -1)), 128, "entries -1 to"),
        (changed(144, pack(">q", 0)), 144, "follows 0"),
        (changed(144, pack(">q", 2)), 165, "follows 2"),
        (changed(FIRST_END - 1, b"\x00"), FIRST_END - 4, "neither an entry nor padding"),
        (GOOD.data[:-1], len(GOOD.data) - 1, "its index says"),
        (GOOD.data + b"\x00", len(GOOD.data), "its index says"),
        (b"", 0, "its index says"),
    ],
)
def test_refused_with_position(data: bytes, position: int, text: str) -> None:
    with pytest.raises(Damaged, match=text) as caught:
        read_all(GOOD, data)
    assert caught.value.object == "data"
    assert caught.value.position == position or text.startswith("follows")


def test_disorder_outside_the_range_cannot_hide_entries() -> None:
    """A reader that trusts order while it looks for the first entry could miss some without a word."""
    reader = SegmentReader(source_of(changed(144, pack(">q", 1 << 40))), GOOD.index)
    with pytest.raises(Damaged, match="follows"):
        list(iter_entries(reader, 7, 2, 3))


def test_an_empty_block_is_refused() -> None:
    encoded = encode([Entry(1, 0, bytes(40))])
    data = encoded.data[:128] + b"\xfe\xdc\xde\xad" * 13
    with pytest.raises(Damaged, match="no entry") as caught:
        read_all(encoded, data)
    assert caught.value.position == 128


def test_a_source_that_is_cut_off_while_reading() -> None:
    source = DataSource("data", len(GOOD.data), lambda at, length: GOOD.data[: len(GOOD.data) - 10][at : at + length])
    reader = SegmentReader(source, GOOD.index)
    with pytest.raises(Damaged, match="cut off") as caught:
        list(iter_entries(reader, 8))
    assert caught.value.position == len(GOOD.data) - 10


def test_errors_of_the_source_pass_through() -> None:
    def read(at: int, length: int) -> bytes:
        raise StorageUnavailable("down", object="data")

    reader = SegmentReader(DataSource("data", len(GOOD.data), read), GOOD.index)
    with pytest.raises(StorageUnavailable):
        list(iter_entries(reader, 7))


def test_claims_cost_no_memory() -> None:
    """An index and a block that speak of a terabyte, and an entry of a gigabyte, in an object of some bytes."""
    huge = 1 << 40
    index = (
        pack(">Iiqq", 0x3D1FB0BC, 24 + 16 + 2 + 20, huge, 128)
        + pack(">qii", 1, 1, 2)
        + b"\x08\x01"
        + pack(">qiq", 0, 1, 0)
    )
    block = pack(">Iqqqq92x", 0x26A66D32, 128, huge, 0, 1) + pack(">iq", 1 << 30, 0) + bytes(1 << 20)
    source = DataSource("data", huge, lambda at, length: block[at : at + length])
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match="entry_bytes_max"):
            list(iter_entries(SegmentReader(source, read_index(index)), 1))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@given(st.data())
def test_mutations_are_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever bytes change: ``Damaged`` inside the object, or as many entries as before, in order."""
    encoded = data.draw(st.sampled_from([GOOD, PADDED]))
    copy = bytearray(encoded.data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(copy) - 9))
        kind = data.draw(st.sampled_from(["byte", "length", "id", "zero"]))
        if kind == "byte":
            copy[at] = data.draw(st.integers(0, 255))
        elif kind == "length":
            pack_into(">i", copy, at, data.draw(st.sampled_from([-1, 0, 1, 4096, 0x26A66D32, 0x7FFFFFFF, -0x80000000])))
        elif kind == "id":
            pack_into(">q", copy, at, data.draw(st.sampled_from([-1, 0, 128, (1 << 63) - 1])))
        else:
            copy[at : at + 8] = bytes(8)
    try:
        found = read_all(encoded, bytes(copy))
    except Damaged as error:
        assert 0 <= error.position <= len(copy)
    else:
        for ledger in (7, 8):
            ids = [entry.entry for entry in found if entry.ledger == ledger]
            assert ids == sorted(set(ids))
