"""The diagnosis of objects by Pulsar's own writer, which miscounts its blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.frames import DataSource, Entry, padding
from chunkstore.codec.pulsar.pip76 import SegmentReader, read_index
from chunkstore.codec.pulsar.windows import iter_entries
from chunkstore.errors import Damaged
from tests.support.pip76 import encode, miscounted, source_of

ENTRIES = [Entry(3, number, b"%03d" % number * 30) for number in range(200)]
GOOD = encode(ENTRIES, block_bytes_max=4096)


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
def test_miscounted_objects_are_named(made: list[list[Entry]], block_min: int) -> None:
    encoded = miscounted(made, block_min=block_min)
    expected = [entry for block in made for entry in block]
    if encoded.index.data_length == len(encoded.data):
        assert sorted(encoded.entries(), key=lambda entry: entry[:2]) == sorted(expected, key=lambda entry: entry[:2])
    else:
        with pytest.raises(Damaged, match=r"first-entry defect of Pulsar's own PIP-76 writer"):
            encoded.reader()


def test_a_long_first_entry_loses_the_last_ones_and_the_error_says_so() -> None:
    made = [[Entry(1, number * 4 + at, bytes(500 if at == 0 else 80)) for at in range(4)] for number in range(3)]
    made[1][1:] = [Entry(1, 5, bytes(90)), Entry(1, 6, bytes(420)), Entry(1, 7, bytes(1))]
    encoded = miscounted(made, block_min=0)
    with pytest.raises(Damaged, match=r"first-entry defect.*never written"):
        encoded.reader()


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


def test_a_pulsar_index_of_a_miscounted_object_reads() -> None:
    made = [[Entry(9, 0, b"abc"), Entry(9, 1, b"abcd")], [Entry(2, 0, b"")]]
    assert [group.ledger for group in read_index(miscounted(made, block_min=0).index_bytes).ledgers] == [2, 9]
