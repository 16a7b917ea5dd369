"""Verbs that only look: ``ls``, ``stat``, ``layout``, ``containers``, ``owner``."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import typer
from rich.text import Text

from chunkstore import assembly
from chunkstore.cli import access, options
from chunkstore.cli.options import argument
from chunkstore.cli.output import (
    fields_of,
    human_bytes,
    human_time,
    is_terminal,
    print_facts,
    print_json,
    print_table,
    shown,
)
from chunkstore.records.segments import LayoutChunk, SegmentInfo

__all__ = ["containers", "layout", "layout_rows", "ls", "owner", "stat"]

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


def layout(root: options.Root, segment: options.Segment, *, here: access.Reading) -> None:
    """Show the chunks a segment is stitched together from, in order."""
    with here.replica(root) as store:
        if here.as_json:
            for chunk in store.layout(segment):
                print_json(chunk)
            return
        columns = ("offset", "length", "", "crc32c", "epoch", "state", "chunk")
        rows = layout_rows(store.layout(segment), shorten=is_terminal())
        print_table(columns, rows, right=("offset", "length", "epoch"))


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
