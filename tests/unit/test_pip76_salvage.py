"""Salvage, and the diagnosis of objects by Pulsar's own writer, which miscounts its blocks."""

from __future__ import annotations

from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.frames import DataSource, Entry, padding
from chunkstore.codec.pulsar.pip76_index import read_index
from chunkstore.codec.pulsar.pip76_reader import SegmentReader
from chunkstore.codec.pulsar.salvage import SkippedBytes, salvage_entries
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.errors import Damaged
from tests.support.pip76 import encode, miscounted, source_of

ENTRIES = [Entry(3, number, b"%03d" % number * 30) for number in range(200)]
GOOD = encode(ENTRIES, block_bytes_max=4096)
FIRST, SECOND, THIRD = GOOD.index.spans()[:3]


def salvaged(data: bytes) -> tuple[list[Entry], list[SkippedBytes]]:
    skipped: list[SkippedBytes] = []
    return list(salvage_entries(source_of(data), skipped=skipped.append)), skipped


def of_block(first: int, limit: int) -> list[Entry]:
    return [entry for entry in ENTRIES if first <= entry.entry < limit]


@st.composite
def blocks(draw: st.DrawFn) -> list[list[Entry]]:
    """Blocks of several ledgers whose first entry is not longer than the last, so that nothing is lost (FORMAT.md)."""
    made: list[list[Entry]] = []
    following: dict[int, int] = {}
    for _ in range(draw(st.integers(1, 6))):
        ledger = draw(st.integers(1, 3))
        sizes = draw(st.lists(st.integers(0, 300), min_size=2, max_size=12))
        sizes[-1] = max(sizes[-1], sizes[0])
        first = following.get(ledger, draw(st.integers(0, 3)))
        following[ledger] = first + len(sizes)
        made.append([Entry(ledger, first + number, bytes([number]) * size) for number, size in enumerate(sizes)])
    return made


@given(blocks(), st.sampled_from([0, 200, 1000, 4096]))
def test_miscounted_objects_are_named_and_salvaged(made: list[list[Entry]], block_min: int) -> None:
    encoded = miscounted(made, block_min=block_min)
    expected = [entry for block in made for entry in block]
    entries, skipped = salvaged(encoded.data)
    assert entries == expected
    assert skipped == []
    if encoded.index.data_length == len(encoded.data):
        assert sorted(encoded.entries(), key=lambda entry: entry[:2]) == sorted(expected, key=lambda entry: entry[:2])
    else:
        with pytest.raises(Damaged, match=r"first-entry defect of Pulsar's own PIP-76 writer.*salvage"):
            encoded.reader()


def test_a_long_first_entry_loses_the_last_ones_and_the_error_says_so() -> None:
    made = [[Entry(1, number * 4 + at, bytes(500 if at == 0 else 80)) for at in range(4)] for number in range(3)]
    made[1][1:] = [Entry(1, 5, bytes(90)), Entry(1, 6, bytes(420)), Entry(1, 7, bytes(1))]
    encoded = miscounted(made, block_min=0)
    with pytest.raises(Damaged, match=r"first-entry defect.*never written"):
        encoded.reader()
    entries, skipped = salvaged(encoded.data)
    assert skipped == []
    assert {entry.entry for entry in entries} < set(range(12))
    assert entries == [entry for block in made for entry in block if entry in entries]


def test_the_defect_is_named_where_it_is_met_in_spite_of_a_wrong_length() -> None:
    """A caller that does not know the object's true length still gets the name."""
    made = [[Entry(1, number * 4 + at, bytes(100)) for at in range(4)] for number in range(3)]
    encoded = miscounted(made, block_min=0)
    source = DataSource("data", encoded.index.data_length, lambda at, length: encoded.data[at : at + length])
    with pytest.raises(Damaged, match="first-entry defect"):
        list(iter_entries(SegmentReader(source, encoded.index), 1))


def test_other_damage_is_not_given_that_name() -> None:
    for data in (GOOD.data[:-1], GOOD.data + b"\x00", GOOD.data + bytes(72), GOOD.data + padding(8), GOOD.data[:100]):
        with pytest.raises(Damaged, match="its index says"):
            SegmentReader(source_of(data), GOOD.index)


def test_good_objects_are_salvaged_whole() -> None:
    assert salvaged(GOOD.data) == (ENTRIES, [])
    assert salvaged(b"") == ([], [])


@pytest.mark.parametrize("amount", [0, 1, 2, 3, 4, 7, 11, 12, 13, 1000, 70_000])
def test_any_padding_between_blocks(amount: int) -> None:
    one = encode(ENTRIES[:5]).data
    data = one + padding(amount) + encode([Entry(4, 128, b"at 128")]).data + padding(amount)
    assert salvaged(data) == ([*ENTRIES[:5], Entry(4, 128, b"at 128")], [])


