"""Verbs that change segments: ``truncate``, ``seal``, ``unseal``, ``rm``, ``concat``. Each is one committed operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from chunkstore.cli import access, options
from chunkstore.cli.options import argument
from chunkstore.cli.output import human_bytes
from chunkstore.errors import BadOffset, InvalidArgument
from chunkstore.records.segments import LayoutChunk, SegmentInfo

__all__ = ["concat", "rm", "seal", "truncate", "unseal"]


def _show_segment(here: access.Reading, info: SegmentInfo) -> None:
    state = "sealed" if info.sealed else "open"
    here.show(info, {"segment": info.name, "start": info.start_offset, "length": info.length, "state": state})


def _show_plan(here: access.Reading, action: str, segment: str, freed_bytes: int, chunks: int) -> None:
    """What a destructive verb would do; ``requests`` are the deletions that collection needs afterwards."""
    plan = {"action": action, "segment": segment, "chunks": chunks, "bytes": freed_bytes}
    text = f"{human_bytes(freed_bytes)} become unreadable, {chunks} chunks become garbage"
    here.show(
        {"actions": [plan], "bytes": freed_bytes, "requests": chunks}, {"would": f"{action} {segment}", "then": text}
    )


def _whole_chunks(chunks: Iterable[LayoutChunk], below: int) -> int:
    count = 0
    for chunk in chunks:
        if chunk.offset + chunk.length > below:
            break
        count += 1
    return count


def truncate(
    root: options.Root,
    segment: options.Segment,
    offset: Annotated[int, argument("OFFSET", "New first readable offset.", parser=options.size)],
    *,
    dry_run: options.DryRun = False,
    here: access.Owning,
) -> None:
    """Truncate a segment's head: everything below OFFSET becomes unreadable for ever."""
    if offset < 0:
        raise InvalidArgument("OFFSET must not be negative", argument="OFFSET")
    if dry_run:
        with here.replica(root) as store:
            info = store.info(segment)
            if offset > info.length:
                raise BadOffset(segment, expected=info.length, given=offset)
            freed_bytes = max(0, offset - info.start_offset)
            chunks = _whole_chunks(store.layout(segment), offset) if freed_bytes else 0
        _show_plan(here, "truncate", segment, freed_bytes, chunks)
        return
    with here.owner(root) as changed:
        changed.truncate(segment, offset)
        info = changed.info(segment)
    _show_segment(here, info)


def seal(root: options.Root, segment: options.Segment, *, here: access.Owning) -> None:
    """Seal a segment: it takes no more bytes."""
    with here.owner(root) as store:
        store.seal(segment)
        info = store.info(segment)
    _show_segment(here, info)


def unseal(root: options.Root, segment: options.Segment, *, here: access.Owning) -> None:
    """Let a sealed segment take bytes again."""
    with here.owner(root) as store:
        store.unseal(segment)
        info = store.info(segment)
    _show_segment(here, info)


def rm(root: options.Root, segment: options.Segment, *, dry_run: options.DryRun = False, here: access.Owning) -> None:
    """Delete a segment. Its name may be used again at once."""
    if dry_run:
        with here.replica(root) as store:
            info = store.info(segment)
        _show_plan(here, "rm", segment, info.length - info.start_offset, info.chunk_count)
        return
    with here.owner(root) as changed:
        info = changed.info(segment)
        changed.delete(segment)
    size_bytes = info.length - info.start_offset
    here.show(
        {"segment": segment, "deleted": True, "bytes": size_bytes},
        {"deleted": segment, "bytes": human_bytes(size_bytes)},
    )


def concat(
    root: options.Root,
    target: Annotated[str, argument("TARGET", "Segment that grows.")],
    source: Annotated[str, argument("SOURCE", "Sealed segment that ends.")],
    *,
    here: access.Owning,
) -> None:
    """Move SOURCE's bytes to the end of TARGET, without copying; SOURCE disappears."""
    with here.owner(root) as store:
        store.concat(target, store.info(target).length, source)
        info = store.info(target)
    _show_segment(here, info)
