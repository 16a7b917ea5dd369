"""The verb ``usage``: what a container, or one segment of it, takes up.

Promises: nothing is claimed or changed, and no chunk is listed; rows of chunks are read only for a histogram.
Leaves out: counting (``chunkstore.upkeep.usage``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from chunkstore.cli import access, options
from chunkstore.cli.output import (
    fields_of,
    human_bytes,
    human_time,
    is_terminal,
    print_facts,
    print_json,
    print_table,
    write_picture,
)
from chunkstore.cli.pictures import Bucket, Sizes, histogram_svg
from chunkstore.replica import Replica

__all__ = ["usage"]

_BAR_CELLS = 40


def usage(
    root: options.Root,
    segment: Annotated[str | None, typer.Argument(metavar="[SEGMENT]", help="Only this segment.")] = None,
    *,
    histogram: Annotated[
        bool, typer.Option("--histogram", help="Also how many chunks there are of which size; looks at all of them.")
    ] = False,
    svg: options.Svg = None,
    here: access.Reading,
) -> None:
    """Show how much space is taken up, and by what."""
    with here.replica(root) as store:
        used = store.usage(segment)
        buckets = _sizes(store, segment) if histogram or svg is not None else None
    if buckets is not None and svg is not None:
        picture = histogram_svg(f"Chunks of {segment or here.container}", buckets)
        if not write_picture(svg, picture, as_json=here.as_json):
            return
    if here.as_json:
        print_json(used if buckets is None else {**used._asdict(), "histogram": buckets})
        return
    facts: dict[str, object] = {}
    for name, value in fields_of(used).items():
        if not isinstance(value, int):
            continue  # not known here, or not of one segment
        what, _, unit = name.rpartition("_")
        shown = {"bytes": human_bytes, "ms": human_time}.get(unit, str)(value)
        label = {"bytes": what, "ms": f"{what} at"}.get(unit, name)
        facts[label.replace("_", " ")] = shown
    print_facts(facts)
    if buckets:
        columns = ("from", "below", "chunks", "bytes", "")
        print_table(columns, _rows(buckets), right=columns[:-1])


def _rows(buckets: list[Bucket]) -> Iterator[tuple[object, ...]]:
    """For people or, in a pipe, in plain numbers."""
    most = max(item.chunks for item in buckets)
    for low, high, chunks, size in buckets:
        if is_terminal():
            yield human_bytes(low), human_bytes(high), chunks, human_bytes(size), _bar(chunks, most)
        else:
            yield low, high, chunks, size


def _bar(count: int, most: int) -> Text:
    """At least a trace of what is there at all."""
    return Text("\u2588" * -(-_BAR_CELLS * count // most), style="blue")


def _sizes(store: Replica, segment: str | None) -> list[Bucket]:
    sizes = Sizes()
    for name in [segment] if segment is not None else (info.name for info in store.segments()):
        for chunk in store.layout(name):
            sizes.add(chunk.length)
    return sizes.buckets()
