"""Verbs that only look: ``ls``, ``stat``, ``layout``, ``containers``, ``owner``; and pictures of how a segment's bytes are in chunks.

A picture of a million chunks is as large as one of a few hundred: short neighbours are drawn as one. Colours of epochs are the same in
every picture."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from html import escape
from itertools import islice
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from chunkstore import assembly
from chunkstore.cli import access, options
from chunkstore.cli.options import argument, flag
from chunkstore.cli.output import (
    fields_of,
    human_bytes,
    human_time,
    is_terminal,
    print_facts,
    print_json,
    print_table,
    shown,
    write_picture,
)
from chunkstore.engine.replica import Replica
from chunkstore.records.segments import LayoutChunk, SegmentInfo

__all__ = [
    "Picture",
    "Shape",
    "containers",
    "gather",
    "layout",
    "layout_lines",
    "layout_rows",
    "layout_svg",
    "ls",
    "owner",
    "stat",
]

_BAR_CELLS = 24
_SHOWN_AT_EACH_END = 50


def ls(
    root: options.Root,
    prefix: Annotated[str, argument("[PREFIX]", "Only names with this prefix.", show_default=False)] = "",
    *,
    here: access.Past,
) -> None:
    """List segments, in name order."""
    with here.replica(root) as store:
        none = f"no segment begins with {prefix!r}" if prefix else f"no segments in container {here.container!r}"
        columns = ("segment", "start", "length", "state", "chunks", "epoch", "modified")
        here.show_each(
            store.segments(prefix=prefix), columns, _ls_row, right=("start", "length", "chunks", "epoch"), none=none
        )


def _ls_row(info: SegmentInfo) -> tuple[object, ...]:
    state = "sealed" if info.sealed else "open"
    modified = human_time(info.modified_at)
    return (info.name, info.start_offset, info.length, state, info.chunk_count, info.owner_epoch, modified)


def stat(
    root: options.Root,
    segment: options.Segment,
    *,
    here: access.Past,
) -> None:
    """Show one segment."""
    with here.replica(root) as store:
        info = store.info(segment)
    facts = fields_of(info)
    facts["stored"] = human_bytes(info.length - info.start_offset)
    facts["created_at"] = human_time(info.created_at)
    facts["modified_at"] = human_time(info.modified_at)
    facts["attributes"] = ", ".join(f"{key}={value!r}" for key, value in info.attributes.items()) or "none"
    here.show(info, facts)


def layout(
    root: options.Root,
    segment: options.Segment,
    *,
    svg: options.Svg = None,
    draw: Annotated[bool, flag("Only draw the chunks, to scale; also in a pipe.")] = False,
    here: access.Reading,
) -> None:
    """Show the chunks a segment is stitched together from, in order."""
    with here.replica(root) as store:
        if svg is not None and not write_picture(svg, layout_svg(_picture(store, segment)), as_json=here.as_json):
            return
        if here.as_json:
            for chunk in store.layout(segment):
                print_json(chunk)
            return
        if draw or is_terminal():
            console = Console(highlight=False)
            for line in layout_lines(_picture(store, segment, shapes_max=console.width), console.width):
                console.print(line, no_wrap=True, crop=False, soft_wrap=True)
        if draw or (svg is not None and not is_terminal()):
            return
        columns = ("offset", "length", "", "crc32c", "epoch", "state", "chunk")
        rows = layout_rows(store.layout(segment), shorten=is_terminal())
        print_table(columns, rows, right=("offset", "length", "epoch"))


def _picture(store: Replica, segment: str, **bounds: int) -> Picture:
    return gather(store.info(segment), store.layout(segment), **bounds)


def layout_rows(chunks: Iterable[LayoutChunk], *, shorten: bool) -> Iterator[tuple[object, ...]]:
    """Table rows of a chunk list; ``shorten`` keeps the two ends of a long one and draws a bar of each chunk's length."""
    if not shorten:
        for chunk in chunks:
            yield (chunk.offset, chunk.length, chunk.kind, _crc(chunk), chunk.epoch, chunk.state, _where(chunk))
        return
    remaining = iter(chunks)
    head = list(islice(remaining, 2 * _SHOWN_AT_EACH_END))
    left_out = 0
    tail: deque[LayoutChunk] = deque(maxlen=_SHOWN_AT_EACH_END)
    for chunk in remaining:
        left_out += len(tail) == tail.maxlen
        tail.append(chunk)
    longest = max((chunk.length for chunk in (*head, *tail)), default=0)
    for chunk in head:
        yield _drawn(chunk, longest)
    if left_out:
        yield ("", "", f"... {left_out} more ...", "", "", "", "all of them: --json, or a pipe")
    for chunk in tail:
        yield _drawn(chunk, longest)


def _drawn(chunk: LayoutChunk, longest: int) -> tuple[object, ...]:
    cells = max(1, round(_BAR_CELLS * chunk.length / longest)) if longest else 0
    bar = Text("\u2588" * cells, style="green" if chunk.state == "active" else "blue")
    return (chunk.offset, human_bytes(chunk.length), bar, _crc(chunk), chunk.epoch, chunk.state, _where(chunk))