@pytest.mark.parametrize("byte", [0, 3, 11, 12, 20, 28, 35, 36, 127])
def test_damaged_block_header(byte: int) -> None:
    data = bytearray(GOOD.data)
    data[SECOND.start + byte] ^= 0x80
    skipped: list[SkippedBytes] = []
    entries = list(salvage_entries(source_of(bytes(data)), ledgers={3}, skipped=skipped.append))
    assert entries == of_block(0, SECOND.first_entry) + of_block(THIRD.first_entry, 1000)
    assert [(item.position, item.length) for item in skipped] == [(SECOND.start, SECOND.end - SECOND.start)]


def test_a_wrong_first_id_in_a_header_loses_nothing() -> None:
    data = bytearray(GOOD.data)
    data[SECOND.start + 27] ^= 0x80
    assert salvaged(bytes(data)) == (ENTRIES, [])


def test_damaged_length_loses_the_rest_of_the_block_only() -> None:
    data = bytearray(GOOD.data)
    hit = SECOND.first_entry + 3
    at = SECOND.start + 128 + 3 * 102
    for length in (0, 50, 5000, 0x7FFFFFFF, 0xFFFFFFFF):
        data[at : at + 4] = length.to_bytes(4, "big")
        entries, skipped = salvaged(bytes(data))
        assert entries[: hit - 1] == of_block(0, hit - 1)
        assert entries[-(200 - THIRD.first_entry) :] == of_block(THIRD.first_entry, 1000)
        [lost] = skipped
        assert lost.position in (at, at - 102)
        assert lost.position + lost.length == SECOND.end
        assert all(entry in ENTRIES for entry in entries)


@pytest.mark.parametrize("cut", [1, 50, 101, 102, 103, 110, 113, 114, 115])
def test_a_cut_off_object_loses_the_last_entry_only(cut: int) -> None:
    """Also where the storage claims that the rest is there."""
    kept = GOOD.data[:-cut]
    expected = ENTRIES[: -(1 + (cut - 1) // 102)]
    assert salvaged(kept)[0] == expected
    lying = DataSource("data", len(GOOD.data), lambda at, length: kept[at : at + length])
    assert list(salvage_entries(lying)) == expected


def test_bytes_before_and_between() -> None:
    junk = b"\x26\xa6\x6d\x32\x00\x00\x00\x00\x00\x00\x00\x80" * 3 + b"junk"
    data = junk + GOOD.data[: FIRST.end] + junk + GOOD.data[FIRST.end :]
    entries, skipped = salvaged(data)
    assert entries == ENTRIES
    assert [item.length for item in skipped] == [len(junk), len(junk)]


def test_a_header_across_windows_and_payloads_that_look_like_headers() -> None:
    block = encode([Entry(1, 0, b"inner")]).data
    entries = [Entry(9, number, block * 3) for number in range(40)]
    data = encode(entries, block_bytes_max=8192).data
    assert salvaged(data) == (entries, [])
    for shift in (60, 100, 127, 128):
        gap = bytes((1 << 20) - shift)
        found, skipped = salvaged(gap + data)
        assert found == entries
        assert skipped == [SkippedBytes(0, len(gap), skipped[0].reason)]


def test_many_false_headers_take_linear_time() -> None:
    data = b"\x26\xa6\x6d\x32\x00\x00\x00\x00\x00\x00\x00\x80" * (3 << 16)
    entries, skipped = salvaged(data)
    assert entries == []
    assert [(item.position, item.length) for item in skipped] == [(0, len(data))]


def test_entries_longer_than_a_window() -> None:
    entries = [Entry(1, number, bytes([number]) * size) for number, size in enumerate([5, 3 << 20, 0, 1 << 20])]
    assert salvaged(encode(entries).data) == (entries, [])


def test_a_pulsar_index_of_a_miscounted_object_reads() -> None:
    made = [[Entry(9, 0, b"abc"), Entry(9, 1, b"abcd")], [Entry(2, 0, b"")]]
    assert [group.ledger for group in read_index(miscounted(made, block_min=0).index_bytes).ledgers] == [2, 9]


def test_headers_that_lead_far_away_do_not_multiply_the_reading() -> None:
    """Each of them asks for a look behind an entry of 3 MiB. Before, each look was two reads of a mebibyte."""
    size, count = 8 << 20, 2000
    data = bytearray(size)
    for at in range(0, count * 256, 256):
        pack_into(">Iqqqq", data, at, 0x26A66D32, 128, 256, 0, 1)
        pack_into(">iq", data, at + 128, 3 << 20, 0)
    asked: list[int] = []
    buffer = bytearray(2 << 20)

    def read(at: int, length: int) -> memoryview:
        # As a source may: into the same buffer again and again.
        asked.append(length)
        found = data[at : at + length]
        buffer[: len(found)] = found
        return memoryview(buffer)[: len(found)]

    skipped: list[SkippedBytes] = []
    assert list(salvage_entries(DataSource("data", size, read), skipped=skipped.append)) == []
    assert sum(item.length for item in skipped) + count * 128 == size
    assert sum(asked) < 4 * size
