"""The group ``retention``: the policies that say what of segments is kept, and applying them: ``ls``, ``set``, ``rm``, ``apply``.

Promises: setting a policy deletes nothing; ``apply --dry-run`` looks through a replica and claims nothing.
Leaves out: what is due (``chunkstore.upkeep.retention``).
"""

from __future__ import annotations

from typing import Annotated

import typer

from chunkstore.cli import access, options
from chunkstore.cli.output import human_bytes, print_facts, print_json, print_table, shown
from chunkstore.config import RetentionPolicy
from chunkstore.errors import ChunkstoreError
from chunkstore.metadata.retention import pattern_key
from chunkstore.upkeep.retention import RetentionReport

__all__ = ["apply", "ls", "rm", "set_"]

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|PREFIX*", help="A segment's name, or a prefix and '*' (quote it).", show_default=False
    ),
]


class NoSuchPolicy(ChunkstoreError):
    """``retention rm``: no policy of this name. Python's ``set_retention`` answers False."""

    fields = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(f"no policy of {name!r} here; retention ls shows those that are set")
        self.name = name


def ls(
    root: options.Root,
    *,
    container: options.Container = "default",
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """List the policies."""
    with access.replica(root, container, cache_dir) as store:
        policies = store.retention()
    if as_json:
        for name, policy in policies.items():
            _print_policy(name, policy)
        return
    rows = [(name, policy.size_bytes_max, policy.age_s_max) for name, policy in policies.items()]
    print_table(("of", "size_bytes_max", "age_s_max"), rows, right=("size_bytes_max", "age_s_max"))


def _print_policy(name: str, policy: RetentionPolicy) -> None:
    print_json({"name": name, "size_bytes_max": policy.size_bytes_max, "age_s_max": policy.age_s_max})


def set_(
    root: options.Root,
    name: _Name,
    *,
    size: Annotated[
        int | None,
        typer.Option("--size-bytes-max", metavar="BYTES", help="Keep no more, in whole chunks.", show_default=False),
    ] = None,
    age: Annotated[
        float | None,
        typer.Option("--age-s-max", metavar="SECONDS", help="Keep nothing older, in whole chunks.", show_default=False),
    ] = None,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Set the policy of a segment or of a prefix. Deletes nothing."""
    policy = RetentionPolicy(size_bytes_max=size, age_s_max=age)
    pattern_key(name)
    with access.owner(
        root, container, cache_dir, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
    ) as store:
        store.set_retention(name, policy)
    if as_json:
        _print_policy(name, policy)
    else:
        typer.echo(f"{shown(name)}: set")


def rm(
    root: options.Root,
    name: _Name,
    *,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove the policy of a segment or of a prefix."""
    pattern_key(name)
    with access.owner(
        root, container, cache_dir, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
    ) as store:
        if not store.set_retention(name, None):
            raise NoSuchPolicy(name)
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        typer.echo(f"{shown(name)}: removed")


def apply(
    root: options.Root,
    *,
    dry_run: options.DryRun = False,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Truncate what the policies give up."""
    if dry_run:
        with access.replica(root, container, cache_dir) as looked_at:
            report = looked_at.due_retention()
    else:
        with access.owner(
            root, container, cache_dir, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
        ) as store:
            report = store.apply_retention()
    _print_report(report, dry_run=dry_run, as_json=as_json)
    if report.refused:
        raise typer.Exit(1)


def _print_report(report: RetentionReport, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        actions = [{"action": "truncate", **cut._asdict()} for cut in report.cuts]
        document = {"actions": actions, "bytes": report.size_bytes, "requests": report.chunks}
        print_json({**document, "segments": report.segments, "refused": report.refused})
        return
    rows = [(cut.segment, cut.start_offset, cut.offset, cut.chunks) for cut in report.cuts]
    if rows:
        columns = ("segment", "start", "new start", "chunks")
        print_table(columns, rows, right=columns[1:])
    text = (
        f"{len(rows)} of {report.segments} segments, {human_bytes(report.size_bytes)} in {report.chunks} whole chunks"
    )
    facts = {"would truncate" if dry_run else "truncated": text}
    print_facts(facts | ({"damaged": ", ".join(report.refused)} if report.refused else {}))
