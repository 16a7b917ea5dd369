"""The verb that runs on Spark: ``spark offload``.

Promises: ``--dry-run`` starts no Spark, asks nobody and changes nothing; Ctrl-C cancels
the tasks, ends what was begun and leaves nothing half visible; the same command again goes on. Leaves out: the job
(``chunkstore.spark.jobs``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from chunkstore.cli import options
from chunkstore.cli.output import human_bytes, meter, print_json, print_table
from chunkstore.errors import Unsupported

__all__ = ["offload"]

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
        int,
        typer.Option(
            "--segment-size", parser=options.size, metavar="SIZE", help="An offload segment is completed at this size."
        ),
    ] = 64 << 20,
    part_size: Annotated[
        int,
        typer.Option(
            "--part-size",
            parser=options.size,
            metavar="SIZE",
            help="Approximate bytes that become visible with each commit.",
        ),
    ] = 16 << 30,
    job: Annotated[
        str | None,
        typer.Option(
            "--job", metavar="NAME", help="Name of the job in the container.", show_default="made of the files"
        ),
    ] = None,
    dry_run: options.DryRun = False,
    master: Master = None,
    container: options.Container = "default",
    as_json: options.AsJson = False,
) -> None:
    """Write files to ledgers of a topic. Its owner commits; the same command again continues, or does nothing."""
    _need()
    from chunkstore.spark.jobs.offload import offload_files
    from chunkstore.spark.jobs.source_files import find_files
    from chunkstore.spark.write_options import parse_write_options

    given = {"path": root, "container": container, "topic": topic, "chunkBytes": str(segment_size)}
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
