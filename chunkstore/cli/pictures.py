"""Pictures of how bytes lie in chunks: as SVG text, and as lines for a terminal.

Promises: pure; plain data in, text out. A picture of a million chunks is as large as one of a few hundred: neighbours that are too
short to be seen are drawn as one. Names are escaped. Colours of epochs are the same in every picture, and every picture can be read on
a light and on a dark background. Leaves out: where the data come from, and files (``look``, ``usage``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from rich.text import Text

from chunkstore.cli.output import human_bytes, shown
from chunkstore.records import LayoutChunk, SegmentInfo

__all__ = [
    "Bucket",
    "Picture",
    "Shape",
    "Sizes",
    "gather",
    "histogram_svg",
    "layout_lines",
    "layout_svg",
]

_WIDTH, _MARGIN = 1000, 24
_INNER = _WIDTH - 2 * _MARGIN
_SHAPES_MAX = 300
"""Shapes of a picture, about: each is a few pixels wide at least."""
_EPOCHS_SHOWN = 8
_PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#7b6fd0", "#2f9e9a", "#9d755d", "#d4a017")
_TERMINAL_COLOURS = ("blue", "yellow", "green", "magenta", "bright_magenta", "cyan", "bright_blue", "bright_yellow")
_NAME_CHARS = 80


class Bucket(NamedTuple):
    """Chunks of ``from_bytes`` bytes or more, and fewer than ``to_bytes``."""

    from_bytes: int
    to_bytes: int
    chunks: int
    bytes: int


class Sizes:
    """Counts chunks by their sizes, in powers of two."""

    def __init__(self) -> None:
        self._chunks, self._bytes = Counter[int](), Counter[int]()

    def add(self, size_bytes: int) -> None:
        """One chunk more."""
        power = max(1, size_bytes).bit_length() - 1
        self._chunks[power] += 1
        self._bytes[power] += size_bytes

    def buckets(self) -> list[Bucket]:
        """From the smallest to the largest that has chunks; those between without any are among them."""
        if not self._chunks:
            return []
        powers = range(min(self._chunks), max(self._chunks) + 1)
        return [Bucket(1 << power, 2 << power, self._chunks[power], self._bytes[power]) for power in powers]


class Shape(NamedTuple):
    """One chunk, or several neighbours: bytes ``[start, stop)`` of the segment. ``epoch``: of the last of them. ``unknown``: chunks without
    a CRC; ``inline``: bytes of those in the journal's records. ``at``: the borders of the blocks of a single chunk, from its first byte, if
    they are known."""

    start: int
    stop: int
    chunks: int
    name: str
    epoch: int
    epoch_min: int
    epoch_max: int
    unknown: int
    inline: int
    growing: bool
    at: Sequence[int]


class Picture(NamedTuple):
    """What is drawn of a segment. ``epochs``: bytes by epoch, most first. ``garbage_bytes`` are the whole container's."""

    name: str
    start_offset: int
    first_offset: int
    stop: int
    chunks: int
    shapes: list[Shape]
    epochs: list[tuple[int, int]]
    unknown: int
    buckets: list[Bucket]
    garbage_bytes: int | None

    @property
    def inline_bytes(self) -> int:
        """Bytes that lie in the journal's records."""
        return sum(shape.inline for shape in self.shapes)

    @property
    def span(self) -> int:
        """Bytes from end to end, dead head included; at least 1."""
        return max(1, self.stop - self.first_offset)


