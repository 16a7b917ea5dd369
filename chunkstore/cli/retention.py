"""``retention ls``, ``set``, ``rm``, ``apply``. Setting a policy deletes nothing; ``apply --dry-run`` claims nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from chunkstore import runtime
from chunkstore.cli import access, options
from chunkstore.cli.options import age_option, argument, option, size_option
from chunkstore.cli.output import human_bytes, print_facts, print_json, print_note, print_table, shown
from chunkstore.cli.streams import VerbFailed
from chunkstore.config import RetentionPolicy
from chunkstore.metadata.reserved import pattern_key
from chunkstore.records.arguments import moment_text
from chunkstore.upkeep.retention import RetentionReport

__all__ = ["apply", "ls", "rm", "set_"]

_Name = Annotated[str, argument("NAME|PREFIX*", "A segment's name, or a prefix and '*' (quote it).")]


class NoSuchPolicy(VerbFailed):
    """``retention rm``: no policy of this name. Python's ``set_retention`` answers False."""

    fields = ("name",)


def ls(root: options.Root, *, here: access.Reading) -> None:
    """List the policies."""
    with here.replica(root) as store:
        policies = store.retention()
    rows = [(name, policy.size_bytes_max, policy.age_s_max) for name, policy in policies.items()]
    columns = ("of", "size_bytes_max", "age_s_max")
    here.show_each(rows, columns, tuple, right=columns[1:], document=lambda row: _document(*row), none="no policies")


def _document(name: str, size_bytes_max: int | None, age_s_max: float | None) -> dict[str, object]:
    return {"name": name, "size_bytes_max": size_bytes_max, "age_s_max": age_s_max}


def set_(
    root: options.Root,
    name: _Name,
    *,
    size: Annotated[
        int | None, size_option("Keep at most this many bytes, in whole chunks.", "--size-bytes-max")
    ] = None,
    age: Annotated[float | None, age_option("Keep at most this age, in whole chunks.", "--age-s-max")] = None,
    here: access.Owning,
) -> None:
    """Set the policy of a segment or of a prefix. Deletes nothing."""
    policy = RetentionPolicy(size_bytes_max=size, age_s_max=age)
    pattern_key(name)
    with here.owner(root) as store:
        store.set_retention(name, policy)
        matched = any(store.segments(prefix=name[:-1])) if name.endswith("*") else store.exists(name)
    if not matched and not here.as_json:
        print_note(f"no segment {name!r} exists yet; the policy waits for one")
    if here.as_json:
        print_json(_document(name, size, age))
    else:
        typer.echo(f"{shown(name)}: set")


def rm(root: options.Root, name: _Name, *, here: access.Owning) -> None:
    """Remove the policy of a segment or of a prefix."""
    pattern_key(name)
    with here.owner(root) as store:
        if not store.set_retention(name, None):
            raise NoSuchPolicy(name, f"no policy {name!r} here; retention ls lists the policies")
    if here.as_json:
        print_json({"name": name, "removed": True})
    else:
        typer.echo(f"{shown(name)}: removed")


def apply(
    root: options.Root,
    *,
    dry_run: options.DryRun = False,
    ignore_times_after: Annotated[
        str | None, option("T", "Times of chunks after this one come from a wrong clock: ignore them.")
    ] = None,
    here: access.Owning,
) -> None:
    """Truncate segments by their policies."""
    ignored = options.moment_of(ignore_times_after, "--ignore-times-after")
    if dry_run:
        with here.replica(root) as replica:
            report = replica.due_retention(ignore_times_after=ignored)
    else:
        with here.owner(root) as store:
            report = store.apply_retention(ignore_times_after=ignored)
    _show_report(here, report, dry_run=dry_run)
    if report.refused:
        raise typer.Exit(1)


def _show_report(here: access.Reading, report: RetentionReport, *, dry_run: bool) -> None:
    if here.as_json:
        actions = [{"action": "truncate", **cut._asdict()} for cut in report.cuts]
        document = {"actions": actions, "bytes": report.size_bytes, "requests": report.chunks}
        print_json({**document, "segments": report.segments, "refused": report.refused, "future": report.future})
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
    if report.future:
        names = ", ".join(map(shown, report.future))
        print_note(
            f"age truncates no more in {names}: a chunk has a time after now. If a clock was wrong, add "
            f"--ignore-times-after {moment_text(runtime.now_ms())}"
        )
