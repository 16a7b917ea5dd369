"""From headers and lengths to segments, and back: planned without a storage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.rolling_header import NUMBER_MAX, ChunkEntry, Header, decode_header, encode_header
from chunkstore.errors import InvalidArgument
from chunkstore.headers.importing import NO_LIMIT, PlannedChunk, check_file_name, plan_export, plan_import, rolling_of
from chunkstore.records import LayoutChunk, SegmentInfo

ABC = Header(100, (ChunkEntry(0, "a"), ChunkEntry(100, "b"), ChunkEntry(200, "c")))


def findings(header: Header, **lengths: int) -> list[tuple[str, str, int]]:
    return [(item.severity, item.object, item.position) for item in plan_import("s", header, lengths).findings]


def test_a_whole_segment() -> None:
    plan = plan_import("s", ABC, {"a": 100, "b": 100, "c": 30}, sealed=True)
    assert plan.chunks == (("a", 0, 100), ("b", 100, 100), ("c", 200, 30))
    assert (plan.start_offset, plan.length, plan.sealed, plan.size_bytes_max, plan.findings) == (0, 230, True, 100, ())


def test_files_at_the_beginning_that_are_gone_were_truncated() -> None:
    plan = plan_import("s", ABC, {"c": 30})
    assert (plan.chunks, plan.start_offset, plan.length, plan.damage) == ((("c", 200, 30),), 200, 230, None)
    assert findings(ABC, c=30) == [("info", "s$header", 0)]
    assert findings(ABC, b=100, c=0) == [("info", "s$header", 0)]


def test_a_header_may_begin_above_0() -> None:
    plan = plan_import("s", Header(None, (ChunkEntry(300, "a"),)), {"a": 5})
    assert (plan.start_offset, plan.length, plan.findings) == (300, 305, ())


def test_no_chunks() -> None:
    plan = plan_import("s", Header(7, ()), {})
    assert (plan.chunks, plan.start_offset, plan.length, plan.findings) == ((), 0, 0, ())


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


def test_a_file_without_bytes_may_be_gone_unless_it_is_the_last() -> None:
    header = Header(None, (ChunkEntry(0, "a"), ChunkEntry(0, "b"), ChunkEntry(5, "c"), ChunkEntry(5, "d")))
    assert findings(header, b=5, d=1) == []
    assert findings(header, a=0, b=5, c=0) == [("damage", "d", 0)]
    assert plan_import("s", header, {"b": 5, "d": 1}).chunks == (("b", 0, 5), ("d", 5, 1))


def test_a_segment_cannot_end_beyond_what_offsets_can_say() -> None:
    header = Header(None, (ChunkEntry(NUMBER_MAX, "a"),))
    assert findings(header, a=0) == []
    assert findings(header, a=1) == [("damage", "a", 1)]


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


def test_our_own_chunks_are_listed_where_they_are() -> None:
    plan = plan_export(info(0, 25), 10, chunks(10, 10, 5), 5, "token")
    assert plan.copies == ()
    data = b"maxsize=10&0=default/d/0&10=default/d/1&20=default/d/2&"
    assert encode_header(plan.entries) == data


def test_what_a_header_cannot_say_is_copied() -> None:
    dead_head = plan_export(info(3, 25), 10, chunks(10, 10, 5), 5, "t")
    assert dead_head.copies == (PlannedChunk("s$offset.3.t", 3, 7),)
    longer = plan_export(info(0, 25), 10, chunks(10, 10, 5), 6, "t")
    assert longer.copies == (PlannedChunk("s$offset.20.t", 20, 5),)
    both = plan_export(info(3, 10), 10, chunks(10), 11, "t")
    assert both.copies == (PlannedChunk("s$offset.3.t", 3, 7),)
    nothing_left = plan_export(info(25, 25), 10, [], 0, "t")
    assert nothing_left.copies == (PlannedChunk("s$offset.25.t", 25, 0),)
    assert plan_export(info(20, 25), 10, chunks(5, begin=20), 5, "t").copies == ()
    assert plan_export(info(0, 0), 10, [], 0, "t").copies == ()


def test_chunks_without_end() -> None:
    header = decode_header(encode_header(plan_export(info(), NO_LIMIT, [], 0, "t").entries))
    assert header.size_bytes_max == NUMBER_MAX
    assert rolling_of(header.size_bytes_max).chunk_size_bytes_max == NO_LIMIT
    assert rolling_of(None).chunk_size_bytes_max == NO_LIMIT
    assert rolling_of(7).chunk_size_bytes_max == 7


@pytest.mark.parametrize("name", ["a", "scope/stream/0.#epoch.0", "a$header", "ü" * 100, "a=b"])
def test_names_of_files(name: str) -> None:
    check_file_name(name)


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