def gather(
    info: SegmentInfo,
    chunks: Iterable[tuple[LayoutChunk, Sequence[int]]],
    *,
    garbage_bytes: int | None = None,
    shapes_max: int = _SHAPES_MAX,
) -> Picture:
    """What to draw of the chunks of a segment, in order, each with the borders of its blocks, or none. Memory: in proportion to
    ``shapes_max`` and the number of epochs."""
    shapes, epochs, sizes = list[Shape](), Counter[int](), Sizes()
    first, stop, count, least = info.start_offset, info.length, 0, 0.0
    for chunk, at in chunks:
        if not count:
            first = chunk.offset
            least = (info.length - first) / max(1, shapes_max)
        count += 1
        sizes.add(chunk.length)
        epochs[chunk.epoch] += chunk.length
        stop = max(stop, chunk.offset + chunk.length)
        if shapes and chunk.length < least and shapes[-1].stop - shapes[-1].start < least:
            shapes[-1] = _with(shapes[-1], chunk)
        else:
            shapes.append(_of_chunk(chunk, at))
    unknown = sum(shape.unknown for shape in shapes)
    ranked = epochs.most_common()
    return Picture(
        info.name, info.start_offset, first, stop, count, shapes, ranked, unknown, sizes.buckets(), garbage_bytes
    )


def _of_chunk(chunk: LayoutChunk, at: Sequence[int]) -> Shape:
    unknown, growing = int(chunk.crc32c is None), chunk.state == "active"
    epochs = chunk.epoch, chunk.epoch, chunk.epoch
    inline = chunk.length * (chunk.kind == "inline")
    return Shape(chunk.offset, chunk.offset + chunk.length, 1, chunk.name, *epochs, unknown, inline, growing, at)


def _with(run: Shape, chunk: LayoutChunk) -> Shape:
    start, _, chunks, _, _, lowest, highest, unknown, inline, _, _ = run
    lowest, highest = min(lowest, chunk.epoch), max(highest, chunk.epoch)
    unknown += chunk.crc32c is None
    inline += chunk.length * (chunk.kind == "inline")
    stop, growing = chunk.offset + chunk.length, chunk.state == "active"
    return Shape(start, stop, chunks + 1, "", chunk.epoch, lowest, highest, unknown, inline, growing, ())


# ---- SVG

_STYLE = """<style>
text{font:13px system-ui,sans-serif;fill:#24292f}
.paper{fill:#ffffff}.title{font-size:18px;font-weight:600}.dim{fill:#57606a}
.line{stroke:#8c959f;stroke-width:1;fill:none}.edge{stroke:#ffffff;stroke-width:1}
.known{fill:#8c959f}.tick{stroke:#ffffff;stroke-width:1}.many,.growing{pointer-events:none}.unknown{fill:#ffffff;stroke:#cf222e;stroke-width:1}
.ink{fill:#57606a}.inkline{stroke:#24292f;stroke-width:2}
.growing{fill:none;stroke:#24292f;stroke-width:2;stroke-dasharray:4 3}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.dim{fill:#9198a1}.edge,.tick{stroke:#0d1117}
.unknown{fill:#0d1117;stroke:#ff7b72}.ink{fill:#c9d1d9}.inkline{stroke:#e6edf3}.growing{stroke:#e6edf3}}
</style>
<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<path class="inkline" d="M0 0V6"/></pattern>
<pattern id="many" width="4" height="4" patternUnits="userSpaceOnUse"><path class="paper" d="M0 0h1.4v4h-1.4z"/></pattern></defs>
"""


def _document(height: int, body: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">'
    )
    return "\n".join((head, _STYLE + '<rect class="paper" width="100%" height="100%"/>', *body, "</svg>\n"))


def _safe(text: str) -> str:
    """Text for an SVG, where control characters cannot be, escaped or not."""
    return escape(shown(text))


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{_safe(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, hint: str = "", fill: str = "") -> str:
    fill = f' fill="{fill}"' if fill else ""
    place = f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.5):.2f}" height="{height:.1f}" class="{kind}"{fill}'
    return f"{place}><title>{_safe(hint)}</title></rect>" if hint else f"{place}/>"


def _short(name: str) -> str:
    text = shown(name)
    return text if len(text) <= _NAME_CHARS else f"{text[: _NAME_CHARS - 1]}\u2026"


def _colour(epoch: int) -> str:
    return _PALETTE[epoch % len(_PALETTE)]


