"""From headers and lengths to segments, and back: planned without a storage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.rolling_header import ChunkEntry, Header, decode_header, encode_header
from chunkstore.errors import InvalidArgument
from chunkstore.headers.importing import check_file_name, plan_export, plan_import
from chunkstore.records.segments import LayoutChunk, SegmentInfo

ABC = Header(100, (ChunkEntry(0, "a"), ChunkEntry(100, "b"), ChunkEntry(200, "c")))


def findings(header: Header, **lengths: int) -> list[tuple[str, str, int]]:
    return [(item.severity, item.object, item.position) for item in plan_import("s", header, lengths).findings]


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ({"a": 100, "c": 30}, ("damage", "b", 0)),
        ({"a": 100, "b": 100}, ("damage", "c", 0)),
        ({}, ("damage", "c", 0)),
        ({"a": 100, "b": 99, "c": 30}, ("damage", "b", 99)),
        ({"a": 0, "b": 100, "c": 30}, ("damage", "a", 0)),
        ({"a": 100, "b": 101, "c": 30}, ("warning", "b", 100)),
    ],
)
def test_what_the_files_do_not_bear_out(lengths: dict[str, int], found: tuple[str, str, int]) -> None:
    plan = plan_import("s", ABC, lengths)
    assert found in findings(ABC, **lengths)
    assert (plan.damage is None) == (found[0] != "damage")


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 7), st.integers(0, 6), max_size=8),
)
def test_no_plan_without_damage_has_a_hole(steps: list[int], found: dict[int, int]) -> None:
    offsets = [sum(steps[:at]) for at in range(len(steps))]
    header = Header(None, tuple(ChunkEntry(offset, f"n{at}") for at, offset in enumerate(offsets)))
    lengths = {f"n{at}": length for at, length in found.items()}
    plan = plan_import("s", header, lengths)
    if plan.damage is not None:
        return
    at = plan.start_offset
    for name, offset, length in plan.chunks:
        assert offset == at
        assert 0 < length <= lengths[name]
        at += length
    assert at == plan.length
    gone = [chunk for chunk in header.chunks if chunk.offset < plan.start_offset and chunk.name in lengths]
    assert all(offsets.count(chunk.offset) > 1 for chunk in gone), "what is there is not given up"


# The other way


def info(start: int = 0, length: int = 0, name: str = "s") -> SegmentInfo:
    return SegmentInfo(name, 1, start, length, False, 0, 1, {}, 0, 0)


def chunks(*lengths: int, begin: int = 0) -> list[LayoutChunk]:
    return [
        LayoutChunk(f"default/d/{at}", begin + sum(lengths[:at]), length, None, 1, "closed", "object")
        for at, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("name", ["/a", "a/", "a//b", "../a", "a/../b", "./a", "a&b", "x" * 220, "ü" * 110])
def test_names_that_no_header_can_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="export the other segments by name") as refused:
        check_file_name(name)
    assert refused.value.argument == "segments"


@given(st.lists(st.integers(1, 9), max_size=6), st.data())
def test_what_is_planned_out_is_planned_in(lengths: list[int], data: st.DataObject) -> None:
    length = sum(lengths)
    start = data.draw(st.integers(0, length))
    held = [chunk for chunk in chunks(*lengths) if chunk.offset + chunk.length > start]
    more = data.draw(st.integers(0, 2))
    last = held[-1].length + more if held else 0
    exported = plan_export(info(start, length), 9, held, last, "t")
    found = {chunk.name: chunk.length for chunk in held}
    if held:
        found[held[-1].name] = last
    found |= {copy.name: copy.length for copy in exported.copies}
    plan = plan_import("s", decode_header(encode_header(exported.entries)), found)
    assert (plan.start_offset, plan.length, plan.findings, plan.size_bytes_max) == (start, length, (), 9)