def _where(chunk: LayoutChunk) -> str:
    """Its object; of an extent, which is in a record of the journal, also the byte there."""
    return f"{chunk.name} from byte {chunk.object_offset}" if chunk.kind == "inline" else chunk.name


def _crc(chunk: LayoutChunk) -> str:
    return "unknown" if chunk.crc32c is None else f"{chunk.crc32c:08x}"


def containers(root: options.Root, *, as_json: options.AsJson = False) -> None:
    """List the containers under a root."""
    for name in assembly.list_containers(root):
        if as_json:
            print_json({"container": name})
        else:
            typer.echo(shown(name))


def owner(root: options.Root, *, container: options.Container = "default", as_json: options.AsJson = False) -> None:
    """Show who claimed the container last, and whether that process looked alive."""
    facts = assembly.describe_owner(root, container)
    if as_json:
        print_json(facts)
        return
    claimed_at, lease = facts["claimed_at"], facts["lease"]
    if isinstance(claimed_at, int):
        facts["claimed_at"] = human_time(claimed_at)
    if isinstance(lease, dict):
        state = "released" if lease["released"] else "held"
        facts["lease"] = f"{state} by pid {lease['pid']} on {lease['host']}, epoch {lease['epoch']}"
    print_facts(facts)


_WIDTH, _MARGIN = 1000, 24
_INNER = _WIDTH - 2 * _MARGIN
_TOP, _HEIGHT = 80, 64
_SHAPES_MAX = 300
"""Shapes of a picture, about: each is a few pixels wide at least."""
_EPOCHS_SHOWN = 8
_PALETTE = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#7b6fd0", "#2f9e9a", "#9d755d", "#d4a017")
_TERMINAL_COLOURS = ("blue", "yellow", "green", "magenta", "bright_magenta", "cyan", "bright_blue", "bright_yellow")
_NAME_CHARS = 80


class Shape(NamedTuple):
    """One chunk, or several neighbours: bytes ``[start, stop)`` of the segment. ``epoch``: of the last of them. ``inline``: bytes of those
    in the journal's records."""

    start: int
    stop: int
    chunks: int
    name: str
    epoch: int
    inline: int
    growing: bool


class Picture(NamedTuple):
    """What is drawn of a segment. ``epochs``: bytes by epoch, most first. ``unknown``: chunks without a CRC."""

    name: str
    start_offset: int
    first_offset: int
    stop: int
    chunks: int
    shapes: list[Shape]
    epochs: list[tuple[int, int]]
    unknown: int

    @property
    def inline_bytes(self) -> int:
        """Bytes that are in the journal's records."""
        return sum(shape.inline for shape in self.shapes)

    @property
    def span(self) -> int:
        """Bytes from end to end, dead head included; at least 1."""
        return max(1, self.stop - self.first_offset)


def gather(info: SegmentInfo, chunks: Iterable[LayoutChunk], *, shapes_max: int = _SHAPES_MAX) -> Picture:
    """What to draw of the chunks of a segment, in order. Memory: in proportion to ``shapes_max`` and the number of epochs."""
    shapes, epochs = list[Shape](), Counter[int]()
    first, stop, count, unknown, least = info.start_offset, info.length, 0, 0, 0.0
    for chunk in chunks:
        if not count:
            first = chunk.offset
            least = (info.length - first) / max(1, shapes_max)
        count += 1
        unknown += chunk.crc32c is None
        epochs[chunk.epoch] += chunk.length
        end = chunk.offset + chunk.length
        stop = max(stop, end)
        inline, growing = chunk.length * (chunk.kind == "inline"), chunk.state == "active"
        if shapes and chunk.length < least and shapes[-1].stop - shapes[-1].start < least:
            run = shapes[-1]
            shapes[-1] = Shape(run.start, end, run.chunks + 1, "", chunk.epoch, run.inline + inline, growing)
        else:
            shapes.append(Shape(chunk.offset, end, 1, chunk.name, chunk.epoch, inline, growing))
    return Picture(info.name, info.start_offset, first, stop, count, shapes, epochs.most_common(), unknown)


def _short(name: str) -> str:
    text = shown(name)
    return text if len(text) <= _NAME_CHARS else f"{text[: _NAME_CHARS - 1]}\u2026"


def _summary(picture: Picture) -> str:
    count = f"{picture.chunks:,} chunk{'' if picture.chunks == 1 else 's'}"
    return f"bytes {picture.start_offset:,} to {picture.stop:,}, {count}"


def _epochs(picture: Picture) -> Iterator[tuple[int | None, str]]:
    """Each epoch of the legend, and what is said of it."""
    for epoch, size in sorted(picture.epochs[:_EPOCHS_SHOWN]):
        yield epoch, f"epoch {epoch}: {human_bytes(size)}"
    if len(picture.epochs) > _EPOCHS_SHOWN:
        yield None, f"and {len(picture.epochs) - _EPOCHS_SHOWN:,} epochs more"


