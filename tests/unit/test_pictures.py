"""Pictures of chunks: well formed, bounded and escaped whatever is drawn, and true to scale."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest

from chunkstore.cli.look import Picture, gather, layout_lines, layout_svg
from chunkstore.records.segments import LayoutChunk, SegmentInfo

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


def test_names_are_escaped() -> None:
    drawn = picture([5, 5], name=HOSTILE)
    svg = layout_svg(drawn)
    texts = [item.text or "" for item in ET.fromstring(svg.encode()).iter(f"{_SVG}text")]
    assert "script" not in svg.replace("&lt;script&gt;", "").replace("&lt;/script&gt;", "")
    assert texts[0].startswith("</text><script>alert(1)</script>&\"'\\x1b[31m\\x00\\u202e\\ufffe\\ud800")
    assert "\x1b" not in "".join(line.plain for line in layout_lines(drawn, 80))
