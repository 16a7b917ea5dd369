"""CRC32C of a concatenation from the CRCs of its parts."""

from __future__ import annotations

import pytest
from google_crc32c import value
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.checksum import crc32c_combine, crc32c_extend
from chunkstore.errors import InvalidArgument


def test_known_answers() -> None:
    """The check value of CRC-32C (RFC 3720 has it, too), and its 32 bytes of zeros."""
    assert crc32c_combine(value(b"1234"), value(b"56789"), 5) == 0xE3069283
    assert crc32c_combine(value(bytes(31)), value(b"\0"), 1) == 0x8A9136AA
    assert crc32c_combine(0, 0xDEADBEEF, 1 << 62) == 0xDEADBEEF


@given(st.binary(max_size=600), st.lists(st.integers(0, 600), max_size=5))
def test_any_cuts(data: bytes, cuts: list[int]) -> None:
    crc, begin = 0, 0
    for end in [*sorted({*(min(cut, len(data)) for cut in cuts), len(data)}), len(data)]:
        crc = crc32c_combine(crc, value(data[begin:end]), end - begin)
        begin = end
        assert crc == value(data[:end])


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 40), st.integers(0, 1 << 62))
def test_order_of_joining_does_not_matter(first: int, second: int, middle: int, last: int) -> None:
    """Of lengths that nobody reads: (a + b) + c is a + (b + c)."""
    left = crc32c_combine(crc32c_combine(first, second, middle), first, last)
    assert left == crc32c_combine(first, crc32c_combine(second, first, last), middle + last)


def test_long_parts() -> None:
    zeros = bytes((1 << 20) + 77)
    assert crc32c_combine(value(b"x"), value(zeros), len(zeros)) == crc32c_extend(value(b"x"), zeros)


@pytest.mark.parametrize("length", [-1, 1 << 63])
def test_what_is_no_length_is_refused(length: int) -> None:
    with pytest.raises(InvalidArgument):
        crc32c_combine(1, 2, length)
