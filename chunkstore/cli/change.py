"""Verbs that change segments: ``truncate``, ``seal``, ``unseal``, ``rm``, ``concat``.

Promises: each is one committed operation, all or nothing; ``--dry-run`` looks through a replica and claims nothing.
Leaves out: removing the chunks' objects, which is the collector's work after the grace period.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from chunkstore.cli import access, options
from chunkstore.cli.output import human_bytes, print_facts, print_json
from chunkstore.errors import BadOffset, InvalidArgument
from chunkstore.records import LayoutChunk, SegmentInfo

__all__ = ["concat", "rm", "seal", "truncate", "unseal"]


def _print_segment(info: SegmentInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    state = "sealed" if info.sealed else "open"
    print_facts({"segment": info.name, "start": info.start_offset, "length": info.length, "state": state})


def _print_plan(action: str, segment: str, freed_bytes: int, chunks: int, *, as_json: bool) -> None:
    """What a destructive verb would do; ``requests`` are the deletions that collection needs afterwards."""
    if as_json:
        plan = {"action": action, "segment": segment, "chunks": chunks, "bytes": freed_bytes}
        print_json({"actions": [plan], "bytes": freed_bytes, "requests": chunks})
        return
    text = f"{human_bytes(freed_bytes)} become unreadable, {chunks} chunks become garbage"
    print_facts({"would": f"{action} {segment}", "then": text})


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
    offset: Annotated[int, typer.Argument(metavar="OFFSET", help="New first readable offset.", show_default=False)],
    *,
    dry_run: options.DryRun = False,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Cut a segment's head off: everything below OFFSET becomes unreadable for ever."""
    if offset < 0:
        raise InvalidArgument("OFFSET must not be negative", argument="OFFSET")
    if dry_run:
        with access.replica(root, container, cache_dir) as store:
            info = store.info(segment)
            if offset > info.length:
                raise BadOffset(segment, expected=info.length, given=offset)
            freed_bytes = max(0, offset - info.start_offset)
            chunks = _whole_chunks(store.layout(segment), offset) if freed_bytes else 0
        _print_plan("truncate", segment, freed_bytes, chunks, as_json=as_json)
        return
    with access.owner(
        root, container, cache_dir, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
    ) as changed:
        changed.truncate(segment, offset)
        info = changed.info(segment)
    _print_segment(info, as_json=as_json)


def seal(
    root: options.Root,
    segment: options.Segment,
    *,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Seal a segment: it takes no more bytes."""
    with access.owner(
        root, container, cache_dir, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
    ) as store:
        store.seal(segment)
        info = store.info(segment)
    _print_segment(info, as_json=as_json)


def unseal(
    root: options.Root,
    segment: options.Segment,
    *,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Let a sealed segment take bytes again."""
    with access.owner(
        root, container, cache_dir, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
    ) as store:
        store.unseal(segment)
        info = store.info(segment)
    _print_segment(info, as_json=as_json)


def rm(
    root: options.Root,
    segment: options.Segment,
    *,
    dry_run: options.DryRun = False,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete a segment. Its name may be used again at once."""
    if dry_run:
        with access.replica(root, container, cache_dir) as store:
            info = store.info(segment)
        _print_plan("rm", segment, info.length - info.start_offset, info.chunk_count, as_json=as_json)
        return
    with access.owner(
        root, container, cache_dir, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
    ) as changed:
        info = changed.info(segment)
        changed.delete(segment)
    if as_json:
        print_json({"segment": segment, "deleted": True, "bytes": info.length - info.start_offset})
    else:
        print_facts({"deleted": segment, "bytes": info.length - info.start_offset})


def concat(
    root: options.Root,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Segment that grows.", show_default=False)],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Sealed segment that ends.", show_default=False)],
    *,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Move SOURCE's bytes behind TARGET's, without copying; SOURCE disappears."""
    with access.owner(
        root, container, cache_dir, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
    ) as store:
        store.concat(target, store.info(target).length, source)
        info = store.info(target)
    _print_segment(info, as_json=as_json)
