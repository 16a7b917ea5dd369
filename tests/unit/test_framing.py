"""Records are the same however their bytes come, and hostile lengths cost no memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.records.framing import Framing, Records, RecordSplitter, check_framing, framed

FRAMINGS = st.sampled_from(["lines", "length-prefixed"])
PAYLOADS = st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")), max_size=20)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(each % (len(data) + 1) for each in cuts)})
    return [data[low:high] for low, high in pairwise(ends)]


def split(pieces: list[bytes], framing: Framing, start: int = 0, limit: int = 20) -> Records:
    splitter = RecordSplitter("s", framing, start, limit)
    found = [*map(splitter.feed, pieces), splitter.end()]
    return Records([at for each in found for at in each.offsets], [data for each in found for data in each.values])


@given(FRAMINGS, PAYLOADS, st.lists(st.integers(0, 500)), st.integers(0, 1 << 40))
def test_records_come_back_with_their_offsets_from_any_buffers(
    framing: Framing, payloads: list[bytes], cuts: list[int], start: int
) -> None:
    data, offsets = b"", []
    for payload in payloads:
        offsets.append(start + len(data))
        data += framed(payload, framing)
    assert split(cut(data, cuts), framing, start) == (offsets, payloads)


@given(st.lists(st.integers(0, 500)))
def test_a_last_line_may_lack_its_newline_and_a_record_not_its_bytes(cuts: list[int]) -> None:
    assert split(cut(b"a\n\nlast", cuts), "lines", 7) == ([7, 9, 10], [b"a", b"", b"last"])
    whole = framed(b"first", "length-prefixed")
    for kept in range(1, len(whole)):
        with pytest.raises(Damaged, match="cut off") as caught:
            split(cut(whole + whole[:kept], cuts), "length-prefixed", 7)
        assert (caught.value.object, caught.value.position) == ("s", 7 + len(whole))


@given(FRAMINGS, st.lists(st.integers(0, 500)))
def test_a_record_above_the_limit_is_refused_before_it_is_held(framing: Framing, cuts: list[int]) -> None:
    small = framed(b"ok", framing)
    pieces = cut(small + framed(b"x" * 21, framing), cuts)
    with pytest.raises(Damaged, match="more than 20 bytes") as caught:
        split(pieces, framing)
    assert caught.value.position == len(small)
    announced = RecordSplitter("s", "length-prefixed", 0, 20)
    with pytest.raises(Damaged):
        announced.feed(b"\xff\xff\xff\xff")


def test_what_cannot_be_framed_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="newline"):
        framed(b"two\nlines", "lines")
    with pytest.raises(InvalidArgument, match="'json'"):
        check_framing("json")