def layout_svg(picture: Picture) -> str:
    """The chunks of a segment to scale: epochs in colours, what the start offset has cut off, which CRCs are known, and how many chunks
    there are of which size."""
    scale = _INNER / picture.span

    def at(offset: int) -> float:
        return _MARGIN + (offset - picture.first_offset) * scale

    body = [_text(_MARGIN, 38, _short(picture.name), "title"), _text(_MARGIN, 60, _summary(picture), "dim")]
    for shape in picture.shapes:
        body += _draw(shape, at(shape.start), at(shape.stop), scale)
    if picture.start_offset > picture.first_offset:
        hint = f"dead head: {human_bytes(picture.start_offset - picture.first_offset)} below the start offset"
        width = at(picture.start_offset) - _MARGIN
        body += [_rect(_MARGIN, 80, width, 64, "", hint, "url(#hatch)")]
    if not picture.shapes:
        body += [
            f'<rect x="{_MARGIN}" y="80" width="{_INNER}" height="64" class="line"/>',
            _text(_WIDTH / 2, 117, "no chunks", "dim", "middle"),
        ]
    else:
        for offset, label in _ticks(picture.first_offset, picture.stop):
            x = at(offset)
            anchor = "start" if x < _MARGIN + 30 else "end" if x > _WIDTH - _MARGIN - 30 else "middle"
            body += [f'<path class="line" d="M{x:.1f} 166v6"/>', _text(x, 188, label, "dim", anchor)]
    body.append(f'<path class="line" d="M{_MARGIN} 166H{_WIDTH - _MARGIN}"/>')
    legend, y = _legend(picture)
    body += legend
    if picture.buckets:
        body += [_text(_MARGIN, y + 16, "Sizes of chunks"), *_histogram(picture.buckets, y + 30)]
        y += 30 + _histogram_height(picture.buckets)
    return _document(y + 16, body)


def _draw(shape: Shape, left: float, right: float, scale: float) -> Iterator[str]:
    width = right - left
    what = f"{human_bytes(shape.stop - shape.start)} from byte {shape.start}"
    if shape.chunks == 1:
        crc = "CRC32C not known" if shape.unknown else f"blocks: {len(shape.at) - 1}" if shape.at else "CRC32C known"
        hint = f"{shape.name}: {what}, epoch {shape.epoch}, {crc}{', may grow' if shape.growing else ''}"
    else:
        epochs = f"epochs {shape.epoch_min} to {shape.epoch_max}, {shape.unknown} without CRC32C"
        hint = f"{shape.chunks} chunks: {what}, {epochs}"
    yield _rect(left, 80, width, 64, "edge", hint, _colour(shape.epoch))
    if shape.chunks > 1:
        yield _rect(left, 80, width, 64, "many", "", "url(#many)")
    if shape.growing:
        yield _rect(left + 1, 81, max(1.0, width - 2), 62, "growing")
    if shape.inline:
        yield _rect(left, 74, width * shape.inline / (shape.stop - shape.start), 4, "ink")
    yield _rect(left, 149, width, 10, "unknown" if shape.unknown else "known")
    if len(shape.at) > 1 and min(high - low for low, high in pairwise(shape.at)) * scale >= 3:
        ticks = "".join(f"M{left + border * scale:.1f} 149v10" for border in shape.at[1:-1])
        yield f'<path class="tick" d="{ticks}"/>'


def _count(chunks: int) -> str:
    return f"{chunks:,} chunk{'' if chunks == 1 else 's'}"


