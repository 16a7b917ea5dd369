"""``spark offload``, and ``demo``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final

from chunkstore.cli import access, options
from chunkstore.cli.options import argument, flag, option, size_option
from chunkstore.cli.output import human_bytes, meter, print_each

__all__ = ["demo", "offload"]

Master = Annotated[
    str | None,
    option(
        "URL",
        "local[2], spark://HOST:PORT, sc://HOST (Spark Connect).",
        "--master",
        show_default="as Spark is configured",
    ),
]
_NEEDED: Final = ("pyarrow", "pandas", "pyspark", "google.protobuf")


@contextmanager
def _runner(title: str, master: str | None, *, dry_run: bool, as_json: bool) -> Iterator[tuple[Any, int]]:
    """What runs tasks, and about how many at one time. Of a dry run: nothing does."""
    if dry_run:
        yield _nowhere, 1
        return
    from chunkstore.spark.jobs.running import OnSpark, session_on

    with session_on(master) as spark, meter(title, None, as_json=as_json) as progress:
        run = OnSpark(spark, f"chunkstore {title}", progress)
        yield run, run.width


def _nowhere(*_: object) -> list[Any]:
    raise AssertionError("a dry run has no tasks")


def offload(
    root: options.Root,
    files: Annotated[list[str], argument("FILE...", "Files and directories, or their URLs.", show_default=False)],
    *,
    topic: Annotated[str, option("T", "The topic.", show_default=False)],
    ledger: Annotated[int, option("L", "The number of the first ledger.")] = 0,
    entries: Annotated[
        str, option("KIND", "lines: a ledger for each file; files: one ledger, an entry for each.")
    ] = "lines",
    segment_size: Annotated[int, size_option("An offload segment is completed at this size.")] = 64 << 20,
    part_size: Annotated[int, size_option("Approximate bytes that become visible with each commit.")] = 16 << 30,
    job: Annotated[
        str | None, option("NAME", "Name of the job in the container.", show_default="made of the files")
    ] = None,
    dry_run: options.DryRun = False,
    master: Master = None,
    container: options.Container = "default",
    as_json: options.AsJson = False,
) -> None:
    """Write files to ledgers of a topic. Its owner commits; the same command again continues, or does nothing."""
    with access.needs("spark", "jobs on Spark"):
        for package in _NEEDED:
            import_module(package)
    from chunkstore.spark.jobs.offload import offload_files
    from chunkstore.spark.jobs.source_files import find_files
    from chunkstore.spark.write_options import parse_write_options

    given = {"path": root, "container": container, "topic": topic, "chunkBytes": str(segment_size)}
    chosen, found = parse_write_options(given, streaming=False), find_files(files)
    with _runner(f"offload {topic}", master, dry_run=dry_run, as_json=as_json) as (run, width):
        parts = offload_files(
            run, found, chosen, kind=entries, ledger=ledger, job=job, part_bytes=part_size, width=width, dry_run=dry_run
        )  # fmt: skip
    columns = ("part", "state", "files", "first ledger", "last ledger", "entries", "bytes", "segments")
    print_each(
        parts,
        columns,
        lambda part: (*part[:6], human_bytes(part.size_bytes or 0), part.segments),
        as_json=as_json,
        right=tuple(name for name in columns if name != "state"),
    )


def demo(
    root: Annotated[str | None, argument("[ROOT]", "Default: a new temporary directory.")] = None,
    *,
    seed: Annotated[int | None, option("N", "Decides when the writer is killed.")] = None,
    rows: Annotated[int | None, option("N", "Only the first N flights, 2000 or more.")] = None,
    spark: Annotated[bool, flag("Let Spark SQL count the events, too, where it can run.", "--spark/--no-spark")] = True,
    as_json: options.AsJson = False,
) -> None:
    """Offload a year of real flights, kill the writer with SIGKILL, resume without its cache, and compare."""
    from chunkstore import demo as demonstration

    demonstration.run(root, seed=seed, as_json=as_json, rows=rows, spark=spark)
