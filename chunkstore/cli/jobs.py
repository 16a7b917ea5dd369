"""Verbs that run on Spark: ``spark offload``, ``spark scrub``, ``spark copy``.

Promises: ``--dry-run`` starts no Spark, asks nobody and changes nothing; Ctrl-C cancels
the tasks, ends what was begun and leaves nothing half visible; the same command again goes on. Leaves out: the jobs
(``chunkstore.spark.jobs``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from chunkstore.cli import options
from chunkstore.cli.output import human_bytes, meter, print_facts, print_json, print_table, shown
from chunkstore.config import Settings
from chunkstore.errors import InvalidArgument, Unsupported

__all__ = ["copy", "offload", "scrub"]

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="local[2], spark://HOST:PORT, sc://HOST (Spark Connect).",
        show_default="as Spark is configured",
    ),
]
_NEEDED: Final = ("pyarrow", "pandas", "pyspark", "google.protobuf")


def _need() -> None:
    for package in _NEEDED:
        try:
            import_module(package)
        except ImportError as error:
            text = (
                f"jobs on Spark need the extra 'spark' ({package} is missing): pip install 'chunkstore-engine[spark]'"
            )
            raise Unsupported(text, feature="spark") from error


@contextmanager
def _runner(title: str, master: str | None, *, dry_run: bool, as_json: bool) -> Iterator[tuple[Any, int]]:
    """What runs tasks, and about how many at one time. Of a dry run: nothing does."""
    if dry_run:
        yield _nowhere, 1
        return
    from chunkstore.spark.jobs.running import OnSpark, session_on

    with session_on(master) as spark, meter(title, None, as_json=as_json) as progress:
        run = OnSpark(spark, f"chunkstore {title}", progress.advance)
        yield run, run.width


def _nowhere(*_: object) -> list[Any]:
    raise AssertionError("a dry run has no tasks")


def offload(
    root: options.Root,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files and directories, or their URLs.", show_default=False)
    ],
    *,
    topic: Annotated[str, typer.Option("--topic", metavar="T", help="The topic.", show_default=False)],
    ledger: Annotated[int, typer.Option("--ledger", metavar="L", help="The number of the first ledger.")] = 0,
    entries: Annotated[
        str,
        typer.Option(
            "--entries", metavar="KIND", help="lines: a ledger for each file; files: one ledger, an entry for each."
        ),
    ] = "lines",
    segment_size: Annotated[
        int, typer.Option("--segment-size", metavar="BYTES", help="An offload segment is completed at this size.")
    ] = 64 << 20,
    part_size: Annotated[
        int, typer.Option("--part-size", metavar="BYTES", help="About so much becomes visible with each commit.")
    ] = 16 << 30,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="NAME", help="What the container remembers it by.", show_default="made of the files"
        ),
    ] = None,
    dry_run: options.DryRun = False,
    master: Master = None,
    container: options.Container = "default",
    as_json: options.AsJson = False,
) -> None:
    """Write files to ledgers of a topic. Its owner commits; the same command again goes on behind what is there, or does nothing."""
    _need()
    from chunkstore.spark.jobs.offload import offload_files
    from chunkstore.spark.jobs.source_files import find_files
    from chunkstore.spark.write_options import parse_write_options

    given = {"path": root, "container": container, "as": "ledger", "topic": topic, "chunkBytes": str(segment_size)}
    chosen, found = parse_write_options(given, streaming=False), find_files(files)
    with _runner(f"offload {topic}", master, dry_run=dry_run, as_json=as_json) as (run, width):
        parts = offload_files(
            run, found, chosen, kind=entries, ledger=ledger, job=job, part_bytes=part_size, width=width, dry_run=dry_run
        )  # fmt: skip
    if as_json:
        for part in parts:
            print_json(part)
        return
    columns = ("part", "state", "files", "first ledger", "last ledger", "entries", "bytes", "segments")
    rows = ((*part[:6], human_bytes(part.size_bytes or 0), part.segments) for part in parts)
    print_table(columns, rows, right=tuple(name for name in columns if name != "state"))


def scrub(
    root: options.Root,
    segments: Annotated[
        list[str] | None, typer.Argument(metavar="[SEGMENT...]", help="Only these.", show_default=False)
    ] = None,
    *,
    dry_run: options.DryRun = False,
    master: Master = None,
    container: options.Container = "default",
    foreign_roots: options.ForeignRoots = None,
    as_json: options.AsJson = False,
) -> None:
    """Read every chunk on executors and compare its checksums. Only reads. Exit code 1: something is damaged or missing."""
    _need()
    from chunkstore.spark.jobs.scrub import scrub_on

    with _runner(f"scrub {container}", master, dry_run=dry_run, as_json=as_json) as (run, width):
        found = scrub_on(
            run,
            root,
            container=container,
            segments=segments or None,
            width=width,
            dry_run=dry_run,
            settings=Settings(foreign_roots=tuple(foreign_roots or ())),
        )
    bad = [item for item in found.bad if item.state != "planned"]
    ok = all(item.state == "unreachable" for item in bad)
    facts = {
        "ok": ok,
        "lsn": found.lsn,
        "chunks": len(found.chunks),
        "size_bytes": found.size_bytes,
        "tasks": found.tasks,
    }
    if as_json:
        print_json({**facts, "dry_run": dry_run, "findings": bad})
    else:
        if bad:
            print_table(("segment", "chunk", "offset", "length", "state", "error"), bad, right=("offset", "length"))
        read = f"{len(found.chunks)} chunks, {human_bytes(found.size_bytes)}"
        said = "would be read" if dry_run else "sound" if ok else "DAMAGED"
        typer.echo(shown(f"{container}: {said} ({read}, lsn {found.lsn})"))
    if not ok:
        raise typer.Exit(1)


def copy(
    root: options.Root,
    new_root: Annotated[str, typer.Argument(metavar="NEWROOT", help="Root of the new container.", show_default=False)],
    segments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SEGMENT...]", help="Only these; PREFIX* takes all that begin so.", show_default=False),
    ] = None,
    *,
    new_container: Annotated[
        str | None,
        typer.Option("--new-container", metavar="NAME", help="Name of the new container.", show_default="the same"),
    ] = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--anew",
            help="An earlier copy that did not end: go on with it, as of when it began; or begin as of now.",
            show_default=False,
        ),
    ] = None,
    no_pin: Annotated[
        bool, typer.Option("--no-pin", help="Do not ask for a pin: nobody collects from ROOT, or it holds backups.")
    ] = False,
    dry_run: options.DryRun = False,
    master: Master = None,
    container: options.Container = "default",
    foreign_roots: options.ForeignRoots = None,
    as_json: options.AsJson = False,
) -> None:
    """Copy a container into a new one on any storage; every byte is compared. Interrupted, --resume goes on."""
    _need()
    if root == new_root and new_container in (None, container):
        raise InvalidArgument(
            "that is the container itself: name another root, or --new-container", argument="new_root"
        )
    from chunkstore.spark.jobs.copy import copy_on

    chosen: Sequence[str] = segments or ()
    with _runner(f"copy {container}", master, dry_run=dry_run, as_json=as_json) as (run, width):
        report = copy_on(
            run,
            root,
            new_root,
            container=container,
            new_container=new_container,
            segments=chosen,
            resume=resume,
            no_pin=no_pin,
            dry_run=dry_run,
            width=width,
            settings=Settings(foreign_roots=tuple(foreign_roots or ())),
        )
    if as_json:
        print_json(report)
        return
    facts = {
        "copied" if report.copied else "would be copied": report.container,
        "lsn": report.lsn,
        "segments": report.segments,
        "chunks": report.chunks,
        "bytes": human_bytes(report.size_bytes),
        "table rows": report.rows,
    }
    print_facts(facts)