def _summary(picture: Picture) -> str:
    count = _count(picture.chunks)
    readable = f"bytes {picture.start_offset:,} to {picture.stop:,}"
    if not picture.chunks:
        return f"{readable}, {count}"
    mean = human_bytes(picture.span // picture.chunks)
    return f"{readable}: {human_bytes(picture.stop - picture.start_offset)} in {count}, {mean} each on average"


def _ticks(first: int, stop: int) -> list[tuple[int, str]]:
    """Offsets for an axis, round in binary units, and what they are called: from the beginning on, if only that tells them apart."""
    step = 1 << max(0, ((stop - first) // 8).bit_length())
    offsets = list(range(-(-first // step) * step, stop + 1, step))
    labels = [_round(offset) for offset in offsets]
    if len(set(labels)) < len(labels):
        offsets = list(range(first, stop + 1, step))
        labels = [f"+{_round(offset - first)}" for offset in offsets]
    return list(zip(offsets, labels, strict=True))


def _round(size_bytes: int) -> str:
    return human_bytes(size_bytes).replace(".0 ", " ")


def _legend(picture: Picture) -> tuple[list[str], int]:
    """What the colours and marks mean, and where it ends."""
    items = [
        (_rect(0, 0, 14, 12, "edge", "", _colour(epoch)), f"epoch {epoch}: {human_bytes(size)}")
        for epoch, size in sorted(picture.epochs[:_EPOCHS_SHOWN])
    ]
    if len(picture.epochs) > _EPOCHS_SHOWN:
        items.append(("", f"and {len(picture.epochs) - _EPOCHS_SHOWN:,} epochs more"))
    if picture.start_offset > picture.first_offset:
        size = human_bytes(picture.start_offset - picture.first_offset)
        items.append((_rect(0, 0, 14, 12, "", "", "url(#hatch)"), f"dead head: {size}"))
    if any(shape.chunks > 1 for shape in picture.shapes):
        many = _rect(0, 0, 14, 12, "ink") + _rect(0, 0, 14, 12, "many", "", "url(#many)")
        items.append((many, "several chunks"))
    if any(shape.growing for shape in picture.shapes):
        items.append((_rect(1, 1, 12, 10, "growing"), "may grow"))
    if picture.inline_bytes:
        items.append((_rect(0, 5, 14, 4, "ink"), f"in the journal's records: {human_bytes(picture.inline_bytes)}"))
    if picture.unknown:
        items.append((_rect(0, 1, 14, 10, "unknown"), f"CRC32C not known: {_count(picture.unknown)}"))
    if picture.chunks > picture.unknown:
        items.append((_rect(0, 1, 14, 10, "known"), "CRC32C known, and blocks"))
    body, x, y = list[str](), float(_MARGIN), 210
    for mark, label in items:
        width = (20 if mark else 0) + 7.2 * len(label) + 18
        if x > _MARGIN and x + width > _WIDTH - _MARGIN:
            x, y = float(_MARGIN), y + 22
        body.append(f'<g transform="translate({x:.1f} {y})">{mark}</g>')
        body.append(_text(x + (20 if mark else 0), y + 11, label))
        x += width
    if picture.garbage_bytes is not None:
        y += 36
        body.append(_text(_MARGIN, y, f"Garbage of the whole container: {human_bytes(picture.garbage_bytes)}"))
        if picture.garbage_bytes:
            width = min(_INNER, _INNER * picture.garbage_bytes / picture.span)
            beyond = " (longer than the segment)" if picture.garbage_bytes > picture.span else ""
            hint = f"to the scale of the segment{beyond}"
            body.append(_rect(_MARGIN, y + 8, width, 10, "line", hint, "url(#hatch)"))
    return body, y + 34


_ROW = 20


def _histogram_height(buckets: Sequence[Bucket]) -> int:
    return _ROW * len(buckets)


def _histogram(buckets: Sequence[Bucket], top: int) -> Iterator[str]:
    most_chunks = max((item.chunks for item in buckets), default=1)
    most_bytes = max((item.bytes for item in buckets), default=1)
    for number, item in enumerate(buckets):
        y = top + number * _ROW
        yield _text(_MARGIN + 150, y + 14, _between(item), "dim", "end")
        for x, part, label, colour in (
            (_MARGIN + 162, item.chunks / most_chunks, f"{item.chunks:,}", _PALETTE[0]),
            (_MARGIN + 562, item.bytes / max(1, most_bytes), human_bytes(item.bytes), _PALETTE[5]),
        ):
            if item.chunks:
                yield _rect(x, y + 2, 280 * part, _ROW - 4, "", "", colour)
                yield _text(x + max(0.5, 280 * part) + 6, y + 14, label)


def _between(item: Bucket) -> str:
    return f"{_round(item.from_bytes)} \u2013 {_round(item.to_bytes)}"


def histogram_svg(title: str, buckets: Sequence[Bucket]) -> str:
    """How many chunks there are of which size, and the bytes in them."""
    chunks, size = sum(item.chunks for item in buckets), sum(item.bytes for item in buckets)
    mean = f", {human_bytes(size // chunks)} each on average" if chunks else ""
    body = [
        _text(_MARGIN, 38, _short(title), "title"),
        _text(_MARGIN, 60, f"{_count(chunks)}, {human_bytes(size)}{mean}", "dim"),
        _text(_MARGIN + 162, 88, "chunks"),
        _text(_MARGIN + 562, 88, "bytes"),
        *_histogram(buckets, 96),
    ]
    return _document(112 + _histogram_height(buckets), body)


# ---- terminal


def layout_lines(picture: Picture, columns: int) -> Iterator[Text]:
    """The chunks of a segment to scale, for a terminal of so many columns. Best from a picture with about as many shapes."""
    yield Text(f"{_short(picture.name)}  {_summary(picture)}")
    if not picture.shapes:
        return
    cells, checks, number = Text(), Text(), 0
    for column in range(columns):
        offset = picture.first_offset + picture.span * (2 * column + 1) // (2 * columns)
        while number + 1 < len(picture.shapes) and picture.shapes[number].stop <= offset:
            number += 1
        shape = picture.shapes[number]
        colour = _TERMINAL_COLOURS[shape.epoch % len(_TERMINAL_COLOURS)]
        dead = offset < picture.start_offset
        cells.append(_cell(shape, number, dead=dead), f"dim {colour}" if dead else colour)
        checks.append("?" if shape.unknown else " ", "red")
    yield cells
    if picture.unknown:
        yield checks
    yield _axis(picture, columns)
    yield from _terminal_legend(picture)


def _cell(shape: Shape, number: int, *, dead: bool) -> str:
    if dead:
        return "\u2591"
    # Neighbours of one epoch are told apart.
    return "\u2592" if shape.chunks > 1 else "\u2588" if number % 2 == 0 else "\u2593"


def _axis(picture: Picture, columns: int) -> Text:
    line = [" "] * columns
    free = 0
    for offset, label in _ticks(picture.first_offset, picture.stop):
        column = min(columns - 1, (offset - picture.first_offset) * columns // picture.span)
        text = f"\u2575{label}"
        if column >= free and column + len(text) <= columns:
            line[column : column + len(text)] = text
            free = column + len(text) + 1
    return Text("".join(line).rstrip(), "dim")


def _terminal_legend(picture: Picture) -> Iterator[Text]:
    line = Text()
    for epoch, size in sorted(picture.epochs[:_EPOCHS_SHOWN]):
        line.append("\u2588 ", _TERMINAL_COLOURS[epoch % len(_TERMINAL_COLOURS)])
        line.append(f"epoch {epoch}: {human_bytes(size)}  ")
    if len(picture.epochs) > _EPOCHS_SHOWN:
        line.append(f"and {len(picture.epochs) - _EPOCHS_SHOWN:,} epochs more")
    yield line
    marks = []
    if picture.start_offset > picture.first_offset:
        marks.append(f"\u2591 dead head: {human_bytes(picture.start_offset - picture.first_offset)}")
    if any(shape.chunks > 1 for shape in picture.shapes):
        marks.append("\u2592 several chunks")
    marks.append(f"? CRC32C not known: {_count(picture.unknown)}" if picture.unknown else "CRC32C of all chunks known")
    if picture.inline_bytes:
        marks.append(f"in the journal's records: {human_bytes(picture.inline_bytes)}")
    if picture.garbage_bytes is not None:
        marks.append(f"garbage of the whole container: {human_bytes(picture.garbage_bytes)}")
    yield Text("  ".join(marks), "dim")
