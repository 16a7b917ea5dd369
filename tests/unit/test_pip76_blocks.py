"""Block headers, framing, padding and the scan."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.frames import (
    PIP76,
    BlockHeader,
    entry_id_at,
    frame_header,
    is_padding,
    padding,
    scan_entries,
)
from chunkstore.errors import Damaged

HEADER = PIP76.pack(BlockHeader(1000, 5, 7))


def test_header_round_trip() -> None:
    assert PIP76.parse(HEADER, object="o", position=0) == BlockHeader(1000, 5, 7)
    assert PIP76.parse(memoryview(HEADER + b"more"), object="o", position=0) == BlockHeader(1000, 5, 7)
    assert HEADER.startswith(PIP76.begin)


@pytest.mark.parametrize(
    ("data", "position", "text"),
    [
        (HEADER[:127], 0, "127 are here"),
        (b"", 0, "0 are here"),
        (b"\xfb\xdb\xab\xcb" + HEADER[4:], 0, "0xFBDBABCB"),
        (HEADER[:4] + pack(">q", 127) + HEADER[12:], 4, "length 127"),
        (HEADER[:12] + pack(">q", 127) + HEADER[20:], 12, "length 127"),
        (HEADER[:12] + pack(">q", -1) + HEADER[20:], 12, "length -1"),
        (HEADER[:20] + pack(">q", -1) + HEADER[28:], 20, "entry -1"),
        (HEADER[:28] + pack(">q", -3) + HEADER[36:], 20, "ledger -3"),
    ],
)
def test_header_refused(data: bytes, position: int, text: str) -> None:
    with pytest.raises(Damaged, match=text) as caught:
        PIP76.parse(data, object="the-object", position=1000)
    assert (caught.value.object, caught.value.position) == ("the-object", 1000 + position)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.to_fields() == caught.value.to_fields()


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 7, 65535, 65536, 65537, 200_001])
def test_padding(length: int) -> None:
    data = padding(length)
    assert len(data) == length
    assert data[:6] == b"\xfe\xdc\xde\xad\xfe\xdc"[:length]
    assert is_padding(data)
    assert not is_padding(data + b"\x00")
    if length > 1:
        assert not is_padding(data[1:])
    if length > 4:
        assert not is_padding(data[:-1] + b"\x00")


@given(
    runs=st.lists(st.tuples(st.sampled_from((0, 1, 5, 50, 255, 256)), st.sampled_from((1, 2, 15, 16, 17, 40)))),
    kind=st.sampled_from((bytes, memoryview)),
    start=st.integers(0, 9),
    tail=st.sampled_from(
        [b"", b"\xfe", padding(3), padding(4), padding(40), b"\x00\x00\x00\x05" + bytes(11), bytes(11)]
    ),
)
def test_scan_finds_whole_entries_only(
    runs: list[tuple[int, int]], kind: Callable[[bytes], BytesLike], start: int, tail: bytes
) -> None:
    lengths = [length for length, times in runs for _ in range(times)]
    data = bytes(start)
    marks = [start]
    for entry, length in enumerate(lengths):
        data += frame_header(entry, length) + b"p" * length
        marks.append(len(data))
    whole = data + tail
    assert scan_entries(kind(whole), start, len(whole)) == marks
    assert [entry_id_at(whole, mark) for mark in marks[:-1]] == list(range(len(lengths)))
    for limit in range(start, len(data), 1 + len(data) // 300):
        found = scan_entries(kind(whole), start, limit)
        assert found == [mark for mark in marks if mark <= limit]


def test_scan_of_hostile_lengths_stays_inside() -> None:
    for length in (b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff"):
        assert scan_entries(length + bytes(60), 0, 64) == [0]
        alike = frame_header(0, 0) * 20
        assert scan_entries(alike + length + bytes(300), 0, len(alike) + 304)[-2:] == [len(alike) - 12, len(alike)]
