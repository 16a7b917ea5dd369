"""Pictures of chunks: well formed, bounded and escaped whatever is drawn, and true to scale."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.cli.look import Picture, gather, layout_lines, layout_svg
from chunkstore.records import LayoutChunk, SegmentInfo

_SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>&\"'\x1b[31m\0\u202e\ufffe\ud800"


def picture(
    lengths: Sequence[int],
    *,
    first: int = 0,
    head: int = 0,
    epochs: Sequence[int] = (1,),
    unknown: frozenset[int] = frozenset(),
    name: str = "a",
    shapes_max: int = 300,
) -> Picture:
    chunks, offset = [], first
    for number, length in enumerate(lengths):
        state = "active" if number == len(lengths) - 1 else "closed"
        crc = None if number in unknown else 7
        epoch = epochs[number % len(epochs)]
        chunks.append(LayoutChunk(f"d/{number}", offset, length, crc, epoch, state, "object"))
        offset += length
    info = SegmentInfo(name, 1, first + head, offset, False, len(chunks), 1, {}, 0, 0)
    return gather(info, chunks, shapes_max=shapes_max)


def rects(svg: str, top: str) -> list[tuple[float, float]]:
    """Left edge and width of what stands at a height."""
    root = ET.fromstring(svg)
    found = [item for item in root.iter(f"{_SVG}rect") if item.get("y") == top]
    return [(float(item.get("x", "0")), float(item.get("width", "0"))) for item in found]


def test_chunks_are_drawn_to_scale() -> None:
    drawn = picture([100, 300, 600], first=5_000, head=50, epochs=(1, 9, 2), unknown=frozenset({1}))
    assert [(shape.start, shape.stop) for shape in drawn.shapes] == [(5_000, 5_100), (5_100, 5_400), (5_400, 6_000)]
    svg = layout_svg(drawn)
    chunks_and_head = (24.0, 95.2), (119.2, 285.6), (404.8, 571.2), (24.0, 47.6)
    assert [*sum(rects(svg, "80.0"), ())] == pytest.approx([*sum(chunks_and_head, ())])
    colours = re.findall(r'class="\w+" fill="(#\w+)"', svg)
    assert colours[0] == colours[1] != colours[2], "epochs 1 and 9 share one of eight colours"
    assert "epoch 9: 300 B" in svg and "dead head: 50 B" in svg and "may grow" in svg
    assert "CRC32C not known: 1" in svg and "5,000" in svg and "6,000" in svg
    text = [line.plain for line in layout_lines(drawn, 100)]
    assert text[1][:5] == "\u2591" * 5 and text[1][5] == "\u2588" and len(text[1]) == 100
    assert "epoch 9: 300 B" in text[2] and "CRC32C not known: 1" in text[3] and len(text) == 4


def test_what_lies_in_the_journal_is_marked() -> None:
    info = SegmentInfo("a", 1, 0, 1000, False, 4, 1, {}, 0, 0)
    lengths, kinds = (500, 400, 60, 40), ("object", "inline", "inline", "object")
    chunks = [
        LayoutChunk(f"d/{number}", sum(lengths[:number]), length, 7, 1, "closed", kind)
        for number, (length, kind) in enumerate(zip(lengths, kinds, strict=True))
    ]
    drawn = gather(info, chunks)
    assert drawn.inline_bytes == 460 and [shape.inline for shape in drawn.shapes] == [0, 400, 60, 0]
    assert [width for _, width in rects(layout_svg(drawn), "74.0")] == pytest.approx([952 * 0.4, 952 * 0.06])
    few = gather(info, chunks, shapes_max=5)  # the last two are one shape
    assert [shape.inline for shape in few.shapes] == [0, 400, 60]
    assert rects(layout_svg(few), "74.0")[1] == pytest.approx((24 + 952 * 0.9, 952 * 0.06))
    for text in (layout_svg(drawn), "".join(line.plain for line in layout_lines(drawn, 80))):
        assert "in the journal's records: 460 B" in text.replace("&#x27;", "'")
    assert "journal" not in layout_svg(picture([100]))


@pytest.mark.parametrize("columns", [1, 7, 80])
@pytest.mark.parametrize("lengths", [[], [1], [1 << 52], [1, 1 << 40, 1]])
def test_extremes(lengths: list[int], columns: int) -> None:
    drawn = picture(lengths, name="x" * 255)
    root = ET.fromstring(layout_svg(drawn))
    assert all(float(item.get("width", "0").rstrip("%")) <= 1000 for item in root.iter(f"{_SVG}rect"))
    lines = [line.plain for line in layout_lines(drawn, columns)]
    assert ("0 chunks" in lines[0]) == (not lengths) and len(lines) == (4 if lengths else 1)


def test_names_are_escaped() -> None:
    drawn = picture([5, 5], name=HOSTILE)
    svg = layout_svg(drawn)
    texts = [item.text or "" for item in ET.fromstring(svg.encode()).iter(f"{_SVG}text")]
    assert "script" not in svg.replace("&lt;script&gt;", "").replace("&lt;/script&gt;", "")
    assert texts[0].startswith("</text><script>alert(1)</script>&\"'\\x1b[31m\\x00\\u202e\\ufffe\\ud800")
    assert "\x1b" not in "".join(line.plain for line in layout_lines(drawn, 80))


def test_very_many_chunks_are_a_small_picture() -> None:
    drawn = picture([3] * 30_000 + [50_000] + [1] * 10_000, epochs=(3, 4), unknown=frozenset({7}))
    assert drawn.chunks == 40_001 and drawn.unknown == 1
    assert len(drawn.shapes) <= 3 * 300 + 1 and len(layout_svg(drawn)) < 300_000
    assert max(drawn.shapes, key=lambda shape: shape.stop - shape.start).name == "d/30000", "a long one stays itself"
    assert "several chunks" in layout_svg(drawn) and "30,001" not in layout_svg(drawn)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 1 << 40) | st.integers(1, 20), max_size=60),
    st.integers(0, 1 << 62),
    st.integers(0, 40),
    st.integers(1, 30),
)
def test_nothing_is_lost_in_a_picture(lengths: list[int], first: int, head: int, shapes_max: int) -> None:
    head = min(head, lengths[0] - 1) if lengths else 0
    drawn = picture(lengths, first=first, head=head, shapes_max=shapes_max)
    assert len(drawn.shapes) <= 3 * shapes_max + 1
    assert sum(shape.chunks for shape in drawn.shapes) == len(lengths)
    edges = [first, *(shape.stop for shape in drawn.shapes)]
    assert [shape.start for shape in drawn.shapes] == edges[:-1] and edges[-1] == first + sum(lengths)
    ET.fromstring(layout_svg(drawn))
    assert all(len(line.plain) == 40 for line in list(layout_lines(drawn, 40))[1:2])
