"""``spark offload``, and ``demo``."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Final

from chunkstore.cli import access, options
from chunkstore.cli.options import argument, flag, option, size_option
from chunkstore.cli.output import human_bytes, meter

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
    here: access.Reading,
) -> None:
    """Write files to ledgers of a topic. Its owner commits; the same command again continues, or does nothing."""
    with access.needs("spark", "jobs on Spark"):
        for package in _NEEDED:
            import_module(package)
    from chunkstore.spark.job_runner import OnSpark, session_on
    from chunkstore.spark.jobs import OffloadJob

    work = OffloadJob(
        files,
        root,
        topic,
        container=here.container,
        entries=entries,
        ledger=ledger,
        job=job,
        chunk_bytes=segment_size,
        part_bytes=part_size,
    )
    if dry_run:
        parts = work.plan()
    else:
        title = f"offload {topic}"
        with session_on(master) as spark, meter(title, None, as_json=here.as_json) as progress:
            parts = work.run(OnSpark(spark, f"chunkstore {title}", progress))
    columns = ("part", "state", "files", "first ledger", "last ledger", "entries", "bytes", "segments")
    here.show_each(
        parts,
        columns,
        lambda part: (*part[:6], human_bytes(part.size_bytes or 0), part.segments),
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