def _facts(picture: Picture) -> str:
    """What the colours do not say."""
    facts = list[str]()
    if picture.start_offset > picture.first_offset:
        facts.append(f"dead head: {human_bytes(picture.start_offset - picture.first_offset)}")
    if any(shape.chunks > 1 for shape in picture.shapes):
        facts.append("light: several chunks")
    if picture.inline_bytes:
        facts.append(f"in the journal's records: {human_bytes(picture.inline_bytes)}")
    facts.append(f"CRC32C not known: {picture.unknown:,}" if picture.unknown else "CRC32C of all chunks known")
    return "; ".join(facts)


# ---- SVG

_STYLE = """<style>text{font:13px system-ui,sans-serif;fill:#24292f}.paper{fill:#ffffff}.chunk{stroke:#ffffff}
.growing{stroke:#24292f;stroke-dasharray:4 3}.dead{fill:#24292f;fill-opacity:0.5}.ink{fill:#57606a}</style>
<rect class="paper" width="100%" height="100%"/>"""


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown(text))}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, epoch: int | None = None, hint: str = "") -> str:
    fill = "" if epoch is None else f' fill="{_PALETTE[epoch % len(_PALETTE)]}"'
    place = f'x="{x:.2f}" y="{y:.1f}" width="{max(width, 0.5):.2f}" height="{height:.1f}"'
    return f'<rect {place} class="{kind}"{fill}><title>{escape(shown(hint))}</title></rect>'


def layout_svg(picture: Picture) -> str:
    """The chunks of a segment to scale, epochs in colours, and what the start offset has cut off."""
    scale = _INNER / picture.span
    body = [_text(_MARGIN, 38, _short(picture.name)), _text(_MARGIN, 60, _summary(picture))]
    for shape in picture.shapes:
        left, width = _MARGIN + (shape.start - picture.first_offset) * scale, (shape.stop - shape.start) * scale
        what = shape.name if shape.chunks == 1 else f"{shape.chunks} chunks"
        hint = f"{what}: {human_bytes(shape.stop - shape.start)} from byte {shape.start}, epoch {shape.epoch}"
        kind = "growing" if shape.growing else "chunk"
        drawn = _rect(left, _TOP, width, _HEIGHT, kind, shape.epoch, hint + ", may grow" * shape.growing)
        body.append(drawn if shape.chunks == 1 else f'<g opacity="0.6">{drawn}</g>')
        if shape.inline:
            body.append(_rect(left, _TOP - 6, width * shape.inline / (shape.stop - shape.start), 4, "ink"))
    if picture.start_offset > picture.first_offset:
        body.append(_rect(_MARGIN, _TOP, (picture.start_offset - picture.first_offset) * scale, _HEIGHT, "dead"))
    body.append(_text(_MARGIN, 164, f"{picture.first_offset:,}"))
    body.append(_text(_WIDTH - _MARGIN, 164, f"{picture.stop:,}", "end"))
    y = 180
    for epoch, label in _epochs(picture):
        if epoch is not None:
            body.append(_rect(_MARGIN, y, 14, 12, "chunk", epoch))
        body.append(_text(_MARGIN + 20, y + 11, label))
        y += 20
    body.append(_text(_MARGIN, y + 11, _facts(picture)))
    size = f'width="{_WIDTH}" height="{y + 30}" viewBox="0 0 {_WIDTH} {y + 30}"'
    return "\n".join((f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', _STYLE, *body, "</svg>\n"))


# ---- terminal


def layout_lines(picture: Picture, columns: int) -> Iterator[Text]:
    """The chunks of a segment to scale, for a terminal of so many columns. Best from a picture with about as many shapes."""
    yield Text(f"{_short(picture.name)}  {_summary(picture)}")
    if not picture.shapes:
        return
    cells, number = Text(), 0
    for column in range(columns):
        offset = picture.first_offset + picture.span * (2 * column + 1) // (2 * columns)
        while number + 1 < len(picture.shapes) and picture.shapes[number].stop <= offset:
            number += 1
        shape = picture.shapes[number]
        colour = _TERMINAL_COLOURS[shape.epoch % len(_TERMINAL_COLOURS)]
        dead = offset < picture.start_offset
        cells.append(_cell(shape, number, dead=dead), f"dim {colour}" if dead else colour)
    yield cells
    legend = Text()
    for epoch, label in _epochs(picture):
        legend.append("" if epoch is None else "\u2588 ", _TERMINAL_COLOURS[(epoch or 0) % len(_TERMINAL_COLOURS)])
        legend.append(f"{label}  ")
    yield legend
    yield Text(_facts(picture), "dim")


def _cell(shape: Shape, number: int, *, dead: bool) -> str:
    if dead:
        return "\u2591"
    # Neighbours of one epoch are distinguished.
    return "\u2592" if shape.chunks > 1 else "\u2588" if number % 2 == 0 else "\u2593"
